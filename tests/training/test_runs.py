"""Training runs: rows as the product builds them, resuming, export, speaking with the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch.multiprocessing import start_processes

import rt_drama3
from rt_drama3.checkpoint.config_files import parse_codec_config, parse_model_config
from rt_drama3.engine.config import EngineConfig
from rt_drama3.text.prompt import PromptBuilder
from tests.training.small import small_codec, small_model
from training import codec, language
from training.clips import load_shard, shard_files
from training.codec_model import CodecModel
from training.export import export
from training.language import Data
from training.lexicon import Lexicon
from training.rows import Utterance, build, corrupt, pack, plan_scenes, scene, turn, utterance
from training.tokenizer import tokenizer_json
from training.vocabulary import DIRECTION_CHARS, END, IDS, config_json


@pytest.fixture(scope="module")
def utterances(shards: Path, lexicon: Lexicon) -> list[Utterance]:
    data = Data(shards, lexicon)
    data.look()
    assert data.shards == 2
    assert len(data.validation) == 1
    return data.utterances


def test_rows_are_those_of_a_prompt(shards: Path, lexicon: Lexicon) -> None:
    clips = [clip for clip in load_shard(shard_files(shards)[0]).clips if not clip.style][:2]
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json(lexicon)))
    prompts = PromptBuilder(tokenizer, parse_model_config(config_json()))
    random = np.random.default_rng(0)
    grids = [random.integers(0, 512, (clip.frames, 5)).astype(np.int16) for clip in clips]
    turns = [
        turn([utterance(clip, grid, lexicon)], random, augment=False)
        for clip, grid in zip(clips, grids, strict=True)
    ]
    rows = scene(turns)
    prompt = prompts.build(clips[1].text, history=[(clips[0].text, grids[0].T)]).rows
    assert np.array_equal(rows.main[: len(prompt)], prompt[:, 0])
    assert np.array_equal(rows.codes[: len(prompt)], prompt[:, 1:])
    assert rows.audio[len(prompt)]
    assert not rows.audio[len(prompt) - 1]
    assert rows.main[-1] == END
    assert rows.target[-1]
    # Both turns are learned: their frames and their ends.
    assert rows.target.sum() == sum(len(grid) + 1 for grid in grids)


def test_segments_join_sentences_and_styles_stay_alone(utterances: list[Utterance]) -> None:
    random = np.random.default_rng(1)
    plans = plan_scenes(utterances, list(range(len(utterances))), random)
    indices = [index for plan in plans for segment in plan for index in segment]
    assert sorted(indices) == list(range(len(utterances)))
    for plan in plans:
        for segment in plan:
            assert len(segment) == 1 or not any(utterances[index].style for index in segment)
    plain = [one for one in utterances if not one.style][:2]
    both = turn(plain, random, augment=False)
    assert len(both.codes) == sum(len(one.codes) for one in plain) + 2
    assert (np.diff(both.seconds[2:, 0]) > -1e-4).all()
    styled = next(one for one in utterances if one.style)
    assert turn([styled], random, False).tokens[2] == IDS[DIRECTION_CHARS["fast"]]


def test_turns_without_words_end_immediately(
    utterances: list[Utterance], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.rows._UNSAID", 1.0)
    styled = next(one for one in utterances if one.style)
    plain = next(one for one in utterances if not one.style)
    for one, words in ((styled, 4), (plain, 2)):
        made = turn([one], np.random.default_rng(0), augment=True)
        assert len(made.tokens) == len(made.seconds) == words
        assert made.codes.shape == (0, 5)
    batch = build([[[0]], [[1], [2]]], utterances, np.random.default_rng(0))
    assert not batch.next_audio.any()
    assert (batch.next_main[batch.target] == END).all()
    assert batch.target.sum() == 3


def test_text_lies_where_it_is_spoken(utterances: list[Utterance]) -> None:
    one = next(one for one in utterances if not one.style)
    rows = scene([turn([one], np.random.default_rng(0), augment=False)])
    frames = np.flatnonzero(rows.audio)
    assert rows.text_at[frames].any(1).all()
    assert not rows.text_at[: frames[0]].any()
    middles = [np.flatnonzero(rows.text_at[frame]).mean() for frame in frames]
    assert (np.diff(middles) >= 0).all()


def test_corruption_leaves_text_and_most_frames(utterances: list[Utterance]) -> None:
    rows = scene([turn(utterances[:1], np.random.default_rng(0), augment=False)])
    for seed in range(6):
        main, codes = corrupt(rows, np.random.default_rng(seed))
        assert np.array_equal(main[~rows.audio], rows.main[~rows.audio])
        assert (codes[rows.audio] == rows.codes[rows.audio]).mean() > 0.7


def test_batches_hold_every_plan_within_the_rows(utterances: list[Utterance]) -> None:
    random = np.random.default_rng(2)
    plans = plan_scenes(utterances, list(range(len(utterances))), random)
    batches = pack(plans, utterances, rows=400, random=random)
    assert sorted(str(plan) for batch in batches for plan in batch) == sorted(map(str, plans))
    for batch in batches:
        made = build(batch, utterances, random)
        assert made.main.numel() <= 400 or len(batch) == 1
        assert made.main.shape == made.next_main.shape == made.text_at.shape[:2]
        assert (
            made.next_main[made.next_audio] >= parse_model_config(config_json()).semantic_start
        ).all()


def _language_run(folder: Path, shards: Path, lexicon: Lexicon) -> language.Training:
    folder.mkdir(exist_ok=True)
    settings = language.Settings(steps=6, rows=300, round_clips=8, autocast=False)
    return language.Training(folder, Data(shards, lexicon), settings, sizes=small_model())


def _work(worker: int, folder: Path, shards: Path, lexicon: Lexicon) -> None:
    """One of two processes that share a run."""
    settings = language.Settings(
        steps=4, rows=300, round_clips=8, autocast=False, worker=worker, workers=2
    )
    torch.set_num_threads(1)
    language.meet(settings, (folder / "meeting").as_uri())
    training = language.Training(folder, Data(shards, lexicon), settings, sizes=small_model())
    training.run()
    torch.save(training.model.state_dict(), folder / f"weights_{worker}.pt")


def test_workers_share_every_step(shards: Path, lexicon: Lexicon, tmp_path: Path) -> None:
    start_processes(_work, (tmp_path, shards, lexicon), nprocs=2, start_method="spawn")
    ends = [torch.load(tmp_path / f"weights_{n}.pt", weights_only=True) for n in range(2)]
    begun = _language_run(tmp_path / "begun", shards, lexicon).model.state_dict()
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]), name
    assert not all(torch.equal(value, begun[name]) for name, value in ends[0].items())
    saved = torch.load(tmp_path / "language.pt", weights_only=True)
    assert saved["step"] == 4
    curve = (tmp_path / "language.jsonl").read_text().splitlines()
    assert len(curve) == 1  # the first worker's


def _stopped(training: Any, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Runs up to a step and saves there, as if the process had ended."""

    class Stopped(Exception):  # noqa: N818 - it is not an error
        pass

    original = training._train

    def train(*arguments: Any) -> None:
        if training.step == step:
            raise Stopped
        original(*arguments)
        training.save()

    monkeypatch.setattr(training, "_train", train)
    with pytest.raises(Stopped):
        training.run()


