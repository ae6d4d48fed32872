"""Files in every format: the extension selects it, and the audio can be read back."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from rt_drama3.audio import read_audio
from rt_drama3.audio.writer import EXTENSIONS, AudioWriter, format_of, rate_for
from rt_drama3.errors import RequestError, SinkError
from tests.full_disk import file_size_limit, needs_limit

RATE = 44_100
MAGIC = {
    **{".wav": b"RIFF", ".flac": b"fLaC", ".opus": b"OggS", ".ogg": b"OggS", ".mp3": b"\xff\xfb"},
    ".aac": b"\xff\xf1",
}


def tone(seconds: float = 0.5) -> np.ndarray:
    return np.sin(2 * np.pi * 440 * np.arange(int(seconds * RATE)) / RATE).astype(np.float32) / 2


@pytest.mark.parametrize("ending", [e for e in EXTENSIONS if e in MAGIC])
def test_extension_selects_the_format(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"Speech{ending.upper()}"
    with AudioWriter(path, RATE) as writer:
        for chunk in np.array_split(tone(), 7):
            writer.write(chunk)
        assert writer.rate == (48_000 if ending in (".opus", ".ogg") else RATE)
    writer.close()
    assert path.read_bytes().startswith(MAGIC[ending])
    samples, rate = read_audio(path)
    assert abs(len(samples) / rate - 0.5) < 0.06  # mp3 and aac add silence at the ends
    spectrum = np.abs(np.fft.rfft(samples))
    assert abs(np.argmax(spectrum) * rate / len(samples) - 440) < 3
    assert 0.3 < np.sqrt(np.mean(samples**2)) < 0.4


@pytest.mark.parametrize("ending", [".raw", ".pcm"])
def test_raw_samples_are_16_bit_little_endian(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    with AudioWriter(path, RATE) as writer:
        writer.write(np.array([0.0, 0.5, -1.0], dtype=np.float32))
    assert np.array_equal(np.frombuffer(path.read_bytes(), "<i2"), [0, 16_384, -32_768])


@pytest.mark.parametrize("name", ["speech", "speech.xyz", "speech.m4a", ".mp3"])
def test_unknown_extension_raises_with_the_supported_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match=r"; use \.wav, \.flac, \.mp3"):
        AudioWriter(tmp_path / name, RATE)
    assert list(tmp_path.iterdir()) == []
    assert format_of("A.B.Mp3") == "mp3"


def test_samples_written_before_an_exception_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.mp3"

    def make() -> None:
        with AudioWriter(path, RATE) as writer:
            writer.write(tone())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make()
    assert abs(len(read_audio(path)[0]) / RATE - 0.5) < 0.06


def test_missing_directory_raises(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"absent.* cannot be written"):
        AudioWriter(tmp_path / "absent" / "x.mp3", RATE)


@needs_limit
@pytest.mark.parametrize("ending", [".flac", ".mp3", ".pcm", ".wav"])
def test_full_disk_raises(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    noise = np.random.default_rng(1).uniform(-0.5, 0.5, 2 * RATE).astype(np.float32)

    def make() -> None:
        with AudioWriter(path, RATE) as writer:
            for chunk in np.array_split(noise, 20):
                writer.write(chunk)

    with file_size_limit(10_001), pytest.raises(SinkError, match=rf"x\{ending}"):
        make()
    assert path.stat().st_size <= 10_001
    if ending == ".wav":
        with wave.open(str(path)) as file:
            assert file.getnframes() == (10_001 - 44) // 2
        assert path.stat().st_size == 10_000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_disk_full_on_close_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.mp3"
    path.symlink_to("/dev/full")
    writer = AudioWriter(path, RATE)
    writer.write(tone(0.001))  # the encoder holds it back
    with pytest.raises(SinkError, match=r"cannot be written: No space left"):
        writer.close()
    writer.close()


def test_rates() -> None:
    assert rate_for("flac", 44_100) == rate_for("mp3", 44_100) == 44_100
    assert rate_for("opus", 44_100) == 48_000
    assert rate_for("opus", 96_000) == 48_000
    assert rate_for("opus", 11_025) == 12_000


@pytest.mark.parametrize("rate", [44_100, 16_000])
def test_flac_header_states_the_number_of_samples(tmp_path: Path, rate: int) -> None:
    """Some readers allocate by it, and fail without it."""
    path = tmp_path / "x.flac"
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 30_001)
    with AudioWriter(path, rate) as writer:
        writer.write(noise[:100])
        writer.write(noise[100:])
    header = path.read_bytes()[:26]
    assert int.from_bytes(header[18:21], "big") >> 4 == writer.rate
    assert int.from_bytes(header[21:26], "big") & (1 << 36) - 1 == len(noise)
    heard, _ = read_audio(path)
    assert len(heard) == len(noise)
