"""Clips of a request: read once, reported by their place when they are bad, kept within bounds."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rt_drama3 import Drama3
from rt_drama3.audio.wav import wav_header
from rt_drama3.errors import RequestError
from rt_drama3.protocol import Directing, Reference, Refused, SpeechOrder
from rt_drama3.scenes import references
from rt_drama3.server.metrics import Metrics
from rt_drama3.server.references import clips
from rt_drama3.server.references.clips import ClipReader
from rt_drama3.server.workers import Workers
from tests.server.tools import serving
from tests.small import WAIT, ending_drama, shared_drama, until

RATE = 22_050


def file_of(seconds: float) -> bytes:
    noise = np.random.default_rng(0).integers(-9_999, 9_999, round(RATE * seconds))
    pcm = noise.astype("<i2").tobytes()
    return wav_header(RATE, len(pcm)) + pcm


def order_of(*files: bytes, **more: Any) -> SpeechOrder:
    return SpeechOrder(references=tuple(Reference("Hm.", audio=file) for file in files), **more)


@asynccontextmanager
async def reading(
    seconds: float = 60.0, clock: Callable[[], float] = time.thread_time
) -> AsyncIterator[ClipReader]:
    workers = Workers()
    try:
        yield ClipReader(workers, Metrics(dict), seconds, clock)
    finally:
        workers.close()


def read(
    order: SpeechOrder,
    drama: Drama3 | None = None,
    seconds: float = 60.0,
    clock: Callable[[], float] = time.thread_time,
) -> SpeechOrder:
    """The order with its clips decoded."""

    async def main() -> SpeechOrder:
        async with reading(seconds, clock) as reader:
            return await reader.read_order(order, drama or shared_drama())

    return asyncio.run(main())


def named(*files: bytes) -> list[tuple[str, Reference]]:
    return [(file.decode(), Reference("Hm.", audio=file)) for file in files]


class Decoder:
    """Stands in for ``read_audio``: decodes when it may, and checks as often as it is let.

    Attributes:
        begun: the clips, in order.
        packets: one for each packet that may be decoded; a clip has ``length`` of them.
        ended: what ended the clips that were not decoded.
    """

    def __init__(self, length: int = 1) -> None:
        self.begun: list[bytes] = []
        self.packets, self.ended = threading.Semaphore(0), list[str]()
        self.entered, self.left = threading.Semaphore(0), threading.Semaphore(0)
        self._length = length

    def __call__(
        self, audio: bytes, *, max_seconds: float, check: Callable[[], None]
    ) -> tuple[clips.Samples, int]:
        self.begun.append(audio)
        self.entered.release()
        try:
            for _ in range(self._length):
                assert self.packets.acquire(timeout=WAIT)
                check()
        except RequestError as error:
            self.ended.append(str(error))
            raise
        finally:
            self.left.release()
        return np.zeros(9, np.float32), RATE


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    found = Decoder()
    monkeypatch.setattr(clips, "read_audio", found)
    return found


def test_the_engine_need_not_read_a_file_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drama, file = shared_drama(), file_of(0.5)
    expected = drama.voice([("Hm.", file)])
    take = Reference("Before.", audio=file)
    order = order_of(file, directing=Directing(previous_takes=(take,)))
    order = read(order, drama)

    def again(*_: object, **__: object) -> None:
        pytest.fail("read again")

    monkeypatch.setattr(references, "read_audio", again)
    found = drama.voice([clip.source for clip in order.references])
    assert np.array_equal(found[0][1], expected[0][1])
    assert not any(clip.audio for clip in order.references)
    (before,) = order.directing.settings()["previous_takes"]
    assert np.array_equal(drama.references.clip(before.audio), expected[0][1])


def test_samples_are_kept_up_to_a_limit_and_files_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many streams may wait: samples are much larger than the files that they come in."""
    monkeypatch.setattr(clips, "KEPT_BYTES", 4 * RATE)  # a second of float32
    order = read(order_of(*map(file_of, (0.6, 0.6, 0.3))))
    assert [clip.samples is not None for clip in order.references] == [True, False, True]
    assert [clip.audio is None for clip in order.references] == [True, False, True]


