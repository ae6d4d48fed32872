"""Named voices: stored once, used by name, never a path."""

from __future__ import annotations

import base64
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from rt_drama3 import Drama3
from rt_drama3.audio import write_wav
from rt_drama3.protocol import Refused, parse_openai_speech
from rt_drama3.server.references.voices import Voice, VoiceStore
from tests.server.tools import Place, serving
from tests.small import WAIT, ending_drama


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
        voices = place.get("/v1/audio/voices").json()["voices"]
        assert voices[0] == {"id": "alloy", "name": "default"}
        assert voices[1:] == [{"id": name, "name": name} for name in names]
        for voice in voices:
            body = {"input": "Hi.", "voice": voice["id"]}
            assert place.post("/v1/audio/speech", json=body).status_code == 200
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


def test_openai_names_are_found_in_lower_case(tmp_path: Path) -> None:
    with serving(ending_drama(), tmp_path) as place:
        openings, limits = place.service.openings, place.service.limits

        def spoken_by(name: str) -> list[str]:
            body = f'{{"input": "Hi.", "voice": "{name}"}}'.encode()
            order = parse_openai_speech(body, place.service.facts, limits)
            return openings._stored(order)[1]

        assert spoken_by("Alloy") == []
        for name in ("alloy", "Nova", "anna"):
            place.post(
                f"/v1/voices?name={name}&text=Hi.",
                content=clip(tmp_path),
                headers={"Content-Type": "audio/wav"},
            )
        assert spoken_by("Alloy") == ["alloy"]
        assert spoken_by("Nova") == ["Nova"]
        with pytest.raises(Refused):
            spoken_by("Anna")


def use(place: Place, name: str) -> None:
    with place.native() as client:
        client.send("start", text="Hi.", final=True, voice=name)
        messages = client.take_until("done", "error")
    assert messages[-1]["type"] == "done", messages[-1]
    assert messages[0]["voice"] == name
    request = {"input": "Hi.", "voice": {"id": name}}
    assert place.post("/v1/audio/speech", json=request).status_code == 200


def httpx_delete(place: Place, name: str) -> int:
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
    folder, audio = tmp_path / "voices", base64.b64encode(clip(tmp_path)).decode()
    with serving(ending_drama(), tmp_path) as place:
        for name in ("whole", "empty", "cut"):
            body = {"name": name, "text": "Hi.", "audio": audio}
            assert place.post("/v1/voices", json=body).status_code == 201
    (folder / "a.json").write_text("{")
    (folder / "b.json").write_text("[]")
    for path in folder.glob("*.npz"):  # as a disk that was full, or lost its power, leaves them
        named = path.with_suffix(".json").read_text(encoding="utf-8")
        if '"empty"' in named:
            path.write_bytes(b"")
        elif '"cut"' in named:
            path.write_bytes(path.read_bytes()[:100])
    with serving(ending_drama(), tmp_path) as place:
        assert [voice["name"] for voice in place.get("/v1/voices").json()["data"]] == ["whole"]


def test_a_voice_that_cannot_be_removed_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audio = base64.b64encode(clip(tmp_path)).decode()
    with serving(ending_drama(), tmp_path) as place:
        place.post("/v1/voices", json={"name": "a", "text": "Hi.", "audio": audio})

        def held(*_: object, **__: object) -> None:
            raise PermissionError("another program has it open")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", held)
            answer = httpx.delete(f"{place.url}/v1/voices/a")
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert place.get("/v1/voices/a").status_code == 200
        assert httpx_delete(place, "a") == 200


def test_requests_do_not_wait_for_the_disk_that_a_voice_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()
    write = VoiceStore._write

    def slow(store: VoiceStore, voice: Voice) -> None:
        begun.set()
        assert go.wait(WAIT)
        write(store, voice)

    monkeypatch.setattr(VoiceStore, "_write", slow)
    body = {"name": "a", "text": "Hi.", "audio": base64.b64encode(clip(tmp_path)).decode()}
    with serving(ending_drama(), tmp_path) as place, ThreadPoolExecutor(1) as client:
        adding = client.submit(place.post, "/v1/voices", json=body)
        try:
            assert begun.wait(WAIT)
            assert place.get("/v1/voices").json()["data"] == []
        finally:
            go.set()
        assert adding.result(WAIT).status_code == 201
        assert [voice["name"] for voice in place.get("/v1/voices").json()["data"]] == ["a"]


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


def test_guidance_without_effect_is_one_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    drama = ending_drama()
    monkeypatch.setattr(drama.prompts, "reads_directions", False)
    body = {"text": "[glad] Hi.", "format": "wav"}
    with serving(drama, tmp_path, {"max_streams": 1}) as place:  # no second row, none is needed
        answer = place.post("/v1/tts", json={**body, "guidance": 3, "best_of": 2})
        assert answer.status_code == 200
        assert answer.headers["x-notice"].count("not trained on directions") == 1
        assert "x-notice" not in place.post("/v1/tts", json={**body, "guidance": 0}).headers
        with place.native() as client:
            client.send("start", text="Hi.", final=True, guidance=3)
            (notice,) = client.take()["notices"]
            assert "guidance is accepted without effect" in notice
            client.take_until("done")
    assert "guidance" not in caplog.text
