"""Drama3: a loaded checkpoint that speaks, whole takes or streams, through one engine.

``Drama3.generate`` turns text into a ``Take``, and ``Drama3.stream`` gives the audio while it is
made. ``loading.load`` makes a ``Drama3`` of a checkpoint.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rt_drama3.codec import Codec
from rt_drama3.config import ModelConfig, SamplingConfig, SegmentConfig
from rt_drama3.engine.config import EngineConfig, read_engine_config
from rt_drama3.engine.engine import Engine
from rt_drama3.engine.speech import Audio, Durations, Segment, SpeechRequest
from rt_drama3.errors import RequestError
from rt_drama3.model import SpeechModel
from rt_drama3.scenes.best_of import (
    Ranking,
    Scorer,
    check_count,
    decoded,
    duration_sanity,
    rank,
    summaries,
)
from rt_drama3.scenes.references import Codes, References, ReferenceSource
from rt_drama3.scenes.steering import Steering, SteeringShelf
from rt_drama3.scenes.takes import dump_take
from rt_drama3.system.paths import data_dir
from rt_drama3.system.threads import compute_threads
from rt_drama3.text.prompt import PromptBuilder

log = logging.getLogger(__name__)

Samples = npt.NDArray[np.float32]


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
        durations: where the time went.
    """

    text: str
    codes: Codes
    audio: Samples
    sample_rate: int
    seed: int
    complete: bool = True
    durations: Durations = field(default_factory=Durations, compare=False)

    def artefact(self) -> bytes:
        """The take to be kept, as UTF-8 JSON (see ``takes``).

        Raises:
            RequestError: it is empty.
        """
        return dump_take(self.text, self.codes, seed=self.seed, complete=self.complete)

    @property
    def seconds(self) -> float:
        """Duration of the audio."""
        return len(self.audio) / self.sample_rate

    def figures(self) -> dict[str, float]:
        """Milliseconds by stage, and ``rtf``; see ``Durations.figures``."""
        return self.durations.figures(self.codes.shape[1], self.seconds)


