"""Inputs of speak: references, guidance, steering, takes, best-of; and voice steer."""

from __future__ import annotations

import contextlib
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rt_drama3.cli.main import app
from rt_drama3.cli.speak_inputs import paired, read_grids, steering_pairs
from rt_drama3.errors import RequestError
from rt_drama3.scenes.steering import Steering
from rt_drama3.scenes.takes import load_takes, write_take
from tests.small import shared_drama, small_directory

LINES = "Leave the house now.\n\nIt was late, and the lights were off.\r\n  Good morning.  \n"
SAY = ("--max-seconds", "0.4", "--seed", "1", "--json")


def run(*arguments: Any) -> Any:
    given = [str(argument) for argument in arguments]
    result = CliRunner().invoke(app, [*given, "--model", str(small_directory())])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def take(folder: Path, text: str, *arguments: Any) -> list[list[int]]:
    """The codes that ``speak`` generates."""
    kept = folder / "kept.json"
    run("speak", text, "--out", folder / "out.wav", "--take-out", kept, *SAY, *arguments)
    codes: list[list[int]] = json.loads(kept.read_bytes())["codes"]
    return codes


def test_a_measured_direction_steers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "data"))
    texts = tmp_path / "texts.txt"
    texts.write_bytes(b"\xef\xbb\xbf" + LINES.encode())
    result = run("voice", "steer", "glad", "--direct", "[glad]", "--texts", texts, "--layer", 1)
    path = tmp_path / "data" / "rt-drama3" / "steering" / "glad.safetensors"
    assert str(path) in result.output
    assert "from 3 texts" in result.output
    made = Steering.load(path)
    drama = shared_drama()
    lines = ["Leave the house now.", "It was late, and the lights were off.", "Good morning."]
    expected = drama.steering.measure(drama.prompts, "glad", "[glad]", lines, 1)
    assert np.allclose(made.vector, expected.vector, atol=1e-5)
    assert made.fingerprint == drama.steering.fingerprint

    plain = take(tmp_path, "Hello.")
    assert take(tmp_path, "Hello.", "--steer", "glad=0") == plain
    assert take(tmp_path, "Hello.", "--steer", "glad=40") != plain
    named = take(tmp_path, "Hello.", "--steer", f"{path}=20", "--steer", "glad=20")
    assert named == take(tmp_path, "Hello.", "--steer", "glad=40")
    with pytest.raises(RequestError, match="no steering vector 'sad'"):
        run("speak", "Hello.", "--out", tmp_path / "no.wav", "--steer", "sad=1")


