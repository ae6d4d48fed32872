"""Named voices: stored once, used by name, never a path."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rt_drama3 import Drama3
from rt_drama3.audio import write_wav
from rt_drama3.server.references import voices
from rt_drama3.server.references.voice_files import Voice, read_voice, voice_file, write_voice
from rt_drama3.server.references.voices import VoiceStore
from tests.server.tools import Place, serving
from tests.small import WAIT, ending_drama, shared_drama


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


def stored(folder: Path, facts: object = None, codes: bytes | None = None, **changes: Any) -> Path:
    """Writes the files of a voice, some of its facts replaced; returns the one with its name."""
    drama = shared_drama()
    grid = np.zeros((drama.config.num_codebooks, 4), np.int64)
    voice = Voice("bad", ("Hi.",), 0.4, 1, drama.sample_rate, drama.config.num_codebooks, (grid,))
    write_voice(folder, voice)
    path = voice_file(folder, "bad", ".json")
    if changes or facts is not None:
        was = json.loads(path.read_text(encoding="utf-8"))
        text = json.dumps({**was, **changes} if facts is None else facts)
        path.write_text(text, encoding="utf-8")
    if codes is not None:
        path.with_suffix(".npz").write_bytes(codes)
    return path


def archive(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def compressed() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **{"0": np.zeros((3, 4), np.int64)})  # type: ignore[arg-type]
    return file.getvalue()


def huge_shape() -> bytes:
    """An array whose header states more than any memory holds."""
    array = io.BytesIO()
    header = {"descr": "<i8", "fortran_order": False, "shape": (3, 1 << 58)}
    np.lib.format.write_array_header_2_0(array, header)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("0.npy", array.getvalue())
    return file.getvalue()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": 5}, "name is 5"),
        ({"name": "../x"}, "name is"),
        ({"name": "other"}, "belongs into"),
        ({"texts": [1]}, r"texts\[0\] must be a string"),
        ({"texts": ["\ud800"]}, "lone surrogate"),
        ({"texts": "Hi."}, "a list of transcripts"),
        ({"texts": []}, "a list of transcripts"),
        ({"texts": ["Hi.", "there"]}, "1 clips for 2 transcripts"),
        ({"seconds": "q"}, "seconds is 'q'"),
        ({"seconds": math.nan}, "seconds is nan"),
        ({"seconds": -1}, "seconds is -1"),
        ({"created": None}, "is missing"),
        ({"created": 1e300}, "created is"),
        ({"sample_rate": True}, "sample_rate is True"),
        ({"num_codebooks": 4}, "another codec"),
        ({"facts": []}, "not a JSON object"),
        ({"codes": b""}, "damaged"),
        ({"codes": compressed()}, "compressed"),
        ({"codes": huge_shape()}, "damaged"),
        ({"codes": archive(a=np.zeros((3, 4), np.int64))}, "damaged"),
        ({"codes": archive(**{"0": np.full((3, 4), 60_000)})}, "codebook"),
        ({"codes": archive(**{"0": np.zeros((3, 0), np.int64)})}, "empty"),
        ({"codes": archive(**{"0": np.zeros((3, 4))})}, "float64"),
    ],
)
def test_one_bad_file_is_skipped_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, Any], reason: str
) -> None:
    store = VoiceStore(tmp_path, 9)
    path = stored(tmp_path, **change)
    good = replace(read_voice(stored(tmp_path / "other"), shared_drama()), name="good")
    write_voice(tmp_path, good)
    store.adopt(shared_drama())
    assert [voice.name for voice in store.all()] == ["good"]
    (record,) = caplog.records
    assert path.name in record.message
    assert re.search(reason, record.message)


@pytest.mark.parametrize("content", ["[" * 100_000, "9" * 5_000, "\ud7ff", '{"name": "bad"'])
def test_a_file_that_is_not_json_is_skipped(tmp_path: Path, content: str) -> None:
    stored(tmp_path).write_text(content, encoding="utf-16" if content == "\ud7ff" else "utf-8")
    store = VoiceStore(tmp_path, 9)
    store.adopt(shared_drama())
    assert store.all() == []


def test_a_missing_file_or_a_folder_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = stored(tmp_path)
    path.with_suffix(".npz").unlink()
    (tmp_path / "folder.json").mkdir()
    store = VoiceStore(tmp_path, 9)
    store.adopt(shared_drama())
    assert store.all() == []
    assert len(caplog.records) == 2


def test_a_folder_that_cannot_be_read_has_no_voices(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    store = VoiceStore(tmp_path, 9)
    store.adopt(shared_drama())
    assert store.all() == []
    assert "Permission denied" in caplog.text


def test_the_list_of_voices_survives_a_bad_file(tmp_path: Path) -> None:
    facts = {"name": 5, "texts": [1], "seconds": "q", "created": None, "sample_rate": 44_100}
    stored(tmp_path / "voices", {**facts, "num_codebooks": 0}, archive())
    with serving(ending_drama(), tmp_path) as place:
        answer = place.get("/v1/voices")
        assert (answer.status_code, answer.json()["data"]) == (200, [])


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
    write = voices.write_voice

    def slow(folder: Path, voice: Voice) -> None:
        begun.set()
        assert go.wait(WAIT)
        write(folder, voice)

    monkeypatch.setattr(voices, "write_voice", slow)
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
