"""Transcript: which of the text that was written is heard from when on."""

from __future__ import annotations

from livekit.agents.types import TimedString

from rt_drama3_client.written import find_segment


class Transcript:
    """Turns the server's segments into LiveKit's timed strings.

    Segments come without the white space around them; the text that was written has it. Joined, the
    timed strings are the text as it was written, up to what is heard.

    Args:
        sample_rate: of the audio, Hz.
    """

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._rest = ""  # what was written and is not heard yet
        self._begun = False

    def write(self, text: str) -> None:
        """Text went to the server."""
        self._rest += text

    def hear(self, text: str, first_sample: int) -> TimedString:
        """A segment is heard from that sample on."""
        found = find_segment(text, self._rest)
        if found:
            shown, self._rest = self._rest[: found.end()], self._rest[found.end() :]
        else:  # the server speaks something else, such as a tag that it closed and opened again
            shown = f" {text}" if self._begun else text
        self._begun = True
        return TimedString(shown, start_time=first_sample / self._rate)

    def end(self, samples: int) -> TimedString:
        """The audio ends; without words, so that the last ones have their length."""
        return TimedString("", start_time=samples / self._rate)