def test_the_folder_of_a_vector_can_be_chosen(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text(LINES)
    asked = ("--direct", "<whisper>", "--texts", texts, "--layer", 0, "--folder", tmp_path / "new")
    run("voice", "steer", "hush", *asked)
    assert Steering.load(tmp_path / "new" / "hush.safetensors").direct == "<whisper>"


@pytest.mark.parametrize(
    ("data", "message"),
    [(None, "cannot read"), (b"\xff", "not UTF-8"), (b"\n \n", "0 texts"), (b"[a] b", "text 1")],
)
def test_unusable_texts_are_refused(tmp_path: Path, data: bytes | None, message: str) -> None:
    texts = tmp_path / "texts.txt"
    if data is not None:
        texts.write_bytes(data)
    with pytest.raises(RequestError, match=message):
        run("voice", "steer", "x", "--direct", "[glad]", "--texts", texts, "--layer", 0)


def test_an_invalid_name_is_refused_before_measuring(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text(LINES)
    with pytest.raises(RequestError, match="invalid steering name"):
        run("voice", "steer", "../x", "--direct", "[glad]", "--texts", texts, "--layer", 0)


def test_guidance(tmp_path: Path) -> None:
    plain = take(tmp_path, "[glad] Hello.")
    assert take(tmp_path, "[glad] Hello.", "--guidance", 0) == plain
    assert take(tmp_path, "[glad] Hello.", "--guidance", 4) != plain
    assert take(tmp_path, "Hello.", "--guidance", 4) == take(tmp_path, "Hello.")
    with pytest.raises(RequestError, match="guidance is"):
        run("speak", "Hello.", "--out", tmp_path / "no.wav", "--guidance", -1)


def test_a_stored_take_is_continued(tmp_path: Path) -> None:
    first = tmp_path / "first.json"
    run("speak", "Who is there?", "--out", tmp_path / "a.wav", "--take-out", first, *SAY)
    (kept,) = load_takes(first.read_bytes(), shared_drama().config)
    assert kept.text == "Who is there?"
    with wave.open(str(tmp_path / "a.wav")) as audio:
        assert audio.getnframes() == kept.codes.shape[1] * 2048
    drama = shared_drama()
    frames = kept.codes.shape[1]
    expected = drama.generate("Me.", seed=1, max_frames=frames, previous_takes=[kept]).codes
    assert take(tmp_path, "Me.", "--previous-takes-file", first) == expected.tolist()
    both = tmp_path / "both.json"
    both.write_text(json.dumps([json.loads(first.read_text()), json.loads(first.read_text())]))
    again = drama.generate("Me.", seed=1, max_frames=frames, previous_takes=[kept, kept]).codes
    assert take(tmp_path, "Me.", "--previous-takes-file", both) == again.tolist()
    voice = take(tmp_path, "Me.", "--ref", first, "--ref-text", "<|speaker:2|> Who is there?")
    tagged = [("<|speaker:2|> Who is there?", kept.codes)]
    expected = drama.generate("Me.", seed=1, max_frames=frames, references=tagged).codes
    assert voice == expected.tolist()


def test_a_take_as_a_reference_needs_no_transcript(tmp_path: Path) -> None:
    kept, out = tmp_path / "first.json", tmp_path / "no.wav"
    run("speak", "Who is there?", "--out", tmp_path / "a.wav", "--take-out", kept, *SAY)
    transcript = ("--ref-text", "Who is there?")
    assert take(tmp_path, "Me.", "--ref", kept) == take(tmp_path, "Me.", "--ref", kept, *transcript)
    with pytest.raises(RequestError, match=r"'Hi\.' differs from .* take .*'Who is there\?'"):
        run("speak", "Hello.", "--out", out, "--ref", kept, "--ref-text", "Hi.")
    assert not out.exists()


def test_audio_references_need_transcripts() -> None:
    take, clip = Path("a.json"), Path("b.wav")
    assert paired([take, clip], ["A.", "B."]) == [("A.", take), ("B.", clip)]
    assert paired([take, clip, take], ["B."]) == [(None, take), ("B.", clip), (None, take)]
    assert paired(None, None) == []
    for texts in ([], ["A.", "B.", "C."]):
        with pytest.raises(RequestError, match=rf"2 --ref and {len(texts)} --ref-text"):
            paired([take, clip], texts)


@pytest.mark.parametrize(
    ("own", "given", "used"),
    [
        ("Hi there.", " Hi  there. ", "Hi there."),
        ("Hi.", "<|speaker:2|> Hi.", "<|speaker:2|> Hi."),
        ("<|speaker:2|> Hi.", "Hi.", "<|speaker:2|> Hi."),
        ("<|speaker:2|>Hi.", "<|speaker:2|> Hi.", "<|speaker:2|>Hi."),
        ("<|speaker:2|> Hi.", "<|speaker:3|> Hi.", None),
        ("[glad] Hi.", "Hi.", None),
    ],
)
def test_a_transcript_may_repeat_a_take_and_name_its_speaker(
    tmp_path: Path, own: str, given: str, used: str | None
) -> None:
    path, config = tmp_path / "kept.json", shared_drama().config
    write_take(path, own, np.zeros((config.num_codebooks, 2), int))
    with contextlib.nullcontext() if used else pytest.raises(RequestError, match="omit it"):
        ((text, _),) = read_grids([(given, path)], config)
        assert text == used


def test_unusable_takes_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"text": "Hi.", "codes": [[1]]}')
    out = tmp_path / "no.wav"
    with pytest.raises(RequestError, match=r"broken\.json: codes has 1 rows"):
        run("speak", "Hello.", "--out", out, "--previous-takes-file", broken)
    with pytest.raises(RequestError, match=r"broken\.json"):
        run("speak", "Hello.", "--out", out, "--ref", broken, "--ref-text", "Hi.")
    with pytest.raises(RequestError, match="is not a folder"):
        run("speak", "Hello.", "--out", out, "--take-out", tmp_path / "no" / "take.json")
    assert not out.exists()


def test_best_of(tmp_path: Path) -> None:
    said = run("speak", "Hello.", "--out", tmp_path / "best.wav", "--best-of", 3, *SAY)
    facts = json.loads(said.stdout)
    ranking = shared_drama().best_of("Hello.", 3, seed=1, max_frames=facts["frames"])
    assert facts["seed"] == ranking.best.seed
    assert facts["codec_ms"] > 0
    with wave.open(str(tmp_path / "best.wav")) as audio:
        assert audio.getnframes() == facts["frames"] * 2048
    with pytest.raises(RequestError, match="set their number with --best-of"):
        run("speak", "Hello.", "--out", tmp_path / "no.wav", "--asr-model", "base")


@pytest.mark.parametrize("entry", ["glad", "glad=", "=1", "glad=much", ""])
def test_steering_must_be_a_name_and_a_strength(entry: str) -> None:
    with pytest.raises(RequestError, match="is not NAME=STRENGTH"):
        steering_pairs([entry])


def test_steering_pairs() -> None:
    assert steering_pairs(None) == []
    given = ["glad=1", "calm=-0.5", "a=b.safetensors=2"]
    assert steering_pairs(given) == [("glad", 1), ("calm", -0.5), (Path("a=b.safetensors"), 2)]
