"""The whole model against mlx-audio's Drama 3, which reads the same checkpoint: prompt, prefill,
logits and codes of every frame, greedy and sampled, and the stop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import rt_drama3
from rt_drama3 import checkpoint
from rt_drama3.config import SamplingConfig, SegmentConfig
from rt_drama3.drama3 import Drama3
from rt_drama3.model import SpeechModel
from rt_drama3.model.sampling import draws_per_frame, uniform_noise
from rt_drama3.model.speech_model import PREFILL_CHUNK
from rt_drama3.model.state import RAS_WINDOW
from rt_drama3.text.prompt import Prompt, PromptBuilder
from rt_drama3.text.rules import split_text

pytest.importorskip("mlx.core", reason="mlx has no build for this machine")
pytest.importorskip("mlx_audio", reason="mlx-audio is not installed")
from tests.oracles.mlx_drama3 import ORACLE_WINDOW, Codes, MlxDrama3, Turn
from tests.oracles.trace import Trace, our_trace

FRAMES = 64
GREEDY = SamplingConfig(temperature=0, head_temperature=0, repetition_aware=False)
MARGIN = 3e-4  # between the best two logits; the implementations differ by up to 6e-5
LONG = "There was a sentence that would not end, " * 6

# Keys of config.json; what must agree with them follows. The oracle wants three linear layers
# before each full one, and its converter experts whose sides are multiples of 128.
Settings = Mapping[str, Any]
PLAIN: Settings = {}
BARE_BACKBONE: Settings = {  # no residual codebook in its input
    "text_config.num_hidden_layers": 8,
    "text_config.num_attention_heads": 3,
    "text_config.num_key_value_heads": 1,
    "text_config.head_dim": 24,
    "text_config.num_experts": 3,
    "text_config.linear_num_key_heads": 3,
    "text_config.linear_num_value_heads": 3,
    "text_config.linear_key_head_dim": 12,
    "text_config.linear_value_head_dim": 20,
    "text_config.rope_parameters.partial_rotary_factor": 0.5,
    "audio_decoder_config.rotary_percent": 0.25,
    "audio_decoder_config.shared_enrichment_layers": 1,
    "audio_decoder_config.vq_backbone_codebooks": 0,
}
FULL_BACKBONE: Settings = {  # all of them
    "text_config.num_attention_heads": 6,
    "text_config.num_key_value_heads": 3,
    "text_config.head_dim": 16,
    "text_config.num_experts": 12,
    "text_config.num_experts_per_tok": 1,
    "text_config.linear_conv_kernel_dim": 3,
    "text_config.rms_norm_eps": 1e-5,
    "text_config.rope_parameters.rope_theta": 1e4,
    "audio_decoder_config.shared_enrichment_layers": 3,
    "audio_decoder_config.num_codebooks": 5,
    "audio_decoder_config.vq_backbone_codebooks": 4,
    "audio_decoder_config.vocab_size": 37,
}
TEN_CODEBOOKS: Settings = {
    "text_config.hidden_size": 256,
    "text_config.num_experts": 5,
    "text_config.num_experts_per_tok": 4,
    "text_config.shared_expert_intermediate_size": 72,
    "text_config.linear_num_key_heads": 1,
    "text_config.rope_parameters.partial_rotary_factor": 1.0,
    "audio_decoder_config.rotary_percent": 0.5,
    "audio_decoder_config.rope_base": 1e4,
    "audio_decoder_config.norm_eps": 1e-5,
    "audio_decoder_config.shared_enrichment_layers": 4,
    "audio_decoder_config.num_codebooks": 10,
    "audio_decoder_config.vq_backbone_codebooks": 3,
    "audio_decoder_config.vocab_size": 256,
}


@dataclass(frozen=True)
class Case:
    """A checkpoint and a prompt; references and history are (text, frames)."""

    settings: Settings = field(default_factory=dict)
    text: str = "Hello there, how are you?"
    references: tuple[tuple[str, int], ...] = ()
    history: tuple[tuple[str, int], ...] = ()


REFERENCES = (("One.", 9), (" \u2003<|speaker:1|> Two.", 23))
HISTORY = (("First.", 11), ("Second [whispers] line.", 5))
CASES = {
    "plain": Case(),
    "references": Case(text="<|speaker:0|> Hi.\n<|speaker:1|> Hi.", references=REFERENCES),
    "history": Case(history=HISTORY),
    "longer than a prefill block": Case(text=LONG, references=(("A voice.", 290),)),
    "no codebook in the backbone": Case(BARE_BACKBONE, references=REFERENCES),
    "all codebooks in the backbone": Case(FULL_BACKBONE, history=HISTORY),
    "ten codebooks": Case(TEN_CODEBOOKS, references=REFERENCES, history=HISTORY),
}


@dataclass(frozen=True)
class Pair:
    """One checkpoint in both implementations, float32."""

    directory: Path
    oracle: MlxDrama3
    ours: SpeechModel
    prompts: PromptBuilder

    @property
    def eos(self) -> int:
        return self.ours.config.eos

    def prompt(self, case: Case) -> Prompt:
        references, history = self.turns(case.references), self.turns(case.history)
        return self.prompts.build(case.text, references, history)

    def oracle_prompt(self, case: Case) -> tuple[Codes, int]:
        return self.oracle.rows(case.text, self.turns(case.references), self.turns(case.history))

    def noise(self, seed: int) -> npt.NDArray[np.float32]:
        """The uniform numbers that a take of ours with this seed uses."""
        return uniform_noise(seed, FRAMES, draws_per_frame(self.ours.config.num_codebooks))

    def traces(
        self, case: Case, sampling: SamplingConfig = GREEDY, seed: int | None = None
    ) -> tuple[Trace, Trace]:
        """What the oracle does with a case, then what we do; without a seed both are greedy."""
        noise = None if seed is None else self.noise(seed)
        theirs = self.oracle.trace(*self.oracle_prompt(case), FRAMES, sampling, noise)
        return theirs, our_trace(self.ours, self.prompt(case).rows, FRAMES, sampling, seed or 0)

    def decisive(self, case: Case) -> Case:
        """The case with a text for which rounding decides no greedy choice.

        Machines differ in the last bits of a logit, and a near tie that falls differently changes
        every later frame.
        """
        for _ in range(20):
            if our_trace(self.ours, self.prompt(case).rows, FRAMES, GREEDY).margin > MARGIN:
                return case
            case = replace(case, text=f"{case.text} And?")
        raise AssertionError("every text leads to near ties")

    def turns(self, group: tuple[tuple[str, int], ...]) -> list[Turn]:
        tower = self.ours.config.tower
        rng = np.random.default_rng(len(group))
        return [
            (text, rng.integers(0, tower.codebook_size, (tower.num_codebooks, frames)))
            for text, frames in group
        ]


MakePair = Callable[..., Pair]
Greedy = tuple[Pair, Case, Trace, Trace]  # the oracle's trace, then ours


@pytest.fixture(scope="module")
def make_pair(tmp_path_factory: pytest.TempPathFactory) -> MakePair:
    """Makes a random checkpoint and loads it in both; equal arguments give the same pair.

    ``exact`` scales of experts are powers of two: then the oracle's converter, which rounds the
    dequantised experts to bfloat16, loses nothing. ``head`` factors multiply rows of lm_head.
    """

    @cache
    def make(settings: tuple[tuple[str, Any], ...], exact: bool, head: tuple[float, float]) -> Pair:
        directory = tmp_path_factory.mktemp("oracle")
        source = directory / "official"
        checkpoint.make_tiny(source, settings=settings, exact_scales=exact)
        config = checkpoint.read_config(source)
        for shard in source.glob("*.safetensors"):
            tensors = load_file(shard)
            if "lm_head.weight" in tensors:
                tensors["lm_head.weight"][config.semantic_start] *= head[0]
                tensors["lm_head.weight"][config.eos] *= head[1]
                save_file(tensors, shard)
        return Pair(
            source,
            MlxDrama3(source, directory / "converted"),
            checkpoint.load_model(source, config, "cpu", torch.float32),
            PromptBuilder(checkpoint.load_tokenizer(source, config), config),
        )

    def get(
        settings: Settings = PLAIN, *, exact: bool = True, code_0: float = 1.0, eos: float = 0.0
    ) -> Pair:
        return make(tuple(settings.items()), exact, (code_0, eos))

    return get


def assert_close(what: str, actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape, what
    error = (actual - expected).norm() / expected.norm()
    assert error < 1e-4, f"{what}: relative error {error:.2e}"
    worst = (actual - expected).abs().max() / expected.abs().max()
    assert worst < 1e-4, f"{what}: worst error {worst:.2e} of the largest value"


def assert_same_take(actual: Trace, expected: Trace, eos: int) -> None:
    """Main tokens with the raw stop, and the codes of every frame before it."""
    assert actual.main.tolist() == expected.main.tolist()
    frames = len(expected.main) - int(expected.main[-1] == eos)
    assert torch.equal(actual.codes[:frames], expected.codes[:frames])
    assert_close("main logits", actual.main_logits, expected.main_logits)
    assert_close("head logits", actual.head_logits[:frames], expected.head_logits[:frames])


@pytest.fixture(scope="module", params=CASES)
def greedy(request: pytest.FixtureRequest, make_pair: MakePair) -> Greedy:
    pair = make_pair(CASES[request.param].settings)
    case = pair.decisive(CASES[request.param])
    return pair, case, *pair.traces(case)


def assert_same_prompt(pair: Pair, case: Case) -> None:
    rows, system_rows = pair.oracle_prompt(case)
    prompt = pair.prompt(case)
    assert prompt.rows.tolist() == rows.tolist()
    assert prompt.system_rows == system_rows


def test_prompt_rows(greedy: Greedy) -> None:
    assert_same_prompt(*greedy[:2])


@pytest.mark.parametrize(
    "text",
    [
        "x",
        " \u2003 leading and trailing space ",
        "<|speaker:15|>no space behind the tag",
        "  <|speaker:2|>  spaces around it",
        "[whispers] Directions, <laugh>and</laugh> <|tags|> in the middle <|speaker:1|> of it.",
        "Grüße, 你好。 مرحبا! 👩‍👩‍👧 e\u0301",
        "123.45 the then there: #$%&",
    ],
)
def test_prompt_rows_of_texts(make_pair: MakePair, text: str) -> None:
    """As target, as transcript of two references and in the history."""
    assert_same_prompt(make_pair(), Case(PLAIN, text, ((text, 2), (text, 1)), ((text, 3),)))


def test_the_long_prompt_spans_blocks(make_pair: MakePair) -> None:
    prompt = make_pair().prompt(CASES["longer than a prefill block"])
    assert prompt.system_rows > PREFILL_CHUNK
    assert len(prompt.rows) > 2 * PREFILL_CHUNK


def test_prefill(greedy: Greedy) -> None:
    """Hidden states of every row, and all that the caches of both parts hold afterwards."""
    _, _, theirs, ours = greedy
    assert_close("hidden", ours.hidden, theirs.hidden)
    assert ours.state.keys() == theirs.state.keys()
    for name, expected in theirs.state.items():
        assert_close(name, ours.state[name], expected)


def test_greedy_codes(greedy: Greedy) -> None:
    pair, _, theirs, ours = greedy
    assert len(theirs.main) == FRAMES
    assert theirs.codes.unique().numel() > 20  # not one frame over and over
    assert_same_take(ours, theirs, pair.eos)


SAMPLINGS = {
    "law": SamplingConfig(),
    "cool and capped": SamplingConfig(0.6, 0.6, top_p=0.8, top_k=5),
    "hot": SamplingConfig(1.7, 1.7, top_p=0.98),
    "narrow": SamplingConfig(1.0, 1.0, top_p=0.3, top_k=40),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_sampled_codes(make_pair: MakePair, sampling: SamplingConfig) -> None:
    """The same uniform numbers decide the draws of both."""
    pair = make_pair()
    theirs, ours = pair.traces(Case(history=HISTORY), sampling, seed=5)
    assert_same_take(ours, theirs, pair.eos)


def test_repetition_aware_redraw(make_pair: MakePair) -> None:
    """Continues an audio turn that broke off: the window is full of the prompt's own codes.

    With and without the redraw the takes differ, on both sides alike.
    """
    assert ORACLE_WINDOW == RAS_WINDOW
    pair = make_pair()
    rows, system_rows = pair.oracle_prompt(Case(history=(("First.", 20),)))
    audio = (rows[:, 0] >= pair.ours.config.semantic_start).nonzero()[0]
    rows = rows[: audio[-1] + 1]
    main = {}
    for redraw in (True, False):
        sampling = SamplingConfig(top_p=0.8, repetition_aware=redraw)
        theirs = pair.oracle.trace(rows, system_rows, FRAMES, sampling, pair.noise(3))
        ours = our_trace(pair.ours, rows, FRAMES, sampling, seed=3)
        assert_same_take(ours, theirs, pair.eos)
        main[redraw] = ours.main.tolist()
    assert main[True] != main[False]


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_stop(make_pair: MakePair, seed: int | None) -> None:
    """Both end the take at the same frame, greedy and sampled."""
    pair = make_pair(eos=12.0)
    if seed is None:
        theirs, ours = pair.traces(pair.decisive(Case()))
    else:
        theirs, ours = pair.traces(Case(), SamplingConfig(), seed)
    assert len(theirs.main) < FRAMES
    assert theirs.main[-1] == pair.eos
    assert_same_take(ours, theirs, pair.eos)


def test_experts_rounded_as_the_oracle_rounds_them(make_pair: MakePair) -> None:
    """Scales of any size, and our experts brought to bfloat16 as its converter brings them."""
    pair = make_pair(exact=False)
    for layer in pair.ours.backbone.layers:
        for matrix in (layer.moe.gate_up, layer.moe.down):
            rounded = matrix.bfloat16().float()
            assert not torch.equal(rounded, matrix)
            matrix.copy_(rounded)
    case = pair.decisive(Case(references=REFERENCES, history=HISTORY))
    theirs, ours = pair.traces(case)
    assert_close("hidden", ours.hidden, theirs.hidden)
    assert_same_take(ours, theirs, pair.eos)


def test_takes_end_without_a_click(make_pair: MakePair) -> None:
    """``generate`` of both: a frame of code 0 right before eos is dropped, others stay."""
    pair, case, sampling = make_pair(code_0=3.0, eos=12.0), Case(text="Hello."), SamplingConfig()
    rows = pair.prompt(case).rows
    clicks: dict[bool, tuple[int, int]] = {}  # whether the last frame is one -> seed, raw frames
    for seed in range(100):
        raw = our_trace(pair.ours, rows, FRAMES, sampling, seed)
        if 1 < len(raw.main) < FRAMES:
            clicks.setdefault(bool(raw.codes[-2, 0] == 0), (seed, len(raw.main) - 1))
        if len(clicks) == 2:
            break
    drama3 = rt_drama3.load(pair.directory, device="cpu")
    for click in (False, True):
        seed, frames = clicks[click]
        take = drama3.generate(case.text, seed=seed, max_frames=FRAMES)
        theirs = pair.oracle.speak([case.text], sampling, pair.noise(seed))
        assert take.codes.tolist() == theirs.tolist()
        assert take.codes.shape[1] == frames - click


def test_the_embedded_voice(nano: Drama3, tmp_path: Path) -> None:
    """Trained weights, bfloat16 experts, a text of two pieces, the first the second's history."""
    oracle = MlxDrama3(checkpoint.resolve("nano"), tmp_path / "nano")
    text = "".join(f"<|speaker:{n}|> Hello. " for n in range(4))  # a piece has three speakers
    pieces = split_text(text)
    assert len(pieces) == 2
    # By its own settings it passes over tags and forgets earlier pieces.
    prompts = PromptBuilder(nano.prompts.tokenizer, nano.config)
    with Drama3(replace(nano.loaded, prompts=prompts, segments=SegmentConfig())) as voice:
        take = voice.generate(text, temperature=0)
    assert take.complete
    assert take.codes.tolist() == oracle.speak(pieces, GREEDY).tolist()
