"""Files and pipes: header sizes, also after a kill, all formats, and readers that exit."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import wave
from pathlib import Path

import av
import numpy as np
import pytest

from rt_drama3.audio import FORMATS, read_audio
from rt_drama3.errors import RequestError, SinkError
from rt_drama3.sinks import EncodedSink, PcmFormat, PipeClosed, WavSink, make_sink, repair_wav
from rt_drama3.sinks.pcm_format import to_int16
from tests.full_disk import file_size_limit, needs_limit

MONO = PcmFormat(44_100, encoding="f32le")
CLIP = (0.5 * np.sin(2 * np.pi * 440 * np.arange(44_100) / 44_100)).astype(np.float32)


def samples_of(path: Path) -> tuple[int, int, bytes]:
    with wave.open(str(path), "rb") as file:
        return file.getframerate(), file.getnchannels(), file.readframes(file.getnframes())


@pytest.mark.parametrize("block", [1_000, 44_100])
def test_wav_header_sizes_are_correct_after_close(tmp_path: Path, block: int) -> None:
    path = tmp_path / "take.wav"
    with WavSink(path) as sink:
        sink.open(MONO)
        for at in range(0, len(CLIP), block):
            sink.write(CLIP[at : at + block])
        assert sink.stats.device_rate == 44_100
    assert samples_of(path) == (44_100, 1, to_int16(CLIP[:, None]).tobytes())
    assert not repair_wav(path).changed


def test_wav_keeps_its_channels(tmp_path: Path) -> None:
    path = tmp_path / "stereo.wav"
    data = np.arange(2_000, dtype="<i2").tobytes()
    with WavSink(path) as sink:
        sink.open(PcmFormat(48_000, channels=2))
        sink.write(data)
    assert samples_of(path) == (48_000, 2, data)


def test_stop_keeps_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "take.wav"
    sink = WavSink(path)
    sink.open(MONO)
    sink.write(CLIP[:1_000])
    sink.stop()
    sink.close()
    sink.close()
    assert len(samples_of(path)[2]) == 2_000
    with pytest.raises(SinkError, match="is not open"):
        sink.write(CLIP)


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX")
def test_file_of_a_killed_writer_is_playable_and_repairable(tmp_path: Path) -> None:
    path = tmp_path / "killed.wav"
    program = """
import os, signal, sys
import numpy as np
from rt_drama3.sinks import PcmFormat, WavSink
sink = WavSink(sys.argv[1])
sink.open(PcmFormat(8_000))
for number in range(10):
    sink.write(np.full(900, 1 + number, "<i2").tobytes())
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program, str(path)], timeout=120)
    assert done.returncode == -9
    written = b"".join(np.full(900, 1 + number, "<i2").tobytes() for number in range(10))
    rate, _, data = samples_of(path)  # the standard library checks the sizes
    assert rate == 8_000
    assert written.startswith(data)
    assert len(data) >= len(written) - 2 * 8_000 // 4 - 1_800
    result = repair_wav(path)
    assert result.changed
    assert result.frames == 9_000
    assert samples_of(path)[2] == written


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("take.flac", 44_100),
        ("take.opus", 48_000),
        ("take.ogg", 48_000),
        ("take.mp3", 44_100),
        ("take.AAC", 44_100),
    ],
)
def test_extension_selects_the_format(tmp_path: Path, name: str, rate: int) -> None:
    path = tmp_path / name
    with make_sink(str(path)) as sink:
        sink.open(MONO)
        for at in range(0, len(CLIP), 777):
            sink.write(CLIP[at : at + 777])
    samples, found = read_audio(path)
    assert found == rate
    assert len(samples) == pytest.approx(rate, rel=0.06)
    middle = samples[rate // 4 : 3 * rate // 4]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert np.argmax(spectrum) * rate / len(middle) == pytest.approx(440, abs=3)
    if name.endswith("flac"):
        assert np.array_equal(to_int16(samples[:, None]), to_int16(CLIP[:, None]))


@pytest.mark.parametrize("rate", [44_100, 16_000])
def test_flac_header_states_the_number_of_samples(tmp_path: Path, rate: int) -> None:
    """Some readers allocate by it, and fail without it."""
    path = tmp_path / "x.flac"
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 30_001).astype(np.float32)
    with make_sink(str(path)) as sink:
        sink.open(PcmFormat(rate, encoding="f32le"))
        sink.write(noise[:100])
        sink.write(noise[100:])
    header = path.read_bytes()[:26]
    assert int.from_bytes(header[18:21], "big") >> 4 == rate
    assert header[20] & 1 == 0  # with the next four bits, the sample size less one: 15
    assert header[21] >> 4 == 15
    assert int.from_bytes(header[21:26], "big") & (1 << 36) - 1 == len(noise)
    assert len(read_audio(path)[0]) == len(noise)


