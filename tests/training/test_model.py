"""The training form of the model against the product's, on the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import rt_drama3
from rt_drama3 import Drama3
from rt_drama3.checkpoint.config_files import parse_codec_config
from rt_drama3.model.state import StreamState
from tests.training.small import small_codec
from training import fused
from training.codec_layout import load_official, official_state
from training.codec_model import CodecModel, initialise
from training.layers import delta_rule
from training.layout import from_official, read_voice, to_official
from training.model import Batch, LanguageModel

NANO = Path(rt_drama3.__file__).parent / "voices" / "nano"


def _rows(nano: Drama3, frames: int) -> Tensor:
    """A prompt and some frames, ``[rows, 1 + books]``."""
    config = nano.config
    prompt = torch.from_numpy(nano.prompts.build("We like red boats.").rows)
    random = torch.Generator().manual_seed(4)
    codes = torch.randint(0, 512, (frames, config.num_codebooks), generator=random)
    return torch.cat((prompt, torch.cat((config.semantic_start + codes[:, :1], codes), 1)))


def _batch(rows: Tensor, semantic_start: int) -> Batch:
    """The whole sequence as one batch without alignment."""
    main, codes = rows[None, :, 0], rows[None, :, 1:]
    audio = main >= semantic_start
    text_at = torch.zeros(1, len(rows) - 1, len(rows) - 1, dtype=torch.bool)
    return Batch(
        main[:, :-1],
        codes[:, :-1],
        audio[:, :-1],
        main[:, 1:],
        codes[:, 1:],
        audio[:, 1:],
        audio[:, 1:],
        text_at,
    )


@torch.inference_mode()
def test_logits_equal_the_product(nano: Drama3) -> None:
    config = nano.config
    model = LanguageModel(config)
    model.load_state_dict(read_voice(NANO, config))
    rows = _rows(nano, frames=40)
    batch = _batch(rows, config.semantic_start)
    hidden = model.backbone(batch)[0]
    heads = model.tower(hidden, batch)
    for end in (len(rows) - 40, len(rows) - 1):  # the first frame's prompt, and the last one's
        state = StreamState.allocate(config, 1, len(rows) + 1)
        nano.model.prefill(rows[:end], state, 0)
        torch.testing.assert_close(state.hidden[0], hidden[0, end - 1], atol=2e-4, rtol=1e-4)
        semantic = state.hidden @ nano.model.head.T
        wanted = model.main_logits(hidden[:, end - 1])
        torch.testing.assert_close(semantic, wanted, atol=1e-3, rtol=1e-4)
        label = rows[end, 1:]
        seen: list[Tensor] = []

        def draw(
            book: int, logits: Tensor, label: Tensor = label, seen: list[Tensor] = seen
        ) -> Tensor:
            seen.append(logits[0])
            return label[None, book]

        position = torch.tensor([end - 1])
        mask = (torch.arange(len(rows) + 1) <= position)[None, None, None]
        nano.model.tower.step(
            state.hidden,
            state.extra,
            label[None, 0],
            draw,
            nano.model.ropes(len(rows) + 1)[1][:, end - 1 : end],
            state,
            position,
            mask,
        )
        for book, logits in enumerate(seen):
            wanted = model.heads[book](heads[book][0, end - 1])
            torch.testing.assert_close(logits, wanted, atol=2e-3, rtol=1e-3)


def test_layout_round_trips(nano: Drama3) -> None:
    config = nano.config
    state = LanguageModel(config).state_dict()
    back = from_official(config, to_official(config, state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_new_tokens_follow_the_old_ones(nano: Drama3) -> None:
    from dataclasses import replace

    config = nano.config
    wider = replace(
        config,
        semantic_start=config.semantic_start + 2,
        semantic_end=config.semantic_end + 2,
        backbone=replace(config.backbone, vocab_size=config.backbone.vocab_size + 2),
    )
    old, new = read_voice(NANO, config), read_voice(NANO, wider)
    start = config.semantic_start
    for name in ("embed_tokens.weight", "lm_head.weight"):
        assert torch.equal(new[name][:start], old[name][:start])
        assert torch.equal(new[name][start + 2 :], old[name][start:])
        assert new[name][start : start + 2].isfinite().all()
    with pytest.raises(ValueError, match="2 text tokens more"):
        read_voice(
            NANO, replace(config, semantic_start=start - 2, semantic_end=config.semantic_end - 2)
        )


def test_delta_rule_is_the_recurrence() -> None:
    random = torch.Generator().manual_seed(1)
    q, k = (
        torch.nn.functional.normalize(torch.randn(2, 3, 70, 8, generator=random), dim=-1)
        for _ in range(2)
    )
    v = torch.randn(2, 3, 70, 6, generator=random)
    g = -0.3 * torch.rand(2, 3, 70, generator=random)
    beta = torch.rand(2, 3, 70, generator=random)
    found = delta_rule(q, k, v, g, beta)
    state = torch.zeros(2, 3, 8, 6)
    for row in range(70):
        state = state * g[:, :, row, None, None].exp()
        recalled = (k[:, :, row, None] @ state)[:, :, 0]
        correction = (v[:, :, row] - recalled) * beta[:, :, row, None]
        state = state + k[:, :, row, :, None] * correction[:, :, None]
        wanted = (q[:, :, row, None] @ state)[:, :, 0]
        torch.testing.assert_close(found[:, :, row], wanted, atol=1e-5, rtol=1e-4)


def _codecs(encoder: bool) -> tuple[CodecModel, rt_drama3.codec.Codec]:
    """A random codec in both forms."""
    from rt_drama3.codec.official import load_codec

    torch.manual_seed(0)
    config = parse_codec_config(small_codec())
    model = CodecModel(config, encoder=encoder)
    initialise(model)
    return model, load_codec(config, official_state(model), dtype=torch.float32)


@torch.inference_mode()
def test_decoding_equals_the_product() -> None:
    model, codec = _codecs(encoder=False)
    codes = torch.randint(0, 512, (2, 9, 5), generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(
        model.decode(codes), codec.decode(codes.transpose(1, 2)), atol=1e-5, rtol=1e-4
    )


@torch.inference_mode()
def test_encoding_equals_the_product() -> None:
    model, codec = _codecs(encoder=True)
    samples = 0.1 * torch.randn(6 * 2048, generator=torch.Generator().manual_seed(3))
    codes = codec.encode(samples)
    latents = model.latents(samples[None])
    near = model.nearness(latents, codes.T[None])
    for book, nearness in enumerate(near):
        assert torch.equal(nearness[0].argmax(-1), codes[book])


def test_codec_layout_round_trips() -> None:
    model, _ = _codecs(encoder=True)
    other = CodecModel(model.config, encoder=True)
    assert load_official(other, official_state(model)) == []
    for name, value in model.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, atol=1e-6, rtol=1e-5)
    decode_only = CodecModel(model.config, encoder=False)
    missing = load_official(other, official_state(decode_only))
    assert missing
    assert all(
        name.startswith(("encoder.", "downsample.")) or "in_proj" in name for name in missing
    )


def test_snake_has_the_gradients_of_its_formula() -> None:
    random = torch.Generator().manual_seed(5)
    x = torch.randn(2, 7, 3, generator=random, dtype=torch.float64, requires_grad=True)
    alpha = (0.5 + torch.rand(3, generator=random, dtype=torch.float64)).requires_grad_()
    plain = x + torch.sin(alpha * x).square() / alpha
    torch.testing.assert_close(fused.snake(x, alpha), plain)
    assert torch.autograd.gradcheck(fused.snake, (x, alpha))


@pytest.mark.slow
def test_unit_in_cpp_equals_plain_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    from training.codec_model import Unit

    torch.manual_seed(6)
    for channels in fused.CHANNELS:
        x = torch.randn(2, 61, channels)
        if not fused.usable(x):
            pytest.skip("no compiler, or the extension could not be built")
        unit = Unit(channels, step=3)
        results = []
        for usable in (True, False):
            monkeypatch.setattr(fused, "usable", lambda _, usable=usable: usable)
            given = x.clone().requires_grad_()
            made = unit(given)
            made.square().sum().backward()
            results.append([made, given.grad, *(w.grad for w in unit.parameters())])
            unit.zero_grad()
            monkeypatch.undo()
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-4)
