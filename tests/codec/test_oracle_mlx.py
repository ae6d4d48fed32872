"""The codec against mlx-audio's: decode, stream and encode of the same official state dict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from rt_drama3.codec import load_codec, random_codec_state
from rt_drama3.config import CodecConfig

pytest.importorskip("mlx.core", reason="mlx has no build for this machine")
pytest.importorskip("mlx_audio", reason="mlx-audio is not installed")

from tests.codec.conftest import TINY
from tests.codec.test_encode import assert_same_codes, noise
from tests.oracles.mlx_codec import MlxCodec
from tests.oracles.plain_codec import PlainCodec

TOLERANCE = 1e-4  # of PCM in -1..1


def random_codes(config: CodecConfig, batch: int, frames: int) -> Tensor:
    generator = torch.Generator().manual_seed(9)
    shape = (batch, config.num_codebooks, frames)
    return torch.randint(config.residual_codebook_size + 3, shape, generator=generator)


def worst(ours: Tensor, theirs: np.ndarray) -> float:
    assert ours.shape == theirs.shape
    return float(np.abs(ours.numpy() - theirs).max())


@pytest.mark.parametrize("table", ["bfloat16", "float32"])
def test_decode_and_stream(table: str) -> None:
    config = replace(TINY, rope_table_dtype=table)
    state = random_codec_state(config, seed=7)
    codec, oracle = load_codec(config, state), MlxCodec(config, state)
    codes = random_codes(config, 2, 25)
    pcm = codec.decode(codes)
    assert worst(pcm, oracle.decode(codes.numpy())) < TOLERANCE
    memory = codec.new_state(2)
    groups = [1, 1, 2, 4, 4, 13]
    theirs = oracle.stream(codes.numpy(), groups)
    for part, expected in zip(codes.split(groups, 2), theirs, strict=True):
        assert worst(codec.decode_step(part, memory), expected) < TOLERANCE


def test_encode() -> None:
    state = random_codec_state(TINY, seed=7)
    samples = noise(140 * TINY.frame_samples + 99, seed=4)  # beyond both windows
    theirs = MlxCodec(TINY, state).encode(samples.numpy())
    ours = load_codec(TINY, state).encode(samples)
    _, margins = PlainCodec(TINY, state).encode(samples)
    assert_same_codes(ours, torch.from_numpy(theirs), margins)


@pytest.mark.slow
def test_the_official_sizes() -> None:
    """391 million random weights: every constant of the official codec."""
    config = replace(CodecConfig(), rope_table_dtype="float32")
    state = random_codec_state(config, seed=0)
    codec, oracle = load_codec(config, state), MlxCodec(config, state)
    codes = random_codes(config, 1, 3)
    assert worst(codec.decode(codes), oracle.decode(codes.numpy())) < TOLERANCE
    samples = noise(2 * config.frame_samples - 1)
    theirs = oracle.encode(samples.numpy())
    assert np.array_equal(codec.encode(samples).numpy(), theirs)