def test_unsupported_rate_uses_the_next_higher_one(tmp_path: Path) -> None:
    path = tmp_path / "high.mp3"
    with make_sink(str(path)) as sink:
        sink.open(PcmFormat(96_000, encoding="f32le"))
        sink.write(CLIP)
    with av.open(str(path)) as file:
        assert file.streams.audio[0].rate == 48_000


@pytest.mark.parametrize(("spec", "dtype"), [("raw", "<i2"), ("pcm", "<i2"), ("pcm_f32", "<f4")])
def test_raw_samples(tmp_path: Path, spec: str, dtype: str) -> None:
    path = tmp_path / "take"
    with make_sink(f"{spec}:{path}") as sink:
        sink.open(MONO)
        sink.write(CLIP)
    expected = to_int16(CLIP[:, None])[:, 0] if dtype == "<i2" else CLIP
    assert np.array_equal(np.frombuffer(path.read_bytes(), dtype), expected)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (
            "take.xyz",
            RequestError,
            r"take.xyz has the unsupported extension .xyz; use .wav",
        ),
        ("take", RequestError, "take has no extension; use "),
        ("mp3", RequestError, "'mp3' has no file name; use mp3:PATH, mp3:- or take.mp3"),
        (
            "bogus:foo.wav",
            RequestError,
            r"'bogus', which is neither speaker, .* use \./bogus:foo\.wav",
        ),
        ("aiff:-", RequestError, r"neither speaker, mic nor a format; formats are .*ogg\.$"),
        ("wav:", RequestError, "'wav:' has no file name"),
        ("", RequestError, "The sink is empty"),
    ],
)
def test_invalid_sink_raises(spec: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_sink(spec)


def test_colon_in_a_path_is_not_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for spec in ("C:\\takes\\one.wav", "./bogus:foo.wav", "12:30.wav", "take 1:2.wav"):
        assert make_sink(spec).name == spec  # type: ignore[attr-defined]


def test_ogg_is_opus(tmp_path: Path) -> None:
    with make_sink(f"ogg:{tmp_path / 'take'}") as sink:
        sink.open(MONO)
        sink.write(CLIP)
    assert (tmp_path / "take").read_bytes().startswith(b"OggS")


def test_directory_is_not_a_sink(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is a directory"):
        make_sink(str(tmp_path))


def test_unwritable_path_raises(tmp_path: Path) -> None:
    sink = make_sink(str(tmp_path / "missing" / "take.wav"))
    with pytest.raises(SinkError, match=r"take.wav cannot be written: No such file"):
        sink.open(MONO)
    with pytest.raises(SinkError, match="is not open"):
        sink.write(CLIP)


def test_permission_denied_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SinkError, match=r"take\.flac cannot be written: Permission denied"):
        make_sink(str(tmp_path / "take.flac")).open(MONO)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_raises() -> None:
    sink = EncodedSink("/dev/full", "pcm")
    sink.open(MONO)
    with pytest.raises(SinkError, match="/dev/full cannot be written: No space left"):
        sink.write(CLIP)
    sink.close()


@needs_limit
@pytest.mark.parametrize("ending", [".flac", ".mp3", ".pcm"])
def test_encoded_file_on_a_full_disk_raises(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    noise = np.random.default_rng(1).uniform(-0.5, 0.5, 88_200).astype(np.float32)

    def make() -> None:
        with make_sink(str(path)) as sink:
            sink.open(MONO)
            for chunk in np.array_split(noise, 20):
                sink.write(chunk)

    with file_size_limit(10_001), pytest.raises(SinkError, match=rf"x\{ending}"):
        make()
    assert path.stat().st_size <= 10_001


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_disk_full_on_close_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.mp3"
    path.symlink_to("/dev/full")
    sink = make_sink(str(path))
    sink.open(MONO)
    sink.write(CLIP[:44])  # the encoder holds it back
    with pytest.raises(SinkError, match=r"cannot be written: No space left"):
        sink.close()
    sink.close()


@needs_limit
@pytest.mark.parametrize("limit", [30_001, 44_100 // 2 + 45])
def test_wav_header_is_correct_after_a_full_disk(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "take.wav"
    sink = WavSink(path)
    sink.open(MONO)
    arrived = (limit - 44) // 2
    whole = arrived // 1_000 * 1_000
    for at in range(0, whole, 1_000):
        sink.write(CLIP[at : at + 1_000])
    with file_size_limit(limit), pytest.raises(SinkError, match="cannot be written"):
        sink.write(CLIP[whole : whole + 1_000])
    sink.close()
    assert samples_of(path)[2] == to_int16(CLIP[:, None]).tobytes()[: 2 * arrived]
    assert not repair_wav(path).changed


def test_encoded_formats_refuse_stereo(tmp_path: Path) -> None:
    sink = make_sink(str(tmp_path / "take.mp3"))
    with pytest.raises(RequestError, match="in mono, not with 2 channels"):
        sink.open(PcmFormat(44_100, channels=2))
    with pytest.raises(RequestError, match="format is 'mp4'"):
        EncodedSink("x", "mp4")


def test_wav_at_its_size_limit_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rt_drama3.sinks.files._MAX_WAV_BYTES", 1_000)
    with WavSink(tmp_path / "full.wav") as sink:
        sink.open(MONO)
        sink.write(CLIP[:500])
        with pytest.raises(SinkError, match="is full"):
            sink.write(CLIP[:1])
    assert len(samples_of(tmp_path / "full.wav")[2]) == 1_000


@pytest.mark.parametrize("format", ["wav", *(name for name in FORMATS if name != "wav")])
def test_closed_pipe_raises_pipe_closed(format: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    pipe = os.fdopen(writer, "wb", buffering=0)
    sink = WavSink(pipe) if format == "wav" else EncodedSink(pipe, format)

    def use() -> None:
        sink.open(PcmFormat(48_000, encoding="f32le"))
        sink.write(CLIP)

    with pytest.raises(PipeClosed, match="has exited"):
        use()
    if format not in ("wav", "pcm", "pcm_f32"):  # the encoder's pending data is lost as well
        with pytest.raises(PipeClosed):
            sink.close()
    sink.close()
    pipe.close()


def test_pipe_gets_a_wav_without_a_stated_length() -> None:
    program = (
        "import sys, numpy as np\n"
        "from rt_drama3.sinks import PcmFormat, make_sink\n"
        "with make_sink(sys.argv[1]) as sink:\n"
        "    sink.open(PcmFormat(8_000))\n"
        "    sink.write(np.arange(1_000, dtype='<i2').tobytes())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "-"], capture_output=True, timeout=120, check=True
    )
    assert done.stdout[40:44] == b"\xff" * 4
    samples, rate = read_audio(done.stdout)
    assert (rate, len(samples)) == (8_000, 1_000)
    raw = subprocess.run(
        [sys.executable, "-c", program, "raw:-"], capture_output=True, timeout=120, check=True
    )
    assert raw.stdout == done.stdout[44:]


def test_file_object_is_left_open_and_gets_its_sizes_at_the_end() -> None:
    target = io.BytesIO()
    with WavSink(target) as sink:
        sink.open(MONO)
        sink.write(CLIP)
        assert target.getvalue()[40:44] == b"\xff" * 4  # standard output may be appended to
    assert len(target.getvalue()) == 44 + 2 * len(CLIP)
    assert target.getvalue()[40:44] == (2 * len(CLIP)).to_bytes(4, "little")
