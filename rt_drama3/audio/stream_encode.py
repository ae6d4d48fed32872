"""Encodes a stream of samples into an audio format with as little delay as the format allows.

The delay of a format is the part of the pushed samples that is not yet contained in the returned
bytes: its frame, which has to fill up, and the look-ahead of its encoder and decoder.

=======  ======================  ==========================================  =====================
format   rates in Hz             maximum delay                               decoded beyond input
=======  ======================  ==========================================  =====================
pcm      any, 8000 to 192000     none                                        none
pcm_f32  any, 8000 to 192000     none                                        none
wav      any, 8000 to 192000     none                                        none
flac     any, 8000 to 192000     one frame: 27 ms or less                    none
opus     ``FORMATS[...].rates``  26.5 ms: a frame of 20 and 6.5 look-ahead   none (length is stated)
aac      ``FORMATS[...].rates``  3072 samples: 64 ms at 48 kHz, 128 at 24    1024 before, < 1024
                                                                             after
mp3      ``FORMATS[...].rates``  3409 samples: 71 ms at 48 kHz; below        1105 before, < 1199
                                 32 kHz 2257 samples: 94 ms at 24 kHz        after
=======  ======================  ==========================================  =====================

The samples before the input are silence; raw aac and mp3 streams cannot make a player skip it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame
from av.codec.codec import UnknownCodecError
from numpy.typing import NDArray

from rt_drama3.audio.framing import (
    ADTS_RATES,
    AdtsFrames,
    BareFrames,
    FlacFrames,
    OggOpus,
)
from rt_drama3.audio.pcm import checked_samples, float_to_s16le
from rt_drama3.audio.resample import check_stream_rate
from rt_drama3.audio.wav import wav_header
from rt_drama3.errors import RequestError

_PACKET_SECONDS = 0.02  # of Opus; shorter packets spend more bytes on headers than on speech


@dataclass(frozen=True)
class AudioFormat:
    """Properties of a format that clients may choose.

    Attributes:
        rates: supported sample rates in Hz; None if any from 8000 to 192000 is.
        bitrate: default in bit/s; None if the format has no bit rate.
        encoder: FFmpeg's name of the encoder; empty for PCM, which needs none.
        samples: the encoder's sample format.
        options: its private options.
    """

    rates: tuple[int, ...] | None = None
    bitrate: int | None = None
    encoder: str = ""
    samples: str = "fltp"
    options: Mapping[str, str] = field(default_factory=dict)


_MP3_RATES = (48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000)
_OPUS_RATES = (48_000, 24_000, 16_000, 12_000, 8_000)
_OPUS_FRAME = {"frame_duration": f"{_PACKET_SECONDS * 1_000:g}"}
FORMATS: Mapping[str, AudioFormat] = {
    "pcm": AudioFormat(),
    "pcm_f32": AudioFormat(),
    "wav": AudioFormat(),
    # Higher levels have long frames.
    "flac": AudioFormat(None, None, "flac", "s16", {"compression_level": "2"}),
    "opus": AudioFormat(_OPUS_RATES, 64_000, "libopus", "flt", _OPUS_FRAME),
    "aac": AudioFormat(ADTS_RATES, 96_000, "aac"),
    # With the bit reservoir a frame would wait for bits that later frames leave over.
    "mp3": AudioFormat(_MP3_RATES, 128_000, "libmp3lame", options={"reservoir": "0"}),
}

# File extensions and the names of their formats.
EXTENSIONS = {
    **{".wav": "wav", ".flac": "flac", ".mp3": "mp3", ".opus": "opus", ".ogg": "opus"},
    **{".aac": "aac", ".pcm": "pcm", ".raw": "pcm"},
}

_KBIT = 1_000
# MPEG-1 (from 32 kHz) and MPEG-2; below 16 kHz the encoder's maximum is 64.
_MP3_BITRATES = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MP3_LOW_BITRATES = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)


def format_of(path: str | os.PathLike[str]) -> str:
    """Returns the format of a file by its extension.

    Raises:
        RequestError: the extension is not supported.
    """
    extension = Path(path).suffix.lower()
    if extension not in EXTENSIONS:
        found = f"the unsupported extension {extension}" if extension else "no extension"
        raise RequestError(f"{os.fspath(path)} has {found}; use {', '.join(EXTENSIONS)}.")
    return EXTENSIONS[extension]


def rate_for(format: str, rate: int) -> int:
    """Returns the rate in Hz to encode with: the given one, or the next one the format supports."""
    rates = FORMATS[format].rates
    if rates is None or rate in rates:
        return rate
    return min((n for n in rates if n > rate), default=max(rates))


class StreamEncoder:
    """Encodes one mono stream of samples.

    The bytes form one valid stream, which does not depend on how the samples were split (except for
    Ogg's random serial number). The header, if there is one, comes with the first bytes. Encoding
    releases the GIL and takes up to 1 ms for 46 ms of audio, so a frame can be pushed on an event
    loop and a whole clip should not; creating an encoder takes up to 5 ms (flac). Not thread-safe.
    An abandoned stream needs no closing.

    Args:
        format: a name in ``FORMATS``: ``pcm`` is signed 16-bit little-endian, ``pcm_f32`` 32-bit
            float little-endian, both without a header; ``wav`` is ``pcm`` after a header with the
            length "until the end"; ``opus`` is in Ogg, ``aac`` in ADTS, ``flac`` and ``mp3`` have
            no further container.
        sample_rate: rate of the pushed samples in Hz.
        bitrate: bit/s for mp3, opus and aac; by default 128000, 64000 and 96000, or the maximum of
            the rate. Ogg adds 11200 bit/s to opus, for a page every 20 ms.

    Attributes:
        format, sample_rate, bitrate: as given or chosen; the bit rate is None if there is none.
        samples: number of samples pushed so far.

    Raises:
        RequestError: the format is unknown or does not support the rate or bit rate.
    """

    def __init__(self, format: str, sample_rate: int, *, bitrate: int | None = None) -> None:
        facts = FORMATS.get(format) if isinstance(format, str) else None
        if facts is None:
            raise RequestError(f"The audio format is {format!r}; use one of {', '.join(FORMATS)}.")
        check_stream_rate(sample_rate, "sample rate")
        if facts.rates is not None and sample_rate not in facts.rates:
            raise RequestError(
                f"{format} has no sample rate of {sample_rate} Hz; use one of "
                f"{', '.join(map(str, facts.rates))}."
            )
        self.format = format
        self.sample_rate = int(sample_rate)
        self.bitrate = _bitrate(format, self.sample_rate, facts.bitrate, bitrate)
        self.samples = 0
        self._flushed = False
        self._begun = False
        self._coder: _Pcm | _Compressed
        if facts.encoder:
            self._coder = _Compressed(format, self.sample_rate, self.bitrate)
        else:
            self._coder = _Pcm(format, self.sample_rate)

    def push(self, samples: NDArray[Any]) -> bytes:
        """Encodes the next samples.

        Args:
            samples: ``[samples]`` floats in [-1, 1], any number of them; larger values are clipped,
                except in ``pcm_f32``.

        Returns:
            The bytes that are ready: for PCM always all samples, for other formats often nothing.

        Raises:
            RequestError: the samples are not mono finite floats (the stream remains usable), or the
                stream was flushed.
        """
        self._check_open()
        chunk = checked_samples(samples)
        if chunk.size == 0:
            return b""
        self.samples += chunk.size
        return self._header() + self._coder.push(chunk)

    def flush(self) -> bytes:
        """Ends the stream.

        Returns:
            The remaining bytes. For a stream without samples that is the whole stream, which is
            empty for mp3, aac and PCM without a header.

        Raises:
            RequestError: the stream was already flushed.
        """
        self._check_open()
        self._flushed = True
        return self._header() + self._coder.flush(self.samples)

    def _header(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return self._coder.header()

    def _check_open(self) -> None:
        if self._flushed:
            raise RequestError(
                "The encoder was flushed, which ends its stream; create a new one for the next."
            )


class _Pcm:
    """Samples of 16 bits, behind a header for wav, or floats."""

    def __init__(self, format: str, rate: int) -> None:
        self._floats = format == "pcm_f32"
        self._header = wav_header(rate, None) if format == "wav" else b""

    def header(self) -> bytes:
        return self._header

    def push(self, chunk: NDArray[np.float32]) -> bytes:
        if self._floats:
            return chunk.astype("<f4", copy=False).tobytes()
        return float_to_s16le(chunk)

    def flush(self, samples: int) -> bytes:
        return b""


class _Compressed:
    """FFmpeg's encoder with our framing of its packets."""

    def __init__(self, format: str, rate: int, bitrate: int | None) -> None:
        codec = FORMATS[format]
        self._sample_format = codec.samples
        self._rate = rate
        try:
            context = cast(AudioCodecContext, av.CodecContext.create(codec.encoder, "w"))
            context.sample_rate = rate
            context.layout = "mono"
            context.format = codec.samples
            context.options = dict(codec.options)
            context.thread_count = 1
            if bitrate is not None:
                context.bit_rate = bitrate
            context.open()
        except (av.FFmpegError, UnknownCodecError) as error:
            raise RequestError(
                f"{format} at {rate} Hz cannot be encoded by this installation's FFmpeg ({error}); "
                "use wav or pcm."
            ) from error
        self._frame_size = context.frame_size
        self._waiting = np.zeros(0, np.float32)  # samples that do not fill a frame yet
        # PyAV's encode() splits frames with a filter graph, which starts up to 16 threads per
        # encoder. The frames are split here, so they can go to the encoder directly.
        self._encode = getattr(context, "_send_frame_and_recv", context.encode)
        self._framing = _framing(format, rate, context.extradata or b"")

    def header(self) -> bytes:
        return self._framing.header()

    def push(self, chunk: NDArray[np.float32]) -> bytes:
        samples = np.concatenate([self._waiting, chunk])
        whole = samples.size // self._frame_size * self._frame_size
        self._waiting = samples[whole:].copy()
        frames = samples[:whole].reshape(-1, self._frame_size)
        return b"".join(self._framing.add(packet) for row in frames for packet in self._frame(row))

    def flush(self, samples: int) -> bytes:
        packets = self._frame(self._waiting) if self._waiting.size else []
        return self._framing.end(packets + self._packets(None), samples)

    def _frame(self, samples: NDArray[np.float32]) -> list[bytes]:
        if self._sample_format == "s16":
            data: NDArray[Any] = np.frombuffer(float_to_s16le(samples), "<i2")
        else:
            data = np.clip(samples, -1.0, 1.0)
        frame = AudioFrame.from_ndarray(data[None], format=self._sample_format, layout="mono")
        frame.sample_rate = self._rate
        return self._packets(frame)

    def _packets(self, frame: AudioFrame | None) -> list[bytes]:
        return [bytes(packet) for packet in self._encode(frame)]


def _framing(format: str, rate: int, extradata: bytes) -> BareFrames:
    if format == "opus":
        return OggOpus(extradata, rate, _PACKET_SECONDS)
    if format == "flac":
        return FlacFrames(extradata)
    return AdtsFrames(rate) if format == "aac" else BareFrames()


def _bitrate(format: str, rate: int, default: int | None, requested: int | None) -> int | None:
    """Validates a bit rate; None selects the default, or the maximum of the sample rate."""
    if default is None:
        if requested is not None:
            raise RequestError(f"{format} has no bit rate; {requested!r} was requested.")
        return None
    if format == "mp3":
        last = 64 if rate < 16_000 else 320
        table = _MP3_BITRATES if rate >= 32_000 else _MP3_LOW_BITRATES
        choices = [kbit * _KBIT for kbit in table if kbit <= last]
        supported = ", ".join(map(str, choices))
        allowed = requested in choices
        most = choices[-1]
    else:
        # AAC: 6144 bits per channel in 1024 samples.
        least, most = (6_000, 256_000) if format == "opus" else (8_000, 6 * rate)
        supported = f"{least} to {most}"
        allowed = isinstance(requested, int) and least <= requested <= most
    if requested is None:
        return min(default, most)
    if not allowed or isinstance(requested, bool):
        raise RequestError(
            f"{format} at {rate} Hz does not support {requested!r} bit/s; use {supported}."
        )
    return int(requested)
