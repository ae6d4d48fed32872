"""SpeechOrder: what a client wants spoken, in any dialect, checked and complete."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rt_drama3.errors import RequestError
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.formats import Output
from rt_drama3.protocol.limits import ModelFacts, ProtocolLimits
from rt_drama3.protocol.refusals import Refused
from rt_drama3.scenes.takes import PreviousTake
from rt_drama3.text.directions import can_be_spoken
from rt_drama3.text.rules import check_text

# A voice is looked up by its name, which cannot be mistaken for a path.
_VOICE = re.compile(r"[^\W_][\w .:@+-]{0,127}")
# Clients send these by default, whatever voices a server has: OpenAI's, and ids of Fish's cloud.
_STOCK_VOICE = re.compile(
    r"alloy|ash|ballad|coral|echo|fable|onyx|nova|sage|shimmer|verse|marin|cedar|[0-9a-f]{32}",
    re.IGNORECASE,
)
_SPEAKER_TAG = re.compile(r"\s*<\|speaker:")
LARGEST_SEED = 2**64 - 1
MAX_DECIBELS = 20.0
NORMALIZE = ("auto", "on", "off")


@dataclass(frozen=True)
class Reference:
    """A clip to follow, or an earlier turn: audio, a URL of audio, or codes, with its text.

    Attributes:
        text: what is said in it.
        audio: an audio file in memory; None where there are codes or a URL.
        codes: int64 ``[num_codebooks, frames]``, not yet checked against the codebooks' sizes.
        url: where the audio is; a server that fetches it replaces it by ``audio``.
        samples: the decoded audio, float32 ``[samples]``, and its rate in Hz; a server that decodes
            it replaces ``audio`` by them.
    """

    text: str
    audio: bytes | None = field(default=None, repr=False)
    codes: npt.NDArray[np.int64] | None = field(default=None, repr=False)
    url: str = field(default="", repr=False)
    samples: tuple[npt.NDArray[np.float32], int] | None = field(default=None, repr=False)

    @property
    def sound(self) -> bytes | tuple[npt.NDArray[np.float32], int] | None:
        """The audio, read or not; None where there is none."""
        return self.audio if self.samples is None else self.samples

    @property
    def source(self) -> tuple[str, Any]:
        """For the engine's request: the text, and audio or codes."""
        return self.text, self.codes if self.sound is None else self.sound


@dataclass(frozen=True)
class Sampling:
    """How to draw; the names are those of the engine's request, None takes its default."""

    temperature: float | None = None
    head_temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_aware: bool = True
    seed: int | None = None


@dataclass(frozen=True)
class Directing:
    """Guidance, steering and earlier takes; the names are those of the engine's request.

    Attributes:
        guidance: strength; None and 0 are off.
        steering: (name, strength) pairs.
        previous_takes: earlier takes, with codes, with audio, or only text.
    """

    guidance: float | None = None
    steering: tuple[tuple[str, float], ...] = ()
    previous_takes: tuple[Reference, ...] = ()

    def settings(self) -> Mapping[str, Any]:
        """Keywords of the engine's ``SpeechRequest``."""
        takes = tuple(PreviousTake(t.text, t.codes, t.sound) for t in self.previous_takes)
        return {"guidance": self.guidance, "steering": self.steering, "previous_takes": takes}


@dataclass(frozen=True)
class SpeechOrder:
    """What to say and how.

    Attributes:
        text: what is known of the text.
        final: whether that is all of it; otherwise more follows in events.
        voices: names of stored voices; voice n speaks as speaker n.
        references: clips to follow, in addition to voices.
        history: earlier turns, with codes.
        directing: guidance, steering and earlier takes.
        best_of: number of takes to choose the best from; 0 speaks immediately (HTTP).
        output: format, rate and bit rate.
        quality: of the resampler, "low_latency" or "high".
        gain_db: louder or softer.
        sampling: how to draw.
        normalize: "auto", "on" or "off"; see the engine's ``SpeechSettings``.
        max_seconds: limit of the audio's duration; None leaves it to the engine.
        timings: wants time stamps with the audio.
        take: wants the codes at the end.
        sse: wants server-sent events (OpenAI).
        model: the name that the client sent, for logs.
        instructions: how to speak, in words.
        notices: what was ignored, for the client's developer.
    """

    text: str = ""
    final: bool = False
    voices: tuple[str, ...] = ()
    references: tuple[Reference, ...] = ()
    history: tuple[Reference, ...] = ()
    directing: Directing = field(default_factory=Directing)
    best_of: int = 0
    output: Output = field(default_factory=Output)
    quality: str = "low_latency"
    gain_db: float = 0.0
    sampling: Sampling = field(default_factory=Sampling)
    normalize: str = "auto"
    max_seconds: float | None = None
    timings: bool = False
    take: bool = False
    sse: bool = False
    model: str = ""
    instructions: str | None = None
    notices: tuple[str, ...] = ()

    def is_speechless(self, directions_sound: bool) -> bool:
        """Whether the text is complete and has nothing to speak: the answer is without audio.

        Args:
            directions_sound: of the checkpoint, see ``PromptBuilder``.
        """
        return self.final and not can_be_spoken(self.text, directions_sound)

    def max_frames(self, facts: ModelFacts) -> int | None:
        """``max_seconds`` in frames."""
        if self.max_seconds is None:
            return None
        return max(1, round(self.max_seconds / facts.frame_seconds))

    def settings(self, facts: ModelFacts) -> Mapping[str, Any]:
        """Keywords of the engine's ``SpeechRequest``, except the references."""
        return {
            "text": self.text,
            "final": self.final,
            "history": tuple(turn.source for turn in self.history),
            "max_frames": self.max_frames(facts),
            "normalize": self.normalize,
            **vars(self.sampling),
            **self.directing.settings(),
        }


