"""Drama3: a loaded checkpoint that speaks, whole takes or streams, through one engine.

``Drama3.generate`` turns text into a ``Take``, and ``Drama3.stream`` gives the audio while it is
made. ``load`` makes a ``Drama3`` of a checkpoint.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch

from rt_drama3.config import ModelConfig
from rt_drama3.engine.best_of import Takes
from rt_drama3.engine.config import EngineConfig, read_engine_config
from rt_drama3.engine.engine import Engine
from rt_drama3.engine.events import Audio, Durations, SpeechSummary
from rt_drama3.engine.speech import SpeechRequest, SpeechSettings
from rt_drama3.errors import RequestError
from rt_drama3.loading import LoadedModel, load_model
from rt_drama3.scenes.best_of import Ranking, check_count, duration_sanity, rank
from rt_drama3.scenes.references import Codes, ReferenceSource
from rt_drama3.scenes.takes import dump_take
from rt_drama3.system.threads import compute_threads

log = logging.getLogger(__name__)

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Take:
    """Finished speech.

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
    """A checkpoint that speaks. Thread-safe: one engine speaks all its takes concurrently.

    Args:
        loaded: the checkpoint.
        engine_config: of the engine behind ``generate`` and ``stream``; None reads the environment.
    """

    def __init__(self, loaded: LoadedModel, engine_config: EngineConfig | None = None) -> None:
        self.loaded = loaded
        self.model, self.codec, self.prompts = loaded.model, loaded.codec, loaded.prompts
        self.sampling, self.segments, self.threads = (
            loaded.sampling,
            loaded.segments,
            loaded.threads,
        )
        self.references, self.steering = loaded.references, loaded.steering
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
        progress: Callable[[int, int], None] | None = None,
        **settings: Unpack[SpeechSettings],
    ) -> Take:
        """Speaks a text.

        Long text is spoken segment by segment, and the codec carries on across the segments. Each
        sees the first and the latest one as history, unless the checkpoint says otherwise (nano
        does).

        Args:
            text: what to say; may contain ``<|speaker:n|>`` tags and ``[directions]``; a voice
                ignores those that it was not trained on (nano knows ``[fast]`` and ``[slow]``).
                Text without anything to speak (only punctuation or emoji) gives an empty take.
            progress: called with (segments spoken, segments in all).
            settings: see ``SpeechSettings``.

        Raises:
            RequestError: text, references, history or settings cannot be used.
            Overloaded: at capacity (``max_streams`` + ``max_queue`` takes).
            DeviceError: the engine failed, or belongs to the parent of this process.
        """
        request = _request(text, settings)  # a mistake needs no engine
        speech = self.engine.open(request)
        parts = [np.zeros(0, dtype=np.float32)]
        try:
            for chunk in speech:
                parts.append(chunk.pcm)
                if progress is not None:
                    progress(chunk.segment, speech.known_segments)
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
        self,
        text: str,
        n: int,
        scorer: Callable[[Take], float] = duration_sanity,
        **settings: Unpack[SpeechSettings],
    ) -> Ranking[Take]:
        """Generates several takes of a text concurrently, and ranks them.

        Args:
            text: what to say.
            n: number of takes, 1 to 32; those that find no room in the batch wait for it.
            scorer: returns a take's score, higher is better; see ``best_of``.
            settings: see ``SpeechSettings``. Take k has the seed ``seed + k``.

        Raises:
            RequestError: text or settings cannot be used.
        """
        request, count = _request(text, settings), check_count(n)
        takes = Takes(self.engine, request, count, self.engine.config.max_streams)
        return rank([self.decode_take(summary) for summary in takes.run()], scorer)

    def decode_take(self, summary: SpeechSummary) -> Take:
        """The take of a stream that was generated as codes only.

        Args:
            summary: of the stream; decoding is added to its durations.
        """
        started = time.monotonic()
        audio = self.decode(summary.codes)
        return Take(
            text=summary.text,
            codes=summary.codes,
            audio=audio,
            sample_rate=summary.sample_rate,
            seed=summary.seed,
            complete=summary.complete,
            durations=replace(summary.durations, codec=time.monotonic() - started),
        )

    def stream(self, text: str, **settings: Unpack[SpeechSettings]) -> Iterator[Audio]:
        """Speaks a text and gives its audio while it is made.

        Args:
            text: what to say.
            settings: see ``SpeechSettings``.

        Yields:
            Chunks in order. Leaving the loop early stops the speech.

        Raises:
            RequestError, Overloaded, DeviceError: see ``generate``.
        """
        request = _request(text, settings)
        speech = self.engine.open(request)
        try:
            yield from speech
        finally:
            speech.cancel()

    @property
    def engine(self) -> Engine:
        """The engine behind ``generate`` and ``stream``, made on first use from the environment."""
        with self._lock:
            if self._engine is None:
                self._engine = Engine(self.loaded, self._engine_config or read_engine_config())
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


def _request(text: str, settings: Mapping[str, Any]) -> SpeechRequest:
    """The request for a whole text.

    Raises:
        TypeError: a name is not one of ``SpeechSettings``; a request has other fields, too.
    """
    for name in settings:
        if name not in SpeechSettings.__annotations__:
            known = ", ".join(SpeechSettings.__annotations__)
            raise TypeError(f"there is no setting {name!r}; there are {known}.")
    return SpeechRequest(text, **settings)


def load(
    name_or_path: str | Path = "nano",
    *,
    device: str = "auto",
    dtype: torch.dtype | str | None = None,
    revision: str | None = None,
    threads: int | None = None,
    codec: str | Path | None = None,
    tensor_map: str | Path | None = None,
    head_order: str | None = None,
    engine: EngineConfig | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Drama3:
    """Loads a checkpoint.

    Args:
        name_or_path: "nano" (the embedded voice), a folder, a GGUF or safetensors file, a hub id
            such as "fishaudio/drama-3", or a hub id with a file ("Jmica/Drama-3-GGUF:NAME.gguf").
            Its layout is found out (docs/model.md, 12).
        device: "auto" (CUDA when there is one), "cpu" or "cuda" ("cuda:1").
        dtype: of weights and activations; None picks bfloat16 on CUDA and for large models, float32
            for small models on a CPU.
        revision: of a hub id; None is the newest.
        threads: CPU threads that this checkpoint computes with; None picks one for small models
            (faster than several) and torch's own choice for large ones. The rest of the process
            keeps its own. Ignored on CUDA.
        codec: folder, file or hub id of another codec; None takes that of the checkpoint.
        tensor_map: JSON file that says where tensors are, for files whose names are not known.
        head_order: "semantic-eos" or "eos-semantic": the order of a head that has only the rows
            that are sampled; None is what its container usually has.
        engine: settings of the engine behind ``generate`` and ``stream``; None reads the
            environment.
        progress: called with (bytes loaded, bytes in all).

    Raises:
        CheckpointError: the checkpoint is missing, incomplete or unsupported.
        ConfigError: ``threads`` is below 1, or ``head_order`` is another order.
        DeviceError: the device does not exist.
    """
    loaded = load_model(
        name_or_path,
        device=device,
        dtype=dtype,
        revision=revision,
        threads=threads,
        codec=codec,
        tensor_map=tensor_map,
        head_order=head_order,
        progress=progress,
    )
    return Drama3(loaded, engine)
