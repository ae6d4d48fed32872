"""Best-of over HTTP and its takes: what they keep busy, and what they leave behind."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rt_drama3.engine.best_of import Takes
from rt_drama3.engine.speech import SpeechRequest
from tests.server.tools import serving
from tests.small import WAIT, ending_drama, until


def test_a_cancel_while_a_stream_opens_ends_it_and_opens_no_other() -> None:
    begun, go, ended = threading.Event(), threading.Event(), list[int]()

    def open_stream(request: SpeechRequest) -> Any:
        begun.set()
        assert go.wait(WAIT)
        return SimpleNamespace(cancel=lambda: ended.append(1), result=lambda: None)

    engine: Any = SimpleNamespace(normalize_guidance=lambda request: request, open=open_stream)
    takes = Takes(engine, SpeechRequest("Hi."), 3, concurrent=1)
    thread = threading.Thread(target=takes.run)
    thread.start()
    assert begun.wait(WAIT)
    takes.cancel()
    go.set()
    thread.join(WAIT)
    assert not thread.is_alive()
    assert set(ended) == {1}
    assert len(takes._opened) == 1


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
