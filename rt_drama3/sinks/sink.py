"""The interface of every output: open, write, drain, stop, close.

A sink applies backpressure: ``write`` returns when all samples were taken, so a producer that is
faster than playback waits and nothing is lost. A device that stops taking samples raises an error
after a bounded time and never hangs. Pipes are the exception: like any pipe, one whose reader
pauses blocks its writer.

A *take* is one utterance: some writes, then ``finish`` (play what is buffered), ``drain`` (the
same, and wait until it was played) or ``stop`` (silence immediately). The sink stays open for the
next one.

One thread writes at a time. ``stop`` and ``close`` may be called from any thread while another is
in ``write`` or ``drain``, which then return immediately; what was not played is dropped. On an
event loop use ``AsyncSink``.

After a ``SinkError`` writing may continue: the sink tries to reopen the device, not more than once
per second, and until that succeeds ``write`` raises. ``close`` always works.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

from rt_drama3.errors import SinkError
from rt_drama3.sinks.pcm_format import Pcm, PcmFormat

FADE_MS = 20.0


@dataclass(frozen=True)
class SinkStats:
    """State of a sink.

    Attributes:
        buffered_ms: audio accepted but not yet passed to the device; 0 for files.
        underruns: gaps in playback because nothing had been written in time, or the output got it
            late; every sample is played.
        lost: times that the output lost samples, as it reports: sound is missing.
        device_rate: rate of the output in Hz; 0 while closed.
        prebuffer_ms: audio buffered before a take starts; 0 for files.
        latency_ms: delay from the device to the listener, as the device reports it; None if it
            reports none.
    """

    buffered_ms: float = 0.0
    underruns: int = 0
    lost: int = 0
    device_rate: int = 0
    latency_ms: float | None = None
    prebuffer_ms: float = 0.0


class Sink(ABC):
    """An audio output; a context manager that drains on a normal exit and stops on an exception.

    Attributes:
        name: used in messages.
        recovers: whether it can continue after a failure; a file would have a hole.
    """

    name: str
    recovers = True

    @abstractmethod
    def open(self, format: PcmFormat) -> None:
        """Starts the output; a closed sink can be opened again.

        Args:
            format: format of the samples that will be written.

        Raises:
            SinkError: it cannot be opened, or is already open.
            RequestError: this output does not support the format.
        """

    @abstractmethod
    def write(self, pcm: Pcm) -> None:
        """Writes samples; blocks until there is room for all of them, or until ``stop``.

        Args:
            pcm: see ``PcmFormat.frames``.

        Raises:
            SinkError: the sink is not open, or the output failed.
            RequestError: the samples do not match the format.
        """

    @abstractmethod
    def finish(self) -> None:
        """Ends the take: what was written is played without waiting for more. Does not block.

        Raises:
            SinkError: the sink is not open, or the output failed.
        """

    @abstractmethod
    def drain(self) -> None:
        """Ends the take and waits until its last sample was played, or until ``stop``.

        Raises:
            SinkError: the sink is not open, or the output failed.
        """

    @abstractmethod
    def stop(self, fade_ms: float = FADE_MS) -> None:
        """Silences the output: fades out and drops the rest. Never raises; any thread.

        Files keep what was written.

        Args:
            fade_ms: length of the fade; 0 cuts immediately.
        """

    @abstractmethod
    def close(self) -> None:
        """Stops and releases the output; a second call does nothing. Any thread.

        Raises:
            SinkError: a file cannot be completed.
        """

    @property
    @abstractmethod
    def stats(self) -> SinkStats:
        """Current state; any thread."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        try:
            if kind is None:
                self.drain()
        finally:
            self.close()


def lost_sound(sink: Sink) -> SinkError:
    """Returns the error for a sink whose output has lost sound; see ``SinkStats.lost``."""
    return SinkError(
        f"{sink.name} lost sound {sink.stats.lost} times, since the device did not get it in time; "
        "relieve this machine, or choose another device."
    )


def not_open(name: str) -> SinkError:
    """Returns the error for using a closed sink."""
    return SinkError(f"{name} is not open; call open() with the format of the samples first.")


def already_open(name: str) -> SinkError:
    """Returns the error for opening a sink twice."""
    return SinkError(f"{name} is already open; close it before opening it with another format.")
