"""What an utterance took, as a listener notices it who begins to play with the first chunk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Playback:
    """A player that begins with the first audio, and what it would have gone through.

    Attributes:
        began: when it began, by ``time.perf_counter``; None before.
        ends: when what came so far will have been played.
        gaps: times that it had nothing to play in the middle of what should be one flow.
        worst_gap, all_gaps: seconds of silence, the longest and all.
        least_lead: seconds of audio that were in hand, at the least, when more came.
    """

    began: float | None = None
    ends: float = 0.0
    gaps: int = 0
    worst_gap: float = 0.0
    all_gaps: float = 0.0
    least_lead: float | None = None

    def play(self, arrived: float, seconds: float, excused: bool = False) -> float:
        """Audio came.

        Args:
            arrived: when.
            seconds: of audio.
            excused: a gap before it is no fault: the text was not there.

        Returns:
            When its first sample is heard.
        """
        if self.began is None:
            self.began = self.ends = arrived
        elif not excused:
            lead = self.ends - arrived
            self.least_lead = lead if self.least_lead is None else min(lead, self.least_lead)
            if lead < 0:
                self.gaps += 1
                self.worst_gap = max(self.worst_gap, -lead)
                self.all_gaps -= lead
        heard = max(self.ends, arrived)
        self.ends = heard + seconds
        return heard

    def lead(self, now: float) -> float:
        """Seconds of audio in hand now; below 0 for how long there has been none."""
        return 0.0 if self.began is None else self.ends - now


@dataclass
class Timings:
    """Seconds, all but ``connect`` since ``start`` was sent; None for what has not happened.

    Attributes:
        connect: to open the connection, or 0 where one was open already.
        reused: whether one was.
        attempts: connections that were tried.
        ready: to the server's consent.
        first_byte: to the first byte of audio (which may be a header).
        first_audio: to the first sample.
        total: to the end.
        playback: as a listener goes through it.
        server: its own figures, once it is done; ``rtf`` is a ratio, the rest milliseconds.
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
