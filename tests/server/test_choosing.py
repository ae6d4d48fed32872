"""The best of several takes: what it keeps busy, and what it leaves behind."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rt_drama3.engine.speech import SpeechRequest
from rt_drama3.server.choosing import choose
from tests.server.tools import serving
from tests.small import WAIT, ending_drama, until


def test_a_client_that_leaves_as_a_stream_opens_leaves_none_behind() -> None:
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    def open_stream(request: SpeechRequest) -> Any:
        begun.set()
        assert go.wait(WAIT)
        return SimpleNamespace(cancel=ended.set)

    async def in_thread(work: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)

    async def leave() -> None:
        engine: Any = SimpleNamespace(config=SimpleNamespace(max_streams=4), open=open_stream)
        drama: Any = None
        work = choose(drama, engine, SpeechRequest("Hi."), 2, in_thread, in_thread)
        choosing = asyncio.create_task(work)
        assert await asyncio.to_thread(begun.wait, WAIT)
        choosing.cancel()
        await asyncio.wait({choosing})
        assert choosing.cancelled()
        go.set()
        assert await asyncio.to_thread(ended.wait, WAIT)

    asyncio.run(leave())


def test_others_speak_while_takes_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drama, go, opened = ending_drama(), threading.Event(), list[object]()
    decode = drama.decode

    def held(codes: Any) -> Any:
        assert go.wait(WAIT)
        return decode(codes)

    with serving(drama, tmp_path) as place, ThreadPoolExecutor(4) as clients:
        assert place.engine is not None
        open_stream = place.engine.open

        def counted(request: SpeechRequest) -> Any:
            speech = open_stream(request)
            opened.append(speech)
            return speech

        monkeypatch.setattr(place.engine, "open", counted)
        monkeypatch.setattr(drama, "decode", held)
        body = {"text": "Hi.", "format": "pcm", "best_of": 2}
        waiting = [clients.submit(place.post, "/v1/tts", json=body) for _ in range(4)]
        try:
            until(lambda: len(opened) == 8, "opening all streams")
            place.until_free()
            answer = place.post("/v1/tts", json={"text": "Hi.", "format": "pcm"})
            assert (answer.status_code, len(answer.content) > 0) == (200, True)
        finally:
            go.set()
        assert [one.result(WAIT).status_code for one in waiting] == [200] * 4
