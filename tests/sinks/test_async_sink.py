"""A sink on an event loop: the loop keeps running while the sink blocks, and stop overtakes."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from rt_drama3.errors import SinkError
from rt_drama3.sinks import AsyncSink, PcmFormat
from tests.sinks.doubles import MemorySink

MONO = PcmFormat(8_000, encoding="f32le")
CLIP = np.linspace(-0.5, 0.5, 100, dtype=np.float32)


async def until_it_waits(sink: MemorySink) -> None:
    assert await asyncio.to_thread(sink.waiting.wait, 30)


def test_calls_arrive_in_order() -> None:
    sink = MemorySink()

    async def go() -> None:
        async with AsyncSink(sink) as output:
            await output.open(MONO)
            await asyncio.gather(*(output.write(CLIP[at : at + 10]) for at in range(0, 100, 10)))
            await output.finish()

    asyncio.run(go())
    assert np.array_equal(sink.samples, CLIP)
    assert sink.events == ["open", "finish", "drain", "close"]


def test_stop_ends_a_blocked_write() -> None:
    sink = MemorySink()

    async def go() -> None:
        output = AsyncSink(sink)
        await output.open(MONO)
        sink.gate.clear()
        writing = asyncio.create_task(output.write(CLIP))
        await until_it_waits(sink)
        assert not writing.done()
        await output.stop()
        async with asyncio.timeout(30):
            await writing
        await output.close()

    asyncio.run(go())
    assert sink.samples.size == 0


def test_cancelling_a_write_stops_the_sink() -> None:
    sink = MemorySink()

    async def go() -> None:
        output = AsyncSink(sink)
        await output.open(MONO)
        sink.gate.clear()
        writing = asyncio.create_task(output.write(CLIP))
        await until_it_waits(sink)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await output.close()

    asyncio.run(go())
    assert "stop" in sink.events
    assert sink.events[-1] == "close"


def test_errors_reach_the_caller() -> None:
    sink = MemorySink()
    sink.failing = SinkError("no device")

    async def go() -> None:
        output = AsyncSink(sink)
        with pytest.raises(SinkError, match="no device"):
            await output.open(MONO)
        sink.failing = None
        await output.close()

    asyncio.run(go())
