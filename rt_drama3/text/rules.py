"""Text rules: validation, speaker tags, segmentation, and how long a text may take to speak.

These are the rules of the prompt ``reference-bracket-v1`` (docs/model.md, 6).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter

from rt_drama3.errors import RequestError
from rt_drama3.text.cutting import MIN_ROOM, cut_turn, size
from rt_drama3.text.sentences import MARKUP, WHITE_SPACE, complete_ends

SPEAKERS = 16  # <|speaker:0|> .. <|speaker:15|> are single tokens
SEGMENT_BYTES = 300
SEGMENT_SPEAKERS = 3
MAX_FRAMES = 2048  # per turn, for any text

_STRUCTURE = re.compile(r"<\|(?:im_start\|>|im_end\|>|voice\|>|text\|>|interleave\|>|semantic:)")
SPEAKER_TAG = re.compile(r"<\|speaker:(1[0-5]|[0-9])\|>")
_SPEAKER_LIKE = re.compile(r"<\|\s*speaker[^<>]{0,20}>?", re.IGNORECASE)
_CUE = re.compile(r"\[[^\[\]]*\]")
_EMOJI_SEQUENCE = re.compile("[^\\s]\ufe0f\u20e3?")  # a digit or letter in it is a pictograph

_CONTROLS = "\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f"
_BLANK_RUN = re.compile(f"[{WHITE_SPACE}{_CONTROLS}]+")
_BREAK = re.compile(f"[\n-\r\x85\u2028\u2029{_CONTROLS}]")

# Seconds allowed per character, about three times a typical reading: 15 letters, 3 digits (spoken
# as words) or 5 syllables of Chinese, Japanese or Korean per second.
_LETTER, _CAPITAL, _SYLLABLE, _DIGIT, _MARK = 0.2, 0.5, 0.66, 1.0, 0.6
_CUE_SECONDS, _SPARE_SECONDS = 4.0, 4.0
_SLOW = 3.0
_SYLLABIC = re.compile(
    "[\u1200-\u137f\u3040-\u30ff\u3400-\u9fff\ua000-\ua4cf\uac00-\ud7a3\uf900-\ufaff"
    "\uff66-\uff9d\U00020000-\U0003ffff]"
)
_REPEATED_MARK = re.compile(r"([^\w\s])\1+")


def check_text(text: object, what: str = "text") -> str:
    """Validates text for the prompt and returns it.

    Punctuation or emoji alone is accepted although it has no speakable text (``has_speech``).
    Control characters are accepted too; ``flatten`` replaces them with spaces.

    Args:
        text: text to speak, or a transcript.
        what: its name in error messages.

    Raises:
        RequestError: not a string, a lone surrogate, a structural token of the prompt, a speaker
            tag other than ``<|speaker:0|>`` .. ``<|speaker:15|>``, or only white space and speaker
            tags.
    """
    text = check_part(text, what)
    if not _BLANK_RUN.sub("", SPEAKER_TAG.sub("", text)):
        raise RequestError(f"{what} is empty. Give it at least one word.")
    return text


def check_part(text: object, what: str = "text") -> str:
    """Does what ``check_text`` does, but allows empty text."""
    if not isinstance(text, str):
        raise RequestError(f"{what} must be a string, not {type(text).__name__}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{what} has a lone surrogate, U+{ord(text[error.start]):04X}, at character "
            f"{error.start}. Send valid UTF-8."
        ) from None
    structure = _STRUCTURE.search(text)
    if structure:
        raise RequestError(
            f"{what} contains {structure[0]}, which belongs to the prompt's own structure. "
            "Remove it."
        )
    for like in _SPEAKER_LIKE.finditer(text):
        if not SPEAKER_TAG.match(text, like.start()):
            raise RequestError(
                f"{what} contains {like[0]!r}, which is not a speaker tag. "
                f"Use <|speaker:0|> to <|speaker:{SPEAKERS - 1}|>, spelled exactly like that."
            )
    return text


def flatten(text: str) -> str:
    """Replaces line breaks, which could end the model's turn early, with spaces.

    A run of white space with a line break or a control character becomes a single space, nothing at
    either end of the text, and one line break before a speaker tag, where it separates two turns.
    Other white space is unchanged. The operation is idempotent.
    """

    def join(run: re.Match[str]) -> str:
        if not _BREAK.search(run[0]):
            return run[0]
        if run.start() == 0 or run.end() == len(text):
            return ""
        return "\n" if SPEAKER_TAG.match(text, run.end()) else " "

    return _BLANK_RUN.sub(join, text)


def with_speaker_tag(text: str) -> str:
    """Prepends speaker 0's tag unless the text starts with a tag (after white space)."""
    return text if SPEAKER_TAG.match(text.lstrip(WHITE_SPACE)) else f"<|speaker:0|> {text}"


def last_speaker_tag(text: str) -> str:
    """The last speaker tag in the text, or an empty string."""
    found = list(SPEAKER_TAG.finditer(text))
    return found[-1][0] if found else ""


def reference_transcript(text: str) -> str:
    """A reference's transcript in the form of the prompt: the speaker tag comes first."""
    text = with_speaker_tag(text)
    words = text.lstrip(WHITE_SPACE)
    white = text[: len(text) - len(words)]
    tag, end, rest = words.partition("|>")
    return tag + end + white + rest


