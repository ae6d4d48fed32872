"""The codec: ten codes per frame to 44.1 kHz PCM, streamed or in one call, and back.

There is one decode path, the streaming one. Decoding in one call feeds a long input through it in
chunks, so memory stays bounded and both forms agree by construction. Encoding works the same way.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rt_drama3.codec.decoder import Decoder
from rt_drama3.codec.encoder import Encoder
from rt_drama3.codec.quantizer import Quantizer
from rt_drama3.codec.state import CodecState, State, name_memories, new_state
from rt_drama3.codec.weights import Device, Dtype
from rt_drama3.config import CodecConfig, WindowTransformerConfig
from rt_drama3.errors import CheckpointError, RequestError

_CPU_CHUNK = 8
_DEVICE_CHUNK = 64
ENCODER_CHUNK_SAMPLES = 131_072


class Codec(nn.Module):
    """Fish "modified DAC" codec of Drama 3 and S2-Pro, with weights uninitialised.

    See ``rt_drama3.codec.official`` for loading. Convolutions and matrices are in ``dtype``; norms,
    activations and the quantizer compute in float32. In float32 on CUDA, cuDNN's TF32 convolutions
    (on by default in PyTorch) lower the precision unless the caller turns them off.

    Attributes:
        config: sizes.
        has_encoder: whether ``encode`` works.
        frame_samples: PCM samples per frame.
        sample_rate: sample rate of the PCM in Hz.
    """

    def __init__(
        self,
        config: CodecConfig,
        *,
        encoder: bool,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        """Allocates the modules.

        Args:
            config: sizes of the codec.
            encoder: whether to include the encode half.
            device: device of all parameters.
            dtype: dtype of the large matrices; the default is PyTorch's default dtype.

        Raises:
            CheckpointError: the sizes of the config do not fit together.
        """
        super().__init__()
        _check_sizes(config, encoder)
        self.config = config
        self.has_encoder = encoder
        self.frame_samples = config.frame_samples
        self.sample_rate = config.sample_rate
        self.quantizer = Quantizer(config, encoder=encoder, device=device)
        self.decoder = Decoder(config, device=device, dtype=dtype)
        self.encoder = Encoder(config, device=device, dtype=dtype) if encoder else None
        name_memories(self)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.quantizer.codebooks.device

    def new_state(self, batch: int = 1) -> CodecState:
        """Returns the initial state of ``batch`` streams, for ``decode_step``."""
        return CodecState(new_state(self.decoder, batch), batch)

    def forward(self, codes: Tensor, memory: State) -> Tensor:
        """``decode_step`` without checks, on bare tensors: the unit to compile, export or capture.

        Args:
            codes: int64 [batch, num_codebooks, n], on the codec's device.
            memory: ``CodecState.tensors``; updated in place.

        Returns:
            float32 [batch, n * frame_samples].
        """
        pcm: Tensor = self.decoder(self.quantizer.decode(codes), memory)
        return pcm

    @torch.inference_mode()
    def decode_step(self, codes: Tensor, state: CodecState) -> Tensor:
        """Decodes the next ``n >= 1`` frames of every stream.

        Any grouping of frames into steps gives the same PCM. It never waits for the device.

        Args:
            codes: int64 [batch, num_codebooks, n]; codes beyond a codebook are clamped.
            state: from ``new_state``; updated in place.

        Returns:
            float32 PCM [batch, n * frame_samples] in -1..1.

        Raises:
            RequestError: ``codes`` has the wrong shape or dtype.
        """
        self._check_codes(codes)
        if codes.shape[0] != state.batch or not codes.shape[2]:
            raise RequestError(
                f"decode_step got codes of shape {tuple(codes.shape)} for a state of "
                f"{state.batch} streams; pass one row per stream and at least one frame."
            )
        pcm: Tensor = self(codes.to(self.device), state.tensors)
        return pcm

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        """Decodes whole takes.

        Args:
            codes: int64 [batch, num_codebooks, frames]; codes beyond a codebook are clamped.

        Returns:
            float32 PCM [batch, frames * frame_samples] in -1..1, on the codec's device.

        Raises:
            RequestError: ``codes`` has the wrong shape or dtype.
        """
        self._check_codes(codes)
        batch, _, frames = codes.shape
        state = self.new_state(batch)
        chunk = _CPU_CHUNK if self.device.type == "cpu" else _DEVICE_CHUNK
        pcm = torch.empty(batch, frames * self.frame_samples, device=self.device)
        for start in range(0, frames, chunk):
            part = self.decode_step(codes[:, :, start : start + chunk], state)
            pcm[:, start * self.frame_samples :][:, : part.shape[1]] = part
        return pcm

    @torch.inference_mode()
    def encode(
        self, samples: Tensor, *, encoder_chunk_samples: int = ENCODER_CHUNK_SAMPLES
    ) -> Tensor:
        """Encodes a recording, zero-padded on the right to whole frames.

        Memory is bounded by the chunk, not by the recording; the codes do not depend on the chunk,
        except where two code vectors are equally near within float rounding.

        Args:
            samples: float32 [n], mono at the codec's sample rate.
            encoder_chunk_samples: samples to encode per pass, rounded down to whole frames (at
                least one).

        Returns:
            int64 [num_codebooks, ceil(n / frame_samples)], on the codec's device.

        Raises:
            RequestError: the checkpoint has no encode half, or ``samples`` has the wrong shape or
                dtype, or is not finite.
        """
        if self.encoder is None:
            raise RequestError(
                "This checkpoint's codec has no encode half, so it cannot turn audio into codes: "
                "pass codes instead, or use a checkpoint whose codec can encode."
            )
        if samples.dim() != 1 or not samples.is_floating_point():
            raise RequestError(
                f"encode needs mono float samples of shape [n], not {samples.dtype} of shape "
                f"{tuple(samples.shape)}."
            )
        if not bool(torch.isfinite(samples).all()):
            raise RequestError("encode got samples that are NaN or infinite; check the audio.")
        chunk = max(1, encoder_chunk_samples // self.frame_samples) * self.frame_samples
        memory = new_state(self.encoder, 1)
        codes = []
        for start in range(0, samples.shape[0], chunk):
            part = samples[start : start + chunk].to(self.device, torch.float32)
            part = F.pad(part, (0, -part.shape[0] % self.frame_samples))
            codes.append(self.quantizer.encode(self.encoder(part[None], memory))[0])
        if not codes:
            return torch.empty(self.config.num_codebooks, 0, dtype=torch.int64, device=self.device)
        return torch.cat(codes, dim=1)

    def _check_codes(self, codes: Tensor) -> None:
        if codes.dim() != 3 or codes.shape[1] != self.config.num_codebooks:
            raise RequestError(
                f"The codec needs codes of shape [batch, {self.config.num_codebooks}, frames], "
                f"not {list(codes.shape)}."
            )
        if codes.dtype not in (torch.int64, torch.int32):
            raise RequestError(f"The codec needs integer codes (int64), not {codes.dtype}.")


def _check_sizes(config: CodecConfig, encoder: bool) -> None:
    halvings = 2 ** len(config.decoder_rates)
    if config.decoder_dim % halvings:
        raise CheckpointError(
            f"decoder_dim is {config.decoder_dim}, but {len(config.decoder_rates)} decoder blocks "
            f"halve it each: a multiple of {halvings} is needed."
        )
    transformers: dict[str, WindowTransformerConfig | None] = {"post": config.post}
    if encoder:
        transformers |= {"pre": config.pre, "encoder_transformer": config.encoder_transformer}
    for name, sizes in transformers.items():
        if sizes is not None and sizes.head_dim % 2:
            raise CheckpointError(
                f"{name}.head_dim is {sizes.head_dim}, but rotary positions need an even number."
            )
    if encoder and math.prod(config.encoder_rates) != math.prod(config.decoder_rates):
        raise CheckpointError(
            f"encoder_rates {list(config.encoder_rates)} and decoder_rates "
            f"{list(config.decoder_rates)} must have the same product: one frame is as many "
            "samples on the way in as on the way out."
        )
