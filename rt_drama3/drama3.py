"""Drama3: a loaded checkpoint that speaks, for offline use and as the base of the engine.

``load`` puts a checkpoint on a device; ``Drama3.generate`` turns text into a ``Take`` at once.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from rt_drama3 import checkpoint
from rt_drama3.audio import read_audio, resample
from rt_drama3.audio.files import AudioSource
from rt_drama3.codec import Codec
from rt_drama3.config import ModelConfig, SamplingConfig
from rt_drama3.errors import DeviceError, RequestError
from rt_drama3.graph_step import FrameStep
from rt_drama3.model import Snapshot, SpeechModel
from rt_drama3.prompt import PromptBuilder
from rt_drama3.text import MAX_FRAMES, check_text, frame_cap, split_text

log = logging.getLogger(__name__)

Codes = npt.NDArray[np.int64]
Samples = npt.NDArray[np.float32]
ReferenceSource = AudioSource | tuple[npt.ArrayLike, int] | npt.ArrayLike

MAX_REFERENCE_SECONDS = 60.0
MAX_PROMPT_ROWS = 8192
MAX_CONTEXT = 16384  # rows; the context that the official model is served with
SMALL_MODEL = 50_000_000  # parameters; below, one CPU thread beats several (spin barriers)
FLOAT32_MODEL = 1_000_000_000  # parameters; below, float32 is affordable on a CPU


@dataclass
class Timings:
    """Where the time of a take went, in seconds."""

    prefill: float = 0.0
    frames: float = 0.0
    codec: float = 0.0

    def report(self, frames: int, seconds: float) -> dict[str, float]:
        """Per-take figures; ``rtf`` is compute time over audio time (below 1 is realtime)."""
        total = self.prefill + self.frames + self.codec
        return {
            "prefill_ms": 1e3 * self.prefill,
            "frame_ms": 1e3 * self.frames / max(frames, 1),
            "codec_ms": 1e3 * self.codec,
            "rtf": total / seconds if seconds else 0.0,
        }


@dataclass(frozen=True)
class Take:
    """One finished piece of speech.

    Attributes:
        text: what was asked for.
        codes: int64 ``[num_codebooks, frames]``.
        audio: float32 ``[samples]``, mono, within -1..1.
        sample_rate: Hz.
        seed: gives the same take again on the same machine and settings.
        complete: false when a frame limit cut the speech before the model ended it.
        timings: where the time went.
    """

    text: str
    codes: Codes
    audio: Samples
    sample_rate: int
    seed: int
    complete: bool = True
    timings: Timings = field(default_factory=Timings, compare=False)

    @property
    def seconds(self) -> float:
        """Duration of the audio."""
        return len(self.audio) / self.sample_rate


def load(
    name_or_path: str | Path = "nano",
    *,
    device: str = "auto",
    dtype: torch.dtype | str | None = None,
    revision: str | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Drama3:
    """Loads a checkpoint.

    Args:
        name_or_path: "nano" (the embedded voice), a folder in the official layout, or a hub id such
            as "fishaudio/drama-3".
        device: "auto" (CUDA when there is one), "cpu" or "cuda" ("cuda:1").
        dtype: of weights and activations; None picks bfloat16 on CUDA and for large models, float32
            for small models on a CPU.
        revision: of a hub id; None is the newest.
        threads: CPU threads of torch for this process; None picks one for small models (faster than
            several) and leaves torch's own choice for large ones. Ignored on CUDA.
        progress: called with (bytes loaded, bytes in all).

    Raises:
        CheckpointError: the checkpoint is missing, incomplete or unsupported.
        DeviceError: the device does not exist.
    """
    path = checkpoint.resolve(str(name_or_path), revision)
    config = checkpoint.read_config(path)
    where = pick_device(device)
    parameters = sum(p.numel() for p in SpeechModel(config).parameters())
    kind = pick_dtype(dtype, where, parameters)
    if where.type == "cpu" and (threads or parameters < SMALL_MODEL):
        torch.set_num_threads(threads or 1)
    # The codec first: its file is held whole for a moment, which the language model then outgrows.
    codec = checkpoint.load_codec(path, where, torch.float32 if where.type == "cpu" else kind)
    return Drama3(
        model=checkpoint.load_model(path, config, where, kind, progress),
        codec=codec,
        prompts=PromptBuilder(checkpoint.load_tokenizer(path, config), config),
        sampling=checkpoint.read_sampling(path),
        fixed_voice=checkpoint.read_fixed_voice(path),
    )


def pick_device(name: str) -> torch.device:
    """Returns the device of that name; "auto" is CUDA where there is one.

    Raises:
        DeviceError: the device is unknown or absent.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"device {name!r} is unknown; use auto, cpu or cuda.") from error
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"device {name!r} is not supported; use auto, cpu or cuda.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"device {name!r} was asked for, but this torch sees {torch.cuda.device_count()} CUDA "
            "devices; use --device cpu, or install a CUDA build of torch and its driver."
        )
    return device


