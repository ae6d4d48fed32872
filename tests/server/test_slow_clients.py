"""Listeners on real sockets: those that play while reading, and those that stop."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from rt_drama3.engine.events import Audio, Done, Durations, Event, SpeechSummary, Stamps
from rt_drama3.engine.speech import Speech, SpeechRequest
from rt_drama3.protocol import SpeechOrder
from rt_drama3.server import pace
from rt_drama3.server.conversion import Converter
from rt_drama3.server.openings import Opened
from tests.server.tools import LONG, Client, Place, audio_of, serving
from tests.small import WAIT, shared_drama, until

SPEED = 3.0  # of the listeners' clocks
SECONDS = 9.0
FRAME = 2_048 / 44_100
LEAD = 0.2  # seconds before it is due that something is read
SLOW = {"slow_seconds": 0.3, "send_buffer": 16_384}  # a third of it lasts longer than that


@contextmanager
def small_socket(place: Place) -> Iterator[socket.socket]:
    """Connected, with little room for what comes."""
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.connect(("127.0.0.1", place.port))
        raw.settimeout(WAIT)
        yield raw


def post(raw: socket.socket, path: str, **body: Any) -> None:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    raw.sendall(head.encode() + data)


class Ear:
    """Plays what it is given, and comes back when the next is needed."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.heard = 0.0

    def play(self, seconds: float) -> None:
        now = time.monotonic()
        self.began = now if self.began is None else self.began
        self.heard += seconds
        time.sleep(max(0.0, self.began + self.heard / SPEED - LEAD - now))


class Made:
    """Speech that is there already: ``SECONDS`` of noise."""

    ended = True

    async def events(self) -> AsyncIterator[Event]:
        frames, rng = round(SECONDS / FRAME), np.random.default_rng(5)
        for n in range(frames):
            pcm = rng.normal(0, 0.1, 2_048).astype(np.float32)
            yield Audio(pcm, n, 1, 44_100, 0, Stamps(0.0, 0.0, (0.0, 0.0), 0.0))
            await asyncio.sleep(0)
        codes = np.zeros((3, frames), np.int64)
        yield Done(SpeechSummary((), codes, 44_100, 7, True, False, frames, Durations()))

    def cancel(self) -> None:
        """It is over."""


@contextmanager
def quick(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server speaks much faster than realtime, however busy the machine is."""

    async def opened(order: SpeechOrder) -> Opened:
        return Opened(order, Converter(order, 44_100), None, "", take=cast(Any, Made()))

    with monkeypatch.context() as patch:
        patch.setattr(place.service.openings, "open", opened)
        yield


@pytest.mark.serial
def test_playing_while_reading_is_never_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate = 24_000

    def play(client: Client, last: str) -> None:
        ear, samples = Ear(), 0
        while (message := client.take())[client.key] != last:
            audio = audio_of([message])
            samples += len(audio) // 2
            ear.play(len(audio) / 2 / rate)
        assert samples / rate == pytest.approx(SECONDS, abs=0.1)

    with serving(shared_drama(), tmp_path, **SLOW) as place, quick(place, monkeypatch):
        with small_socket(place) as raw, place.native(sock=raw, max_queue=1) as client:
            client.send("start", text=LONG, final=True, sample_rate=rate)
            play(client, "done")
        with small_socket(place) as raw, place.fish(sock=raw, max_queue=1) as client:
            client.send("start", request={"format": "pcm", "sample_rate": rate})
            client.send("text", text=LONG)
            client.send("stop")
            play(client, "finish")
        assert place.metric("errors_total", code="slow_client") == 0


@pytest.mark.serial
@pytest.mark.parametrize(
    ("path", "body", "rate"),
    [
        ("/v1/tts", {"text": LONG, "format": "pcm", "sample_rate": 24_000}, 48_000),
        ("/v1/audio/speech", {"input": LONG, "response_format": "mp3", "bitrate": 320_000}, 40_000),
    ],
)
def test_playing_while_reading_is_never_slow_over_http(
    path: str, body: dict[str, Any], rate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(shared_drama(), tmp_path, **SLOW) as place, quick(place, monkeypatch):
        with small_socket(place) as raw:
            post(raw, path, **body)
            ear, heard = Ear(), b""
            while not heard.endswith(b"\r\n0\r\n\r\n"):
                part = raw.recv(1_024)
                assert part, "the connection was cut"
                heard += part
                ear.play(len(part) / rate)
        assert len(heard) > (SECONDS - 0.1) * rate
        assert place.metric("errors_total", code="slow_client") == 0


def test_the_engine_waits_while_a_client_plays_what_it_has(tmp_path: Path) -> None:
    lead = {"lead_limit": 0.3, "lead_timeout": 0.1}
    with (
        serving(shared_drama(), tmp_path, lead, slow_seconds=WAIT, send_buffer=8_192) as place,
        small_socket(place) as raw,
        place.native(sock=raw, max_queue=1) as client,
    ):
        client.send("start", text=LONG, final=True, max_seconds=4, format="pcm_f32")
        client.take_until("audio")
        assert place.engine is not None
        core = place.engine.core
        (stream,) = core.streams.values()

        def paused() -> bool:
            since = stream.paused_since
            core.woken.set()  # it looks again
            return since is not None and time.monotonic() - since > 10 * lead["lead_timeout"]

        until(paused, "pausing")
        assert client.take_until("done", "error")[-1]["type"] == "done"


@pytest.mark.parametrize(
    ("name", "bitrate", "rate"), [("mp3", 32_000, 4_000), ("opus", 16_000, 3_400)]
)
def test_one_who_stops_costs_seconds_in_encoded_formats_too(
    name: str, bitrate: int, rate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead = 1.0
    with serving(shared_drama(), tmp_path, {"lead_limit": lead}, slow_seconds=0.3) as place:
        engine, speeches = place.engine, list[Speech]()
        assert engine is not None
        real = engine.open

        def opened(request: SpeechRequest) -> Speech:
            speeches.append(real(request))
            return speeches[-1]

        monkeypatch.setattr(engine, "open", opened)
        with small_socket(place) as raw:
            post(raw, "/v1/audio/speech", input=LONG, response_format=name, bitrate=bitrate)
            until(lambda: place.metric("errors_total", code="slow_client"), "noticing")
            place.until_free()
        frames = speeches[0].result(WAIT).codes.shape[1]
    # The system's buffers on both sides are only bounded roughly.
    unsent = 2 * pace.UNSENT_SECONDS + 3 * pace.LEAST_UNSENT / rate
    assert frames * FRAME < lead + unsent + 2.0
