"""What can be asked for an utterance, and the ``start`` message that asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypeAlias, TypedDict, get_args

from rt_drama3_client.clips import Audio, as_lists
from rt_drama3_client.errors import UsageError
from rt_drama3_client.messages import VERSION, Take, pack

Format: TypeAlias = Literal["pcm", "pcm_f32", "wav", "mp3", "opus", "flac", "aac"]
Quality: TypeAlias = Literal["low_latency", "high"]
Codes: TypeAlias = bytes | Sequence[Sequence[int]]
FORMAT_NAMES: tuple[str, ...] = get_args(Format)


class Reference(TypedDict, total=False):
    """A clip to follow, as audio or as codes.

    Attributes:
        text: what is said in it; may begin with ``<|speaker:n|>``.
        audio: bytes of an audio file, a ``Path`` to one, or its URL where the server fetches those.
        vq_codes: instead of audio: ``Take.vq_codes``, or a list of codes for every codebook.
        speaker: 0 to 15: whose voice it is, unless the text says so itself.
    """

    text: Required[str]
    audio: Audio
    vq_codes: Codes
    speaker: int


class Turn(TypedDict):
    """An earlier turn of the scene: what was said and its codes."""

    text: str
    vq_codes: Codes


class PreviousTake(TypedDict, total=False):
    """An earlier take of the scene; a text alone is spoken first, unheard.

    Attributes:
        text: that was spoken.
        codes, vq_codes: of it, by either name; an artefact file has ``codes``.
        audio: instead of codes, as that of a ``Reference``.
        family, schema, num_codebooks, frames, seed, complete: as artefacts have them.
    """

    text: Required[str]
    codes: Codes
    vq_codes: Codes
    audio: Audio
    family: str
    schema: str
    num_codebooks: int
    frames: int
    seed: int | None
    complete: bool


class VoiceOptions(TypedDict, total=False):
    """What decides how it sounds, whatever form the audio has; see ``Options``."""

    voice: str | None
    references: Sequence[Reference | tuple[str, Audio] | Take] | None
    history: Sequence[Turn | Take] | None
    previous_takes: Sequence[Take | PreviousTake] | None
    guidance: float | None
    steering: Sequence[tuple[str, float]] | None
    gain_db: float | None
    temperature: float | None
    head_temperature: float | None
    top_p: float | None
    top_k: int | None
    repetition_aware: bool | None
    seed: int | None
    max_seconds: float | None


class Options(VoiceOptions, total=False):
    """Keywords of ``speak`` and ``stream``; what is left out is the server's choice.

    Attributes:
        voice: name of a stored voice.
        references: clips to follow: ``(text, audio)``, or see ``Reference``. A ``Path`` is read
            as the utterance begins; pass bytes where the event loop must not wait for a disk.
        history: earlier turns of the scene, oldest first: ``Take``, or see ``Turn``.
        previous_takes: the same, behind those, and in more forms: ``Take`` as ``done.take`` has
            it, an artefact that was read from its file, or see ``PreviousTake``.
        guidance: how strongly directions are followed, 0 (off) to 20.
        steering: ``(name, strength)`` of vectors in the server's data folder, -100 to 100.
        format: ``pcm`` (signed 16 bits, the default), ``pcm_f32``, ``wav``, ``mp3``, ``opus``,
            ``flac`` or ``aac``.
        sample_rate: Hz.
        bitrate: bits per second, for mp3, opus and aac.
        quality: of resampling; ``low_latency`` or ``high``.
        gain_db: louder or softer, -20 to 20.
        temperature, head_temperature, top_p, top_k, repetition_aware: of sampling.
        seed: the same one gives the same speech.
        max_seconds: ends the speech after so much audio.
        timings: put the server's stamps into every chunk.
        take: put the take into ``done``.
    """

    format: Format | None
    sample_rate: int | None
    bitrate: int | None
    quality: Quality | None
    timings: bool
    take: bool


_KNOWN = frozenset(Options.__annotations__)
_VOICE = frozenset(VoiceOptions.__annotations__)


def check(options: Mapping[str, Any]) -> None:
    """Refuses a misspelt keyword, which the server would only name in ``ready.ignored``.

    Raises:
        UsageError: it names the keyword and those that are known.
    """
    _check(options, _KNOWN)


def check_voice(options: Mapping[str, Any]) -> None:
    """The same for ``VoiceOptions``, where somebody else decides on the form of the audio.

    Raises:
        UsageError: it names the keyword and those that are known.
    """
    _check(options, _VOICE)


def _check(options: Mapping[str, Any], known: frozenset[str]) -> None:
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(
            f"{', '.join(unknown)} cannot be asked for; known: {', '.join(sorted(known))}."
        )


def start_message(text: str, final: bool, options: Mapping[str, Any]) -> bytes:
    """The message that begins an utterance.

    Raises:
        UsageError: an option holds what no message can.
    """
    lists = as_lists(options)
    try:
        fields = {**options, **lists, **_directing(options)}
        return pack("start", version=VERSION, text=text, final=final, **fields)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"the options cannot be sent: {error}.") from error


def _directing(options: Mapping[str, Any]) -> dict[str, Any]:
    """Steering, which is pairs here and maps in the message."""
    if (steering := options.get("steering")) is None:
        return {}
    return {"steering": [{"name": name, "strength": by} for name, by in steering]}
