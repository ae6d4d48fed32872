"""Audio formats as clients name them: rates, bit rates, content types; and splitting audio."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rt_drama3.errors import RequestError
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.limits import ModelFacts
from rt_drama3.protocol.refusals import Refused

_MP3_KILOBITS = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MP3_LOW_KILOBITS = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_RATES = (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)


@dataclass(frozen=True)
class Format:
    """One audio format.

    Attributes:
        content_type: without parameters.
        sample_bytes: bytes of a sample; 0 if the audio is encoded.
        rates: supported sample rates, Hz.
        default_rate: None is the model's own.
        has_bitrate: whether a bit rate can be chosen.
    """

    content_type: str
    sample_bytes: int = 0
    rates: tuple[int, ...] = _RATES
    default_rate: int | None = None
    has_bitrate: bool = False


FORMATS: dict[str, Format] = {
    "pcm": Format("audio/pcm", 2),  # s16le
    "pcm_f32": Format("audio/pcm", 4),  # float32 little-endian
    "wav": Format("audio/wav", 2),
    "mp3": Format("audio/mpeg", has_bitrate=True),
    "opus": Format("audio/ogg", 0, (8_000, 16_000, 24_000, 48_000), 48_000, True),
    "flac": Format("audio/flac"),
    "aac": Format("audio/aac", has_bitrate=True),
}


@dataclass(frozen=True)
class Output:
    """The format of the audio that is sent, with all defaults filled in.

    Attributes:
        format: one of ``FORMATS``.
        sample_rate: Hz.
        bitrate: bits per second; None leaves it to the encoder.
    """

    format: str = "pcm"
    sample_rate: int = 44_100
    bitrate: int | None = None

    @property
    def kind(self) -> Format:
        """The format's properties."""
        return FORMATS[self.format]

    def content_type(self) -> str:
        """For the response's header; that of raw PCM includes its rate."""
        kind = self.kind.content_type
        if self.format.startswith("pcm"):
            return f"{kind}; rate={self.sample_rate}; channels=1"
        return kind


def negotiate(
    name: str, rate: int | None, bitrate: int | None, facts: ModelFacts, default_rate: int = 0
) -> Output:
    """Negotiates an output.

    Args:
        name: one of ``FORMATS``.
        rate: requested, Hz; None takes a default.
        bitrate: requested, bits per second; the nearest that the format has is used.
        facts: the model's own rate is the default of most formats.
        default_rate: that of the client's dialect, for formats without one of their own.

    Raises:
        Refused: ``unsupported_format``.
    """
    kind = FORMATS[name]
    if rate is None:
        wanted = kind.default_rate or default_rate or facts.sample_rate
        rate = min(kind.rates, key=lambda has: abs(has - wanted))
    if rate not in kind.rates:
        known = ", ".join(map(str, kind.rates))
        raise Refused(
            "unsupported_format", f"sample_rate is {rate}; {name} has these rates: {known}."
        )
    if not kind.has_bitrate or bitrate is None:
        return Output(name, rate)
    return Output(name, rate, _nearest_bitrate(name, rate, bitrate))


def _nearest_bitrate(name: str, rate: int, requested: int) -> int:
    """The nearest bit rate that the format has at this sample rate.

    Clients choose theirs regardless of the sample rate, so none is refused.
    """
    if name == "mp3":  # the tables of ISO/IEC 11172-3 and 13818-3; encoders stop at 64 at the end
        table = _MP3_KILOBITS if rate >= 32_000 else _MP3_LOW_KILOBITS
        choices = [1_000 * kbit for kbit in table if rate >= 16_000 or kbit <= 64]
        return min(choices, key=lambda choice: abs(choice - requested))
    low, high = (6_000, 256_000) if name == "opus" else (8_000, 6 * rate)
    return min(max(requested, low), high)


def read_output(fields: Fields, facts: ModelFacts, default: str) -> Output:
    """``format`` (or ``default``), ``sample_rate`` and ``bitrate`` (bits per second) of a message.

    Raises:
        Refused: ``unsupported_format`` or ``bad_field``.
    """
    name = fields.choice("format", tuple(FORMATS), "unsupported_format") or default
    rate = fields.integer("sample_rate", 1, 1_000_000)
    return negotiate(name, rate, fields.integer("bitrate", 1, 10_000_000), facts)


def split_audio(audio: bytes, limit: int, sample_bytes: int = 2) -> Iterator[bytes]:
    """Splits audio into parts for messages, never within a sample.

    Args:
        audio: PCM, possibly behind a header of whole samples' size, or encoded audio.
        limit: bytes of a part.
        sample_bytes: 2 for 16-bit PCM, 4 for float32, 0 for encoded audio (cut anywhere).

    Yields:
        Parts that join to ``audio``; none for empty audio.

    Raises:
        RequestError: the limit holds no sample, or the PCM is not whole samples.
    """
    unit = sample_bytes or 1
    step = limit - limit % unit
    if step < unit:
        raise RequestError(f"{limit} bytes cannot hold a sample of {unit} bytes; raise the limit.")
    if len(audio) % unit:
        raise RequestError(
            f"{len(audio)} bytes of PCM are not whole samples of {unit} bytes; a sample was split."
        )
    for start in range(0, len(audio), step):
        yield audio[start : start + step]
