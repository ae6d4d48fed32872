"""The events of one stream: ``Queued | Segment | Audio | Idle | Done``.

No torch in this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rt_drama3.scenes.takes import dump_take


@dataclass(frozen=True)
class Queued:
    """The stream waits for a slot.

    Attributes:
        position: streams in front of it.
        reason: what the first one waits for: ``load`` (with one more stream, measured speed would
            fall below realtime) or ``max_streams`` (all slots are taken).
    """

    position: int
    reason: str


@dataclass(frozen=True)
class Segment:
    """A segment of the text begins with the next ``Audio``.

    Attributes:
        index: from 0.
        text: of the segment.
        first_frame: number of its first frame in the stream.
        waiting: characters of text that were pushed and do not belong to a segment begun yet.
        known: segments known so far, this one included.
        unspoken: text that came meanwhile and of which nothing is spoken, such as unknown tags.
    """

    index: int
    text: str
    first_frame: int
    waiting: int
    known: int
    unspoken: str = ""


@dataclass(frozen=True)
class Stamps:
    """When a chunk passed each stage, in seconds of ``time.monotonic``.

    Attributes:
        accepted: the request was opened.
        prefilled: the prompt of the chunk's segment was read.
        sampled: its first and its last frame were drawn.
        decoded: its PCM was ready.
    """

    accepted: float
    prefilled: float
    sampled: tuple[float, float]
    decoded: float


@dataclass
class Durations:
    """Seconds that the stages of one stream took; they overlap.

    Attributes:
        prefill: reading prompts.
        frames: steps that made its frames (shared with the other streams).
        codec: decoding.
    """

    prefill: float = 0.0
    frames: float = 0.0
    codec: float = 0.0

    def figures(self, frames: int, audio_seconds: float) -> dict[str, float]:
        """Milliseconds by stage, and ``rtf``: compute over audio time, realtime below 1."""
        total = self.prefill + self.frames + self.codec
        return {
            "prefill_ms": 1e3 * self.prefill,
            "frame_ms": 1e3 * self.frames / max(frames, 1),
            "codec_ms": 1e3 * self.codec,
            "rtf": total / audio_seconds if audio_seconds else 0.0,
        }


@dataclass(frozen=True)
class SpeechSummary:
    """What became of a stream.

    Attributes:
        segments: in order, each with the frame it begins at.
        codes: int64 ``[num_codebooks, frames]`` of everything generated.
        sample_rate: Hz.
        seed: gives the same stream again on the same execution configuration.
        complete: every segment was ended by the model, not by a limit.
        cancelled: ended by ``cancel``.
        delivered: frames that became chunks.
        durations: where the time went.
        text: what was spoken: the request's text, or the segments of one that was pushed.
        unspoken: as in ``Segment``, since the last of them.
    """

    segments: tuple[tuple[str, int], ...]
    codes: npt.NDArray[np.int64]
    sample_rate: int
    seed: int
    complete: bool
    cancelled: bool
    delivered: int
    durations: Durations
    text: str = ""
    unspoken: str = ""

    def take(self) -> bytes:
        """The take as an artefact, to continue or to edit it (see ``takes``).

        Raises:
            RequestError: nothing was spoken.
        """
        return dump_take(self.text, self.codes, seed=self.seed, complete=self.complete)


@dataclass(frozen=True)
class Audio:
    """Consecutive frames of a stream as PCM.

    Attributes:
        pcm: float32 ``[frames * frame_samples]``, mono, within -1..1.
        first_frame: number of the first frame in the stream.
        frames: frames in the chunk.
        sample_rate: Hz.
        segment: index of the segment that the first frame belongs to.
        stamps: when it passed each stage.
    """

    pcm: npt.NDArray[np.float32]
    first_frame: int
    frames: int
    sample_rate: int
    segment: int
    stamps: Stamps

    @property
    def seconds(self) -> float:
        """Duration of the chunk."""
        return len(self.pcm) / self.sample_rate


@dataclass(frozen=True)
class Idle:
    """The stream waits for text: everything that could be spoken was spoken and delivered.

    It comes once each time, and after a ``flush`` that found nothing to speak.

    Attributes:
        begun: a sentence has begun whose end has not come yet.
    """

    begun: bool = False


@dataclass(frozen=True)
class Done:
    """The last event.

    Attributes:
        summary: of the stream.
    """

    summary: SpeechSummary


Event: TypeAlias = Queued | Segment | Audio | Idle | Done
