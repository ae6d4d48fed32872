"""What the engine knows of a listener: its playout buffer, and when a stream pauses for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rt_drama3.codec_stream import CodecStream


@dataclass(eq=False)
class Playout:
    """The listener's playout buffer, as far as the engine can know it.

    Attributes:
        codec: frames to PCM.
        frame_seconds: duration of a frame.
        audio: whether there is a listener.
        delivered: frames that became audio.
        announced: segments whose ``Segment`` event was put.
        playing_since: when a player would have started that plays everything without a gap and
            never waits longer than it must; None before the first audio.
    """

    codec: CodecStream
    frame_seconds: float
    audio: bool = True
    delivered: int = 0
    announced: int = 0
    playing_since: float | None = None

    def buffered(self, now: float) -> float:
        """Seconds of audio that the listener has, or will have, beyond what it has played."""
        if not self.audio:
            return math.inf
        if self.playing_since is None:
            return 0.0
        return self.codec.submitted * self.frame_seconds - (now - self.playing_since)

    def unheard(self, now: float) -> float:
        """Seconds for which the listener will hear what was made so far, at least."""
        if not self.audio:
            return 0.0
        if self.playing_since is None:
            return self.codec.submitted * self.frame_seconds
        return max(0.0, self.buffered(now))

    def due(self) -> float:
        """When the listener needs the next frame to be decoded."""
        if self.playing_since is None:
            return 0.0
        return self.playing_since + self.codec.submitted * self.frame_seconds

    def undelivered_seconds(self) -> float:
        """Audio that was made and not delivered."""
        return (self.codec.submitted - self.delivered) * self.frame_seconds

    def play(self, frames: int, now: float) -> None:
        """Notes that frames were delivered; a player that ran dry starts again."""
        started = now - self.delivered * self.frame_seconds
        if self.playing_since is None or self.playing_since < started:
            self.playing_since = started
        self.delivered += frames
