"""Reading reference clips: common encodings, invalid files, and safety."""

from __future__ import annotations

import io
import os
import struct
import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_drama3.audio import files, read_audio
from rt_drama3.errors import RequestError

RATE = 44_100


def tone(rate: int = RATE, seconds: float = 0.5, level: float = 0.5) -> np.ndarray:
    time = np.arange(int(rate * seconds)) / rate
    return (level * np.sin(2 * np.pi * 440 * time)).astype(np.float32)


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(
        kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
        for kind, data in chunks
    )
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body


def fmt(bits: int = 16, channels: int = 1, rate: int = RATE, tag: int = 1) -> tuple[bytes, bytes]:
    block = channels * bits // 8
    return b"fmt ", struct.pack("<HHIIHH", tag, channels, rate, rate * block, block, bits)


def pcm16(samples: np.ndarray) -> bytes:
    return np.rint(samples * 32_767).astype("<i2").tobytes()


def wav(samples: np.ndarray | None = None, rate: int = RATE) -> bytes:
    data = pcm16(tone(rate) if samples is None else samples)
    return riff(fmt(rate=rate), (b"data", data))


def encode(
    container: str,
    codec: str,
    *,
    rate: int = RATE,
    layout: str = "mono",
    seconds: float = 0.5,
    to: Path | None = None,
    **options: str,
) -> bytes:
    """Returns a tone in any container and codec, encoded by the same FFmpeg that reads it."""
    target: io.BytesIO | str = io.BytesIO() if to is None else str(to)
    with av.open(target, "w", format=container, options=options) as output:
        stream = output.add_stream(codec, rate=rate, layout=layout)
        channels = stream.layout.nb_channels
        samples = np.repeat(tone(rate, seconds)[None], channels, axis=0)
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            output.mux(packet)
    return target.getvalue() if isinstance(target, io.BytesIO) else Path(target).read_bytes()


def likeness(samples: np.ndarray, rate: int) -> float:
    """Returns the share of the energy at 440 Hz; 1 for the tone itself at any phase."""
    time = np.arange(len(samples)) / rate
    amount = np.abs(np.sum(samples * np.exp(-2j * np.pi * 440 * time))) ** 2
    return float(2 * amount / len(samples) / np.sum(samples.astype(np.float64) ** 2))


# --- what is read -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "tag", "data", "expected"),
    [
        (8, 1, bytes([0, 64, 128, 192, 255]), [-1, -0.5, 0, 0.5, 127 / 128]),
        (16, 1, struct.pack("<3h", -32_768, 0, 16_384), [-1, 0, 0.5]),
        (24, 1, b"\x00\x00\x80" + b"\x00\x00\x00" + b"\x00\x00\x40", [-1, 0, 0.5]),
        (32, 1, struct.pack("<3i", -(2**31), 0, 2**30), [-1, 0, 0.5]),
        (32, 3, struct.pack("<3f", -1, 0, 0.5), [-1, 0, 0.5]),
        (64, 3, struct.pack("<3d", -1, 0, 0.5), [-1, 0, 0.5]),
    ],
)
def test_wav_sample_formats_are_scaled_by_full_range(
    bits: int, tag: int, data: bytes, expected: list[float]
) -> None:
    samples, rate = read_audio(riff(fmt(bits, tag=tag), (b"data", data)))
    assert samples.dtype == np.float32
    assert (samples.tolist(), rate) == (expected, RATE)


def test_wave_format_extensible() -> None:
    kind, plain = fmt(16, channels=2, tag=0xFFFE)
    guid = bytes.fromhex("0100000000001000800000aa00389b71")
    extensible = plain + struct.pack("<HHI", 22, 16, 3) + guid
    data = struct.pack("<4h", 16_384, 0, -16_384, -16_384)
    samples, _ = read_audio(riff((kind, extensible), (b"data", data)))
    assert samples.tolist() == [0.25, -0.5]


def test_extra_chunks_of_a_wav_are_not_read_as_samples() -> None:
    data = struct.pack("<3h", 1_024, 2_048, 4_096)
    odd = (b"LIST", b"INFOISFT\x05\0\0\0Lavf\0\0")  # chunks of odd size are padded
    file = riff((b"JUNK", b"\xff" * 27), fmt(), odd, (b"data", data), (b"id3 ", b"\x7f" * 400))
    assert read_audio(file)[0].tolist() == [1 / 32, 1 / 16, 1 / 8]


