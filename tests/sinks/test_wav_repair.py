"""Repairing the sizes in WAV files."""

from __future__ import annotations

import struct
import wave
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_drama3.audio.wav import wav_header
from rt_drama3.errors import SinkError
from rt_drama3.sinks.wav_repair import repair_wav

SAMPLES = bytes(range(1, 201)) * 10  # 2000 bytes
INFO = b"LIST" + struct.pack("<I", 10) + b"INFOISFT\0\0"


def contents(path: Path) -> bytes:
    with wave.open(str(path), "rb") as file:
        return file.readframes(file.getnframes())


def broken(riff: int, data: int, samples: bytes = SAMPLES, rest: bytes = b"") -> bytes:
    head = bytearray(wav_header(8_000, len(samples)))
    head[4:8] = riff.to_bytes(4, "little")
    head[40:44] = data.to_bytes(4, "little")
    return bytes(head) + samples + rest


@pytest.mark.parametrize("stated", [0, 2, 1_000, 1_998, 2_002, 2**31, 0xFFFF_FFFF])
def test_wrong_sizes_are_corrected(tmp_path: Path, stated: int) -> None:
    path = tmp_path / "take.wav"
    path.write_bytes(broken(stated, stated))
    result = repair_wav(path)
    assert result.changed
    assert (result.frames, result.seconds, result.cut_bytes) == (1_000, 0.125, 0)
    assert contents(path) == SAMPLES
    assert not repair_wav(path).changed


def test_incomplete_frame_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "take.wav"
    path.write_bytes(broken(0, 0, SAMPLES + b"x"))
    assert repair_wav(path).cut_bytes == 1
    assert contents(path) == SAMPLES


def test_correct_file_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "take.wav"
    good = broken(2_036 + len(INFO), 2_000, rest=INFO)
    path.write_bytes(good)
    result = repair_wav(path)
    assert not result.changed
    assert result.frames == 1_000
    assert path.read_bytes() == good


def test_chunks_before_the_samples_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "take.wav"
    data = broken(0, 0)
    path.write_bytes(data[:12] + INFO + data[12:])
    assert repair_wav(path).frames == 1_000
    assert contents(path) == SAMPLES


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a WAV file"),
        (b"OggS" + bytes(100), "is not a WAV file"),
        (wav_header(8_000, 0)[:36], "without samples"),
        (
            wav_header(8_000, 0)[:12] + wav_header(8_000, 0)[36:],
            "no format chunk before its samples",
        ),
    ],
)
def test_unrepairable_file_raises_and_is_unchanged(
    tmp_path: Path, data: bytes, message: str
) -> None:
    path = tmp_path / "take.wav"
    path.write_bytes(data)
    with pytest.raises(SinkError, match=message):
        repair_wav(path)
    assert path.read_bytes() == data


def test_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"missing\.wav cannot be repaired: No such file"):
        repair_wav(tmp_path / "missing.wav")


@settings(deadline=None)
@given(
    riff=st.integers(0, 0xFFFF_FFFF),
    stated=st.integers(0, 0xFFFF_FFFF) | st.integers(0, 2_100),
    length=st.integers(0, 2_000),
)
def test_samples_are_never_changed(
    tmp_path_factory: pytest.TempPathFactory, riff: int, stated: int, length: int
) -> None:
    path = tmp_path_factory.mktemp("repair") / "take.wav"
    path.write_bytes(broken(riff, stated, b"\1" * length))
    result = repair_wav(path)
    assert contents(path) == b"\1" * (length // 2 * 2)
    assert result.frames == length // 2
    assert not repair_wav(path).changed