class Drama3:
    """A checkpoint on a device. Thread-safe: takes are made side by side by one engine.

    Args:
        model: backbone and tower.
        codec: codes to PCM, and back when it has its encode half.
        prompts: text to rows.
        sampling: the checkpoint's defaults.
        fixed_voice: the checkpoint cannot follow references; they are ignored with a notice.
        engine_config: of the engine behind ``generate`` and ``stream``; None reads the environment.
        threads: CPU threads that it computes with; None is torch's choice.
        segments: how much of a long text it speaks at a time; None is what Drama 3 can.
    """

    def __init__(
        self,
        model: SpeechModel,
        codec: Codec,
        prompts: PromptBuilder,
        sampling: SamplingConfig,
        fixed_voice: bool = False,
        engine_config: EngineConfig | None = None,
        threads: int | None = None,
        segments: SegmentConfig | None = None,
    ) -> None:
        self.model = model
        self.segments = segments or SegmentConfig()
        self.codec = codec
        self.prompts = prompts
        self.sampling = sampling
        self.threads = threads
        self.references = References(codec, fixed_voice, threads)
        self.steering = SteeringShelf(model, data_dir() / "steering", prompts.reads_directions)
        self._engine_config = engine_config
        self._lock = threading.Lock()
        self._engine: Engine | None = None

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def fixed_voice(self) -> bool:
        """Whether the checkpoint has one voice and ignores references."""
        return self.references.fixed_voice

    @property
    def sample_rate(self) -> int:
        """Hz of every take."""
        return self.codec.config.sample_rate

    def generate(
        self,
        text: str,
        *,
        references: Sequence[tuple[str, ReferenceSource] | Mapping[str, Any]] = (),
        history: Sequence[tuple[str, npt.ArrayLike]] = (),
        previous_takes: Sequence[Any] = (),
        guidance: float | None = None,
        steering: Sequence[tuple[str | Path | Steering, float]] = (),
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

        Long text is spoken piece by piece, and the codec carries on across the pieces. Each sees
        the first and the latest one as history, unless the checkpoint says otherwise (nano does).

        Args:
            text: what to say; may hold ``<|speaker:n|>`` tags and ``[directions]``; a voice passes
                over those that it was not taught (nano knows ``[fast]`` and ``[slow]``). Text
                without anything to speak (only punctuation or emoji) gives an empty take.
            references: ``(transcript, audio)`` pairs, in order. Audio is a file (path, bytes, open
                file), ``(samples, sample_rate)``, float samples at this model's rate, or integer
                codes ``[num_codebooks, frames]``. Or maps with ``text``, ``audio`` or ``vq_codes``,
                and ``speaker`` (0 to 15).
            history: ``(text, codes)`` of earlier takes of the same scene, in order.
            previous_takes: earlier takes as well, behind those: ``Take``s, artefacts that were read
                (``takes.read_takes``), ``(text, codes or audio)`` pairs or maps. A text alone,
                ``(text, None)``, is spoken first.
            guidance: how strongly directions are followed, 0 to 20; None and 0 are off. Takes a
                second row of the batch wherever the text has directions. A voice that was taught
                none ignores it with a notice.
            steering: (name, path or ``Steering``; strength) pairs, see ``steering``.
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
            Overloaded: as many takes as ``max_streams`` and ``max_queue`` allow are under way.
            DeviceError: the engine failed, or belongs to the parent of this process.
        """
        request = SpeechRequest(
            text,
            references=references,
            history=history,
            previous_takes=previous_takes,
            guidance=guidance,
            steering=steering,
            seed=seed,
            temperature=temperature,
            head_temperature=head_temperature,
            top_p=top_p,
            top_k=top_k,
            repetition_aware=repetition_aware,
            max_frames=max_frames,
        )
        speech = self.engine.open(request)
        parts, known = [np.zeros(0, dtype=np.float32)], 0
        try:
            for event in speech.events():
                if isinstance(event, Segment):
                    known = event.known
                elif isinstance(event, Audio):
                    parts.append(event.pcm)
                    if progress is not None:
                        progress(event.segment, known)
        except BaseException:
            speech.cancel()
            raise
        summary = speech.result()
        if not summary.segments:
            log.warning("nothing to speak in %r; the take is empty", text[:40])
        return Take(
            text=text,
            codes=summary.codes,
            audio=np.concatenate(parts),
            sample_rate=self.sample_rate,
            seed=summary.seed,
            complete=summary.complete,
            durations=summary.durations,
        )

    def best_of(
        self, text: str, n: int, scorer: Scorer = duration_sanity, **settings: Any
    ) -> Ranking:
        """Speaks a text several times side by side, and ranks the takes.

        Args:
            text: what to say.
            n: takes, 1 to 32; those that find no room in the batch wait for it.
            scorer: gives a take a number, higher is better; see ``best_of``.
            settings: those of ``generate``, but ``progress``. Take k has the seed ``seed + k``.

        Raises:
            RequestError: text or settings cannot be used.
        """
        found = summaries(self.engine, SpeechRequest(text, **settings), check_count(n))
        return rank([decoded(self, summary) for summary in found], scorer)

    def stream(self, text: str, **settings: Any) -> Iterator[Audio]:
        """Speaks a text and gives its audio while it is made.

        Args:
            text: what to say.
            settings: those of ``generate``, but ``progress``.

        Yields:
            Chunks in order. Leaving the loop early stops the speech.

        Raises:
            RequestError, Overloaded, DeviceError: see ``generate``.
        """
        speech = self.engine.open(SpeechRequest(text, **settings))
        try:
            yield from speech
        finally:
            speech.cancel()

    @property
    def engine(self) -> Engine:
        """The engine behind ``generate`` and ``stream``, made on first use from the environment."""
        with self._lock:
            if self._engine is None:
                self._engine = Engine(self, self._engine_config or read_engine_config())
            return self._engine

    def __enter__(self) -> Drama3:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the engine's threads, cancelling what runs; a later use makes a new engine."""
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def voice(self, references: Sequence[tuple[str, ReferenceSource]]) -> list[tuple[str, Codes]]:
        """References as ``(transcript, codes)``; see ``generate``.

        Raises:
            RequestError: an audio cannot be read or is too long, or codes do not fit.
        """
        return self.references.codes(references)

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
        return self.references.encode(audio, sample_rate)

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
        if not np.issubdtype(grid.dtype, np.integer):
            raise RequestError(f"codes have dtype {grid.dtype}; integers are needed.")
        if not grid.shape[1]:
            return np.zeros(0, dtype=np.float32)
        size = self.config.tower.codebook_size
        if grid.min() < 0 or grid.max() >= size:
            raise RequestError(
                f"codes reach from {grid.min()} to {grid.max()}; they must lie in 0..{size - 1}."
            )
        with torch.inference_mode(), compute_threads(self.threads):
            tensor = torch.from_numpy(grid.astype(np.int64)).to(self.model.device)
            return self.codec.decode(tensor[None])[0].float().cpu().numpy()