@pytest.mark.parametrize("size", [0, 0x7FFF_FFFF, 0x7FFF_F000, 0xFFFF_FFFF])
def test_wav_of_unknown_length_is_read_to_its_end(size: int) -> None:
    file = bytearray(wav())
    file[40:44] = struct.pack("<I", size)
    assert len(read_audio(bytes(file))[0]) == RATE // 2


ENCODINGS = [
    ("flac", "flac", 44_100),
    ("mp3", "libmp3lame", 44_100),
    ("mp3", "libmp3lame", 16_000),
    ("ipod", "aac", 48_000),
    ("ipod", "alac", 44_100),
    ("adts", "aac", 24_000),
    ("ogg", "libopus", 48_000),
    ("ogg", "flac", 22_050),
    ("webm", "libopus", 48_000),
    ("aiff", "pcm_s16be", 32_000),
    ("caf", "pcm_s24le", 44_100),
    ("w64", "pcm_s32le", 96_000),
    ("au", "pcm_s16be", 8_000),
    ("wav", "pcm_mulaw", 8_000),
    ("wv", "wavpack", 44_100),
]


@pytest.mark.parametrize(("container", "codec", "rate"), ENCODINGS)
def test_common_encodings(container: str, codec: str, rate: int) -> None:
    samples, found = read_audio(encode(container, codec, rate=rate))
    assert found == rate
    assert samples.ndim == 1
    assert samples.dtype == np.float32
    assert len(samples) / rate == pytest.approx(0.5, abs=0.1)
    middle = samples[len(samples) // 4 : len(samples) // 2]
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / 2**0.5, abs=0.03)
    assert likeness(samples, rate) > 0.85  # the encoders' padding counts as difference


@pytest.mark.parametrize("layout", ["stereo", "5.1"])
@pytest.mark.parametrize(("container", "codec"), [("flac", "flac"), ("ogg", "libopus")])
def test_channels_are_averaged(layout: str, container: str, codec: str) -> None:
    samples, _ = read_audio(encode(container, codec, rate=48_000, layout=layout))
    assert len(samples) / 48_000 == pytest.approx(0.5, abs=0.1)
    assert likeness(samples, 48_000) > 0.85


def test_opposite_channels_cancel() -> None:
    data = struct.pack("<6h", 1_000, -1_000, 30_000, -30_000, 0, 16_384)
    samples, _ = read_audio(riff(fmt(channels=2), (b"data", data)))
    assert samples.tolist() == [0, 0, 0.25]


