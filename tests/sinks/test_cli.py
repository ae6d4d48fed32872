"""The commands devices, mic, repair, and speak with several sinks, against a real PulseAudio."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rt_drama3.audio import StreamResampler, read_audio, write_wav
from rt_drama3.cli.main import app, main
from rt_drama3.cli.speak_outputs import opened
from rt_drama3.errors import PipeClosed, RequestError, SinkError
from rt_drama3.sinks import virtual_mic
from rt_drama3.sinks.pcm_format import to_int16
from tests.sinks.doubles import FakePyAudio, card
from tests.sinks.private_pulse import (
    SECONDS,
    Daemon,
    Recorder,
    daemon,
    needs_pulse,
    sounding,
    wait_until,
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
PROGRAM = [sys.executable, "-m", "rt_drama3"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    with daemon(monkeypatch) as running:
        yield running


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@linux
@needs_pulse
@pytest.mark.serial
def test_speak_plays_the_same_samples_into_microphone_and_file(
    server: Daemon, tmp_path: Path
) -> None:
    virtual_mic.create(rate=44_100, keep=True)
    recorder = Recorder("rt-drama3", 44_100)
    path = tmp_path / "take.wav"
    speak = ["speak", "Hi.", "--max-seconds", "0.5", "--seed", "3", "--json"]
    facts = json.loads(run(*speak, "--sink", "mic", "--sink", str(path)))
    assert facts["sinks"] == ["mic", str(path)]
    recorder.wait_for(22_050)
    recorded = sounding(recorder.stop())
    wav, _ = read_audio(path)
    # On a busy machine the player may run dry within the take, so silence is ignored.
    expected = to_int16(wav[:, None])[:, 0]
    assert len(expected) > 10_000
    assert np.array_equal(recorded[recorded != 0], expected[expected != 0])


@linux
@needs_pulse
@pytest.mark.serial
def test_speak_into_the_speaker_loses_nothing_without_a_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "take.f32"
    speak = ["speak", "Hi.", "--max-seconds", "0.5", "--seed", "3"]
    with daemon(monkeypatch, rate=48_000, rewinds=True):
        recorder = Recorder("card.monitor", 48_000, latency_ms=10)
        reported = False
        try:
            run(*speak, "--sink", "speaker", "--sink", f"pcm_f32:{path}")
        except SinkError as error:  # this machine is too busy
            reported = "lost sound" in str(error)
            assert reported
        recorder.wait_for(12_000)
        recorded = recorder.stop()
    resampler = StreamResampler(44_100, 48_000)
    whole = np.concatenate([resampler.push(np.fromfile(path, "<f4")), resampler.flush()])
    expected = to_int16(whole[:, None])[:, 0]
    assert len(expected) > 10_000
    # A busy machine may insert silence, but every sample arrives.
    assert reported or np.array_equal(recorded[recorded != 0], expected[expected != 0])


@linux
@needs_pulse
@pytest.mark.serial
def test_microphone_exists_until_its_command_is_stopped(server: Daemon) -> None:
    process = subprocess.Popen([*PROGRAM, "mic", "create", "studio"], stdout=subprocess.PIPE)
    try:
        wait_until(lambda: [mic.name for mic in virtual_mic.existing()] == ["studio"], "the mic")
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"microphone studio at 48000 Hz")
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    assert virtual_mic.existing() == []


@linux
@needs_pulse
@pytest.mark.serial
def test_kept_microphone_is_listed_and_removed(server: Daemon) -> None:
    assert "microphone rt-drama3 at 48000 Hz" in run("mic", "create", "--keep")
    assert run("mic", "list") == "rt-drama3\t48000 Hz\tkept\n"
    (facts,) = json.loads(run("mic", "list", "--json"))
    assert (facts["name"], facts["owner"], facts["alive"]) == ("rt-drama3", "kept", True)
    assert json.loads(run("devices", "--json"))["microphones"] == [facts]
    with pytest.raises(SinkError, match=r"no virtual microphone 'studio'; .*: 'rt-drama3'"):
        run("mic", "remove", "studio")
    assert run("mic", "remove", "rt-drama3") == "removed rt-drama3\n"
    with pytest.raises(SinkError, match=r"no virtual microphone 'rt-drama3'; none exist"):
        run("mic", "remove", "rt-drama3")
    assert run("mic", "remove") == "no virtual microphones\n"


@linux
@needs_pulse
@pytest.mark.serial
def test_microphone_of_another_process_keeps_its_owner(server: Daemon) -> None:
    process = subprocess.Popen([*PROGRAM, "mic", "create"], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: [mic.complete for mic in virtual_mic.existing()] == [True], "the mic")
        result = CliRunner().invoke(app, ["mic", "create"], catch_exceptions=False)
        assert f"exists until process {process.pid}, which owns it, ends" in result.output
        assert "Ctrl-C" not in result.output
        with pytest.raises(SinkError, match=f"cannot be kept: it belongs to process {process.pid}"):
            run("mic", "create", "--keep")
        process.terminate()
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    run("mic", "create", "--keep")
    result = CliRunner().invoke(app, ["mic", "create"], catch_exceptions=False)
    assert "exists until rt-drama3 mic remove" in result.output


def test_devices_are_listed_with_rates_and_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakePyAudio(card("Headset [USB]", 2, 1, 48_000), card("CABLE Input", 2, 0, 44_100))
    monkeypatch.setitem(sys.modules, "pyaudio", fake)
    text = " ".join(run("devices").split())
    assert "Headset [USB] Fake 2 1 48000 Hz 10 ms default output, default input" in text
    assert "CABLE Input Fake 2 - 44100 Hz 10 ms virtual" in text
    facts = json.loads(run("devices", "--json"))
    assert [device["name"] for device in facts["devices"]] == ["Headset [USB]", "CABLE Input"]
    assert fake.users == 0


@linux
@needs_pulse
@pytest.mark.serial
def test_devices_have_the_rate_of_the_sound_servers_output(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakePyAudio(card("front", rate=96_000), card("pulse", rate=44_100))
    monkeypatch.setitem(sys.modules, "pyaudio", fake)
    with daemon(monkeypatch, rate=32_000):
        facts = json.loads(run("devices", "--json"))
    assert [device["rate"] for device in facts["devices"]] == [96_000, 32_000]


@linux
def test_devices_reports_why_there_are_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyaudio", None)
    monkeypatch.setenv("PULSE_SERVER", f"unix:{tmp_path}/missing")
    facts = json.loads(run("devices", "--json"))
    assert facts["devices"] == facts["microphones"] == []
    assert "pip install 'rt-drama3[speaker]'" in facts["notes"][0]
    assert "pactl" in facts["notes"][1] or "No sound server responds" in facts["notes"][1]


def test_mic_command_on_macos_names_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SinkError, match="install BlackHole"):
        run("mic", "list")


def test_invalid_sink_raises_before_a_model_is_loaded() -> None:
    with pytest.raises(RequestError, match=r"take\.xyz has the unsupported extension \.xyz"):
        run("speak", "Hi.", "--model", "/nowhere", "--sink", "take.xyz")


def test_lost_sound_is_an_error_after_all_was_played(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakePyAudio(card("front"))
    fake.flags = 4  # an output underflow in every callback
    monkeypatch.setitem(sys.modules, "pyaudio", fake)
    monkeypatch.setattr(sys, "argv", ["rt-drama3", "speak", "Hi.", "--max-seconds", "0.3"])
    sys.argv += ["--sink", "speaker:front", "--sink", str(tmp_path / "take.wav")]
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "lost sound" in one]
    assert "speaker 'front' lost sound" in line
    assert len(read_audio(tmp_path / "take.wav")[0]) > 8_000


def test_repair(tmp_path: Path) -> None:
    path = tmp_path / "take.wav"
    write_wav(path, np.zeros(8_000, np.float32), 8_000)
    assert "already correct, 1.00 s" in run("repair", str(path))
    with path.open("r+b") as file:
        file.seek(40)
        file.write(bytes(4))
    assert "repaired, 1.00 s" in run("repair", str(path))


def test_repair_continues_after_an_invalid_file(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.wav", tmp_path / "bad.wav"
    write_wav(good, np.zeros(8_000, np.float32), 8_000)
    bad.write_bytes(b"OggS")
    result = CliRunner().invoke(app, ["repair", str(bad), str(tmp_path / "none"), str(good)])
    assert result.exit_code == 1
    assert "already correct, 1.00 s" in result.stdout
    assert "bad.wav is not a WAV file" in result.stderr
    assert "none cannot be repaired: No such file" in result.stderr


@pytest.mark.parametrize(
    "outputs",
    [
        ["--sink", "-", "--out", "-"],
        ["--sink", "raw:-", "--sink", "mp3:-"],
        ["--sink", "z.wav", "--sink", "./z.wav"],
        ["--sink", "wav:z.wav", "--out", "z.wav"],
        ["--sink", "speaker", "--sink", "speaker"],
    ],
)
def test_duplicate_outputs_raise(
    outputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="is given twice as an output"):
        run("speak", "Hi.", "--model", "/nowhere", *outputs)
    assert list(tmp_path.iterdir()) == []


def test_failing_sink_raises_after_the_others_have_finished(tmp_path: Path) -> None:
    good, bad = tmp_path / "take.wav", tmp_path / "missing" / "take.wav"
    speak = ["speak", "Hi.", "--max-seconds", "0.3", "--sink", str(bad), "--sink", str(good)]
    with pytest.raises(SinkError, match=f"{bad} cannot be written: No such file or directory"):
        run(*speak)
    assert len(read_audio(good)[0]) > 8_000


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
@pytest.mark.parametrize(
    "outputs", [["--sink", "-"], ["--sink", "raw:-", "--sink", "take.wav"], ["--out", "-"]]
)
def test_speak_exits_cleanly_if_the_reader_exits(outputs: list[str], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    speak = [*PROGRAM, "speak", "Hi.", "--max-seconds", "0.3", *outputs]
    done = subprocess.run(
        speak, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=4 * SECONDS
    )
    os.close(writer)
    assert done.returncode == 141
    stderr = " ".join(done.stderr.split())
    assert stderr.count("The reader of standard output has exited") == 1
    assert "Traceback" not in stderr
    assert "Exception" not in stderr
    if "take.wav" in outputs:
        assert len(read_audio(tmp_path / "take.wav")[0]) > 8_000


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_other_failures_take_precedence_over_a_closed_pipe(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(Closed(), write_through=True))
    missing = str(tmp_path / "missing" / "take.wav")
    with (
        pytest.raises(SinkError, match="cannot be written: No such file") as caught,
        opened(["raw:-", missing, str(tmp_path / "take.wav")], 8_000) as sink,
    ):
        sink.write(np.zeros(8_000, np.float32))
    assert not isinstance(caught.value, PipeClosed)
    assert "The reader of standard output has exited" in str(caught.value)
    assert not caplog.records  # the error reports it
    assert len(read_audio(tmp_path / "take.wav")[0]) == 8_000


def test_failures_are_printed_when_speech_is_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = [str(tmp_path / "missing" / "take.wav"), str(tmp_path / "take.wav")]
    with pytest.raises(KeyboardInterrupt), opened(specs, 8_000):
        raise KeyboardInterrupt
    assert capsys.readouterr().err.count("cannot be written: No such file") == 1


class Closed(io.RawIOBase):
    """A pipe whose reader has exited."""

    name = "<stdout>"

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        raise BrokenPipeError
