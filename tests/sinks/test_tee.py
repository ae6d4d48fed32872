"""One stream into several sinks, some of which fail."""

from __future__ import annotations

import numpy as np
import pytest

from rt_drama3.errors import PipeClosed, RequestError, SinkError
from rt_drama3.sinks import PcmFormat, Sink, Tee
from tests.sinks.doubles import MemorySink

MONO = PcmFormat(8_000, encoding="f32le")
CLIP = np.linspace(-0.5, 0.5, 1_000, dtype=np.float32)


def test_every_sink_gets_everything() -> None:
    one, two = MemorySink("one"), MemorySink("two")
    with Tee([one, two]) as tee:
        tee.open(MONO)
        tee.write(CLIP)
        tee.write(CLIP.astype("<f4").tobytes())
    for sink in (one, two):
        assert np.array_equal(sink.samples, np.concatenate([CLIP, CLIP]))
        assert sink.events == ["open", "finish", "drain", "close"]
    assert tee.errors == {}


def test_long_writes_alternate_between_the_sinks() -> None:
    one, two = MemorySink("one"), MemorySink("two")
    tee = Tee([one, two])
    tee.open(MONO)
    tee.write(CLIP)
    assert max(len(chunk) for chunk in one.chunks) <= 160  # 20 ms


def test_failure_of_one_sink_is_reported_and_the_others_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, two = MemorySink("one"), MemorySink("two")
    failures: list[tuple[str, str]] = []

    def failed(sink: Sink, error: SinkError) -> None:
        failures.append((sink.name, str(error)))

    tee = Tee([one, two], failed)
    tee.open(MONO)
    tee.write(CLIP[:100])
    one.failing = SinkError("one is broken")
    tee.write(CLIP[100:500])
    tee.write(CLIP[500:])
    tee.drain()
    assert np.array_equal(two.samples, CLIP)
    assert failures == [("one", "one is broken")]
    assert str(tee.errors["one"]) == "one is broken"
    assert not caplog.records

    one.failing = None  # it is back, and is used in the next take
    tee.write(CLIP)
    tee.close()
    assert np.array_equal(one.samples[100:], CLIP)
    assert one.events[-1] == "close"


def test_stop_ends_the_take() -> None:
    one, two = MemorySink("one"), MemorySink("two")
    tee = Tee([one, two])
    tee.open(MONO)
    one.failing = SinkError("busy")
    tee.write(CLIP)
    one.failing = None
    tee.stop()
    assert "stop" in one.events
    assert "stop" in two.events
    tee.write(CLIP)
    assert np.array_equal(one.samples, CLIP)


def test_failed_file_is_not_continued() -> None:
    one, file = MemorySink("one"), MemorySink("file")
    file.recovers = False  # type: ignore[misc]
    tee = Tee([one, file])
    tee.open(MONO)
    file.failing = SinkError("disk full")
    tee.write(CLIP)
    file.failing = None
    tee.drain()
    tee.write(CLIP)
    assert file.samples.size == 0


def test_write_raises_if_no_sink_is_left() -> None:
    one, two = MemorySink("one"), MemorySink("two")
    tee = Tee([one, two])
    tee.open(MONO)
    one.failing, two.failing = SinkError("one broke."), SinkError("two broke.")
    with pytest.raises(SinkError, match=r"one broke\. two broke\."):
        tee.write(CLIP)
    tee.close()


def test_sinks_that_cannot_be_opened_are_skipped_and_none_at_all_raises() -> None:
    one, two = MemorySink("one"), MemorySink("two")
    one.failing = SinkError("no device")
    tee = Tee([one, two])
    tee.open(MONO)
    tee.write(CLIP)
    assert list(tee.errors) == ["one"]
    assert np.array_equal(two.samples, CLIP)
    tee.close()
    two.failing = SinkError("no disk")
    with pytest.raises(SinkError, match="no device no disk"):
        tee.open(MONO)


def test_empty_tee_raises() -> None:
    with pytest.raises(RequestError, match="name at least one"):
        Tee([])


def test_failure_without_a_callback_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    one, two = MemorySink("one"), MemorySink("two")
    tee = Tee([one, two])
    tee.open(MONO)
    one.failing = SinkError("one is broken")
    for _ in range(3):
        tee.write(CLIP)
        tee.finish()
    assert caplog.messages == ["one is broken"]


@pytest.mark.parametrize(
    ("errors", "kind", "message"),
    [
        ([SinkError("No server."), SinkError("No server.")], SinkError, "No server."),
        ([PipeClosed("One went."), PipeClosed("Two went.")], PipeClosed, "One went. Two went."),
        ([PipeClosed("One went."), SinkError("No server.")], SinkError, "One went. No server."),
    ],
)
def test_combined_failure_names_each_cause_once(
    errors: list[SinkError], kind: type[SinkError], message: str
) -> None:
    sinks = [MemorySink(name) for name in ("one", "two")]
    tee = Tee(sinks)
    tee.open(MONO)
    for sink, error in zip(sinks, errors, strict=True):
        sink.failing = error
    with pytest.raises(SinkError) as caught:
        tee.write(CLIP)
    assert (type(caught.value), str(caught.value)) == (kind, message)