def pick_dtype(
    wanted: torch.dtype | str | None, device: torch.device, parameters: int
) -> torch.dtype:
    """Returns the wanted dtype, or for None what suits the device and a model of that size.

    Raises:
        DeviceError: the dtype is unknown.
    """
    if wanted is None:
        small = device.type == "cpu" and parameters < FLOAT32_MODEL
        return torch.float32 if small else torch.bfloat16
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    found = named.get(wanted) if isinstance(wanted, str) else wanted
    if found not in named.values():
        raise DeviceError(f"dtype {wanted!r} is not supported; use {', '.join(named)}.")
    assert found is not None
    return found


class Drama3:
    """A checkpoint on a device. Thread-safe: one take is made at a time.

    Args:
        model: backbone and tower.
        codec: codes to PCM, and back when it has its encode half.
        prompts: text to rows.
        sampling: the checkpoint's defaults.
        fixed_voice: the checkpoint cannot follow references; they are ignored with a notice.
    """

    def __init__(
        self,
        model: SpeechModel,
        codec: Codec,
        prompts: PromptBuilder,
        sampling: SamplingConfig,
        fixed_voice: bool = False,
    ) -> None:
        self.model = model
        self.codec = codec
        self.prompts = prompts
        self.sampling = sampling
        self.fixed_voice = fixed_voice
        self._lock = threading.Lock()
        self._step: FrameStep | None = None

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def sample_rate(self) -> int:
        """Hz of every take."""
        return self.codec.config.sample_rate

    def generate(
        self,
        text: str,
        *,
        references: Sequence[tuple[str, ReferenceSource]] = (),
        history: Sequence[tuple[str, npt.ArrayLike]] = (),
        seed: int | None = None,
        temperature: float | None = None,
        head_temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        repetition_aware: bool = True,
        max_frames: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Take:
        """Speaks a text.

        Long text is spoken piece by piece; each piece sees the first and the latest piece as
        history, and the codec carries on across them.

        Args:
            text: what to say; may hold ``<|speaker:n|>`` tags and ``[directions]``. Text without
                anything to speak (only punctuation or emoji) gives an empty take.
            references: ``(transcript, audio)`` pairs, in order. Audio is a file (path, bytes, open
                file), ``(samples, sample_rate)``, float samples at this model's rate, or integer
                codes ``[num_codebooks, frames]``.
            history: ``(text, codes)`` of earlier takes of the same scene, in order.
            seed: None draws one; it is in the take.
            temperature, top_p, top_k: None takes the checkpoint's default; temperature 0 is greedy.
                ``top_k`` also caps the codebook heads, at most at 30.
            head_temperature: of the codebook heads; None follows ``temperature`` when that is
                given, else the checkpoint's default.
            repetition_aware: redraw a semantic code that just occurred.
            max_frames: ends the take after so many frames; None sets a generous limit from the
                length of the text, so that a take cannot run away.
            progress: called with (pieces spoken, pieces in all).

        Raises:
            RequestError: text, references, history or settings cannot be used.
        """
        check_text(text)
        sampling = resolve_sampling(
            self.sampling, temperature, head_temperature, top_p, top_k, repetition_aware
        )
        if max_frames is not None and max_frames < 1:
            raise RequestError(f"max_frames is {max_frames}; it must be at least 1.")
        seed = secrets.randbits(32) if seed is None else seed
        voice = self.voice(references)
        turns = [(said, np.asarray(codes)) for said, codes in history]
        timings = Timings()
        pieces = split_text(text)
        if not pieces:
            log.warning("nothing to speak in %r; the take is empty", text[:40])
        spoken: list[tuple[str, Codes]] = []
        frames, complete = 0, True
        with self._lock, torch.inference_mode():
            prefix: Snapshot | None = None
            for index, piece in enumerate(pieces):
                cap = frame_cap(piece, self.codec.config.frame_rate)
                if max_frames is not None:
                    cap = min(max_frames - frames, MAX_FRAMES)
                    if cap == 0:
                        complete = False
                        break
                context = turns + spoken[:1] + (spoken[-1:] if len(spoken) > 1 else [])
                codes, ended, prefix = self._speak(
                    piece, voice, context, sampling, seed, frames, cap, prefix, timings
                )
                frames += codes.shape[1]
                complete &= ended
                if codes.shape[1]:
                    spoken.append((piece, codes))
                if progress is not None:
                    progress(index + 1, len(pieces))
            empty = np.zeros((self.config.num_codebooks, 0), dtype=np.int64)
            grid = np.concatenate([empty, *(codes for _, codes in spoken)], axis=1)
            started = time.perf_counter()
            audio = self.decode(grid)
            timings.codec = time.perf_counter() - started
        return Take(text, grid, audio, self.sample_rate, seed, complete, timings)

    def _speak(
        self,
        piece: str,
        voice: Sequence[tuple[str, Codes]],
        history: Sequence[tuple[str, Codes]],
        sampling: SamplingConfig,
        seed: int,
        first_frame: int,
        cap: int,
        prefix: Snapshot | None,
        timings: Timings,
    ) -> tuple[Codes, bool, Snapshot]:
        """One piece of text: codes, whether the model ended it, and the system block's snapshot."""
        started = time.perf_counter()
        limit = min(MAX_CONTEXT, self.config.backbone.max_positions or MAX_CONTEXT)
        prompt = self.prompts.build(
            piece, references=voice, history=history, max_rows=min(MAX_PROMPT_ROWS, limit - 1)
        )
        cap = min(cap, limit - len(prompt.rows))
        step = self._frame_step(len(prompt.rows) + cap)
        rows = torch.from_numpy(prompt.rows).to(self.model.device)
        system = prompt.system_rows
        step.state.reset(0)
        if prefix is None:
            self.model.prefill(rows[:system], step.state, 0)
            prefix = step.state.snapshot(0, system)
        else:
            step.state.restore(0, prefix)
        self.model.prefill(rows[system:], step.state, 0, start=system)
        step.configure(0, sampling, seed, first_frame)
        prefilled = time.perf_counter()
        timings.prefill += prefilled - started
        codes, ended = self._frames(step, len(prompt.rows), cap)
        timings.frames += time.perf_counter() - prefilled
        return codes, ended, prefix

    def _frames(self, step: FrameStep, position: int, cap: int) -> tuple[Codes, bool]:
        """Frames until eos or the cap: codes ``[num_codebooks, frames]`` and whether eos came."""
        frames: list[Codes] = []
        ended = False
        for frame in range(cap):
            step.run(1, step.length_for(position + frame + 1))
            if not step.output.finite[0]:
                raise DeviceError(
                    f"the model produced NaN or infinite values at frame {frame}; "
                    "try dtype float32, and check the checkpoint with `rt-drama3 model info`."
                )
            if step.output.main[0] == self.config.eos:
                ended = True
                break
            frames.append(step.output.codes[0].cpu().numpy().copy())
        if ended and frames and frames[-1][0] == 0:
            frames.pop()  # semantic code 0 right before eos decodes to a click
        shape = (0, self.config.num_codebooks)
        return np.stack(frames, 1) if frames else np.zeros(shape, dtype=np.int64).T, ended

    def _frame_step(self, rows: int) -> FrameStep:
        """The step, with room for at least ``rows`` rows."""
        if self._step is None or self._step.state.context < rows:
            context = max(1024, 1 << (rows - 1).bit_length())
            self._step = FrameStep(self.model, 1, context, MAX_FRAMES)
        return self._step

    def voice(self, references: Sequence[tuple[str, ReferenceSource]]) -> list[tuple[str, Codes]]:
        """References as ``(transcript, codes)``; see ``generate``.

        Raises:
            RequestError: an audio cannot be read or is too long, or codes do not fit.
        """
        if references and self.fixed_voice:
            log.warning("this checkpoint has one fixed voice; the references are ignored")
            return []
        found = []
        for number, (transcript, source) in enumerate(references, 1):
            check_text(transcript, f"transcript of reference {number}")
            found.append((transcript, self._reference(source, number)))
        return found

    def _reference(self, source: ReferenceSource, number: int) -> Codes:
        if isinstance(source, str | os.PathLike | bytes) or hasattr(source, "read"):
            samples, rate = read_audio(cast(AudioSource, source), max_seconds=MAX_REFERENCE_SECONDS)
            return self.encode(samples, rate)
        array: npt.NDArray[Any]
        if isinstance(source, tuple):
            array, rate = np.asarray(source[0]), int(source[1])
        else:
            array, rate = np.asarray(source), self.sample_rate
            if array.ndim == 2 and np.issubdtype(array.dtype, np.integer):
                return array.astype(np.int64)
        if array.ndim and len(array) > MAX_REFERENCE_SECONDS * rate:
            raise RequestError(
                f"reference {number} lasts {len(array) / rate:.1f} s; "
                f"at most {MAX_REFERENCE_SECONDS:.0f} s can be used, 5 to 30 s are best."
            )
        return self.encode(array, rate)

    def encode(self, audio: npt.ArrayLike, sample_rate: int) -> Codes:
        """Codes of audio.

        Args:
            audio: float samples ``[N]``, mono, within -1..1.
            sample_rate: Hz; resampled when it is not the codec's.

        Returns:
            int64 ``[num_codebooks, ceil(N / frame_samples)]`` (N counted at the codec's rate).

        Raises:
            RequestError: the audio is empty, not mono, not finite, or the checkpoint's codec has no
                encode half.
        """
        samples = np.asarray(audio, dtype=np.float32)
        if samples.ndim != 1 or not samples.size:
            raise RequestError(
                f"audio has shape {samples.shape}; one channel of at least one sample is needed."
            )
        if not np.isfinite(samples).all():
            raise RequestError("audio holds NaN or infinite samples; clean it first.")
        if sample_rate < 1:
            raise RequestError(f"sample rate {sample_rate} Hz cannot be; give the audio's own.")
        if not self.codec.has_encoder:
            raise RequestError(
                "this checkpoint's codec has no encode half, so audio cannot become codes; "
                "use a checkpoint with a full codec.pth, or pass codes."
            )
        with torch.inference_mode():
            ready = torch.from_numpy(resample(samples, sample_rate, self.sample_rate))
            codes = self.codec.encode(ready.clamp(-1, 1).to(self.model.device))
        return codes.cpu().numpy()

    def decode(self, codes: npt.ArrayLike) -> Samples:
        """PCM of codes.

        Args:
            codes: integers ``[num_codebooks, frames]``.

        Returns:
            float32 ``[frames * frame_samples]``.

        Raises:
            RequestError: the shape is wrong.
        """
        grid = np.asarray(codes)
        if grid.ndim != 2 or grid.shape[0] != self.config.num_codebooks:
            raise RequestError(
                f"codes have shape {grid.shape}; [{self.config.num_codebooks}, frames] is needed."
            )
        if not grid.shape[1]:
            return np.zeros(0, dtype=np.float32)
        with torch.inference_mode():
            tensor = torch.from_numpy(grid.astype(np.int64)).to(self.model.device)
            return self.codec.decode(tensor[None])[0].float().cpu().numpy()


def resolve_sampling(
    defaults: SamplingConfig,
    temperature: float | None = None,
    head_temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    repetition_aware: bool = True,
) -> SamplingConfig:
    """A request's sampling over the checkpoint's defaults; see ``Drama3.generate``.

    Raises:
        RequestError: a value is out of range.
    """
    for name, value in (("temperature", temperature), ("head_temperature", head_temperature)):
        if value is not None and not 0 <= value <= 10:
            raise RequestError(f"{name} is {value}; it must lie in 0..10 (0 is greedy).")
    if top_p is not None and not 0 < top_p <= 1:
        raise RequestError(f"top_p is {top_p}; it must lie above 0 and up to 1.")
    if top_k is not None and top_k < 1:
        raise RequestError(f"top_k is {top_k}; it must be at least 1.")
    if head_temperature is None:
        head_temperature = defaults.head_temperature if temperature is None else temperature
    return replace(
        defaults,
        temperature=defaults.temperature if temperature is None else temperature,
        head_temperature=head_temperature,
        top_p=defaults.top_p if top_p is None else top_p,
        top_k=defaults.top_k if top_k is None else top_k,
        repetition_aware=defaults.repetition_aware and repetition_aware,
    )
