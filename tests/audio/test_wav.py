"""WAV output, read back by the standard library and by read_audio."""

from __future__ import annotations

import os
import wave
from pathlib import Path

import numpy as np
import pytest

import rt_drama3.audio.wav as wav_module
from rt_drama3.audio import float_to_s16le, read_audio, write_wav
from rt_drama3.errors import RequestError, SinkError

CLIP = np.linspace(-1.0, 1.0, 2_048, dtype=np.float32)


def contents(path: Path) -> tuple[tuple[int, int, int, int], bytes]:
    with wave.open(str(path), "rb") as file:
        facts = file.getparams()
        return (facts.nchannels, facts.sampwidth, facts.framerate, facts.nframes), file.readframes(
            facts.nframes
        )


def test_write_wav_round_trips_exactly(tmp_path: Path) -> None:
    path = tmp_path / "clip.wav"
    write_wav(path, CLIP, 44_100)
    assert contents(path) == ((1, 2, 44_100, 2_048), float_to_s16le(CLIP))
    assert path.stat().st_size == 44 + 4_096
    samples, rate = read_audio(path)
    assert rate == 44_100
    assert float_to_s16le(samples) == float_to_s16le(CLIP)


def test_write_wav_without_samples_is_a_valid_file(tmp_path: Path) -> None:
    write_wav(tmp_path / "empty.wav", CLIP[:0], 16_000)
    assert contents(tmp_path / "empty.wav") == ((1, 2, 16_000, 0), b"")


def test_failed_write_keeps_the_existing_file_and_leaves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "clip.wav"
    write_wav(path, CLIP, 24_000)
    before = path.read_bytes()

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(SinkError, match=r"clip\.wav cannot be written: No space left"):
        write_wav(path, CLIP[:10], 24_000)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["clip.wav"]


def test_invalid_samples_keep_the_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "clip.wav"
    write_wav(path, CLIP, 24_000)
    before = path.read_bytes()
    with pytest.raises(RequestError):
        write_wav(path, np.array([np.nan], np.float32), 24_000)
    assert path.read_bytes() == before


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links and POSIX permissions")
def test_link_is_followed_and_the_umask_applies(tmp_path: Path) -> None:
    (tmp_path / "real.wav").write_bytes(b"old")
    (tmp_path / "link.wav").symlink_to("real.wav")
    write_wav(tmp_path / "link.wav", CLIP, 24_000)
    assert (tmp_path / "link.wav").is_symlink()
    assert contents(tmp_path / "real.wav")[0][3] == 2_048
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "real.wav").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_raises_sink_error() -> None:
    with pytest.raises(SinkError, match="/dev/full cannot be written: No space left"):
        write_wav("/dev/full", CLIP, 24_000)


@pytest.mark.parametrize("name", ["missing/clip.wav", "", "nul\0.wav"])
def test_unwritable_path_raises_sink_error(tmp_path: Path, name: str) -> None:
    place = f"{tmp_path}/{name}"
    with pytest.raises(SinkError, match="cannot be written"):
        write_wav(place, CLIP, 24_000)


def test_more_than_a_wav_can_hold_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wav_module, "_MAX_DATA", 4_096)
    write_wav(tmp_path / "full.wav", CLIP, 24_000)
    with pytest.raises(SinkError, match="up to 4 GiB"):
        write_wav(tmp_path / "full.wav", np.zeros(2_049), 24_000)
    assert contents(tmp_path / "full.wav")[0][3] == 2_048


@pytest.mark.parametrize("rate", [0, -1, 10**9])
def test_invalid_rates_raise(tmp_path: Path, rate: int) -> None:
    with pytest.raises(RequestError, match=f"{rate} Hz"):
        write_wav(tmp_path / "clip.wav", CLIP, rate)
    assert not (tmp_path / "clip.wav").exists()