def has_speech(text: str) -> bool:
    """Whether the text has anything to speak: a letter or digit outside tags and emoji.

    A cue such as ``[laughs]`` counts, because a laugh is a valid take. Punctuation, emoji, white
    space and empty tags do not: the take would be silence or babble.
    """
    bare = MARKUP.sub(lambda found: found[0] if found[0].startswith("[") else " ", text)
    return any(map(str.isalnum, _EMOJI_SEQUENCE.sub("", bare)))


def frame_cap(text: str, frame_rate: float) -> int:
    """Limit on a take's frames, beyond which generation counts as a runaway.

    About three times a typical reading plus a few seconds, up to ``MAX_FRAMES``.

    Args:
        text: one segment of text.
        frame_rate: the codec's frames per second.
    """
    return min(MAX_FRAMES, math.ceil((_slow_seconds(text) + _SPARE_SECONDS) * frame_rate))


def usual_seconds(text: str) -> float:
    """Rough duration of a typical reading of the text, in seconds."""
    return _slow_seconds(text) / _SLOW


def _slow_seconds(text: str) -> float:
    cues = len(_CUE.findall(text))
    bare = MARKUP.sub(lambda found: found[0] if found[0].startswith("[") else " ", text)
    counts = Counter(_REPEATED_MARK.sub(r"\1", bare))
    return sum(_seconds(char) * count for char, count in counts.items()) + _CUE_SECONDS * cues


def _seconds(char: str) -> float:
    if _SYLLABIC.match(char):
        return _SYLLABLE
    if char.isnumeric():
        return _DIGIT
    if char.isupper():  # may be spelled out, as in FBI
        return _CAPITAL
    if char.isalpha() or char in WHITE_SPACE or unicodedata.category(char)[0] == "M":
        return _LETTER
    return _MARK


def split_text(
    text: str, max_bytes: int = SEGMENT_BYTES, max_speakers: int = SEGMENT_SPEAKERS
) -> list[str]:
    """Splits text (validated by ``check_text``) into segments, each spoken as one turn.

    ``cut_turn`` decides where a turn is cut. Every part of a tagged turn carries its speaker's tag,
    and turns share a segment, one line each, as long as they fit. Nothing else is added, and text
    that fits stays one segment. Parts without speakable text, such as "...", stay with a neighbour
    if they fit there and are dropped otherwise: every segment has speech (``has_speech``).

    Args:
        text: any length; line breaks count as spaces.
        max_bytes: UTF-8 bytes per segment, at least 32.
        max_speakers: different speakers per segment, at least 1.

    Raises:
        RequestError: a limit is too small, or a cue, a special token or the tags around one place
            do not fit into a segment.
    """
    minimum = 2 * MIN_ROOM  # a speaker tag and a word
    if max_bytes < minimum or max_speakers < 1:
        raise RequestError(
            f"segments of {max_bytes} bytes and {max_speakers} speakers are too small; "
            f"allow at least {minimum} bytes and 1 speaker."
        )
    head, *tagged = SPEAKER_TAG.split(flatten(text))
    turns = [("0", head), *zip(tagged[::2], tagged[1::2], strict=True)]
    segments: list[str] = []
    speakers: set[str] = set()  # of the last segment
    for speaker, words in turns:
        tag = f"<|speaker:{speaker}|> " if tagged else ""
        for number, part in enumerate(cut_turn(words, max_bytes - size(tag))):
            line = tag + part
            joins = segments and number == 0 and len(speakers | {speaker}) <= max_speakers
            if joins and size(segments[-1]) + 1 + size(line) <= max_bytes:
                segments[-1] += "\n" + line
                speakers.add(speaker)
            else:
                segments.append(line)
                speakers = {speaker}
    return [segment for segment in segments if has_speech(segment)]


def split_growing(
    text: str, longest: int, max_bytes: int = SEGMENT_BYTES, *, normalized: bool = False
) -> tuple[list[str], str]:
    """Cuts the complete sentences and lines off a growing text.

    The result depends on the text alone, not on the parts in which it arrived.

    Args:
        text: not cut off yet, as far as it has arrived.
        longest: UTF-8 bytes after which a sentence is cut before its end has arrived.
        max_bytes: UTF-8 bytes of a segment.
        normalized: see ``complete_ends``.

    Returns:
        The complete stretches, and the rest of the text.

    Raises:
        RequestError: see ``split_text``.
    """
    stretches: list[str] = []
    at = 0
    while True:
        head = text[at : at + longest].encode()[:longest].decode(errors="ignore")
        ends = complete_ends(head, normalized=normalized)
        # One by one: behind a cut, a line may be short enough to end by itself.
        cut = next((end for end in ends if head[:end].strip(WHITE_SPACE)), 0)
        if not cut and at + len(head) < len(text):
            cut = _first_part(head, max_bytes)
        if not cut:
            return stretches, text[at:]
        stretches.append(head[:cut])
        at += cut


def _first_part(text: str, max_bytes: int) -> int:
    """Characters of a text's first segment."""
    first = (split_text(text, max_bytes) or [text])[0]
    taken = 0
    for char in "".join(first.split()):
        found = text.find(char, taken)
        if found < 0:
            break
        taken = found + 1
    return taken or len(text)
