"""TextIntake: the text of one stream as it arrives, cut into segments. Thread-safe; no torch."""

from __future__ import annotations

import threading
from collections import deque

from rt_drama3.errors import RequestError
from rt_drama3.text.cutting import size, spoken_so_far
from rt_drama3.text.directions import spoken_words
from rt_drama3.text.rules import (
    SEGMENT_BYTES,
    check_part,
    check_text,
    flatten,
    last_speaker_tag,
    split_text,
    with_speaker_tag,
)

LONGEST_PENDING = 1_000_000  # characters of text that may wait in one stream
LONGEST_SENTENCE = 2 * SEGMENT_BYTES  # bytes; a longer sentence is cut before its end arrives
LONGEST_TOKEN = 24  # characters; a special token may arrive in parts


class TextIntake:
    """Collects text and returns it in segments, to be spoken one after the other.

    Refused text changes nothing: the text before it is kept.

    Args:
        reads_directions: the checkpoint was trained on directions; otherwise they are removed.
        longest: maximum size of a segment, in UTF-8 bytes.

    Attributes:
        count: segments known so far, taken or not.
        final: no more text comes.
    """

    def __init__(self, reads_directions: bool = True, longest: int = SEGMENT_BYTES) -> None:
        self._reads_directions, self._longest = reads_directions, longest
        self._pushing = threading.Lock()  # held while text is parsed, which may take long
        self._lock = threading.Lock()  # guards the segments
        self._growing = ""
        self._speaker = ""  # tag of the current speaker's turn
        self._segments: deque[str] = deque()
        self._waiting = 0  # characters in the segments
        self._flushed = False
        self.count = 0
        self.final = False

    def set_whole(self, text: str) -> None:
        """Takes the whole text; sentences then share segments where they fit.

        Raises:
            RequestError: the text is empty or cannot be spoken.
        """
        check_text(text)
        with self._pushing:
            self._add(text)
            self.final = True

    def push(self, text: str) -> None:
        """Adds text; its complete sentences become segments.

        Raises:
            RequestError: the text was finished, cannot be spoken, or is too long.
        """
        with self._pushing:
            if self.final:
                raise RequestError(
                    "the text of this stream is finished; open a new stream for more."
                )
            if not isinstance(text, str):
                raise RequestError(f"text must be a string, not {type(text).__name__}.")
            growing = self._growing + text
            check_part(_arrived(growing))
            if len(growing) + self._waiting > LONGEST_PENDING:
                raise RequestError(
                    f"more than {LONGEST_PENDING} characters wait to be spoken; send more later."
                )
            whole = spoken_so_far(growing)
            ready, growing = growing[:whole], growing[whole:]
            if size(growing) > LONGEST_SENTENCE:  # it would be cut anyway
                *cut, rest = split_text(growing, self._longest) or [""]
                ready, growing = " ".join([ready, *cut]), rest + growing[len(growing.rstrip()) :]
            self._add(ready)
            self._growing = growing

    def flush(self) -> None:
        """Makes segments of all text.

        Raises:
            RequestError: the text cannot be spoken; it is dropped.
        """
        with self._pushing:
            self._flush()
            self._flushed = True

    def finish(self) -> None:
        """Flushes; no more text comes.

        Raises:
            RequestError: what was left of the text cannot be spoken; it is dropped.
        """
        with self._pushing:
            try:
                self._flush()
            finally:
                self.final = True

    def take(self) -> str | None:
        """Returns the next segment, or None while there is none."""
        with self._lock:
            if not self._segments:
                return None
            segment = self._segments.popleft()
            self._waiting -= len(segment)
            return segment

    @property
    def empty(self) -> bool:
        """Whether there is no segment to take."""
        return not self._segments

    @property
    def waiting(self) -> int:
        """Characters that were not taken yet."""
        return self._waiting + len(self._growing)

    def take_flushed(self) -> bool:
        """Whether there was a flush since the last call."""
        flushed, self._flushed = self._flushed, False
        return flushed

    def _flush(self) -> None:
        text, self._growing = self._growing, ""
        self._add(check_part(text))

    def _add(self, text: str) -> None:
        if not self._reads_directions:
            text = spoken_words(text)
        if not flatten(text).strip():
            return
        own = with_speaker_tag(text) == text
        segments = split_text(text if own else self._speaker + text, self._longest)
        self._speaker = last_speaker_tag(text) or self._speaker
        with self._lock:
            self._segments.extend(segments)
            self._waiting += sum(map(len, segments))
            self.count += len(segments)


def _arrived(text: str) -> str:
    """Returns the text without an incomplete special token at its end."""
    start = text.rfind("<|")
    arriving = start >= 0 and len(text) - start < LONGEST_TOKEN and "|>" not in text[start:]
    return text[:start] if arriving else text
