"""The contract of every output: open, write, drain, stop, close.

A sink takes samples at the pace it can: ``write`` returns when everything was taken, so a producer
that is faster than the listener waits and nothing is lost. A device that stops taking samples is an
error after a bounded time, never a hang. Pipes are the exception: a pipe whose reader pauses holds
its writer for as long as the reader likes, as pipes do.

A *take* is one utterance: some writes, then ``finish`` (nothing more follows, play it out) or
``drain`` (the same, and wait until it was heard), or ``stop`` (be quiet now). The sink stays open
for the next one.

One thread writes at a time. ``stop`` and ``close`` may come from any thread while another is in
``write`` or ``drain``, which then return at once; what was not played is dropped. On an event loop
use ``AsyncSink``.

After a ``SinkError`` a sink may be written to again: a device that has come back is opened anew, at
most once a second, and until then ``write`` raises. ``close`` always works.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rt_drama3.errors import SinkError
from rt_drama3.sinks.pcm_format import Pcm, PcmFormat

FADE_MS = 20.0


@dataclass(frozen=True)
class SinkStats:
    """How a sink is doing.

    Attributes:
        buffered_ms: sound taken but not yet given to the device; 0 for files.
        underruns: times the listener met a gap because nothing had been written.
        device_rate: in Hz, what the output runs at; 0 while closed.
        prebuffer_ms: what is collected before a take starts; 0 for files.
        latency_ms: from the device taking a sample to the listener, as the device reports it; None
            where it reports none.
    """

    buffered_ms: float = 0.0
    underruns: int = 0
    device_rate: int = 0
    latency_ms: float | None = None
    prebuffer_ms: float = 0.0


class Sink(ABC):
    """An audio output; a context manager that plays out at a clean end and stops at another.

    Attributes:
        name: what it is called in messages.
        recovers: whether it can go on after a failure; a file would have a hole.
    """

    name: str
    recovers = True

    @abstractmethod
    def open(self, format: PcmFormat) -> None:
        """Starts the output; a sink that was closed can be opened again.

        Args:
            format: of what will be written.

        Raises:
            SinkError: it cannot be opened, or is open.
            RequestError: this output has no such format.
        """

    @abstractmethod
    def write(self, pcm: Pcm) -> None:
        """Takes samples, waiting until there is room for all of them, or until ``stop``.

        Args:
            pcm: see ``PcmFormat.frames``.

        Raises:
            SinkError: the sink is not open, or the output failed.
            RequestError: the samples are not of the format.
        """

    @abstractmethod
    def finish(self) -> None:
        """Ends the take: what was written is played though nothing follows. Returns at once.

        Raises:
            SinkError: the sink is not open, or the output failed.
        """

    @abstractmethod
    def drain(self) -> None:
        """Ends the take and waits until its last sample was heard, or until ``stop``.

        Raises:
            SinkError: the sink is not open, or the output failed.
        """

    @abstractmethod
    def stop(self, fade_ms: float = FADE_MS) -> None:
        """Is quiet now: fades out what sounds, and drops the rest. Never raises; any thread.

        Files keep what was written.

        Args:
            fade_ms: length of the fade; 0 cuts.
        """

    @abstractmethod
    def close(self) -> None:
        """Stops and lets go of the output; a second call does nothing. Any thread.

        Raises:
            SinkError: a file cannot be completed.
        """

    @property
    @abstractmethod
    def stats(self) -> SinkStats:
        """How it is doing; any thread."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.drain()
        finally:
            self.close()


def not_open(name: str) -> SinkError:
    """The error of writing to a closed sink."""
    return SinkError(f"{name} is not open; call open() with the format of the samples first.")


def already_open(name: str) -> SinkError:
    """The error of opening twice."""
    return SinkError(f"{name} is open already; close it before opening it with another format.")
