"""Timings of an utterance, including a simulated player that starts with the first chunk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Playback:
    """A simulated player that starts with the first audio.

    Attributes:
        began: when it started, by ``time.perf_counter``; None before.
        ends: when the audio received so far will have been played.
        underruns: number of times that it ran out of audio.
        worst_underrun, total_underrun: seconds of silence, the longest and the sum.
        least_buffered: smallest number of buffered seconds when more audio arrived.
    """

    began: float | None = None
    ends: float = 0.0
    underruns: int = 0
    worst_underrun: float = 0.0
    total_underrun: float = 0.0
    least_buffered: float | None = None

    def play(self, arrived: float, seconds: float, excused: bool = False) -> float:
        """Records the arrival of audio.

        Args:
            arrived: time of arrival.
            seconds: duration of the audio.
            excused: an underrun before it does not count, because the text was not there yet.

        Returns:
            The time at which its first sample is played.
        """
        if self.began is None:
            self.began = self.ends = arrived
        elif not excused:
            buffered = self.ends - arrived
            least = self.least_buffered
            self.least_buffered = buffered if least is None else min(buffered, least)
            if buffered < 0:
                self.underruns += 1
                self.worst_underrun = max(self.worst_underrun, -buffered)
                self.total_underrun -= buffered
        played = max(self.ends, arrived)
        self.ends = played + seconds
        return played

    def buffered(self, now: float) -> float:
        """Returns the buffered seconds; negative for how long the player has been out of audio."""
        return 0.0 if self.began is None else self.ends - now


@dataclass
class Timings:
    """Seconds, all except ``connect`` since ``start`` was sent; None for what has not happened.

    Attributes:
        connect: time to open the connection; 0 if an open one was reused.
        reused: whether an open connection was reused.
        attempts: number of attempts to connect.
        ready: time to the server's ``ready``.
        first_byte: time to the first byte of audio (which may be a header).
        first_audio: time to the first sample.
        total: time to the end.
        playback: a simulated player.
        server: the server's metrics, once it is done; ``rtf`` is a ratio, the rest milliseconds.
    """

    connect: float = 0.0
    reused: bool = False
    attempts: int = 0
    ready: float | None = None
    first_byte: float | None = None
    first_audio: float | None = None
    total: float | None = None
    playback: Playback = field(default_factory=Playback)
    server: Mapping[str, float | None] = field(default_factory=dict)
