"""mlx-audio's Fish codec as oracle: its own modules, sizes and streaming, our random weights.

Nothing here computes a codec: its constructors take the sizes, its ``sanitize`` takes the official
state dict, and its ``decode``, ``streaming_step`` and ``encode`` run as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_flatten
from mlx_audio.codec.models.fish_s1_dac.fish_s1_dac import (
    DAC,
    DownsampleResidualVectorQuantize,
    ModelArgs,
    WindowLimitedTransformer,
)
from torch import Tensor

from rt_drama3.config import CodecConfig, WindowTransformerConfig

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int64]

TABLE_ROWS = 16_384  # positions that its rotary tables cover


class MlxCodec:
    """mlx-audio's codec of these sizes, with the weights of an official state dict.

    Its encoder's window is fixed at 512, and its rotary table is rounded to ``rope_table_dtype``
    as a checkpoint that stores one would have it.
    """

    def __init__(self, config: CodecConfig, state: Mapping[str, Tensor]) -> None:
        assert config.encoder_transformer is None or config.encoder_transformer.window == 512
        self.config = config
        self.dac = _build(config)
        weights = {name: mx.array(value.float().numpy()) for name, value in state.items()}
        if config.rope_table_dtype == "bfloat16":
            for name, value in tree_flatten(self.dac.parameters()):
                if name.endswith(".freqs_cis"):
                    weights[name] = value.astype(mx.bfloat16).astype(mx.float32)
        self.dac.load_weights(list(self.dac.sanitize(weights).items()), strict=False)
        self.dac.eval()
        self.dac.fold_weight_norm()

    def decode(self, codes: Codes) -> Floats:
        """Maps [batch, num_codebooks, frames] to [batch, samples]."""
        pcm, _ = self.dac.decode(mx.array(codes), mx.array([codes.shape[2]]))
        return np.array(pcm)[:, 0]

    def stream(self, codes: Codes, groups: Sequence[int]) -> Iterator[Floats]:
        """The PCM of consecutive groups of frames."""
        self.dac.reset_streaming_state()
        start = 0
        for frames in groups:
            pcm = self.dac.streaming_step(mx.array(codes[:, :, start : start + frames]))
            yield np.array(pcm)[:, 0]
            start += frames

    def encode(self, samples: Floats) -> Codes:
        """Maps [samples] to [num_codebooks, frames]."""
        codes, _ = self.dac.encode(mx.array(samples)[None, None])
        return np.array(codes)[0].astype(np.int64)


def _build(config: CodecConfig) -> DAC:
    def transformer(sizes: WindowTransformerConfig | None) -> Any:
        if sizes is None:
            return None
        args = _arguments(config, config.latent, sizes)
        return WindowLimitedTransformer(args, config.latent, sizes.window, causal=True)

    quantizer = DownsampleResidualVectorQuantize(
        input_dim=config.latent,
        n_codebooks=config.num_codebooks - 1,
        codebook_dim=config.codebook_dim,
        codebook_size=config.residual_codebook_size,
        semantic_codebook_size=config.semantic_codebook_size,
        downsample_factor=tuple(reversed(config.upsample)),
        pre_module=transformer(config.pre),
        post_module=transformer(config.post),
    )
    encoder = config.encoder_transformer
    layers = [0] * (len(config.encoder_rates) - 1) + [encoder.layers if encoder else 0]
    return DAC(
        encoder_dim=config.encoder_dim,
        encoder_rates=list(config.encoder_rates),
        latent_dim=config.latent,
        decoder_dim=config.decoder_dim,
        decoder_rates=list(config.decoder_rates),
        quantizer=quantizer,
        sample_rate=config.sample_rate,
        causal=True,
        encoder_transformer_layers=layers,
        transformer_general_config=lambda dim, **_: _arguments(config, dim, encoder),
    )


def _arguments(config: CodecConfig, dim: int, sizes: WindowTransformerConfig | None) -> ModelArgs:
    assert sizes is not None
    return ModelArgs(
        block_size=TABLE_ROWS,
        n_layer=sizes.layers,
        n_head=sizes.heads,
        dim=dim,
        intermediate_size=sizes.ffn,
        head_dim=sizes.head_dim,
        rope_base=config.rope_base,
        channels_first=True,
    )