def read_sampling(fields: Fields) -> Sampling:
    """The fields of ``Sampling``.

    Raises:
        Refused: ``bad_field``.
    """
    return Sampling(
        temperature=fields.number("temperature", 0, 10),
        head_temperature=fields.number("head_temperature", 0, 10),
        top_p=fields.number("top_p", 0, 1, above=True),
        top_k=fields.integer("top_k", 1, 1_000_000),
        repetition_aware=fields.flag("repetition_aware", True),
        seed=fields.integer("seed", 0, LARGEST_SEED),
    )


def read_voice(fields: Fields, name: str) -> str | None:
    """The name of a stored voice.

    Raises:
        Refused: ``bad_field``.
    """
    value = fields.value(name)
    return None if value is None or value == "" else checked_voice(fields, name, value)


def checked_voice(fields: Fields, name: str, value: object) -> str:
    """A voice's name, from a field or an entry of one.

    Raises:
        Refused: ``bad_field``.
    """
    if not isinstance(value, str) or not is_voice_name(value):
        raise fields.refuse(
            name,
            "a voice's name has up to 128 letters, digits, spaces and . : @ + - _, a letter or "
            "digit first",
        )
    return value


def is_voice_name(name: str) -> bool:
    """Whether a voice can have this name."""
    return _VOICE.fullmatch(name) is not None


def is_stock_voice(name: str) -> bool:
    """Whether clients send this name without anyone's choice: it may mean the default voice."""
    return _STOCK_VOICE.fullmatch(name) is not None


def transcript(fields: Fields, limits: ProtocolLimits) -> str:
    """The transcript (``text``) of a clip or of codes.

    Raises:
        Refused: ``bad_reference``: it is missing or cannot be used.
    """
    text = fields.text("text", limits.transcript_characters)
    if text is None:
        raise fields.refuse("text", "what is said in the clip is needed", "bad_reference")
    return checked_text(text, fields.path("text"), "bad_reference")


def checked_audio(
    data: bytes, limits: ProtocolLimits, what: str = "the audio of a reference"
) -> bytes:
    """Checks the size of a clip; whether it is audio is found when it is decoded.

    Args:
        data: an audio file.
        limits: for its size.
        what: its name in messages.

    Raises:
        Refused: ``bad_reference``.
    """
    if not data:
        raise Refused("bad_reference", f"{what} is empty.")
    if len(data) > limits.reference_bytes:
        raise Refused(
            "bad_reference",
            f"{what} is {len(data)} bytes; the limit is {limits.reference_bytes} "
            "(reference_bytes).",
        )
    return data


def checked_text(text: str, what: str = "text", code: str = "bad_text") -> str:
    """Checks text that becomes part of the prompt.

    Raises:
        Refused: with ``code``.
    """
    try:
        check_text(text, what)
    except RequestError as error:
        raise Refused(code, str(error)) from None
    return text


def whole_text(text: str | None, what: str = "text") -> str:
    """Checks the text of a request, which must be complete.

    Args:
        text: None if there is none.
        what: the name of its field.

    Raises:
        Refused: ``bad_text``: missing, empty, or not speakable.
    """
    return checked_text("" if text is None else text, what)


def as_speaker(text: str, speaker: int) -> str:
    """Adds a speaker tag to a transcript that has none."""
    return text if _SPEAKER_TAG.match(text) else f"<|speaker:{speaker}|> {text}"
