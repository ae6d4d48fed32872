"""TextIntake: the text of one stream as it arrives, cut into segments. Thread-safe; no torch."""

from __future__ import annotations

import re
import threading
from collections import deque

from rt_drama3.errors import RequestError
from rt_drama3.text.directions import can_be_spoken, has_words, spoken_words
from rt_drama3.text.normalize import keeps_speech
from rt_drama3.text.rules import (
    SEGMENT_BYTES,
    check_part,
    check_text,
    flatten,
    has_speech,
    last_speaker_tag,
    split_growing,
    split_text,
    with_speaker_tag,
)
from rt_drama3.text.sentences import blocks, can_stand_alone

LONGEST_PENDING = 1_000_000  # characters of text that may wait in one stream
LONGEST_SENTENCE = 2 * SEGMENT_BYTES  # bytes; a longer sentence is cut before its end arrives
LONGEST_UNSPOKEN = 2000  # characters that are kept of text without words, for notices about it
LONGEST_TOKEN = 24  # characters; a special token may arrive in parts
_ARRIVING_DIRECTION = re.compile(r"\[[^\[\]]{0,200}\Z")


class TextIntake:
    """Collects text and returns it in segments, to be spoken one after the other.

    Refused text changes nothing: the text before it is kept.

    Args:
        reads_directions: the checkpoint was trained on directions; otherwise they are removed.
        longest: maximum size of a segment, in UTF-8 bytes.
        normalizes: its segments will be normalised; paragraphs and list items are then segments of
            their own.
        directions_sound: a direction alone is something to speak; of several segments in a row that
            have no words, the first one is spoken.

    Attributes:
        normalizes: see above.
        stands: more text may come, but what waits for the end of its sentence can stand alone.
        pushed: when the latest text came.
        count: segments known so far, taken or not.
        final: no more text comes.
    """

    def __init__(
        self,
        reads_directions: bool = True,
        longest: int = SEGMENT_BYTES,
        normalizes: bool = False,
        directions_sound: bool = True,
    ) -> None:
        self._reads_directions, self._longest = reads_directions, longest
        self._directions_sound = directions_sound
        self.normalizes, self.stands, self.pushed = normalizes, False, 0.0
        self._pushing = threading.Lock()  # held while text is parsed, which may take long
        self._lock = threading.Lock()  # guards the segments
        self._growing = ""
        self._speaker = ""  # tag of the current speaker's turn
        self._wordless = False  # the latest segment has only directions
        self._segments: deque[str] = deque()
        self._waiting = 0  # characters in the segments
        self._unspoken = ""
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
            self._add(*(blocks(text) if self.normalizes else [text]))
            self.final = True

    def push(self, text: str, now: float = 0.0) -> None:
        """Adds text; its complete sentences become segments.

        Args:
            text: more of it.
            now: seconds of the clock that ``pushed`` is compared with.

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
            ready, growing = split_growing(
                growing, LONGEST_SENTENCE, self._longest, normalized=self.normalizes
            )
            self._add(*ready)
            self._growing, self.pushed = growing, now
            self.stands = can_stand_alone(growing, normalized=self.normalizes)

    def can_be_spoken_with(self, text: str) -> bool:
        """Whether there is something to speak once a text is added (any thread)."""
        growing = _ARRIVING_DIRECTION.sub("", self._growing + text)
        return can_be_spoken(growing, self._directions_sound)

    def flush(self) -> None:
        """Makes segments of all text.

        Raises:
            RequestError: the text cannot be spoken; it is dropped.
        """
        with self._pushing:
            self._flush()
            self._flushed = True

    def speak_standing(self) -> None:
        """Flushes text that can stand alone, because no more came for a while."""
        with self._pushing:
            if self.stands:
                self._flush()

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

    def take_unspoken(self) -> str:
        """Returns the text since the last call of which nothing is spoken, or its beginning."""
        with self._lock:
            text, self._unspoken = self._unspoken, ""
            return text

    @property
    def empty(self) -> bool:
        """Whether there is no segment to take."""
        return not self._segments

    @property
    def begun(self) -> bool:
        """Whether a sentence has begun whose end has not come yet."""
        return bool(self._growing.strip())

    @property
    def waiting(self) -> int:
        """Characters that were not taken yet."""
        return self._waiting + len(self._growing)

    def take_flushed(self) -> bool:
        """Whether there was a flush since the last call."""
        flushed, self._flushed = self._flushed, False
        return flushed

    def _flush(self) -> None:
        text, self._growing, self.stands = self._growing, "", False
        check_part(text)
        self._add(*(blocks(text) if self.normalizes else [text]))
        self._wordless = False

    def _add(self, *texts: str) -> None:
        """Adds the segments of some texts, of all or, if one cannot be spoken, of none."""
        segments: list[str] = []
        unspoken: list[str] = []
        speaker = self._speaker
        for text in texts:
            words = text if self._reads_directions else spoken_words(text)
            if not flatten(words).strip():
                continue
            own = with_speaker_tag(words) == words
            found = split_text(words if own else speaker + words, self._longest)
            segments += found
            if not found:
                unspoken.append(words.strip())
            speaker = last_speaker_tag(words) or speaker
        spoken, wordless = [], self._wordless
        for segment in segments:
            if not self._speaks(segment):
                unspoken.append(segment)
                continue
            before, wordless = wordless, "[" in segment and not has_words(segment)
            if not (before and wordless):
                spoken.append(segment)
        self._speaker, self._wordless = speaker, wordless
        with self._lock:
            self._segments.extend(spoken)
            self._waiting += sum(map(len, spoken))
            self.count += len(spoken)
            if unspoken:
                self._unspoken = " ".join([self._unspoken, *unspoken])[:LONGEST_UNSPOKEN].lstrip()

    def _speaks(self, segment: str) -> bool:
        """Whether a segment with speech (``has_speech``) is spoken: also once it is normalised."""
        speaks = has_speech if self._directions_sound else has_words
        if self.normalizes and not keeps_speech(segment, speaks):
            return False
        return self._directions_sound or has_words(segment)


def _arrived(text: str) -> str:
    """Returns the text without an incomplete special token at its end."""
    start = text.rfind("<|")
    arriving = start >= 0 and len(text) - start < LONGEST_TOKEN and "|>" not in text[start:]
    return text[:start] if arriving else text
