"""Text rules: what callers may send, speaker tags, splitting long text, and how long text may take.

The rules are those of the prompt ``reference-bracket-v1`` (docs/architecture.md, 6). No torch here.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter

from rt_drama3.errors import RequestError
from rt_drama3.text.cutting import LEAST_ROOM, MARKUP, WHITE_SPACE, cut_turn, size

SPEAKERS = 16  # <|speaker:0|> .. <|speaker:15|> are single tokens
SEGMENT_BYTES = 300
SEGMENT_SPEAKERS = 3
MAX_FRAMES = 2048  # of one turn, whatever its text

_STRUCTURE = re.compile(r"<\|(?:im_start\|>|im_end\|>|voice\|>|text\|>|interleave\|>|semantic:)")
SPEAKER_TAG = re.compile(r"<\|speaker:(1[0-5]|[0-9])\|>")
_SPEAKER_LIKE = re.compile(r"<\|\s*speaker[^<>]{0,20}>?", re.IGNORECASE)
_CUE = re.compile(r"\[[^\[\]]*\]")
_EMOJI_SEQUENCE = re.compile("[^\\s]\ufe0f\u20e3?")  # a digit or letter in it is a picture

_CONTROLS = "\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f"
_BLANK_RUN = re.compile(f"[{WHITE_SPACE}{_CONTROLS}]+")
_BREAK = re.compile(f"[\n-\r\x85\u2028\u2029{_CONTROLS}]")

# Seconds that a character may take, about three times what a usual speaker needs: 15 letters, 3
# digits (spoken as words) or 5 syllables of Chinese, Japanese or Korean a second.
_LETTER, _CAPITAL, _SYLLABLE, _DIGIT, _MARK = 0.2, 0.5, 0.66, 1.0, 0.6
_CUE_SECONDS, _SPARE_SECONDS = 4.0, 4.0
_SLOW = 3.0
_SYLLABIC = re.compile(
    "[\u1200-\u137f\u3040-\u30ff\u3400-\u9fff\ua000-\ua4cf\uac00-\ud7a3\uf900-\ufaff"
    "\uff66-\uff9d\U00020000-\U0003ffff]"
)
_REPEATED_MARK = re.compile(r"([^\w\s])\1+")


def check_text(text: object, what: str = "text") -> None:
    """Refuses text that the prompt cannot carry.

    Punctuation or emoji alone is accepted: there is nothing to say in it (see ``has_speech``), but
    it is no mistake. Control characters are accepted too; ``flatten`` makes spaces of them.

    Args:
        text: what a caller wants spoken, or a transcript.
        what: its name in the message.

    Raises:
        RequestError: not a string, half a surrogate pair, a structural token of the prompt, a
            speaker tag other than ``<|speaker:0|>`` .. ``<|speaker:15|>``, or nothing beside white
            space and speaker tags.
    """
    if not _BLANK_RUN.sub("", SPEAKER_TAG.sub("", check_part(text, what))):
        raise RequestError(f"{what} is empty. Give it at least one word.")


def check_part(text: object, what: str = "text") -> str:
    """Returns a part of a text, which may be empty; otherwise refuses what ``check_text`` does."""
    if not isinstance(text, str):
        raise RequestError(f"{what} must be a string, not {type(text).__name__}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{what} has half a surrogate pair, U+{ord(text[error.start]):04X}, at character "
            f"{error.start}. Send whole characters (valid UTF-8)."
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
                f"Use <|speaker:0|> to <|speaker:{SPEAKERS - 1}|>, written exactly so."
            )
    return text


def flatten(text: str) -> str:
    """Makes spaces of line breaks, which could end the model's turn early.

    A run of white space that holds a line break or a control character becomes one space, nothing
    at either end of the text, and before a speaker tag the one line break that parts two turns.
    Other white space stays as it is. Flattening again changes nothing more.
    """

    def join(run: re.Match[str]) -> str:
        if not _BREAK.search(run[0]):
            return run[0]
        if run.start() == 0 or run.end() == len(text):
            return ""
        return "\n" if SPEAKER_TAG.match(text, run.end()) else " "

    return _BLANK_RUN.sub(join, text)


def with_speaker_tag(text: str) -> str:
    """The text with speaker 0's tag in front, unless it starts (after white space) with a tag."""
    return text if SPEAKER_TAG.match(text.lstrip(WHITE_SPACE)) else f"<|speaker:0|> {text}"


