"""Transcript: when each part of the text is heard."""

from __future__ import annotations

from livekit.agents.types import TimedString

from rt_drama3_client.written import find_segment


class Transcript:
    """Converts the server's segments to LiveKit's timed strings.

    Segments have no white space around them, but the original text does. Joined, the timed strings
    are the original text, up to what is heard.

    Args:
        sample_rate: sample rate of the audio in Hz.
    """

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._rest = ""  # text that is not heard yet
        self._begun = False

    def write(self, text: str) -> None:
        """Records text that is sent to the server."""
        self._rest += text

    def hear(self, text: str, first_sample: int) -> TimedString:
        """Returns the timed string of a segment that starts at a sample."""
        found = find_segment(text, self._rest)
        if found:
            shown, self._rest = self._rest[: found.end()], self._rest[found.end() :]
        else:  # not in the text, for example because the server closed and reopened a tag
            shown = f" {text}" if self._begun else text
        self._begun = True
        return TimedString(shown, start_time=first_sample / self._rate)

    def end(self, samples: int) -> TimedString:
        """Returns an empty timed string for the end of the audio, which bounds the last words."""
        return TimedString("", start_time=samples / self._rate)
