"""One stream into several sinks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from operator import methodcaller
from typing import Any

from rt_drama3.errors import PipeClosed, RequestError, SinkError
from rt_drama3.sinks.pcm_format import Pcm, PcmFormat
from rt_drama3.sinks.sink import FADE_MS, Sink, SinkStats, not_open

_log = logging.getLogger(__name__)
_CHUNK_SECONDS = 0.02  # short, so that a sink that blocks does not starve the next one


class Tee(Sink):
    """Writes everything to every sink; a sink that fails is skipped while the others continue.

    The slowest sink sets the pace. A failure is kept in ``errors`` and passed to ``failed``, or
    logged if there is no such callback. A device is tried again with the next take; a file, which
    would have a hole, and a sink that could not be opened are skipped until the next ``open``. If
    none is left, ``write`` raises.

    Args:
        sinks: in the order of writing; at least one.
        failed: called with the sink and its error, in the writing thread.

    Attributes:
        sinks: the same.
        errors: the last error of each sink that has failed since ``open``, by the sink's name.
    """

    def __init__(
        self, sinks: Sequence[Sink], failed: Callable[[Sink, SinkError], None] | None = None
    ) -> None:
        if not sinks:
            raise RequestError("No sink was given; name at least one.")
        self.sinks = tuple(sinks)
        self.errors: dict[str, SinkError] = {}
        self.name = " and ".join(sink.name for sink in self.sinks)
        self._failed = failed
        self._format: PcmFormat | None = None
        self._opened: set[int] = set()  # indices of the sinks that are open
        self._failed_now: set[int] = set()  # indices of those that failed in this take
        self._take_over = False  # set by stop(), from any thread

    def open(self, format: PcmFormat) -> None:
        self.errors.clear()
        self._opened, self._failed_now = set(range(len(self.sinks))), set()
        try:
            self._each(methodcaller("open", format))
            self._opened -= self._failed_now
            self._check_any()
        except BaseException:
            self.close()
            raise
        self._format = format

    def write(self, pcm: Pcm) -> None:
        if self._format is None:
            raise not_open(self.name)
        if self._take_over:
            self._next_take()
        frames = self._format.frames(pcm)
        chunk = max(1, round(_CHUNK_SECONDS * self._format.rate))
        for at in range(0, len(frames), chunk):
            self._each(methodcaller("write", frames[at : at + chunk]))
            self._check_any()
            if self._take_over:
                return

    def finish(self) -> None:
        self._each(methodcaller("finish"))
        self._end_take()

    def drain(self) -> None:
        self._each(methodcaller("finish"))  # all of them first, so that they end together
        self._each(methodcaller("drain"))
        self._end_take()

    def stop(self, fade_ms: float = FADE_MS) -> None:
        self._take_over = True
        for index in sorted(self._opened):
            self.sinks[index].stop(fade_ms)

    def close(self) -> None:
        self._format = None
        first: SinkError | None = None
        for index in sorted(self._opened):
            try:
                self.sinks[index].close()
            except SinkError as error:
                self._record(index, error)
                first = first or error
        self._opened = set()
        if first is not None:
            raise first

    @property
    def stats(self) -> SinkStats:
        """The most buffered, all underruns and losses; rate and latency of the first sink."""
        each = [sink.stats for sink in self.sinks]
        return SinkStats(
            buffered_ms=max(stats.buffered_ms for stats in each),
            underruns=sum(stats.underruns for stats in each),
            lost=sum(stats.lost for stats in each),
            device_rate=each[0].device_rate,
            latency_ms=each[0].latency_ms,
            prebuffer_ms=max(stats.prebuffer_ms for stats in each),
        )

    def _each(self, call: Callable[[Any], object]) -> None:
        for index in sorted(self._opened - self._failed_now):
            try:
                call(self.sinks[index])
            except SinkError as error:
                self._record(index, error)

    def _record(self, index: int, error: SinkError) -> None:
        sink = self.sinks[index]
        self._failed_now.add(index)
        if self._failed is None and str(self.errors.get(sink.name)) != str(error):
            _log.warning("%s", error)
        self.errors[sink.name] = error
        if self._failed is not None:
            self._failed(sink, error)

    def _end_take(self) -> None:
        try:
            self._check_any()
        finally:
            self._next_take()

    def _next_take(self) -> None:
        self._take_over = False
        self._failed_now = {index for index in self._failed_now if not self.sinks[index].recovers}

    def _check_any(self) -> None:
        if not self._opened - self._failed_now:
            raise combined(self.errors.values())


def combined(errors: Iterable[SinkError]) -> SinkError:
    """Combines several failures into one; the same message appears once.

    Returns:
        ``PipeClosed`` if every failure is a pipe whose reader has exited.
    """
    found = list(errors)
    words = " ".join(dict.fromkeys(map(str, found)))
    gone = all(isinstance(error, PipeClosed) for error in found)
    return PipeClosed(words) if gone else SinkError(words)
