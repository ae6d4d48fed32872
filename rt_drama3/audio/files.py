"""Reads reference clips: any common audio file, with limits, and without access to other files.

The decoder is FFmpeg (through PyAV), which also supports playlists, concatenation lists and session
descriptions: small text files that make it open other files or sockets. Clips are untrusted, so
only containers that hold their own audio are allowed, and FFmpeg never opens anything itself: it
reads from memory or from a file that was opened here.
"""

from __future__ import annotations

import io
import math
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeAlias, cast

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from numpy.typing import NDArray

from rt_drama3.audio.resample import MAX_RATE, MIN_RATE
from rt_drama3.errors import RequestError

AudioSource: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO

# FFmpeg's names of the allowed containers. None of them refers to another file (QuickTime could,
# but FFmpeg follows that only with an option).
_CONTAINERS = (
    *("aac", "ac3", "aiff", "amr", "ape", "asf", "au", "caf", "eac3", "flac", "matroska", "mov"),
    *("mp3", "ogg", "tta", "w64", "wav", "wv"),
)
_OPEN_OPTIONS = {"format_whitelist": ",".join(_CONTAINERS), "protocol_whitelist": "none"}
# Containers whose header states the exact length, so that a truncated file is detected.
_EXACT_LENGTH = ("flac", "aiff", "wv")
# Raw sequences of frames, found by their sync words among any other bytes.
_BARE_FRAMES = ("aac", "ac3", "eac3", "mp3")
_MAX_CHANNELS = 64
MAX_VALUES = 12_000_000  # samples times channels: a minute of stereo at 96 kHz
_MAX_PEAK = 8.0  # float files may overshoot 1 slightly; beyond this they were never scaled
_MAX_CHUNKS = 1_000  # in a WAV file before its samples; real files have a few
GRACE = 0.1  # seconds: lossy encoders pad the end of a clip


def read_audio(
    source: AudioSource, *, max_seconds: float = 60.0, check: Callable[[], None] | None = None
) -> tuple[NDArray[np.float32], int]:
    """Reads an audio file into mono float samples at the file's own rate.

    Channels are averaged; integers are scaled by their full range; float samples that overshoot are
    clipped. Formats without a stated length (mp3, aac, ogg) are read to their end; if the length is
    stated, a truncated file is refused. Decoding stops just past ``max_seconds``.

    Args:
        source: a path, the bytes of a file, or a binary file object, which is read from its
            beginning and left open.
        max_seconds: maximum duration (plus a tenth of a second, since lossy encoders pad).
        check: called before each packet is decoded; what it raises ends the reading.

    Returns:
        ``[samples]`` float32 in [-1, 1], and their rate in Hz.

    Raises:
        RequestError: the file is missing, unreadable, too long, empty, damaged, truncated, not
            audio, or has too many samples or some that are not finite.
    """
    if not (math.isfinite(max_seconds) and max_seconds > 0):
        raise RequestError(f"max_seconds must be a positive number, not {max_seconds!r}.")
    if isinstance(source, bytes | bytearray | memoryview):
        name = f"The audio ({len(source)} bytes)"
        return _read(io.BytesIO(source), name, max_seconds, check)
    if isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        try:
            file = open(source, "rb")  # noqa: SIM115 - closed below; the errors differ
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise RequestError(f"{name} cannot be opened: {reason}.") from error
        with file:
            return _read(file, name, max_seconds, check)
    name = str(getattr(source, "name", "The audio stream"))
    try:
        binary = isinstance(source.read(0), bytes)
        if source.seekable():
            source.seek(0)
    except (OSError, ValueError) as error:  # write-only, or closed
        raise RequestError(f"{name} cannot be read: {error}.") from error
    if not binary:
        raise RequestError(f"{name} is open as text; open it in binary mode ('rb').")
    return _read(source, name, max_seconds, check)


def _read(
    file: BinaryIO, name: str, max_seconds: float, check: Callable[[], None] | None
) -> tuple[NDArray[np.float32], int]:
    try:
        _check_wav_is_whole(file, name)
        with _open(file, name) as container:
            stream = _audio_stream(container, name)
            chunks: list[NDArray[np.float32]] = []
            count = rate = values = 0
            for frame in _frames(container, stream, name, check):
                _check_frame(frame, rate, name)
                rate = frame.sample_rate
                values += frame.samples * frame.layout.nb_channels
                if values > MAX_VALUES:
                    raise RequestError(
                        f"{name} has more than {MAX_VALUES:,} samples in all channels; trim it, or "
                        f"lower its sample rate ({rate} Hz) or the number of its channels "
                        f"({frame.layout.nb_channels})."
                    )
                chunks.append(_mono(frame))
                count += frame.samples
                if count > (max_seconds + GRACE) * rate:
                    raise RequestError(
                        f"{name} is longer than the limit of {max_seconds:g} s; trim it to the "
                        "part that matters."
                    )
            if not count:
                raise RequestError(f"{name} holds no audio samples; export or record it again.")
            stated = 0.0
            if container.format.name in _EXACT_LENGTH and stream.duration and stream.time_base:
                stated = float(stream.duration * stream.time_base)
    except OSError as error:
        raise RequestError(f"{name} cannot be read: {error.strerror or error}.") from error
    if stated > count / rate + GRACE:
        raise _truncated(name, f"it states {stated:.2f} s but holds {count / rate:.2f} s")
    return _checked(np.concatenate(chunks), name), rate