def test_a_clip_as_long_as_the_limit_allows_is_not_refused_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The grace that a file has (encoders pad its end), its samples have as well."""
    monkeypatch.setattr(references, "MAX_REFERENCE_SECONDS", 1.0)
    drama = shared_drama()
    order = read(order_of(file_of(1.05)), drama, 1.0)
    assert drama.voice([clip.source for clip in order.references])[0][1].shape[1] > 0


def test_bad_clips_are_reported_by_their_place() -> None:
    good = file_of(0.1)
    with pytest.raises(Refused, match=r"references\[1\].*not a supported audio file"):
        read(order_of(good, b"no audio"))
    with pytest.raises(Refused, match=r"references\[0\].*longer than the limit"):
        read(order_of(file_of(1.5)), seconds=1.0)
    wrong = Reference("Hm.", codes=np.full((3, 4), 99))
    with pytest.raises(Refused, match=r"history\[0\].*is 99"):
        read(SpeechOrder(history=(wrong,)))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ((np.zeros(9),), r"reference 1 is a tuple of 1; use \(samples, sample_rate\)"),
        ((np.zeros(9), "fast"), "reference 1 has sample rate 'fast'"),
        ((np.zeros(9), float("nan")), "reference 1 has sample rate nan"),
        ((np.zeros(9), None), "reference 1 has sample rate None"),
    ],
)
def test_samples_without_a_rate_are_refused(source: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        shared_drama().voice([("Hm.", source)])  # type: ignore[list-item]


# Many clips, and clips that take long.


def test_slow_clips_do_not_delay_clients_without_clips(tmp_path: Path, decoder: Decoder) -> None:
    clip = {"text": "Hm.", "audio": base64.b64encode(b"clip").decode()}
    body = {"text": "Hi.", "format": "pcm", "references": [clip] * 16}
    with serving(ending_drama(), tmp_path) as place, ThreadPoolExecutor(4) as pool:
        slow = [pool.submit(place.post, "/v1/tts", json=body) for _ in range(4)]
        until(lambda: place.metric("clip_requests") == 4)
        with place.native() as client:
            client.send("start", text="Hi.", final=True)
            assert client.take_until("done", "error")[-1]["type"] == "done"
        assert place.metric("clip_seconds_count") == 0
        for _ in range(64):
            decoder.packets.release()
        assert {answer.result(WAIT).status_code for answer in slow} == {200}
        assert place.metric("clip_seconds_count") == 64
        assert place.metric("clip_requests") == 0


def test_decoding_ends_when_the_client_has_left(tmp_path: Path, decoder: Decoder) -> None:
    clip = {"text": "Hm.", "audio": b"clip"}
    with serving(ending_drama(), tmp_path) as place:
        with place.native() as client:
            client.send("start", text="Hi.", final=True, references=[clip] * 3)
            assert decoder.entered.acquire(timeout=WAIT)
        until(lambda: place.metric("clip_requests") == 0)
        decoder.packets.release()
        assert decoder.left.acquire(timeout=WAIT)
    assert decoder.ended == ["the client has left."]
    assert len(decoder.begun) == 1


def test_a_voice_is_not_decoded_for_a_client_that_has_left(
    tmp_path: Path, decoder: Decoder
) -> None:
    with serving(ending_drama(), tmp_path) as place:
        head = f"POST /v1/voices?name=a&text=Hi. HTTP/1.1\r\nHost: 127.0.0.1:{place.port}\r\n"
        with socket.create_connection(("127.0.0.1", place.port)) as client:
            client.sendall(f"{head}Content-Type: audio/wav\r\nContent-Length: 4\r\n\r\n".encode())
            client.sendall(b"clip")
            assert decoder.entered.acquire(timeout=WAIT)
        until(lambda: place.metric("clip_requests") == 0)
        decoder.packets.release()
        assert decoder.left.acquire(timeout=WAIT)
        assert place.get("/v1/voices").json()["data"] == []
    assert decoder.ended == ["the client has left."]


def test_requests_take_turns(decoder: Decoder) -> None:
    async def main() -> None:
        async with reading() as reader:
            reader._workers._decoding = ThreadPoolExecutor(1)
            many = asyncio.create_task(reader.read(named(b"a0", b"a1", b"a2")))
            await asyncio.to_thread(decoder.entered.acquire)
            one = asyncio.create_task(reader.read(named(b"b0")))
            await asyncio.sleep(0)
            for _ in range(4):
                decoder.packets.release()
            await asyncio.gather(many, one)

    asyncio.run(main())
    assert decoder.begun == [b"a0", b"b0", b"a1", b"a2"]


def test_too_many_requests_with_clips_are_refused(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clips, "MAX_REQUESTS", 1)

    async def main() -> None:
        async with reading() as reader:
            first = asyncio.create_task(reader.read(named(b"a0")))
            await asyncio.to_thread(decoder.entered.acquire)
            with pytest.raises(Refused, match=r"1 requests wait for their clips.*limit 1") as error:
                await reader.read(named(b"b0"))
            assert error.value.code == "overloaded"
            assert len(await reader.read([("c0", Reference("Hm."))])) == 1  # nothing to decode
            decoder.packets.release()
            await first
            decoder.packets.release()
            assert len(await reader.read(named(b"b0"))) == 1

    asyncio.run(main())


def test_the_processor_time_for_the_clips_of_a_request_is_bounded() -> None:
    ticks = iter(range(1000))
    with pytest.raises(Refused, match=r"references\[\d\]: decoding takes more than 10 s"):
        read(order_of(*[file_of(0.1)] * 9), clock=lambda: 2.0 * next(ticks))
