"""The options of an utterance, and the ``start`` message."""

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
    """A reference clip, as audio or as codes.

    Attributes:
        text: its transcript; may start with ``<|speaker:n|>``.
        audio: bytes of an audio file, a ``Path`` to one, or its URL if the server fetches URLs.
        vq_codes: instead of audio: ``Take.vq_codes``, or a list of codes for every codebook.
        speaker: number of the speaker, 0 to 15, unless the text has a speaker token.
    """

    text: Required[str]
    audio: Audio
    vq_codes: Codes
    speaker: int


class Turn(TypedDict):
    """An earlier turn of the scene: its text and codes."""

    text: str
    vq_codes: Codes


class PreviousTake(TypedDict, total=False):
    """An earlier take of the scene; one with only a text is generated first, without sending it.

    Attributes:
        text: its text.
        codes, vq_codes: its codes, under either name; a take file has ``codes``.
        audio: instead of codes, as in a ``Reference``.
        family, schema, num_codebooks, frames, seed, complete: as in a take file.
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
    """Options that determine the speech, but not the audio format; see ``Options``."""

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
    normalize: Literal["auto", "on", "off"] | None


class Options(VoiceOptions, total=False):
    """Keyword arguments of ``speak`` and ``stream``; the server has defaults for all of them.

    Attributes:
        voice: name of a stored voice.
        references: reference clips: ``(text, audio)``, or see ``Reference``. A ``Path`` is read
            when the utterance begins; pass bytes if the event loop must not block on a disk.
        history: earlier turns of the scene, oldest first: ``Take``, or see ``Turn``.
        previous_takes: earlier takes, which follow the history, in more forms: ``done.take``, a
            take loaded from its file, or see ``PreviousTake``.
        guidance: how strongly directions are followed, 0 (off) to 20.
        steering: ``(name, strength)`` of vectors in the server's data folder, -100 to 100.
        format: ``pcm`` (signed 16 bits, the default), ``pcm_f32``, ``wav``, ``mp3``, ``opus``,
            ``flac`` or ``aac``.
        sample_rate: Hz.
        bitrate: bits per second, for mp3, opus and aac.
        quality: resampling quality; ``low_latency`` or ``high``.
        gain_db: gain in dB, -20 to 20.
        temperature, head_temperature, top_p, top_k, repetition_aware: sampling parameters.
        seed: the same seed gives the same speech.
        max_seconds: limit of the duration in seconds.
        normalize: read numbers, signs and markup as words; ``auto`` leaves it to the checkpoint.
        timings: include the server's timestamps in every chunk.
        take: include the take in ``done``.
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
    """Refuses an unknown option, which the server would only list in ``ready.ignored``.

    Raises:
        UsageError: an option is unknown.
    """
    _check(options, _KNOWN)


def check_voice(options: Mapping[str, Any]) -> None:
    """Like ``check``, for ``VoiceOptions``: the caller determines the audio format.

    Raises:
        UsageError: an option is unknown.
    """
    _check(options, _VOICE)


def _check(options: Mapping[str, Any], known: frozenset[str]) -> None:
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(
            f"unknown option {', '.join(unknown)}; known options: {', '.join(sorted(known))}."
        )


def start_message(text: str, final: bool, options: Mapping[str, Any]) -> bytes:
    """Encodes the message that starts an utterance.

    Raises:
        UsageError: an option has a value that cannot be encoded.
    """
    lists = as_lists(options)
    try:
        fields = {**options, **lists, **_steering(options)}
        return pack("start", version=VERSION, text=text, final=final, **fields)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"the options cannot be sent: {error}.") from error


def _steering(options: Mapping[str, Any]) -> dict[str, Any]:
    """Converts steering from pairs to the maps of the message."""
    if (steering := options.get("steering")) is None:
        return {}
    return {"steering": [{"name": name, "strength": by} for name, by in steering]}
