"""The command line; in a process of its own where exit codes matter."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rich.text
import typer
from typer.testing import CliRunner

from rt_drama3.cli.main import app
from rt_drama3.errors import RequestError

runner = CliRunner()


def command(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rt_drama3", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )


def test_speak_writes_a_wav_and_reports_measurements(tmp_path: Path) -> None:
    out = tmp_path / "hello.wav"
    result = command("speak", "-", "--out", str(out), "--seed", "1", "--json", text="Hello there.")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    with wave.open(str(out)) as audio:
        assert audio.getframerate() == facts["sample_rate"] == 44_100
        assert audio.getnframes() == facts["frames"] * 2048
    assert facts["complete"]
    assert facts["seed"] == 1
    assert facts["first_audio_ms"] > 0


def test_speak_writes_the_format_of_the_file_extension(tmp_path: Path) -> None:
    out = tmp_path / "hello.mp3"
    result = command("speak", "Hello there.", "--out", str(out), "--seed", "1")
    assert result.returncode == 0, result.stderr
    assert out.read_bytes()[:2] == b"\xff\xfb"


def test_an_error_is_one_sentence_and_leaves_files_alone(tmp_path: Path) -> None:
    out = tmp_path / "kept.wav"
    out.write_bytes(b"precious")
    result = command("speak", "Hi <|im_end|>", "--out", str(out))
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "im_end" in result.stderr
    assert out.read_bytes() == b"precious"


def test_normalize_chooses_the_words_that_are_spoken(tmp_path: Path) -> None:
    def codes(text: str, *more: str) -> list[list[int]]:
        path = tmp_path / "take.json"
        seconds = ["--seed", "1", "--max-seconds", "0.5"]
        files = ["--out", str(tmp_path / "take.wav"), "--take-out", str(path)]
        runner.invoke(app, ["speak", text, *seconds, *files, *more], catch_exceptions=False)
        found: list[list[int]] = json.loads(path.read_text())["codes"]
        return found

    words = codes("five times three", "--normalize", "off")
    assert codes("5 \N{MULTIPLICATION SIGN} 3", "--normalize", "on") == words
    assert codes("5 \N{MULTIPLICATION SIGN} 3") == words  # the nano voice asks for it
    assert codes("5 \N{MULTIPLICATION SIGN} 3", "--normalize", "off") != words
    with pytest.raises(RequestError, match="normalize is 'yes'"):
        codes("5 \N{MULTIPLICATION SIGN} 3", "--normalize", "yes")


@pytest.mark.parametrize("option", ["--out", "--sink"])
def test_a_reference_is_never_overwritten(option: str, tmp_path: Path) -> None:
    clip = tmp_path / "me.wav"
    clip.write_bytes(b"precious")
    with pytest.raises(RequestError, match="is also a reference"):
        runner.invoke(
            app,
            ["speak", "Hi.", "--ref", str(clip), "--ref-text", "Me.", option, str(clip)],
            catch_exceptions=False,
        )
    assert clip.read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speak", "Hi.", "--out", "/no[bold]where/x.wav"], r"no\[bold\]where"),
        (["speak", "Hi.", "--out", "x.docx"], r"unsupported extension \.docx.*use \.wav, .*\.mp3"),
        (["speak", "Hi.", "--ref", "a.wav"], "1 --ref and 0 --ref-text"),
        (["speak", "Hi.", "--max-seconds", "-1"], "must be above 0"),
        (["speak", "Hi.", "--model", "[/red]x"], r"\[/red\]x"),
        (["model", "make-tiny", "x", "--set", "nonsense"], "not key=value"),
    ],
)
def test_mistakes_are_reported(arguments: list[str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        runner.invoke(app, arguments, catch_exceptions=False)


def test_markup_in_a_message_is_text() -> None:
    result = command("speak", "Hi.", "--model", "[/red]x")
    assert result.returncode == 1
    assert "[/red]x" in result.stderr
    assert "Traceback" not in result.stderr


def test_text_without_words_is_not_an_error(tmp_path: Path) -> None:
    out = tmp_path / "silence.wav"
    result = command("speak", "...", "--out", str(out))
    assert result.returncode == 0
    assert "no speakable text" in result.stderr
    with wave.open(str(out)) as audio:
        assert audio.getnframes() == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_sigterm_keeps_what_was_generated(tmp_path: Path) -> None:
    out = tmp_path / "cut.wav"
    text = "This takes quite a while to say. " * 60
    process = subprocess.Popen(
        [sys.executable, "-m", "rt_drama3", "speak", text, "--out", str(out)],
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
    )
    try:
        deadline = time.monotonic() + 60
        while not (out.exists() and out.stat().st_size > 20_000):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.terminate()
        assert process.wait(60) == 143
    finally:
        process.kill()
    with wave.open(str(out)) as audio:
        assert 44 + 2 * audio.getnframes() == out.stat().st_size


def test_info_reports_the_plan() -> None:
    result = runner.invoke(app, ["model", "info", "--plan", "--json"])
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert facts["plan"]["floor_ms"] > 0
    assert facts["plan"]["stream"] > 0
    assert facts["plan"]["groups"]["backbone"]["resident"].keys() == {"float32"}


def test_the_plan_says_what_stays_as_it_is_stored(tmp_path: Path) -> None:
    runner.invoke(app, ["model", "make-tiny", str(tmp_path / "tiny")])
    command = ["model", "info", str(tmp_path / "tiny"), "--plan", "--dtype", "bfloat16"]
    for device, kind in (("cpu", "expanded to bfloat16"), ("cuda", "as stored")):
        result = runner.invoke(app, [*command, "--device", device, "--json"])
        assert result.exit_code == 0, result.output
        plan = json.loads(result.stdout)["plan"]
        assert plan["groups"]["experts"]["resident"].keys() == {kind}
    text = " ".join(runner.invoke(app, [*command, "--device", "cuda"]).output.split())
    assert "experts F8_E4M3 1.573 MB, F32 384 B in the files; in memory 1.573 MB as stored" in text


def test_a_tiny_checkpoint_can_speak(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    made = runner.invoke(app, ["model", "make-tiny", str(folder), "--seed", "5"])
    assert made.exit_code == 0
    info = runner.invoke(app, ["model", "info", str(folder)])
    assert info.exit_code == 0, info.output
    out = tmp_path / "noise.wav"
    limits = ["--max-seconds", "0.2", "--out", str(out), "--json"]
    result = command("speak", "Hi.", "--model", str(folder), *limits)
    assert result.returncode == 0, result.stderr
    assert 0 < json.loads(result.stdout)["frames"] <= 4


def test_model_inspect_lists_every_tensor(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    made = runner.invoke(app, ["model", "make-tiny", str(folder), "--form", "gguf-q4_k"])
    assert made.exit_code == 0, made.output
    (file,) = folder.glob("*.gguf")
    result = runner.invoke(app, ["model", "inspect", str(file)])
    assert result.exit_code == 0, result.output
    bank = "model.language_model.layers.1.mlp.experts"
    assert (
        f"model_weights/{bank}.down_proj.weight  Q4_K [4, 256, 256]  {bank}.0..3.down_proj.weight"
        in result.output.splitlines()
    )
    assert "codec_weights/decoder.model.0.conv.bias  F16 [64]  codec" in result.output
    listing = json.loads(runner.invoke(app, ["model", "inspect", str(file), "--json"]).stdout)
    assert listing["missing"] == listing["problems"] == []
    assert len(listing["tensors"]) == len(result.output.splitlines())


def test_model_inspect_with_other_names(tmp_path: Path) -> None:
    folder, table = tmp_path / "tiny", tmp_path / "map.json"
    runner.invoke(app, ["model", "make-tiny", str(folder)])
    shard = folder / "model-00002-of-00002.safetensors"
    data = shard.read_bytes().replace(b"audio_decoder_mtp.heads.2.weight", b"x" * 32)
    shard.write_bytes(data)
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("audio_decoder_mtp.heads.2.weight", "x" * 32))
    result = runner.invoke(app, ["model", "inspect", str(folder)])
    assert result.exit_code == 1
    assert f"{'x' * 32}  BF16 [64, 128]  ?" in result.output.splitlines()
    assert "missing: audio_decoder_mtp.heads.2.weight" in result.output.splitlines()
    table.write_text(json.dumps({"audio_decoder_mtp.heads.2.weight": "x" * 32}))
    result = runner.invoke(app, ["model", "inspect", str(folder), "--tensor-map", str(table)])
    assert result.exit_code == 0, result.output
    assert f"{'x' * 32}  BF16 [64, 128]  audio_decoder_mtp.heads.2.weight" in result.output


@pytest.mark.parametrize("form", ["q5", "gguf-q7_k"])
def test_a_form_that_does_not_exist(tmp_path: Path, form: str) -> None:
    result = runner.invoke(app, ["model", "make-tiny", str(tmp_path / "x"), "--form", form])
    assert f"form {form!r} does not exist; use one of official, int4" in str(result.exception)
    assert not (tmp_path / "x").exists()


def test_model_prepare(tmp_path: Path) -> None:
    folder, out, report = (tmp_path / name for name in ("tiny", "p.gguf", "report.json"))
    runner.invoke(app, ["model", "make-tiny", str(folder)])
    words = ["model", "prepare", str(folder), str(out), "--experts", "Q8_0", "--backbone", "q4_k"]
    result = runner.invoke(app, [*words, "--head", "65", "--report", str(report)])
    assert result.exit_code == 0, result.output
    first = result.stdout.splitlines()[1]  # the group with the largest error
    assert re.match(r"experts, \d+ tensors +q8_0 +[\d.]+ +0\.\d+%", first), first
    assert f"wrote {out}: 0.00" in result.output
    assert "backbone: 26 matrices are stored as q8_0 instead of q4_k" in result.output
    facts = json.loads(report.read_text())
    assert facts["options"]["head"] == "65"
    assert facts["groups"][0]["rmse"] == pytest.approx(0.0055, rel=0.2)
    assert {"name", "source", "type", "shape", "rmse"} <= facts["tensors"][0].keys()
    assert runner.invoke(app, ["model", "info", str(out)]).exit_code == 0
    again = runner.invoke(app, words)
    assert "exists; give another name, or --force" in str(again.exception)


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """A command and those below it, by name."""
    yield name, command
    for below, found in getattr(command, "commands", {}).items():
        yield from commands(found, f"{name} {below}".strip())


def test_help_imports_neither_torch_nor_av() -> None:
    code = (
        "import sys; from rt_drama3.cli.main import app; app(['--help'], standalone_mode=False); "
        "sys.exit(' '.join({'torch', 'av', 'starlette'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_no_help_text_loses_its_brackets() -> None:
    """Square brackets are markup to what shows the help, unless they are escaped."""
    for name, found in commands(typer.main.get_command(app)):
        texts = [found.help, *(getattr(option, "help", None) for option in found.params)]
        for text in filter(None, texts):
            shown = rich.text.Text.from_markup(text).plain
            assert shown == text.replace(r"\[", "["), (name, text)