def test_language_run_resumes_exactly(
    shards: Path, lexicon: Lexicon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _language_run(tmp_path / "whole", shards, lexicon)
    whole.run()
    assert whole.step == 6
    _stopped(_language_run(tmp_path / "parts", shards, lexicon), monkeypatch, 4)
    parts = _language_run(tmp_path / "parts", shards, lexicon)
    parts.resume()
    assert parts.step == 4
    parts.run()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, parts.model.state_dict()[name]), name
    curve = (tmp_path / "whole" / "language.jsonl").read_text().splitlines()
    last = json.loads(curve[-1])
    assert last["kind"] == "validation"
    assert last["step"] == 6
    begun = _language_run(tmp_path / "begun", shards, lexicon)
    assert sum(last["losses"][:5]) < sum(begun.validate()[:5])


@pytest.mark.parametrize("half", codec.HALVES)
def test_codec_run_resumes_and_leaves_the_other_half(
    half: str, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINING_FUSED", "0")
    settings = codec.Settings(half=half, steps=4, crops=2, frames=6)

    def run(folder: Path) -> codec.Training:
        folder.mkdir(exist_ok=True)
        return codec.Training(folder, codec.Crops(shards, 6), settings, sizes=small_codec())

    whole = run(tmp_path / "whole")
    before = {name: value.clone() for name, value in whole.model.state_dict().items()}
    whole.run()
    for name, value in whole.model.state_dict().items():
        encodes = name.startswith(("encoder.", "downsample.")) or "in_proj" in name
        if encodes != (half == "encode"):
            assert torch.equal(value, before[name]), name
    _stopped(run(tmp_path / "parts"), monkeypatch, 2)
    parts = run(tmp_path / "parts")
    parts.resume()
    assert parts.step == 2
    parts.run()
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(value, parts.model.state_dict()[name], msg=name)


def test_exported_voice_speaks_and_encodes(
    shards: Path, lexicon: Lexicon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINING_FUSED", "0")
    run = _language_run(tmp_path, shards, lexicon)
    run.save()
    (tmp_path / "language.jsonl").write_text('{"step": 0}\n{"step": 1}\n')
    for half in codec.HALVES:
        settings = codec.Settings(half=half, steps=1)
        codec.Training(tmp_path, codec.Crops(shards, 6), settings, sizes=small_codec()).save()
        (tmp_path / f"{half}.jsonl").write_text('{"step": 1}\n')
    nano = Path(rt_drama3.__file__).parent / "voices" / "nano"
    monkeypatch.setattr("training.export.importlib.metadata.files", lambda _: [nano / "NOTICE"])
    voice = tmp_path / "voice"
    checkpoints = [tmp_path / f"{name}.pt" for name in ("language", "decode", "encode")]
    export(voice, lexicon, *checkpoints, sizes=(small_model(), small_codec()))
    history = json.loads((voice / "training.json").read_text())
    assert history["language"]["settings"]["rate"] == 2e-3
    assert history["decode"]["curve"] == [{"step": 1}]
    assert "hibari" in (voice / "NOTICE").read_text()
    drama = rt_drama3.load(voice, device="cpu", threads=1, engine=EngineConfig(step_mode="eager"))
    try:
        take = drama.generate("We like 2 boats.", seed=1, max_frames=3)
        codes = drama.encode(take.audio, take.sample_rate)
    finally:
        drama.close()
    assert take.codes.shape[0] == 5
    assert codes.shape[0] == 5
    assert np.isfinite(take.audio).all()


def test_incomplete_voice_raises(lexicon: Lexicon, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="language model"):
        export(tmp_path / "voice", lexicon, None, None, None)


def test_loudness_is_counted_once(tmp_path: Path, lexicon: Lexicon) -> None:
    pytest.importorskip("hibari", reason="needs hibari-tts, whose notice goes into the voice's")
    nano = Path(rt_drama3.__file__).parent / "voices" / "nano"
    name = "decoder.model.6.conv.parametrizations.weight.original0"

    def last_layer(folder: Path) -> torch.Tensor:
        return torch.load(folder / "codec.pth", weights_only=True)[name].float()

    export(tmp_path / "same", lexicon, None, None, None, nano)
    assert torch.equal(last_layer(tmp_path / "same"), last_layer(nano))
    export(tmp_path / "quiet", lexicon, None, None, None, nano, gain=1.0)
    export(tmp_path / "loud", lexicon, None, None, None, tmp_path / "quiet", gain=2.0)
    gain = json.loads((nano / "training.json").read_text())["gain"]
    wanted = last_layer(nano) * 2 / gain
    torch.testing.assert_close(last_layer(tmp_path / "loud"), wanted, rtol=0.01, atol=0)

    # A checkpoint of the encode half holds the other half as the teacher's loudness had it.
    run = CodecModel(parse_codec_config(codec.codec_json()), encoder=True).state_dict()
    saved = {"model": run, "settings": {}, "step": 1, "elapsed": 0.0}
    torch.save(saved, tmp_path / "encode.pt")
    (tmp_path / "encode.jsonl").write_text("{}\n")
    export(tmp_path / "both", lexicon, None, None, tmp_path / "encode.pt", nano)
    assert torch.equal(last_layer(tmp_path / "both"), last_layer(nano))
    both = torch.load(tmp_path / "both" / "codec.pth", weights_only=True)
    assert any(name.startswith("encoder.") for name in both)
