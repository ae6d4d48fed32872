"""References: voices given as audio or codes, converted to codes of one checkpoint."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from rt_drama3.audio import read_audio, resample
from rt_drama3.audio.files import GRACE, AudioSource
from rt_drama3.codec import Codec
from rt_drama3.config import is_number
from rt_drama3.errors import RequestError
from rt_drama3.system.threads import compute_threads
from rt_drama3.text.rules import check_text

log = logging.getLogger(__name__)

Codes = npt.NDArray[np.int64]
ReferenceSource = AudioSource | tuple[npt.ArrayLike, int] | npt.ArrayLike

MAX_REFERENCE_SECONDS = 60.0


class References:
    """Converts references to codes. Thread-safe.

    Args:
        codec: codec of the checkpoint.
        fixed_voice: the checkpoint has one voice; references are ignored with a warning.
        threads: CPU threads for encoding; None leaves it to torch.
    """

    def __init__(self, codec: Codec, fixed_voice: bool = False, threads: int | None = None) -> None:
        self._codec = codec
        self._threads = threads
        self.fixed_voice = fixed_voice

    def codes(self, references: Sequence[tuple[str, ReferenceSource]]) -> list[tuple[str, Codes]]:
        """Returns references as ``(transcript, codes)``; see ``Drama3.generate``.

        Raises:
            RequestError: audio cannot be read or is too long, or codes are invalid.
        """
        if references and self.fixed_voice:
            log.warning("this checkpoint has one fixed voice; the references are ignored")
            return []
        found = []
        for number, (transcript, source) in enumerate(references, 1):
            check_text(transcript, f"transcript of reference {number}")
            found.append((transcript, self.clip(source, f"reference {number}")))
        return found

    def clip(self, source: ReferenceSource, what: str = "the audio") -> Codes:
        """Returns one clip as codes ``[num_codebooks, frames]``; ``what`` names it in errors.

        Raises:
            RequestError: the audio cannot be read or is too long.
        """
        if isinstance(source, str | os.PathLike | bytes) or hasattr(source, "read"):
            samples, rate = read_audio(cast(AudioSource, source), max_seconds=MAX_REFERENCE_SECONDS)
            return self.encode(samples, rate)
        array: npt.NDArray[Any]
        if isinstance(source, tuple):
            array, rate = _samples(source, what)
        else:
            array, rate = np.asarray(source), self._codec.config.sample_rate
            if array.ndim == 2 and np.issubdtype(array.dtype, np.integer):
                return array.astype(np.int64)
        if rate < 1:
            raise RequestError(f"{what} has sample rate {rate} Hz; use its actual rate.")
        if array.ndim and len(array) > (MAX_REFERENCE_SECONDS + GRACE) * rate:
            raise RequestError(
                f"{what} lasts {len(array) / rate:.1f} s; the limit is "
                f"{MAX_REFERENCE_SECONDS:.0f} s, and 5 to 30 s are best."
            )
        return self.encode(array, rate)

    def encode(self, audio: npt.ArrayLike, sample_rate: int) -> Codes:
        """Encodes audio; see ``Drama3.encode``."""
        given = np.asarray(audio)
        if not np.issubdtype(given.dtype, np.floating):
            raise RequestError(
                f"audio has dtype {given.dtype}; use float samples within -1..1 (divide 16-bit "
                "integers by 32768)."
            )
        samples = given.astype(np.float32)
        if samples.ndim != 1 or not samples.size:
            raise RequestError(
                f"audio has shape {samples.shape}; use one channel of at least one sample."
            )
        if not np.isfinite(samples).all():
            raise RequestError("audio contains NaN or infinite samples; remove them first.")
        if sample_rate < 1:
            raise RequestError(
                f"sample rate is {sample_rate} Hz; use the actual rate of the audio."
            )
        if not self._codec.has_encoder:
            raise RequestError(
                "this checkpoint's codec has no encoder, so audio cannot be converted to codes; "
                "use a checkpoint with a full codec.pth, or pass codes."
            )
        with torch.inference_mode(), compute_threads(self._threads):
            ready = torch.from_numpy(resample(samples, sample_rate, self._codec.config.sample_rate))
            codes = self._codec.encode(ready.clamp(-1, 1).to(self._codec.device))
        found: Codes = codes.cpu().numpy()
        return found


def _samples(pair: tuple[Any, ...], what: str) -> tuple[npt.NDArray[Any], int]:
    """Splits ``(samples, sample_rate)``."""
    if len(pair) != 2:
        raise RequestError(f"{what} is a tuple of {len(pair)}; use (samples, sample_rate).")
    rate = pair[1]
    if not is_number(rate) or not math.isfinite(rate):
        raise RequestError(f"{what} has sample rate {rate!r}; use a number of Hz.")
    return np.asarray(pair[0]), int(float(rate))
