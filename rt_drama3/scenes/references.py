"""References: voices to follow, given as audio or as codes, to codes of one checkpoint."""

from __future__ import annotations

import logging
import math
import numbers
import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from rt_drama3.audio import read_audio, resample
from rt_drama3.audio.files import GRACE, AudioSource
from rt_drama3.codec import Codec
from rt_drama3.errors import RequestError
from rt_drama3.system.threads import compute_threads
from rt_drama3.text.rules import check_text

log = logging.getLogger(__name__)

Codes = npt.NDArray[np.int64]
ReferenceSource = AudioSource | tuple[npt.ArrayLike, int] | npt.ArrayLike

MAX_REFERENCE_SECONDS = 60.0


class References:
    """See the module docstring. Thread-safe.

    Args:
        codec: of the checkpoint.
        fixed_voice: the checkpoint cannot follow references; they are ignored with a notice.
        threads: CPU threads to encode with; None is torch's choice.
    """

    def __init__(self, codec: Codec, fixed_voice: bool = False, threads: int | None = None) -> None:
        self._codec = codec
        self._threads = threads
        self.fixed_voice = fixed_voice

    def codes(self, references: Sequence[tuple[str, ReferenceSource]]) -> list[tuple[str, Codes]]:
        """References as ``(transcript, codes)``; see ``Drama3.generate``.

        Raises:
            RequestError: an audio cannot be read or is too long, or codes do not fit.
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
        """One clip as codes ``[num_codebooks, frames]``; ``what`` it is called in messages.

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
            raise RequestError(f"{what} has sample rate {rate} Hz; give its own.")
        if array.ndim and len(array) > (MAX_REFERENCE_SECONDS + GRACE) * rate:
            raise RequestError(
                f"{what} lasts {len(array) / rate:.1f} s; "
                f"at most {MAX_REFERENCE_SECONDS:.0f} s can be used, 5 to 30 s are best."
            )
        return self.encode(array, rate)

    def encode(self, audio: npt.ArrayLike, sample_rate: int) -> Codes:
        """Codes of audio; see ``Drama3.encode``."""
        given = np.asarray(audio)
        if not np.issubdtype(given.dtype, np.floating):
            raise RequestError(
                f"audio has dtype {given.dtype}; float samples within -1..1 are needed (16-bit "
                "integers divided by 32768)."
            )
        samples = given.astype(np.float32)
        if samples.ndim != 1 or not samples.size:
            raise RequestError(
                f"audio has shape {samples.shape}; one channel of at least one sample is needed."
            )
        if not np.isfinite(samples).all():
            raise RequestError("audio holds NaN or infinite samples; clean it first.")
        if sample_rate < 1:
            raise RequestError(f"sample rate {sample_rate} Hz cannot be; give the audio's own.")
        if not self._codec.has_encoder:
            raise RequestError(
                "this checkpoint's codec has no encode half, so audio cannot become codes; "
                "use a checkpoint with a full codec.pth, or pass codes."
            )
        with torch.inference_mode(), compute_threads(self._threads):
            ready = torch.from_numpy(resample(samples, sample_rate, self._codec.config.sample_rate))
            codes = self._codec.encode(ready.clamp(-1, 1).to(self._codec.device))
        found: Codes = codes.cpu().numpy()
        return found


def _samples(pair: tuple[Any, ...], what: str) -> tuple[npt.NDArray[Any], int]:
    """The parts of ``(samples, sample_rate)``."""
    if len(pair) != 2:
        raise RequestError(f"{what} is a tuple of {len(pair)}; (samples, sample_rate) is needed.")
    rate = pair[1]
    if isinstance(rate, bool) or not isinstance(rate, numbers.Real) or not math.isfinite(rate):
        raise RequestError(f"{what} has sample rate {rate!r}; its number of Hz is needed.")
    return np.asarray(pair[0]), int(float(rate))
