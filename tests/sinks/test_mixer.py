"""Many streams into one sink: mixing, queueing, backpressure, stops, and a failing sink."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from rt_drama3.errors import RequestError, SinkError
from rt_drama3.sinks import Mixer, MixInput, PcmFormat
from tests.sinks.doubles import MemorySink
from tests.sinks.private_pulse import wait_until

RATE = 8_000
MONO = PcmFormat(RATE, encoding="f32le")


def level(value: float, seconds: float = 0.25) -> NDArray[np.float32]:
    return np.full(round(seconds * RATE), value, np.float32)


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_simultaneous_inputs_are_added_and_clipped() -> None:
    sink = MemorySink()
    with Mixer(sink, "mix", rate=RATE) as mixer:
        sink.holds = 1_000.0  # it holds enough, so that both inputs wait
        one, two = mixer.add(MONO), mixer.add(MONO)
        one.write(np.concatenate([level(0.25), level(0.75)]))
        two.write(np.concatenate([level(0.5), level(0.5)]))
        one.finish()
        two.finish()
        sink.holds = 0.0
        one.drain()
        two.drain()
    assert np.array_equal(sink.samples, np.concatenate([level(0.75), level(1.0)]))
    assert sink.events[0] == "open"
    assert "finish" in sink.events
    assert sink.events[-1] == "close"


def test_queue_plays_one_after_the_other() -> None:
    sink = MemorySink()
    with Mixer(sink, "queue", rate=RATE) as mixer:
        one, two = mixer.add(MONO), mixer.add(MONO)
        two.write(level(0.2))  # the first to write, although the second to be added
        one.write(level(0.1))
        one.finish()
        two.write(level(0.2))
        two.finish()
        one.drain()
    assert np.array_equal(sink.samples, np.concatenate([level(0.2, 0.5), level(0.1)]))


def test_stalled_input_lets_others_pass() -> None:
    sink = MemorySink()
    with Mixer(sink, "queue", rate=RATE, patience_seconds=0.05) as mixer:
        idle, other = mixer.add(MONO), mixer.add(MONO)
        idle.write(level(0.1))
        other.write(level(0.2))
        other.drain()
        idle.write(level(0.1))
        idle.drain()
    expected = np.concatenate([level(0.1), level(0.2), level(0.1)])
    assert np.array_equal(sink.samples, expected)


def test_rates_and_channels_are_converted() -> None:
    sink = MemorySink()
    with Mixer(sink, rate=RATE) as mixer:
        entry = mixer.add(PcmFormat(16_000, channels=2))
        entry.write(np.full(2 * 16_000, 8_192, "<i2").tobytes())
        entry.drain()
    assert sink.samples.size == RATE
    assert np.abs(sink.samples[100:-100] - 0.25).max() < 0.01


@pytest.mark.parametrize("mode", ["mix", "queue"])
def test_writer_blocks_until_there_is_room_and_nothing_is_lost(mode: str) -> None:
    sink = MemorySink()
    clip = np.linspace(-0.9, 0.9, RATE * 2, dtype=np.float32)
    with Mixer(sink, mode, rate=RATE, input_ms=100) as mixer:  # type: ignore[arg-type]
        sink.gate.clear()
        entry = mixer.add(MONO)
        writer = in_thread(lambda: entry.write(clip))
        assert sink.waiting.wait(30)
        assert writer.is_alive()
        sink.gate.set()
        writer.join(30)
        entry.drain()
    assert np.array_equal(sink.samples, clip)


def test_async_writers_do_not_block_the_loop() -> None:
    sink = MemorySink()
    values = [0.1, 0.2, 0.3]

    async def speak(entry: MixInput, value: float) -> None:
        await entry.write_async(level(value, 1.0))
        await entry.drain_async()

    async def go(mixer: Mixer) -> None:
        sink.gate.clear()
        tasks = [asyncio.create_task(speak(mixer.add(MONO), value)) for value in values]
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(sink.waiting.wait, 30)
            assert not any(task.done() for task in tasks)
            sink.gate.set()
            await asyncio.gather(*tasks)

    with Mixer(sink, "queue", rate=RATE, input_ms=100) as mixer:
        asyncio.run(go(mixer))
    assert np.array_equal(sink.samples, np.concatenate([level(v, 1.0) for v in values]))


def test_stopping_the_only_input_stops_the_sink() -> None:
    sink = MemorySink()
    with Mixer(sink, rate=RATE, input_ms=100) as mixer:
        sink.gate.clear()
        entry = mixer.add(MONO)
        writer = in_thread(lambda: entry.write(level(0.5, 5.0)))
        assert sink.waiting.wait(30)
        entry.stop()
        writer.join(30)
        assert not writer.is_alive()
        assert entry.stopped
        entry.write(level(0.5, 5.0))  # dropped immediately
        entry.drain()
        sink.gate.set()
        after = mixer.add(MONO)
        after.write(level(0.25))
        after.drain()
    assert "stop" in sink.events
    assert np.array_equal(sink.samples[-RATE // 4 :], level(0.25))


def test_stopping_an_input_does_not_affect_another() -> None:
    sink = MemorySink()
    with Mixer(sink, rate=RATE) as mixer:
        sink.gate.clear()
        one, two = mixer.add(MONO), mixer.add(MONO)
        one.write(level(0.5))
        two.write(level(0.25))
        assert sink.waiting.wait(30)
        wait_until(lambda: one.started or two.started, "the first block")
        sink.gate.set()
        two.write(level(0.25))
        wait_until(lambda: one.started and two.started, "both")
        one.stop()
        two.drain()
        assert "stop" not in sink.events


def test_input_stopped_while_another_plays_fades() -> None:
    sink = MemorySink()
    with Mixer(sink, rate=RATE) as mixer:
        sink.holds = 1_000.0  # it holds enough, so that both inputs wait
        one, two = mixer.add(MONO), mixer.add(MONO)
        one.write(level(0.5))
        two.write(level(0.25))
        sink.gate.clear()
        sink.holds = 0.0
        assert sink.waiting.wait(30)  # with the first block of both
        one.stop(20)
        one.stop(20)
        one.write(level(0.5))  # dropped
        sink.gate.set()
        two.finish()
        two.drain()
        one.drain()
        assert "stop" not in sink.events
    fade, block = np.linspace(0.5, 0, 160, dtype=np.float32), 160
    wanted = level(0.25)
    wanted[:block] += 0.5
    wanted[block : block + 160] += fade
    np.testing.assert_allclose(sink.samples, wanted, atol=1e-6)


def test_stopping_the_mixer_silences_current_inputs_only() -> None:
    sink = MemorySink()
    with Mixer(sink, rate=RATE, input_ms=100) as mixer:
        sink.gate.clear()
        inputs = [mixer.add(MONO) for _ in range(3)]
        writers = [in_thread(lambda entry=entry: entry.write(level(0.3, 5.0))) for entry in inputs]
        assert sink.waiting.wait(30)
        wait_until(lambda: all(entry.held or entry.started for entry in inputs), "all three")
        mixer.stop()
        for writer in writers:
            writer.join(30)
        assert all(entry.stopped for entry in inputs)
        sink.gate.set()
        after = mixer.add(MONO)
        after.write(level(0.25))
        after.drain()
    assert np.array_equal(sink.samples[-RATE // 4 :], level(0.25))


def test_failing_sink_does_not_block_inputs_and_may_recover() -> None:
    sink = MemorySink()
    failures: list[str] = []
    with Mixer(sink, rate=RATE, input_ms=100, failed=lambda e: failures.append(str(e))) as mixer:
        sink.failing = SinkError("unplugged")
        lost = mixer.add(MONO)
        lost.write(level(0.5, 5.0))
        lost.drain()
        assert str(mixer.error) == "unplugged"
        sink.failing = None
        entry = mixer.add(MONO)
        entry.write(level(0.25))
        entry.drain()
        wait_until(lambda: mixer.error is None, "the error to be over")
    assert np.array_equal(sink.samples, level(0.25))
    assert failures == ["unplugged"]


def test_close_releases_blocked_writers() -> None:
    sink = MemorySink()
    mixer = Mixer(sink, rate=RATE, input_ms=100)
    mixer.open()
    sink.gate.clear()
    entry, late = mixer.add(MONO), mixer.add(MONO)
    writer = in_thread(lambda: entry.write(level(0.5, 5.0)))
    assert sink.waiting.wait(30)
    mixer.close()
    writer.join(30)
    assert not writer.is_alive()
    late.write(level(0.5, 5.0))
    late.drain()
    with pytest.raises(SinkError, match="mixer of memory is not open"):
        mixer.add(MONO)
    assert not any(thread.name == "sink mixer" for thread in threading.enumerate())


def test_losses_of_the_sink_are_logged_once_per_take(caplog: pytest.LogCaptureFixture) -> None:
    sink = MemorySink("device")
    with Mixer(sink, rate=RATE) as mixer:
        for lost in (0, 2, 2, 3):
            sink.lost = lost
            entry = mixer.add(MONO)
            entry.write(level(0.1))
            entry.finish()
            entry.drain()
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "device lost sound 2 times",
        "device lost sound 3 times",
    ]


def test_unknown_mode_raises() -> None:
    with pytest.raises(RequestError, match="mode is 'shuffle'"):
        Mixer(MemorySink(), "shuffle")  # type: ignore[arg-type]


def test_writing_to_a_finished_input_raises() -> None:
    with Mixer(MemorySink(), rate=RATE) as mixer:
        entry = mixer.add(MONO)
        entry.finish()
        with pytest.raises(SinkError, match="is finished"):
            entry.write(level(0.1))
        entry.drain()
