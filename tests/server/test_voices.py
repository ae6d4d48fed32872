"""Named voices: stored once, used by name, never a path."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest

from rt_drama3 import Drama3
from rt_drama3.audio import write_wav
from tests.server.tools import Place, serving
from tests.small import ending_drama


def clip(tmp_path: Path, seconds: float = 0.4) -> bytes:
    time = np.arange(int(44_100 * seconds)) / 44_100
    write_wav(tmp_path / "clip.wav", (0.2 * np.sin(2764 * time)).astype(np.float32), 44_100)
    return (tmp_path / "clip.wav").read_bytes()


def test_a_voice_is_stored_used_and_forgotten(tmp_path: Path) -> None:
    audio = clip(tmp_path)
    with serving(ending_drama(), tmp_path / "data") as place:
        body = {"name": "Anna 2", "text": "Hello.", "audio": base64.b64encode(audio).decode()}
        answer = place.post("/v1/voices", json=body)
        assert answer.status_code == 201, answer.text
        assert answer.json()["seconds"] == pytest.approx(0.4)
        more = place.post(
            "/v1/voices?name=bob&text=Hi.", content=audio, headers={"Content-Type": "audio/wav"}
        )
        assert more.status_code == 201
        names = [voice["name"] for voice in place.get("/v1/voices").json()["data"]]
        assert names == ["Anna 2", "bob"]
        use(place, "Anna 2")
        files = sorted(path.name for path in (tmp_path / "data" / "voices").iterdir())
        assert len(files) == 4
        assert not any("nna" in name for name in files)
    with serving(ending_drama(), tmp_path / "data") as place:  # a new process finds them
        use(place, "bob")
        assert httpx_delete(place, "bob") == 200
        assert httpx_delete(place, "bob") == 404
        assert place.get("/v1/voices/Anna 2").status_code == 200
        answer = place.post("/v1/tts", json={"text": "Hi.", "reference_id": "bob"})
        assert answer.status_code == 404
    assert len(list((tmp_path / "data" / "voices").iterdir())) == 2


def use(place: Place, name: str) -> None:
    with place.native() as client:
        client.send("start", text="Hi.", final=True, voice=name)
        messages = client.take_until("done", "error")
    assert messages[-1]["type"] == "done", messages[-1]
    assert messages[0]["voice"] == name
    request = {"input": "Hi.", "voice": {"id": name}}
    assert place.post("/v1/audio/speech", json=request).status_code == 200


def httpx_delete(place: Place, name: str) -> int:
    import httpx

    return httpx.delete(f"{place.url}/v1/voices/{name}").status_code


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "", ".", "a/b", "x" * 200, 7])
def test_bad_names_are_refused(ending: Place, name: object) -> None:
    answer = ending.post("/v1/voices", json={"name": name, "text": "Hi.", "audio": "AAAA"})
    assert answer.status_code == 400
    assert answer.json()["code"] == "bad_field"


@pytest.mark.parametrize("audio", ["AAAA", "!", "/etc/passwd", "https://example.com/a.wav", None])
def test_bad_audio_is_refused(ending: Place, audio: object) -> None:
    answer = ending.post("/v1/voices", json={"name": "x", "text": "Hi.", "audio": audio})
    assert answer.status_code == 400
    assert answer.json()["code"] == "bad_reference"
    assert ending.get("/v1/voices/x").status_code == 404


def test_damaged_files_do_not_stop_the_server(tmp_path: Path) -> None:
    (tmp_path / "voices").mkdir()
    (tmp_path / "voices" / "a.json").write_text("{")
    (tmp_path / "voices" / "b.json").write_text("[]")
    with serving(ending_drama(), tmp_path) as place:
        assert place.get("/v1/voices").json()["data"] == []


def test_too_many_voices(tmp_path: Path) -> None:
    audio = base64.b64encode(clip(tmp_path)).decode()
    with serving(ending_drama(), tmp_path, max_voices=1) as place:
        statuses = [
            place.post("/v1/voices", json={"name": n, "text": "Hi.", "audio": audio}).status_code
            for n in ("a", "b", "a")
        ]
    assert statuses == [201, 400, 201]


def test_the_nano_voice_speaks_and_takes_voices_with_a_notice(nano: Drama3, tmp_path: Path) -> None:
    audio = base64.b64encode(clip(tmp_path)).decode()
    with serving(nano, tmp_path) as place:
        answer = place.post("/v1/voices", json={"name": "a", "text": "Hi.", "audio": audio})
        assert answer.status_code == 201
        assert "fixed voice" in answer.json()["notices"][0]
        answer = place.post("/v1/tts", json={"text": "Hi.", "reference_id": "a", "format": "wav"})
        assert answer.status_code == 200
        assert "fixed voice" in answer.headers["x-notice"]
        assert len(answer.content) > 20_000
        assert io.BytesIO(answer.content).read(4) == b"RIFF"
        with place.native() as client:
            client.send("start", text="Hi.", final=True, voice="a")
            assert "fixed voice" in client.take()["notices"][0]