@pytest.mark.parametrize("rate", [1_000, 11_025, 192_000, 384_000])
def test_any_rate(rate: int) -> None:
    samples, found = read_audio(wav(tone(rate), rate))
    assert (len(samples), found) == (rate // 2, rate)


def test_float_samples_that_overshoot_are_clipped() -> None:
    data = struct.pack("<3f", 1.25, -3.0, 0.5)
    assert read_audio(riff(fmt(32, tag=3), (b"data", data)))[0].tolist() == [1, -1, 0.5]


def test_all_kinds_of_source_give_the_same_samples(tmp_path: Path) -> None:
    data = wav()
    path = tmp_path / "clip with spaces, ünïcode.wav"
    path.write_bytes(data)
    expected = read_audio(data)[0]
    file = io.BytesIO(data)
    file.seek(1_000)  # it is read from its beginning, whatever its position
    for source in (str(path), path, bytearray(data), memoryview(data), file):
        assert np.array_equal(read_audio(source)[0], expected)
    assert not file.closed


def test_pipe_can_be_read() -> None:
    reader, writer = os.pipe()
    data = wav()

    def feed() -> None:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(data)

    thread = threading.Thread(target=feed)
    thread.start()
    with os.fdopen(reader, "rb") as pipe:
        samples, _ = read_audio(pipe)
    thread.join()
    assert np.array_equal(samples, read_audio(data)[0])


@pytest.mark.parametrize("junk", [b"TAG" + b"x" * 125, bytes(500), b"\xa5\x5a\x01" * 167])
def test_tags_and_junk_after_an_mp3_are_ignored(junk: bytes) -> None:
    clip = encode("mp3", "libmp3lame")
    samples, _ = read_audio(clip + junk)
    assert len(samples) / RATE == pytest.approx(0.5, abs=0.1)


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(("container", "codec", "rate"), ENCODINGS)
def test_longer_than_the_limit_is_refused(container: str, codec: str, rate: int) -> None:
    clip = encode(container, codec, rate=rate, seconds=2)
    with pytest.raises(RequestError, match=r"longer than the limit of 1\.5 s; trim it"):
        read_audio(clip, max_seconds=1.5)
    assert len(read_audio(clip, max_seconds=2)[0]) / rate == pytest.approx(2, abs=0.1)


def test_samples_of_all_channels_are_bounded_whatever_the_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A minute at 768 kHz is 46 million; a wavpack file of silence at that rate has 36 kB."""
    monkeypatch.setattr(files, "MAX_VALUES", 100_000)
    clip = encode("wav", "pcm_s16le", rate=96_000, layout="stereo", seconds=0.5)
    assert len(read_audio(clip)[0]) == 48_000
    decoded: list[int] = []
    mono = files._mono
    monkeypatch.setattr(files, "_mono", lambda f: (decoded.append(f.samples), mono(f))[1])
    clip = encode("wv", "wavpack", rate=192_000, layout="stereo", seconds=2.0)
    with pytest.raises(RequestError, match=r"more than 100,000 samples in all channels.*192000 Hz"):
        read_audio(clip)
    assert sum(decoded) <= 50_000


def test_reading_can_be_ended_between_two_packets() -> None:
    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise RequestError("enough")

    clip = encode("wav", "pcm_s16le", seconds=5.0)
    with pytest.raises(RequestError, match="enough"):
        read_audio(clip, check=check)
    assert len(calls) == 3


class Endless(io.RawIOBase):
    """Ten hours of 8 kHz silence in a WAV file that is generated while it is read."""

    name = "endless.wav"
    size = 44 + 10 * 3_600 * 16_000

    def __init__(self) -> None:
        self.place = self.taken = 0
        data = self.size - 44
        self.header = b"RIFF" + struct.pack("<I", data + 36) + b"WAVE"
        self.header += riff(fmt(rate=8_000))[12:] + b"data" + struct.pack("<I", data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.place = offset + {0: 0, 1: self.place, 2: self.size}[whence]
        return self.place

    def tell(self) -> int:
        return self.place

    def read(self, count: int = -1) -> bytes:
        count = min(count if count >= 0 else self.size, self.size - self.place)
        chunk = self.header[self.place : self.place + count].ljust(count, b"\0")
        self.place += count
        self.taken += count
        return chunk


def test_ten_hours_are_refused_after_reading_one_minute() -> None:
    file = Endless()
    with pytest.raises(RequestError, match=r"endless\.wav is longer than the limit of 60 s"):
        read_audio(file)
    assert file.taken < 61 * 16_000 + 1_000_000  # a minute and FFmpeg's buffers, of 576 MB


WRONG = {
    "nothing": b"",
    "a byte": b"R",
    "text": b"Hello, this is not audio.\n" * 50,
    "random": np.random.default_rng(0).bytes(20_000),
    "a wav header cut": wav()[:30],
    "an mp3 cut early": encode("mp3", "libmp3lame")[:150],
    "an m4a without its index": encode("ipod", "aac")[:-500],
    "an ogg cut early": encode("ogg", "libopus", rate=48_000)[:100],
    "a zip": b"PK\x03\x04" + bytes(500),
    "a rate of 0 Hz": riff(fmt(rate=0), (b"data", bytes(100))),
    "65535 channels": riff(
        (b"fmt ", struct.pack("<HHIIHH", 1, 65_535, RATE, RATE, 65_534, 16)),
        (b"data", bytes(9_999)),
    ),
    "a wav in a wav": riff((b"data", wav())),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_data_than_audio_raises(name: str, tmp_path: Path) -> None:
    path = tmp_path / "clip.wav"
    path.write_bytes(WRONG[name])
    with pytest.raises(RequestError, match=r"clip\.wav (is|has|holds|uses) ") as failure:
        read_audio(path)
    assert "none" not in str(failure.value)
    with pytest.raises(RequestError, match=r"^The audio \(\d+ bytes\) "):
        read_audio(WRONG[name])


def test_the_decoder_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    for data in WRONG.values():
        with pytest.raises(RequestError):
            read_audio(data)
    assert capfd.readouterr() == ("", "")


def test_no_samples() -> None:
    with pytest.raises(RequestError, match="holds no audio samples"):
        read_audio(riff(fmt(), (b"data", b"")))


def test_picture_has_no_audio_track() -> None:
    target = io.BytesIO()
    with av.open(target, "w", format="matroska") as output:
        stream = output.add_stream("mjpeg", rate=1)
        stream.width = stream.height = 16
        stream.pix_fmt = "yuvj420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((24, 16), np.uint8), format="yuvj420p")
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            output.mux(packet)
    with pytest.raises(RequestError, match="has no audio track"):
        read_audio(target.getvalue())


def test_truncated_file_with_a_stated_length_raises(tmp_path: Path) -> None:
    fast = encode("mp4", "aac", seconds=2, to=tmp_path / "fast.mp4", movflags="faststart")
    for data in (
        riff((b"JUNK", b"x"), fmt(), (b"data", pcm16(tone(seconds=2)))),
        encode("flac", "flac", seconds=2),
        encode("aiff", "pcm_s16be", seconds=2),
        encode("wv", "wavpack", seconds=2),
        fast,
    ):
        assert len(read_audio(data)[0]) / RATE == pytest.approx(2, abs=0.1)
        with pytest.raises(RequestError, match="truncated"):
            read_audio(data[: len(data) * 6 // 10])


@pytest.mark.parametrize(("container", "codec"), [("mp3", "libmp3lame"), ("adts", "aac")])
def test_stream_formats_are_read_to_their_end(container: str, codec: str) -> None:
    data = encode(container, codec, seconds=2)
    for part in (data[: len(data) // 2], data[len(data) // 2 :]):
        samples, _ = read_audio(part)
        assert len(samples) / RATE == pytest.approx(1, abs=0.15)


def test_gap_in_the_middle_is_damage() -> None:
    data = encode("mp3", "libmp3lame", seconds=2)
    middle = len(data) // 2
    with pytest.raises(RequestError, match="damaged"):
        read_audio(data[:middle] + data[middle + 333 :])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 3.0e38])
def test_non_finite_or_unscaled_samples_raise(value: float) -> None:
    data = struct.pack("<4f", 0.1, 0.2, value, value)
    with pytest.raises(RequestError, match=r"NaN or infinite|scale them to -1\.\.1"):
        read_audio(riff(fmt(32, channels=2, tag=3), (b"data", data)))


def test_float_samples_in_integer_scale_are_refused() -> None:
    data = (tone() * 32_768).astype("<f4").tobytes()
    with pytest.raises(RequestError, match=r"float samples of up to 16384; scale them to -1\.\.1"):
        read_audio(riff(fmt(32, tag=3), (b"data", data)))


@pytest.mark.parametrize("rate", [100, 2_000_000_000])
def test_rates_out_of_range_are_refused(rate: int) -> None:
    file = riff(
        (b"fmt ", struct.pack("<HHIIHH", 1, 1, rate, 2_000, 2, 16)), (b"data", bytes(2_000))
    )
    with pytest.raises(RequestError, match=f"sample rate of {rate} Hz"):
        read_audio(file)


def test_too_many_channels_are_refused() -> None:
    with pytest.raises(RequestError, match="has 65 channels; the limit is 64"):
        read_audio(riff(fmt(channels=65), (b"data", bytes(65 * 2 * 100))))


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"nowhere\.wav cannot be opened: No such file"):
        read_audio(tmp_path / "nowhere.wav")
    with pytest.raises(RequestError, match="cannot be opened: "):
        read_audio(tmp_path)
    with pytest.raises(RequestError, match="cannot be opened: "):
        read_audio("nul\0.wav")


def test_url_is_treated_as_a_missing_file() -> None:
    with pytest.raises(RequestError, match="cannot be opened: "):
        read_audio("http://127.0.0.1:9/clip.wav")


def test_text_mode_file_raises() -> None:
    with pytest.raises(RequestError, match="binary mode"):
        read_audio(io.StringIO("RIFF"))  # type: ignore[arg-type]


def test_closed_or_write_only_file_raises(tmp_path: Path) -> None:
    closed = io.BytesIO(wav())
    closed.close()
    with pytest.raises(RequestError, match="cannot be read: "):
        read_audio(closed)
    path = tmp_path / "clip.wav"
    with path.open("wb") as file, pytest.raises(RequestError, match=r"clip\.wav cannot be read: "):
        read_audio(file)


def test_file_that_fails_while_being_read_raises() -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 20_000:
                raise OSError(5, "Input/output error")
            return super().read(size)

    with pytest.raises(RequestError, match="cannot be read: Input/output error"):
        read_audio(Failing(wav(tone(seconds=5))))


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf")])
def test_invalid_limits_raise(limit: float) -> None:
    with pytest.raises(RequestError, match="max_seconds must be a positive number"):
        read_audio(wav(), max_seconds=limit)


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_damaged_files_are_read_or_raise_request_error(data: st.DataObject) -> None:
    """Randomly modified and truncated files give either samples or a RequestError."""
    original = data.draw(st.sampled_from(SMALL))
    file = bytearray(original[: data.draw(st.integers(0, len(original)))])
    for _ in range(data.draw(st.integers(0, 8))):
        if file:
            file[data.draw(st.integers(0, min(len(file) - 1, 600)))] = data.draw(
                st.integers(0, 255)
            )
    try:
        samples, rate = read_audio(bytes(file), max_seconds=2)
    except RequestError:
        return
    assert np.isfinite(samples).all()
    assert 0 < len(samples) <= 2.1 * rate + 65_536
    assert np.abs(samples).max() <= 1


SMALL = [
    wav(tone(8_000, 0.1), 8_000),
    encode("flac", "flac", seconds=0.1),
    encode("mp3", "libmp3lame", seconds=0.1),
    encode("ipod", "aac", seconds=0.1),
    encode("ogg", "libopus", rate=48_000, seconds=0.1),
]


# --- safety: a clip cannot make the decoder open anything else ----------------------------------


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A readable audio file in the current directory that crafted clips refer to."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "secret.wav"
    path.write_bytes(wav())
    return path


def crafted(secret: Path) -> dict[str, bytes]:
    playlist = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{}\n#EXT-X-ENDLIST\n"
    segments = "<SegmentList><SegmentURL media='secret.wav'/></SegmentList>"
    return {
        "clip.ffconcat": b"ffconcat version 1.0\nfile secret.wav\n",
        "absolute.ffconcat": f"ffconcat version 1.0\nfile '{secret}'\n".encode(),
        "protocol.ffconcat": f"ffconcat version 1.0\nfile 'file:{secret}'\n".encode(),
        "clip.m3u8": playlist.format("secret.wav").encode(),
        "absolute.m3u8": playlist.format(secret.as_uri()).encode(),
        "concat.m3u8": playlist.format(f"concat:{secret}|{secret}").encode(),
        "clip.mpd": (
            "<?xml version='1.0'?><MPD xmlns='urn:mpeg:dash:schema:mpd:2011' type='static'>"
            "<Period><AdaptationSet mimeType='audio/wav'><Representation id='1'>"
            f"{segments}</Representation></AdaptationSet></Period></MPD>"
        ).encode(),
        "clip.sdp": (
            b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
            b"m=audio 15004 RTP/AVP 0\r\n"
        ),
    }


def test_crafted_clips_are_dangerous_to_a_plain_decoder(secret: Path) -> None:
    """Otherwise the tests below could pass with clips that no decoder follows."""
    with av.open(io.BytesIO(crafted(secret)["clip.ffconcat"])) as container:
        assert sum(frame.samples for frame in container.decode(audio=0)) == RATE // 2


@pytest.mark.parametrize("name", list(crafted(Path("/secret.wav"))))
def test_clips_that_refer_to_other_files_raise(name: str, secret: Path) -> None:
    data = crafted(secret)[name]
    path = secret.with_name(name)
    path.write_bytes(data)
    for source in (data, path, name, io.BytesIO(data)):
        with pytest.raises(RequestError, match="not a supported audio file"):
            read_audio(source)


def movie_that_refers_to(path: Path) -> bytes:
    """A QuickTime file whose track refers to samples in another file."""
    movie = encode("mov", "pcm_s16le", seconds=0.1)
    place = str(path).encode()
    place += b"\0" * (len(place) % 2)
    alias = bytes(10) + b"\1v".ljust(28, b"\0") + bytes(12) + b"\1f".ljust(64, b"\0") + bytes(16)
    alias += struct.pack(">hh", 1, 1) + bytes(16) + struct.pack(">hh", 2, len(place)) + place
    alias += struct.pack(">hh", -1, 0)
    reference = struct.pack(">I4sI", len(alias) + 12, b"alis", 0) + alias
    itself = struct.pack(">I4sI", 12, b"url ", 1)
    at = movie.index(itself)
    changed = bytearray(movie.replace(itself, reference))
    for box in (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"):
        start = changed.rindex(box, 0, at) - 4
        size = struct.unpack(">I", changed[start : start + 4])[0]
        changed[start : start + 4] = struct.pack(">I", size + len(reference) - len(itself))
    return bytes(changed)


def test_movie_that_refers_to_another_file_does_not_read_it(secret: Path) -> None:
    secret.write_bytes(b"\x00\x40" * 50_000)
    movie = movie_that_refers_to(secret)
    follow = {"enable_drefs": "1", "use_absolute_path": "1"}
    with av.open(io.BytesIO(movie), options=follow) as container:
        frames = [frame.to_ndarray() for frame in container.decode(audio=0)]
    assert set(np.concatenate(frames, axis=1)[0].tolist()) == {0x4000}  # it can be followed
    with pytest.raises(RequestError, match="holds no audio samples"):
        read_audio(movie)
