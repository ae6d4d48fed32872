"""Clips, turns and takes in every form that is accepted, and what is said of the others."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from rt_drama3_client import AsyncClient, Client, Take, UsageError
from rt_drama3_client.clips import as_clips
from rt_drama3_client.options import start_message
from tests.clients.python.fake import Peer, run, served
from tests.clients.python.test_directed import codes_of, take_of
from tests.clients.python.test_routes import clip
from tests.server.tools import Place

TAKE = Take(2, 1, b"\1\0\2\0", "Who?", "family", "schema")
TURN = {"text": "Who?", "vq_codes": TAKE.vq_codes}


def sent(**options: Any) -> dict[str, Any]:
    """What of them is in the message."""
    message: dict[str, Any] = msgpack.unpackb(start_message("Hi.", True, options))
    return {name: message[name] for name in options}


def test_accepted_forms(tmp_path: Path) -> None:
    path = tmp_path / "me.wav"
    path.write_bytes(b"RIFF")
    data = "data:audio/wav;base64," + base64.b64encode(b"RIFF").decode()
    plain = {"text": "Hi.", "audio": b"RIFF"}
    for audio in (b"RIFF", bytearray(b"RIFF"), memoryview(b"RIFF"), path, data):
        forms = [("Hi.", audio), ["Hi.", audio], {"text": "Hi.", "audio": audio}]
        assert sent(references=forms)["references"] == 3 * [plain]
        assert as_clips(forms) == 3 * [plain]
    for url in ("http://host/a.wav", "HTTPS://host/a.wav"):
        assert sent(references=[("Hi.", url)])["references"] == [{"text": "Hi.", "audio": url}]
    assert sent(references=[{**TURN, "speaker": 3}, TAKE]) == {
        "references": [{**TURN, "speaker": 3}, TURN]
    }
    assert sent(history=[TAKE, TURN]) == {"history": [TURN, TURN]}
    marks = {"family": "family", "schema": "schema"}
    assert sent(previous_takes=(TAKE, plain)) == {"previous_takes": [{**TURN, **marks}, plain]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"references": [("Hi.", "me.wav")]}, r"references\[0\] is 'me.wav'; pass .*Path"),
        ({"references": [TURN, {"text": "Hi.", "audio": "/me.wav"}]}, r"references\[1\] is '/me"),
        ({"references": [("Hi.", 7)]}, r"references\[0\] is 7; pass"),
        ({"references": [("Hi.", "data:audio/wav;base64,?")]}, "without valid base64"),
        ({"references": [("Hi.", Path("nowhere.wav"))]}, r"cannot be read: .*nowhere\.wav"),
        ({"references": ("Hi.", b"RIFF")}, r"references\[0\] is 'Hi\.'; use \[\(text, audio\)\]"),
        ({"references": "Hi."}, "references is a str; a list"),
        ({"references": TURN}, "references is a dict; a list"),
        ({"history": [("Hi.", b"RIFF")]}, r"history\[0\] is .*; use a Take"),
        ({"previous_takes": ["Hi."]}, r"previous_takes\[0\] is 'Hi\.'; use a Take"),
    ],
)
def test_other_forms_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        start_message("Hi.", True, options)


def test_invalid_forms_raise_and_nothing_is_sent() -> None:
    async def script(peer: Peer) -> None:
        await peer.take()

    async def work() -> None:
        async with served(script) as (server, client):
            with pytest.raises(UsageError, match="Path"):
                await client.speak("Hi.", references=[("Hi.", "me.wav")]).read()
            assert server.peers == []

    run(work())


@pytest.mark.parametrize(
    ("clips", "message"),
    [
        ([("t", "me.wav")], r"the audio of clips\[0\] is 'me.wav'"),
        (("t", b"RIFF"), r"clips\[0\] is 't'; use \[\(text, audio\)\]"),
        ([], r"clips is empty; use \[\(text, audio\)\]"),
        ([("t", object)], r"the audio of clips\[0\]"),
        ([{"text": object(), "audio": b""}], "cannot be sent"),
    ],
)
def test_clips_of_a_voice_are_validated_first(clips: Any, message: str) -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(UsageError, match=message):
        client.add_voice("me", clips)


@pytest.mark.parametrize("name", ["", "a/b", "../x", " a", "a" * 129, "a\n", None])
def test_names_of_voices_are_validated_first(name: Any) -> None:
    with Client("127.0.0.1:1") as client:
        with pytest.raises(UsageError, match="invalid voice name"):
            client.delete_voice(name)
        with pytest.raises(UsageError, match="invalid voice name"):
            client.add_voice(name, [("t", b"RIFF")])


def test_server_accepts_them(ending: Place, tmp_path: Path) -> None:
    path = tmp_path / "me.wav"
    path.write_bytes(clip())
    with Client(ending.url) as client:
        first = take_of(client, "Who is there?", seed=3)
        found = [
            codes_of(take_of(client, "It is me.", seed=4, history=[turn]))
            for turn in (first, {"text": first.text, "vq_codes": first.vq_codes})
        ]
        assert np.array_equal(found[0], found[1])
        for audio in (path, clip()):
            one = take_of(client, "It is me.", seed=4, references=[("What I say.", audio)])
            found.append(codes_of(one))
        assert np.array_equal(found[2], found[3])
        assert not np.array_equal(found[0], found[2])
        try:
            assert client.add_voice("me", [("What I say.", path)]).texts == ("What I say.",)
        finally:
            client.delete_voice("me")


def test_oversized_file_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rt_drama3_client.clips.MAX_BYTES", 1 << 20)
    path = tmp_path / "film.wav"
    path.write_bytes(bytes((1 << 20) + 1))

    async def work() -> None:
        async with AsyncClient("127.0.0.1:1") as client:
            with pytest.raises(UsageError, match="exceeds 1 MiB"):
                await client.add_voice("me", [("t", path)])

    run(work())