def _open(file: BinaryIO, name: str) -> InputContainer:
    try:
        return av.open(
            file, mode="r", container_options=dict(_OPEN_OPTIONS), metadata_errors="replace"
        )
    except av.FFmpegError as error:
        raise RequestError(
            f"{name} is not a supported audio file, or is damaged; use wav, flac, mp3, m4a or ogg."
        ) from error


def _audio_stream(container: InputContainer, name: str) -> AudioStream:
    if not container.streams.audio:
        raise RequestError(f"{name} has no audio track; use a file that has one.")
    stream = container.streams.audio[0]
    if cast(Any, stream.codec_context) is None:  # not in PyAV's types
        raise RequestError(f"{name} uses an unsupported codec; use wav, flac, mp3, m4a or ogg.")
    return stream


def _frames(
    container: InputContainer, stream: AudioStream, name: str, check: Callable[[], None] | None
) -> Iterator[AudioFrame]:
    """Decodes the stream; refuses damage, but accepts foreign bytes around raw frames.

    Tags and other junk at either end of an mp3 are common and harmless. A gap in the middle is not:
    the audio would no longer match its transcript.
    """
    junk_at_ends = container.format.name in _BARE_FRAMES
    damage: av.FFmpegError | None = None
    started = False
    try:
        for packet in container.demux(stream):
            if check is not None:
                check()
            try:
                frames = packet.decode()
            except av.InvalidDataError as error:
                damage = error
                continue
            if frames and started and damage is not None:
                raise damage
            started = started or bool(frames)
            yield from frames
        if damage is not None and not (started and junk_at_ends):
            raise damage
    except av.FFmpegError as error:
        raise RequestError(f"{name} is damaged or truncated; export or record it again.") from error


def _check_frame(frame: AudioFrame, rate: int, name: str) -> None:
    if not MIN_RATE <= frame.sample_rate <= MAX_RATE:
        raise RequestError(
            f"{name} has a sample rate of {frame.sample_rate} Hz; {MIN_RATE} to {MAX_RATE} Hz "
            "are supported."
        )
    if rate and frame.sample_rate != rate:
        raise RequestError(
            f"{name} changes its sample rate from {rate} to {frame.sample_rate} Hz midway; "
            "convert it to one rate first."
        )
    if frame.layout.nb_channels > _MAX_CHANNELS:
        raise RequestError(
            f"{name} has {frame.layout.nb_channels} channels; the limit is {_MAX_CHANNELS}."
        )


def _mono(frame: AudioFrame) -> NDArray[np.float32]:
    """Returns one decoded frame as ``[samples]``, channels averaged, integers scaled."""
    data: NDArray[Any] = frame.to_ndarray()  # planar: [channels, samples]
    if not frame.format.is_planar:  # [1, samples * channels]
        data = data.reshape(frame.samples, frame.layout.nb_channels).T
    wide = data.astype(np.float64)
    if data.dtype == np.uint8:
        wide = (wide - 128.0) / 128.0
    elif np.issubdtype(data.dtype, np.integer):
        wide /= -float(np.iinfo(data.dtype).min)
    with np.errstate(over="ignore", invalid="ignore"):  # non-finite samples are refused later
        mono: NDArray[np.float32] = wide.mean(axis=0).astype(np.float32)
    return mono


def _truncated(name: str, facts: str) -> RequestError:
    return RequestError(f"{name} is truncated: {facts}; export or copy it again.")


def _checked(samples: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    peak = float(max(samples.max(), -samples.min()))
    if not math.isfinite(peak):
        raise RequestError(f"{name} has samples that are NaN or infinite; export it again.")
    if peak > _MAX_PEAK:
        raise RequestError(
            f"{name} has float samples of up to {peak:g}; scale them to -1..1 before saving."
        )
    return np.clip(samples, -1.0, 1.0, out=samples)


def _check_wav_is_whole(file: BinaryIO, name: str) -> None:
    """Refuses a WAV file whose data chunk states more than the file holds.

    FFmpeg silently accepts it. Programs that did not know the length write sizes of 0 or near 2 or
    4 GiB, which mean "until the end".
    """
    if not file.seekable():
        return
    try:
        head = file.read(12)
        if head[:4] != b"RIFF" or head[8:] != b"WAVE":
            return
        end = file.seek(0, os.SEEK_END)
        offset = 12
        for _ in range(_MAX_CHUNKS):
            file.seek(offset)
            chunk = file.read(8)
            if len(chunk) < 8:
                return
            kind, size = struct.unpack("<4sI", chunk)
            offset += 8
            if kind == b"data":
                known = 0 < size < 0x7FFF_0000
                if known and size - (end - offset) > max(4_096, size // 100):
                    raise _truncated(name, f"it states {size} bytes but holds {end - offset}")
                return
            offset += size + size % 2
    finally:
        file.seek(0)
