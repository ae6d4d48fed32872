"""Several sinks at once from one stream."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from operator import methodcaller
from typing import Any

from rt_drama3.errors import PipeClosed, RequestError, SinkError
from rt_drama3.sinks.pcm_format import Pcm, PcmFormat
from rt_drama3.sinks.sink import FADE_MS, Sink, SinkStats, not_open

_log = logging.getLogger(__name__)
_PIECE_SECONDS = 0.02  # so that a device that waits for room does not starve the next one


class Tee(Sink):
    """Gives everything to every sink; one that fails is left out while the others go on.

    The pace is the slowest one's. A failure is kept in ``errors`` and told to ``failed``, or logged
    where there is no such callback. A device gets another chance with the next take; a file, which
    would have a hole, and a sink that could not be opened get none before the next ``open``. When
    none is left, ``write`` raises.

    Args:
        sinks: in the order in which they are written; at least one.
        failed: called with the sink and its error, by the thread that writes.

    Attributes:
        sinks: the same.
        errors: by the sink's name, the last error of each that has failed since ``open``.
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
        self._opened: set[int] = set()  # places of the sinks that are open
        self._out: set[int] = set()  # places of those that failed in this take
        self._take_over = False  # set by stop(), from any thread

    def open(self, format: PcmFormat) -> None:
        self.errors.clear()
        self._opened, self._out = set(range(len(self.sinks))), set()
        try:
            self._each(methodcaller("open", format))
            self._opened -= self._out
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
        piece = max(1, round(_PIECE_SECONDS * self._format.rate))
        for at in range(0, len(frames), piece):
            self._each(methodcaller("write", frames[at : at + piece]))
            self._check_any()
            if self._take_over:
                return

    def finish(self) -> None:
        self._each(methodcaller("finish"))
        self._end_take()

    def drain(self) -> None:
        self._each(methodcaller("finish"))  # all at once, so that they end together
        self._each(methodcaller("drain"))
        self._end_take()

    def stop(self, fade_ms: float = FADE_MS) -> None:
        self._take_over = True
        for place in sorted(self._opened):
            self.sinks[place].stop(fade_ms)

    def close(self) -> None:
        self._format = None
        first: SinkError | None = None
        for place in sorted(self._opened):
            try:
                self.sinks[place].close()
            except SinkError as error:
                self._note(place, error)
                first = first or error
        self._opened = set()
        if first is not None:
            raise first

    @property
    def stats(self) -> SinkStats:
        """The most buffered, all underruns; rate and latency of the first sink."""
        each = [sink.stats for sink in self.sinks]
        return SinkStats(
            buffered_ms=max(stats.buffered_ms for stats in each),
            underruns=sum(stats.underruns for stats in each),
            device_rate=each[0].device_rate,
            latency_ms=each[0].latency_ms,
            prebuffer_ms=max(stats.prebuffer_ms for stats in each),
        )

    def _each(self, call: Callable[[Any], object]) -> None:
        for place in sorted(self._opened - self._out):
            try:
                call(self.sinks[place])
            except SinkError as error:
                self._note(place, error)

    def _note(self, place: int, error: SinkError) -> None:
        sink = self.sinks[place]
        self._out.add(place)
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
        self._out = {place for place in self._out if not self.sinks[place].recovers}

    def _check_any(self) -> None:
        if not self._opened - self._out:
            raise together(self.errors.values())


def together(errors: Iterable[SinkError]) -> SinkError:
    """Several failures as one; what failed of the same cause is told once.

    Returns:
        ``PipeClosed`` where nothing but readers that have gone away is among them.
    """
    found = list(errors)
    words = " ".join(dict.fromkeys(map(str, found)))
    gone = all(isinstance(error, PipeClosed) for error in found)
    return PipeClosed(words) if gone else SinkError(words)
