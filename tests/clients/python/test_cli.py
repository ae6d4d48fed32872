"""The command, run as a user runs it; the sound card is the only thing that is not real."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rt_drama3.audio import read_audio
from rt_drama3_client import cli
from rt_drama3_client.address import URL_VARIABLE
from rt_drama3_client.cli import main
from tests.server.tools import LONG, Place
from tests.small import WAIT, until

COMMAND = [sys.executable, "-m", "rt_drama3_client"]
PATIENCE = 4 * WAIT  # a process needs long to start on a busy machine


def variables(place: Place) -> dict[str, str]:
    """The environment of the command: its server, and no debug mode, which writes to stderr."""
    return {**os.environ, "PYTHONASYNCIODEBUG": "", URL_VARIABLE: place.url}


def command(place: Place, *arguments: str, text: str = "") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=text.encode(),
        capture_output=True,
        timeout=PATIENCE,
        env=variables(place),
    )


def test_file_with_correct_sizes_and_metrics(ending: Place, tmp_path: Path) -> None:
    out = tmp_path / "x.wav"
    result = command(ending, "Hello there.", "--out", str(out), "--seed", "3", "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    with wave.open(str(out)) as audio:
        assert audio.getframerate() == facts["sample_rate"]
        samples = audio.getnframes()
    assert samples / facts["sample_rate"] == pytest.approx(facts["seconds"], abs=1e-3)
    assert facts["seed"] == 3
    assert facts["first_audio_ms"] > 0
    assert out.stat().st_size == 44 + 2 * samples


def test_formats_by_extension(ending: Place, tmp_path: Path) -> None:
    out = tmp_path / "x.flac"
    result = command(ending, "Hello there.", "-o", str(out), "--seed", "3")
    assert result.returncode == 0
    assert result.stderr.startswith(f"wrote {out}: ".encode())
    assert len(read_audio(out)[0]) > 0


@pytest.mark.parametrize("form", ["pcm", "wav"])
def test_pipe(ending: Place, form: str) -> None:
    result = command(ending, "Hello there.", "-o", "-", "--format", form, "--seed", "3")
    assert result.returncode == 0
    assert (result.stdout[:4] == b"RIFF") == (form == "wav")
    assert len(result.stdout) % 2048 == (44 if form == "wav" else 0)


@pytest.mark.parametrize("by", ["line", "word"])
def test_standard_input(ending: Place, by: str) -> None:
    text = "Hello there.\nAnd \N{LATIN SMALL LETTER E WITH ACUTE} another one"
    result = command(ending, "-", "--by", by, "-o", "-", "--json", "--seed", "3", text=text)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout) > 44
    facts = json.loads(result.stderr)
    assert facts["seconds"] > 0


def test_line_is_spoken_before_the_next_is_typed(endless: Place) -> None:
    arguments = ["-", "-o", "-", "--format", "pcm", "--url", endless.url, "--max-seconds", "0.5"]
    with subprocess.Popen(
        [*COMMAND, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(b"No end of a sentence\n")
        running.stdin.flush()
        assert running.stdout.read(100)
        rest = running.stdout.read()  # max_seconds ends it although more could be typed
        assert running.wait(PATIENCE) == 0
    assert len(rest) > 0


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGTERM that can be handled")
def test_interrupting_stops_the_speech_and_keeps_the_file(endless: Place, tmp_path: Path) -> None:
    out = tmp_path / "x.wav"
    with subprocess.Popen([*COMMAND, LONG, "-o", str(out), "--url", endless.url]) as running:
        until(lambda: out.exists() and out.stat().st_size > 1_000, "audio")
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE) == 143
    endless.until_free()
    with wave.open(str(out)) as audio:
        assert out.stat().st_size == 44 + 2 * audio.getnframes()


def test_closed_pipe(endless: Place) -> None:
    arguments = [LONG, "-o", "-", "--url", endless.url]
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.read(10)
        running.stdout.close()
        assert running.wait(PATIENCE) == 141
        assert running.stderr.read() == b""
    endless.until_free()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "no text was given"),
        (("Hi.", "--out", "x.txt"), 2, "has no supported extension"),
        (("Hi.", "--out", "nowhere/x.wav"), 2, "create it first"),
        (("Hi.", "--out", "x.mp3", "--format", "wav"), 2, "would hold mp3"),
        (("Hi.", "--format", "mp3"), 2, "cannot be played"),
        (("Hi.", "--barge-in"), 2, "--measure"),
        (("--measure", "0"), 2, "at least 1"),
        (("--measure", "1", "--out", "x.wav"), 2, "without --out"),
        (("Hi.", "--url", "ftp://x"), 2, "invalid address"),
        (("Hi.", "--timeout", "0"), 2, "timeout"),
        (("Hi.", "--out", "-", "--voice", "missing"), 1, "error: voice 'missing'"),
        (("Hi <|im_end|>", "--out", "-"), 1, "im_end"),
        (("...", "--measure", "1"), 1, "no audio"),
    ],
)
def test_invalid_arguments(
    ending: Place,
    arguments: tuple[str, ...],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(URL_VARIABLE, ending.url)
    try:
        found = main(arguments)
    except SystemExit as leaving:
        found = leaving.code
    said = capsys.readouterr().err.splitlines()
    assert found == code
    assert message in said[-1]
    assert code == 2 or len(said) == 1
    assert list(tmp_path.iterdir()) == []


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # does not listen
        url = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["Hi.", "-o", "-", "--url", url]) == 3
    assert f"error: {url} cannot be connected to" in capsys.readouterr().err


def test_not_utf8(ending: Place) -> None:
    result = subprocess.run(
        [*COMMAND, "-", "-o", "-"],
        input=b"Hi \xff",
        capture_output=True,
        env=variables(ending),
        timeout=PATIENCE,
    )
    assert result.returncode == 2
    assert b"near byte 3" in result.stderr


def test_measure(ending: Place) -> None:
    result = command(
        ending, "Hello there.", "--seed", "3", "--measure", "2", "--barge-in", "--json"
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert len(report["runs"]) == len(report["barge_in"]) == 2
    for run in report["runs"]:
        assert 0 < run["first_audio"] <= (run["first_audible"] or run["first_audio"])
        assert run["connect"] > 0
        assert run["rtf"] > 0
        # An underrun falls between the first audio and the end; 1 ms is more than the rounding.
        assert run["first_audio"] + run["worst_underrun"] < 1e3 * run["rtf"] * run["seconds"] + 1
    assert set(report["summary"]["first_audio"]) == {"p50", "p95", "worst"}
    table = command(ending, "Hello there.", "--seed", "3", "--measure", "1").stdout.decode()
    assert "first audio ms" in table
    assert "barge" not in table


def test_lists(ending: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--models", "--url", ending.url]) == 0
    assert capsys.readouterr().out == f"{ending.service.facts.name}\n"
    assert main(["--voices", "--url", ending.url]) == 0


class Card:
    """PyAudio, as far as it is used."""

    paInt16 = 8  # noqa: N815 - its name there
    played: ClassVar[list[tuple[str, Any]]] = []
    broken = False

    def PyAudio(self) -> Card:  # noqa: N802 - its name there
        os.write(2, b"ALSA lib: a card is absent\n")  # as C libraries do
        return self

    def open(self, **options: Any) -> Card:
        if self.broken:
            raise OSError("no device")
        self.played.append(("open", options))
        return self

    def get_device_count(self) -> int:
        return 2

    def get_device_info_by_index(self, number: int) -> dict[str, Any]:
        return {"name": ["Microphone", "Loud Speakers"][number], "maxOutputChannels": number}

    def write(self, pcm: bytes) -> None:
        self.played.append(("write", pcm))

    def stop_stream(self) -> None:
        self.played.append(("drain", None))

    def close(self) -> None:
        self.played.append(("close", None))

    def terminate(self) -> None:
        os.write(2, b"jack server is not running\n")
        self.played.append(("terminate", None))


def test_playing(
    ending: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = Card()
    monkeypatch.setattr(Card, "played", [])
    monkeypatch.setitem(sys.modules, "pyaudio", card)  # type: ignore[arg-type]
    arguments = ["Hello there.", "--seed", "3", "--url", ending.url, "--sample-rate", "24000"]
    assert main([*arguments, "--device", "speak"]) == 0
    kinds = [kind for kind, _ in card.played]
    assert kinds[0] == "open"
    assert kinds[-3:] == ["drain", "close", "terminate"]
    options = card.played[0][1]
    assert (options["rate"], options["channels"], options["format"]) == (24_000, 1, 8)
    assert options["output_device_index"] == 1
    pcm = b"".join(data for kind, data in card.played if kind == "write")
    saved = command(ending, *arguments[:3], "--sample-rate", "24000", "-o", "-", "--format", "pcm")
    assert pcm == saved.stdout + bytes(2 * 3_600)  # and 150 ms that the device may drop
    assert main([*arguments, "--device", "nothing"]) == 1
    assert "no output device matches 'nothing'" in capsys.readouterr().err
    monkeypatch.setattr(Card, "broken", True)
    assert main(arguments) == 1
    assert "cannot be opened: no device" in capsys.readouterr().err


def test_playing_without_the_extra(
    ending: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyaudio", None)  # type: ignore[arg-type]
    assert main(["Hello.", "--url", ending.url]) == 1
    assert "rt-drama3-client[speaker]" in capsys.readouterr().err
    ending.until_free()


@pytest.mark.parametrize("broken", [False, True])
def test_sound_library_output_is_suppressed(
    ending: Place,
    broken: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    card = Card()
    monkeypatch.setattr(Card, "played", [])
    monkeypatch.setattr(Card, "broken", broken)
    monkeypatch.setitem(sys.modules, "pyaudio", card)  # type: ignore[arg-type]
    assert main(["Hello there.", "--seed", "3", "--url", ending.url]) == int(broken)
    said = capfd.readouterr().err.splitlines()
    assert [line.split(" ")[0] for line in said] == ["error:" if broken else "spoke"]
    os.write(2, b"heard again")
    assert capfd.readouterr().err == "heard again"


def piped(monkeypatch: pytest.MonkeyPatch, *blocks: bytes) -> list[cli.Part]:
    """What the command takes from standard input that arrives in these blocks."""
    left = [*blocks, b""]
    monkeypatch.setattr(cli.os, "read", lambda *_: left.pop(0))
    return list(cli._standard_input("line"))


def test_a_byte_order_mark_on_standard_input_is_not_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = piped(monkeypatch, b"\xef\xbb\xbfHello.\n")
    assert whole[0] == "Hello.\n"
    assert piped(monkeypatch, b"\xef", b"\xbb\xbfHel", b"lo.\n") == whole


def test_closed_standard_input_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> bytes:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(cli.os, "read", closed)
    with pytest.raises(cli.UsageError, match="standard input cannot be read: Bad file descriptor"):
        next(cli._standard_input("line"))


def test_a_pipe_to_closed_standard_output_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as ended:
        main(["Hello there.", "--out", "-"])
    assert ended.value.code == 2
    assert "standard output is closed; open it, or write to a file." in capsys.readouterr().err


def test_closed_streams_lose_reports_alone(
    ending: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, ending.url)
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    out = tmp_path / "x.wav"
    assert main(["Hello there.", "--out", str(out)]) == 0
    assert out.stat().st_size > 44
    assert main(["Hello there.", "--out", str(out), "--json"]) == 0
    assert main(["--models"]) == 0


def test_text_that_the_locale_could_not_decode_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["caf\udce9"])
    assert "the text is not UTF-8 (the locale's encoding is" in capsys.readouterr().err
