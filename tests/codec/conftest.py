"""Codecs that every codec test may use; tests must not change them."""

from __future__ import annotations

import pytest

from rt_drama3 import checkpoint
from rt_drama3.codec import Codec, load_codec, random_codec_state
from rt_drama3.config import CodecConfig, WindowTransformerConfig

# The official topology at toy size, rotary table in bf16, windows shorter than the test signals.
TINY = CodecConfig(
    latent=32,
    num_codebooks=4,
    semantic_codebook_size=64,
    residual_codebook_size=16,
    post=WindowTransformerConfig(layers=2, heads=2, head_dim=8, ffn=48, window=6),
    decoder_dim=32,
    encoder_dim=2,
    encoder_transformer=WindowTransformerConfig(layers=2, heads=2, head_dim=16, ffn=40, window=512),
    pre=WindowTransformerConfig(layers=1, heads=4, head_dim=8, ffn=24, window=5),
)

# Other rates, sizes other than powers of two, no transformers on the way in.
ODD = CodecConfig(
    sample_rate=16_000,
    latent=24,
    num_codebooks=3,
    semantic_codebook_size=20,
    residual_codebook_size=12,
    codebook_dim=5,
    post=WindowTransformerConfig(layers=1, heads=3, head_dim=6, ffn=10, window=1),
    upsample=(3, 2),
    decoder_dim=24,
    decoder_rates=(3, 5, 2),
    encoder_dim=3,
    encoder_rates=(2, 3, 5),
    encoder_transformer=None,
    pre=None,
    rope_base=500.0,
    rope_table_dtype="float32",
)


@pytest.fixture(scope="session")
def tiny() -> Codec:
    """A random codec of the official topology, both halves."""
    return load_codec(TINY, random_codec_state(TINY, seed=1))


@pytest.fixture(scope="session")
def odd() -> Codec:
    """A random codec of another topology, both halves."""
    return load_codec(ODD, random_codec_state(ODD, seed=2))


@pytest.fixture(params=["tiny", "odd"])
def codec(request: pytest.FixtureRequest) -> Codec:
    """Each random codec in turn."""
    chosen = request.getfixturevalue(request.param)
    assert isinstance(chosen, Codec)
    return chosen


@pytest.fixture(scope="session")
def nano_codec() -> Codec:
    """The embedded voice's codec (decode half only)."""
    import torch

    return checkpoint.load_codec(checkpoint.resolve("nano"), "cpu", torch.float32)
