"""The conversion of one stream, and what its sender does at the end of the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rt_drama3.engine.events import Audio, Stamps
from rt_drama3.protocol import Output, SpeechOrder
from rt_drama3.server.config import ServerConfig
from rt_drama3.server.conversion import Converter
from rt_drama3.server.metrics import Metrics
from rt_drama3.server.pace import Pace
from rt_drama3.server.sender import SpeechSender

FRAME = (0.5 * np.sin(np.arange(2048) / 10)).astype(np.float32)


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 44_100, 48_000])
def test_samples_are_counted_exactly(rate: int) -> None:
    converter = Converter(SpeechOrder(output=Output("pcm", rate)), 44_100)
    parts = [converter.push(FRAME) for _ in range(5)] + [converter.end()]
    assert all(len(data) == 2 * samples for data, samples in parts)
    assert sum(samples for _, samples in parts) == -(-5 * 2048 * rate // 44_100)


@pytest.mark.parametrize("rate", [16_000, 24_000, 44_100, 48_000])
def test_the_tail_is_what_an_end_would_give_and_more_can_follow(rate: int) -> None:
    order = SpeechOrder(output=Output("pcm", rate))
    alone = Converter(order, 44_100)
    piece = alone.push(FRAME)[0] + alone.end()[0]
    converter = Converter(order, 44_100)
    for _ in range(3):
        assert converter.push(FRAME)[0] + converter.flush_tail()[0] == piece
    assert converter.flush_tail() == (b"", 0)
    assert converter.end() == (b"", 0)


def test_gain_is_clipped() -> None:
    converter = Converter(SpeechOrder(output=Output("pcm_f32", 44_100), gain_db=20), 44_100)
    made = np.frombuffer(converter.push(FRAME)[0], "<f4")
    assert abs(made).max() == 1
    np.testing.assert_allclose(made[1], 10 * FRAME[1], rtol=1e-6)


def test_fade_ends_in_silence() -> None:
    converter = Converter(SpeechOrder(output=Output("pcm_f32", 44_100)), 44_100)
    made = np.frombuffer(converter.push(FRAME, fade=True)[0], "<f4")
    assert not made[882:].any()
    assert abs(np.diff(made)).max() < 0.06


@pytest.mark.parametrize(("before", "sent"), [(0, 0), (2, 3)])
def test_what_has_not_begun_when_the_server_stops_does_not_begin(before: int, sent: int) -> None:
    """A moment of sound would be taken for the whole answer."""
    config, drain = ServerConfig(), SimpleNamespace(fading=False)
    service: Any = SimpleNamespace(config=config, drain=drain, metrics=Metrics(dict))
    received: list[bytes] = []

    async def events() -> AsyncIterator[Audio]:
        for number in range(5):
            drain.fading = number >= before
            stamps = Stamps(0.0, 0.0, (0.0, 0.0), 0.0)
            yield Audio(FRAME, number, 1, 44_100, 0, stamps)

    async def audio(data: bytes, samples: int, stamps: Stamps | None) -> None:
        received.append(data)

    receiver: Any = SimpleNamespace(audio=audio)
    order = SpeechOrder(output=Output("pcm", 44_100))
    opened: Any = SimpleNamespace(
        order=order,
        converter=Converter(order, 44_100),
        take=None,
        speech=SimpleNamespace(events=events),
    )
    line: Any = SimpleNamespace(handed=0, held=int, limit_unsent=lambda size: None)
    sender = SpeechSender(receiver, opened, service, None, Pace(10.0, line, time.monotonic))
    assert asyncio.run(sender.run()) is None
    assert len(received) == sent
    if sent:
        assert received[-1].endswith(bytes(2_000))  # faded
