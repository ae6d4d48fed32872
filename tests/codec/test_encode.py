"""Encoding: chunks against the plain one-shot codec, frame counts, bounds, refusals."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor

from rt_drama3 import Drama3
from rt_drama3.codec import Codec, load_codec, random_codec_state
from rt_drama3.codec.quantizer import Quantizer
from rt_drama3.config import CodecConfig
from rt_drama3.errors import RequestError
from tests.codec.conftest import ODD, TINY
from tests.oracles.plain_codec import PlainCodec

NEAR_TIE = 1e-4  # squared distance between the two best codes that float32 may not distinguish


def noise(samples: int, seed: int = 0) -> Tensor:
    return 0.3 * torch.randn(samples, generator=torch.Generator().manual_seed(seed))


def assert_same_codes(codes: Tensor, expected: Tensor, margins: Tensor) -> None:
    """Equal, except from the first near-tie of a frame on (later stages see another residual)."""
    assert codes.shape == expected.shape
    decided = (margins > NEAR_TIE).cumprod(dim=0).bool()
    assert decided.float().mean() > 0.95
    assert torch.equal(codes[decided], expected[decided])


@pytest.mark.parametrize("config", [TINY, ODD], ids=["tiny", "odd"])
@pytest.mark.parametrize("chunk_frames", [1, 3, 1000])
def test_chunks_give_the_codes_of_the_plain_codec(config: CodecConfig, chunk_frames: int) -> None:
    state = random_codec_state(config, seed=3)
    codec = load_codec(config, state)
    samples = noise(14 * config.frame_samples - 5)
    expected, margins = PlainCodec(config, state).encode(samples)
    codes = codec.encode(samples, encoder_chunk_samples=chunk_frames * config.frame_samples)
    assert_same_codes(codes, expected, margins)
    assert len(codes.unique()) > 10


def test_chunks_beyond_the_encoder_window(tiny: Codec) -> None:
    """The encoder's window is 512 steps = 128 frames."""
    samples = noise(150 * tiny.frame_samples, seed=1)
    plain = PlainCodec(TINY, random_codec_state(TINY, seed=1))
    codes = tiny.encode(samples, encoder_chunk_samples=40 * tiny.frame_samples)
    assert_same_codes(codes, *plain.encode(samples))


def test_a_long_reference_is_encoded_in_chunks(tiny: Codec) -> None:
    samples = torch.zeros(10 * tiny.frame_samples + 1)
    assert tiny.encoder is not None
    with mock.patch.object(tiny.encoder, "forward", wraps=tiny.encoder.forward) as forward:
        tiny.encode(samples, encoder_chunk_samples=4 * tiny.frame_samples + 7)
    lengths = [call.args[0].shape[1] // tiny.frame_samples for call in forward.call_args_list]
    assert lengths == [4, 4, 3]


@pytest.mark.parametrize(("beyond", "frames"), [(0, 0), (1, 1), (-1, 2), (2, 3)])
def test_frames_are_rounded_up(codec: Codec, beyond: int, frames: int) -> None:
    whole = {0: 0, 1: 0, -1: 2, 2: 2}[beyond]
    codes = codec.encode(noise(whole * codec.frame_samples + beyond))
    assert codes.shape == (codec.config.num_codebooks, frames)
    assert codes.dtype == torch.int64


def test_the_padding_is_silence(codec: Codec) -> None:
    samples = noise(2 * codec.frame_samples + 1)
    padded = torch.cat((samples, torch.zeros(codec.frame_samples - 1)))
    assert torch.equal(codec.encode(samples), codec.encode(padded))


def test_round_trip_shapes(codec: Codec) -> None:
    codes = codec.encode(noise(5 * codec.frame_samples))
    assert codec.decode(codes[None]).shape == (1, 5 * codec.frame_samples)
    sizes = torch.tensor(codec.quantizer.sizes)
    assert (codes >= 0).all()
    assert (codes < sizes[:, None]).all()


def test_encoding_in_bfloat16_runs(codec: Codec) -> None:
    config = codec.config
    half = load_codec(config, random_codec_state(config, seed=1), dtype=torch.bfloat16)
    assert half.encode(noise(3 * config.frame_samples)).shape == (config.num_codebooks, 3)


def test_without_encode_half_there_is_one_clear_error() -> None:
    codec = load_codec(TINY, random_codec_state(TINY, encoder=False, seed=1))
    assert not codec.has_encoder
    with pytest.raises(RequestError, match="no encode half"):
        codec.encode(torch.zeros(100))


def test_the_embedded_voice_hears_itself(nano: Drama3) -> None:
    take = nano.generate("The meeting was moved to three.", seed=1)
    found = nano.encode(take.audio, take.sample_rate)
    assert found.shape == take.codes.shape
    assert (found[:2] == take.codes[:2]).mean() > 0.15  # by chance it would be 0.002


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (torch.zeros(2, 100), r"mono float samples of shape \[n\]"),
        (torch.zeros(100, dtype=torch.int16), "torch.int16"),
        (torch.tensor([0.0, float("nan")]), "NaN or infinite"),
        (torch.tensor([float("inf")]), "NaN or infinite"),
    ],
)
def test_wrong_samples_are_refused(tiny: Codec, samples: Tensor, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        tiny.encode(samples)


def test_quantizer_finds_its_own_codes() -> None:
    """Of latents that a stage's projection maps onto its rows, encoding gives the rows back."""
    config = CodecConfig(
        latent=6, num_codebooks=2, semantic_codebook_size=9, residual_codebook_size=7,
        codebook_dim=6,
    )  # fmt: skip
    quantizer = Quantizer(config, encoder=True)
    generator = torch.Generator().manual_seed(0)
    for parameter in quantizer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    quantizer.into.copy_(torch.eye(6).expand(2, 6, 6))
    quantizer.into_bias.zero_()
    quantizer.out[:, :6] = 0  # the first stage takes nothing away
    quantizer.out_bias.zero_()
    rows = torch.arange(9)
    codes = quantizer.encode(3.0 * quantizer.codebooks[rows][None])
    assert torch.equal(codes[0, 0], rows)
    nearest = torch.cosine_similarity(
        quantizer.codebooks[:9, None], quantizer.codebooks[None, 9:], dim=-1
    ).argmax(1)
    assert torch.equal(codes[0, 1], nearest)