def last_speaker_tag(text: str) -> str:
    """The last speaker tag in the text, or nothing."""
    found = list(SPEAKER_TAG.finditer(text))
    return found[-1][0] if found else ""


def reference_transcript(text: str) -> str:
    """The transcript of a reference as the prompt wants it: a speaker tag comes first of all."""
    text = with_speaker_tag(text)
    words = text.lstrip(WHITE_SPACE)
    white = text[: len(text) - len(words)]
    tag, end, rest = words.partition("|>")
    return tag + end + white + rest


def has_speech(text: str) -> bool:
    """Whether the text holds anything to say: a letter or a digit outside tags and emoji.

    A cue such as ``[laughs]`` counts, since a laugh is a take that one may ask for. Punctuation,
    emoji, white space and empty tags do not: the take would be silence or babble.
    """
    bare = MARKUP.sub(lambda found: found[0] if found[0].startswith("[") else " ", text)
    return any(map(str.isalnum, _EMOJI_SEQUENCE.sub("", bare)))


def frame_cap(text: str, frame_rate: float) -> int:
    """How many frames a take of this text may have before it counts as running away.

    About three times the frames of a usual reading and some seconds more, at most ``MAX_FRAMES``.

    Args:
        text: one chunk of text.
        frame_rate: frames per second of the codec.
    """
    return min(MAX_FRAMES, math.ceil((_slow_seconds(text) + _SPARE_SECONDS) * frame_rate))


def usual_seconds(text: str) -> float:
    """How long a usual reading of the text takes, roughly."""
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
    if char.isupper():  # may be spelled, as in FBI
        return _CAPITAL
    if char.isalpha() or char in WHITE_SPACE or unicodedata.category(char)[0] == "M":
        return _LETTER
    return _MARK


def split_text(
    text: str, max_bytes: int = SEGMENT_BYTES, max_speakers: int = SEGMENT_SPEAKERS
) -> list[str]:
    """Splits text (checked by ``check_text``) into chunks, each to be spoken as one turn.

    ``cut_turn`` says where a turn is cut. Every piece of a tagged turn carries its speaker's tag,
    and turns share a chunk, one line each, while they fit. Nothing else is added, and text that
    fits stays one chunk. What has nothing to say (``has_speech``), as "..." has, stays with a
    neighbour if it fits there, and is dropped if not: every chunk has speech.

    Args:
        text: any length; line breaks count as spaces.
        max_bytes: UTF-8 bytes of a chunk, at least 32.
        max_speakers: different speakers in a chunk, at least 1.

    Raises:
        RequestError: a limit is too small, or a cue, a special token or the tags around one place
            do not fit into a chunk.
    """
    least = 2 * LEAST_ROOM  # a speaker tag and a word
    if max_bytes < least or max_speakers < 1:
        raise RequestError(
            f"Chunks of {max_bytes} bytes and {max_speakers} speakers are too small. "
            f"Allow at least {least} bytes and 1 speaker."
        )
    head, *tagged = SPEAKER_TAG.split(flatten(text))
    turns = [("0", head), *zip(tagged[::2], tagged[1::2], strict=True)]
    chunks: list[str] = []
    speakers: set[str] = set()  # of the last chunk
    for speaker, words in turns:
        tag = f"<|speaker:{speaker}|> " if tagged else ""
        for number, piece in enumerate(cut_turn(words, max_bytes - size(tag))):
            line = tag + piece
            joins = chunks and number == 0 and len(speakers | {speaker}) <= max_speakers
            if joins and size(chunks[-1]) + 1 + size(line) <= max_bytes:
                chunks[-1] += "\n" + line
                speakers.add(speaker)
            else:
                chunks.append(line)
                speakers = {speaker}
    return [chunk for chunk in chunks if has_speech(chunk)]
