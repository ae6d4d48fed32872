"""What can be asked for an utterance, and the ``start`` message that asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from rt_drama3_client.errors import UsageError
from rt_drama3_client.messages import VERSION, pack

Format: TypeAlias = Literal["pcm", "pcm_f32", "wav", "mp3", "opus", "flac", "aac"]
FORMAT_NAMES: tuple[str, ...] = get_args(Format)


class Options(TypedDict, total=False):
    """Keywords of ``speak`` and ``stream``; what is left out is the server's choice.

    Attributes:
        voice: name of a stored voice.
        references: clips to follow: ``{"text": ..., "audio": bytes of an audio file}`` or
            ``{"text": ..., "vq_codes": codes of a take}``.
        history: earlier turns of the scene, oldest first: ``{"text": ..., "vq_codes": ...}``.
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
        take: put the codes into ``done``.
    """

    voice: str | None
    references: Sequence[Mapping[str, Any]] | None
    history: Sequence[Mapping[str, Any]] | None
    format: Format | None
    sample_rate: int | None
    bitrate: int | None
    quality: Literal["low_latency", "high"] | None
    gain_db: float | None
    temperature: float | None
    head_temperature: float | None
    top_p: float | None
    top_k: int | None
    repetition_aware: bool | None
    seed: int | None
    max_seconds: float | None
    timings: bool
    take: bool


_KNOWN = frozenset(Options.__annotations__)


def check(options: Mapping[str, Any]) -> None:
    """Refuses a misspelt keyword, which the server would only name in ``ready.ignored``.

    Raises:
        UsageError: it names the keyword and those that are known.
    """
    unknown = sorted(set(options) - _KNOWN)
    if unknown:
        raise UsageError(
            f"{', '.join(unknown)} cannot be asked for; known: {', '.join(sorted(_KNOWN))}."
        )


def start_message(text: str, final: bool, options: Mapping[str, Any]) -> bytes:
    """The message that begins an utterance.

    Raises:
        UsageError: an option holds what no message can.
    """
    try:
        return pack("start", version=VERSION, text=text, final=final, **options)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"the options cannot be sent: {error}.") from error
