"""The parts that need no server: addresses, messages, errors, WAV sizes, a listener's figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rt_drama3.audio.wav import wav_header
from rt_drama3.protocol.refusals import KINDS
from rt_drama3_client import Playback, ServerError, Settings, UsageError
from rt_drama3_client.address import KEY_VARIABLE, URL_VARIABLE, read_address, read_key
from rt_drama3_client.audio_files import AudioFile, with_sizes
from rt_drama3_client.errors import server_error


def test_no_heavy_imports() -> None:
    code = (
        "import sys, rt_drama3_client.cli\n"
        "print(sorted({'torch', 'numpy', 'rt_drama3', 'pyaudio', 'av'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stderr


@pytest.mark.parametrize(
    ("url", "stream", "http", "loopback"),
    [
        ("host", "ws://host/v1/stream", "http://host/x", False),
        ("host:80", "ws://host:80/v1/stream", "http://host:80/x", False),
        ("https://host/a/", "wss://host/a/v1/stream", "https://host/a/x", False),
        ("wss://host/v1/stream", "wss://host/v1/stream", "https://host/x", False),
        ("ws://127.0.0.2:1", "ws://127.0.0.2:1/v1/stream", "http://127.0.0.2:1/x", True),
        ("[::1]:1", "ws://[::1]:1/v1/stream", "http://[::1]:1/x", True),
        ("localhost", "ws://localhost/v1/stream", "http://localhost/x", True),
    ],
)
def test_addresses(url: str, stream: str, http: str, loopback: bool) -> None:
    address = read_address(url)
    assert (address.stream, address.http("/x")) == (stream, http)
    assert address.loopback == loopback


@pytest.mark.parametrize("url", ["ftp://host", "http://", "host:port", "http://a@b", "h/?q", "h#f"])
def test_invalid_addresses_raise(url: str) -> None:
    with pytest.raises(UsageError, match=r"invalid address|must not contain"):
        read_address(url)


def test_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL_VARIABLE, "https://there:1")
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    assert read_address(None).stream == "wss://there:1/v1/stream"
    assert read_address("here").stream == "ws://here/v1/stream"
    assert (read_key(None), read_key("other"), read_key("")) == ("secret", "other", None)
    with pytest.raises(UsageError, match="key"):
        read_key("a\r\nb")


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"attempts": 0}, {"backoff": float("nan")}])
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Settings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", KINDS)
def test_every_error_of_the_server_has_a_class(code: str) -> None:
    error = server_error(code, "what.")
    assert type(error) is not ServerError
    assert error.code == code


def test_wav_sizes(tmp_path: Path) -> None:
    samples = b"\1\2" * 50
    streamed = wav_header(8_000, None) + samples
    whole = wav_header(8_000, 100) + samples
    assert with_sizes(streamed) == whole
    assert with_sizes(samples) == samples
    assert with_sizes(b"RIFF") == b"RIFF"
    for step in (1, 7, 44, 1_000):
        with AudioFile(tmp_path / "x.wav") as file:
            for start in range(0, len(streamed), step):
                file.write(streamed[start : start + step])
        assert (tmp_path / "x.wav").read_bytes() == whole
    file = AudioFile(tmp_path / "x.wav")
    file.write(streamed[:64])
    file.__exit__(OSError, OSError("lost"), None)
    assert (tmp_path / "x.wav").read_bytes() == wav_header(8_000, 20) + samples[:20]


def test_player_that_starts_immediately() -> None:
    playback = Playback()
    assert playback.buffered(5.0) == 0
    assert playback.play(10.0, 1.0) == 10.0
    assert playback.play(10.2, 1.0) == 11.0  # 0.8 s in hand
    assert playback.buffered(10.5) == pytest.approx(1.5)
    assert playback.play(12.25, 1.0) == 12.25  # 0.25 s of silence
    assert playback.play(14.0, 1.0, excused=True) == 14.0  # there was no text
    assert playback.play(15.5, 1.0) == 15.5
    assert (playback.underruns, playback.worst_underrun, playback.total_underrun) == (2, 0.5, 0.75)
    assert playback.least_buffered == -0.5
