"""Fish Audio's TTSRequest, as its SDKs, LiveKit, Pipecat and HTTP clients fill it in.

docs/protocol.md has the table of its fields: which are used, mapped or ignored. Fields that are not
named here are ignored, since clients send many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rt_drama3.protocol.directing import read_directing, read_reference
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.formats import Output, negotiate
from rt_drama3.protocol.limits import ModelFacts, ProtocolLimits
from rt_drama3.protocol.order import (
    MAX_DECIBELS,
    Reference,
    Sampling,
    SpeechOrder,
    as_speaker,
    checked_voice,
)
from rt_drama3.protocol.refusals import Refused, clean

FORMATS = ("mp3", "wav", "pcm", "opus", "flac", "aac")
DEFAULT_FORMAT = "mp3"
DEFAULT_RATE = 44_100
SDK_SAMPLING = 0.7  # what SDKs send for temperature and top_p by default
SPEEDS = (0.25, 4.0)  # range that clients may send
_LEAST_TOP_P = 1e-3
_LONGEST_MODEL = 64


def read_request(
    fields: Fields, text: str, final: bool, facts: ModelFacts, limits: ProtocolLimits, model: str
) -> SpeechOrder:
    """A TTSRequest as an order.

    Args:
        fields: the request.
        text, final: those of the order; the request's own text was checked already.
        facts, limits: those of the server.
        model: the ``model`` header.

    Raises:
        Refused: a field that matters has a value that cannot be used.
    """
    references, speakers = _references(fields, facts, limits)
    prosody = fields.map("prosody") or Fields({})
    notices = speed_notices(prosody.number("speed", *SPEEDS))
    return SpeechOrder(
        text=text,
        final=final,
        voices=_voices(fields, limits),
        references=tuple(
            clip if speakers == 1 else replace(clip, text=as_speaker(clip.text, n))
            for n, clip in references
        ),
        directing=read_directing(fields, facts, limits, base64_too=True),
        output=_output(fields, facts),
        quality="high" if fields.value("latency") == "normal" else "low_latency",
        gain_db=prosody.number("volume", -MAX_DECIBELS, MAX_DECIBELS) or 0.0,
        sampling=_sampling(fields),
        normalize=_normalize(fields.value("normalize")),
        model=clean(model)[:_LONGEST_MODEL],
        notices=notices,
    )


def _normalize(value: object) -> str:
    """``normalize``: clients send true unasked, so it leaves the choice to the checkpoint."""
    if value is False or value == "off":
        return "off"
    return "on" if value == "on" else "auto"


def speed_notices(speed: float | None) -> tuple[str, ...]:
    """The notice for a client that sets a speed, which the model does not support."""
    if speed is None or speed == 1:
        return ()
    return (f"speed {speed:g} is ignored: the model speaks at its own pace.",)


def _voices(fields: Fields, limits: ProtocolLimits) -> tuple[str, ...]:
    value = fields.value("reference_id")
    if value is None or value == "":
        return ()
    if not isinstance(value, list):
        return (checked_voice(fields, "reference_id", value),)
    names = fields.items("reference_id", limits.references)
    return tuple(checked_voice(fields, "reference_id", name) for name in names)


def _references(
    fields: Fields, facts: ModelFacts, limits: ProtocolLimits
) -> tuple[list[tuple[int, Reference]], int]:
    """Clips, each with its speaker's number, and the number of speakers.

    One list of clips is one speaker; a list of lists has one list for each speaker.
    """
    entries = fields.items("references", limits.references)
    nested = any(isinstance(entry, list) for entry in entries)
    groups: Sequence[object] = entries if nested else [entries]
    found: list[tuple[int, Reference]] = []
    for speaker, group in enumerate(groups):
        for entry in group if isinstance(group, list) else [group]:
            clip = fields.entry("references", len(found), entry)
            voice = read_reference(clip, facts, limits, base64_too=True)
            found.append((speaker, voice))
            if len(found) > limits.references:
                raise Refused(
                    "bad_field", f"references has more than {limits.references} clips in total."
                )
    return found, len(groups)


def _output(fields: Fields, facts: ModelFacts) -> Output:
    name = fields.choice("format", FORMATS, "unsupported_format") or DEFAULT_FORMAT
    rate = fields.integer("sample_rate", 0, 1_000_000) or None
    bitrate = None
    if name in ("mp3", "opus"):
        bitrate = _bits(fields.integer(f"{name}_bitrate", -1_000, 1_000_000))
    return negotiate(name, rate, bitrate, facts, DEFAULT_RATE)


def _bits(bitrate: int | None) -> int | None:
    """Bits per second: clients send kilobits (64) or bits (64000), and -1000 for automatic."""
    if bitrate is None or bitrate <= 0:
        return None
    return bitrate if bitrate >= 1_000 else 1_000 * bitrate


def _sampling(fields: Fields) -> Sampling:
    """Temperature and top_p, unless they are the pair that SDKs send by default.

    That pair suits other models; this one uses its checkpoint's defaults.
    """
    temperature = fields.number("temperature", 0, 10)
    top_p = fields.number("top_p", 0, 1)
    seed = fields.integer("seed", 0, 2**64 - 1)
    pair = (temperature, top_p)
    if all(v is not None and math.isclose(v, SDK_SAMPLING, abs_tol=1e-6) for v in pair):
        return Sampling(seed=seed)
    if top_p is not None:
        top_p = max(top_p, _LEAST_TOP_P)
    return Sampling(temperature=temperature, top_p=top_p, seed=seed)
