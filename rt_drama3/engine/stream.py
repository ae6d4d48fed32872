"""Stream: the state of one stream inside the engine, in parts that have one writer each.

==============  ==========================================  ==================================
part            holds                                       written by
==============  ==========================================  ==================================
``text``        text that was not spoken yet                clients (``TextIntake``, locked)
``scene``       voice and earlier turns as codes            prompt threads, one at a time
``turn``        its place in the queue                      ``Admission``, under the lock
``slot``        its slots in the batch                      ``SlotTable`` (device thread)
``prefill``     what was read of its prompts                ``Prefiller`` (device thread)
``playout``     what was delivered, and when                ``Delivery`` (decoding thread)
other fields    phase, segments, codes, pauses              ``EngineCore`` (device thread)
==============  ==========================================  ==================================
"""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from rt_drama3.config import SamplingConfig
from rt_drama3.engine.events import Durations, Queued, SpeechSummary
from rt_drama3.engine.playout import Playout
from rt_drama3.engine.speech import Speech, SpeechRequest
from rt_drama3.engine.text_intake import TextIntake
from rt_drama3.errors import DeviceError, RtDrama3Error
from rt_drama3.model import LayerHook, Snapshot
from rt_drama3.scenes.steering import SteeringVectors
from rt_drama3.scenes.takes import PreviousTake

log = logging.getLogger(__name__)

Codes = npt.NDArray[np.int64]
Turns = list[tuple[str, Codes]]  # (text, codes [num_codebooks, frames])
CAP_MARGIN = 3  # the frame limit of a segment is about three times its usual length


class Phase(enum.Enum):
    """The phase of a stream."""

    IDLE = "waiting for text"
    PREPARING = "prompt being built"
    WAITING = "waiting for a slot"
    PREFILL = "prompt being read"
    SPEAKING = "frames being made"
    DONE = "ended"


@dataclass(frozen=True, eq=False)
class Prompt:
    """One segment of text, ready to be read.

    With guidance, a segment with directions has a second prompt without them. Both are equal up to
    the text, and are read into two adjacent slots (a CFG pair).

    Attributes:
        text: of the segment.
        rows: int64 ``[T, 1 + num_codebooks]`` on the device.
        text_rows: where the text is, first to one past the last row.
        system_rows, voice_key: the system block.
        opening: rows that the next segment's prompt begins with, before the codes of this one.
        cap: maximum number of frames.
        unconditional: rows of the second prompt; None without guidance.
        unconditional_text_rows: as ``text_rows``.
    """

    text: str
    rows: torch.Tensor
    text_rows: tuple[int, int]
    system_rows: int
    voice_key: str
    opening: Codes
    cap: int
    unconditional: torch.Tensor | None = None
    unconditional_text_rows: tuple[int, int] = (0, 0)

    @property
    def width(self) -> int:
        """Number of slots that it needs."""
        return 1 if self.unconditional is None else 2

    @property
    def common(self) -> int:
        """Number of rows that both prompts begin with; 0 without a second one."""
        return 0 if self.unconditional is None else self.text_rows[0]


@dataclass(eq=False)
class Scene:
    """What all prompts of a stream begin with.

    Attributes:
        takes: earlier takes, whose codes may still have to be encoded.
        voice: references as codes; None until they are known.
        turns: the earlier takes as codes, as far as they are known.
        settled: all of them are.
        prepared: the prompt that was built last; the core then takes it as ``Stream.prompt``.
    """

    takes: Sequence[PreviousTake] = ()
    voice: Turns | None = None
    turns: Turns = field(default_factory=list)
    settled: bool = False
    prepared: Prompt | None = None


@dataclass(eq=False)
class Turn:
    """From the first text after a silence to the next silence.

    Attributes:
        wanted: until when there was text, or audio was heard, so far (see ``admission``).
        asked: when it began.
        fresh: nothing of it was spoken yet.
        queued: the position that was reported last.
    """

    wanted: float = -math.inf
    asked: float = 0.0
    fresh: bool = True
    queued: Queued | None = None


@dataclass(eq=False)
class Slot:
    """Slots of the batch.

    Attributes:
        index: of the first; -1 is none.
        pair: it holds two, for a conditional and an unconditional row.
    """

    index: int = -1
    pair: bool = False

    @property
    def indices(self) -> range:
        """All of them."""
        return range(self.index, self.index + 1 + self.pair if self.index >= 0 else self.index)


@dataclass(eq=False)
class ReadAhead:
    """The part of a stream's next prompt that was read while it speaks the present segment.

    Attributes:
        chunks: the rows read, ``[T, 1 + num_codebooks]`` each.
        read: the number of those rows.
        snapshot: the state behind them; None while it is in the spare slot.
    """

    chunks: list[torch.Tensor] = field(default_factory=list)
    read: int = 0
    snapshot: Snapshot | None = None

    def note(self, rows: torch.Tensor) -> None:
        """Counts rows as read."""
        self.chunks.append(rows)
        self.read += len(rows)


@dataclass(eq=False)
class PrefillState:
    """What was read of the present prompt and of the next one.

    Attributes:
        read, unconditional_read: rows of the two prompts.
        started: when the stream got its slot.
        finished: when the last row was read.
        ahead: of the next prompt.
    """

    read: int = 0
    unconditional_read: int = 0
    started: float = 0.0
    finished: float = 0.0
    ahead: ReadAhead | None = None


@dataclass(eq=False)
class Stream:
    """See the module docstring.

    Attributes:
        speech: the client's handle.
        sampling, seed: of every draw.
        accepted: when it was opened.
        wake: wakes the device thread.
        guidance: strength, 0 is off.
        vectors: steering, applied while a text is read.
        remembers: a segment sees earlier ones.
        inner: it speaks an earlier take of another stream, which came as text alone.
        first: such a stream of its own; None once it is done.
        cancelled: set by ``cancel`` alone.
        failure: set by ``isolated`` alone; the core then ends the stream.
        prompt: of the present segment.
        segments: text and first frame of each segment begun so far.
        spoken: text and codes of each finished one.
        codes: frames of the present one, ``[num_codebooks]`` each.
        frames: number of all frames.
        silent_segments: those that ended without a frame; each counts as one for ``max_frames``,
            so that a text of any length ends.
        steps: number of steps of the present segment, which may be one ahead of its frames.
        epoch: counts segments, to recognise late results of an earlier one.
        held: a code-0 frame, and when it was sampled; dropped if eos follows.
        busy: it had something to speak since its latest ``Idle`` event.
        paused_since, paused_at: while paused, when its listener last took audio, and how many
            seconds were left to take then.
        complete: no segment was cut by a limit.
    """

    speech: Speech
    sampling: SamplingConfig
    seed: int
    accepted: float
    text: TextIntake
    playout: Playout
    wake: Callable[[], None]
    guidance: float = 0.0
    vectors: SteeringVectors | None = None
    remembers: bool = True
    inner: bool = False
    first: Stream | None = None
    scene: Scene = field(default_factory=Scene)
    turn: Turn = field(default_factory=Turn)
    slot: Slot = field(default_factory=Slot)
    prefill: PrefillState = field(default_factory=PrefillState)
    durations: Durations = field(default_factory=Durations)
    cancelled: bool = False
    failure: RtDrama3Error | None = None
    phase: Phase = Phase.IDLE
    prompt: Prompt | None = None
    segments: list[tuple[str, int]] = field(default_factory=list)
    spoken: Turns = field(default_factory=list)
    codes: list[Codes] = field(default_factory=list)
    frames: int = 0
    silent_segments: int = 0
    steps: int = 0
    epoch: int = 0
    held: tuple[Codes, float] | None = None
    busy: bool = False
    paused_since: float | None = None
    paused_at: float = 0.0
    complete: bool = True

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Lets an error in the block end this stream alone (any thread)."""
        failure: RtDrama3Error
        try:
            yield
        except RtDrama3Error as error:
            failure = error
        except Exception as error:
            log.error("a stream failed", exc_info=error)
            failure = DeviceError(
                f"the stream failed: {error}; see the log. Other streams are not affected."
            )
        else:
            return
        self.failure = self.failure or failure  # the first error is the cause
        self.wake()

    def cancel(self) -> None:
        """Ends it at the next turn of the engine (any thread)."""
        self.cancelled = True
        self.wake()

    @property
    def request(self) -> SpeechRequest:
        return self.speech.request

    @property
    def width(self) -> int:
        """Number of slots that the present segment needs."""
        return 1 if self.prompt is None else self.prompt.width

    @property
    def cached_rows(self) -> int:
        """Rows in its slot; of a pair, in the fuller one."""
        return max(self.prefill.read, self.prefill.unconditional_read) + self.steps

    @property
    def known_rows(self) -> int:
        """Rows of the next segment's prompt that are certain by now."""
        if self.prompt is None:
            return 0
        return len(self.prompt.opening) + len(self.codes) if self.remembers else self.system_rows

    @property
    def system_rows(self) -> int:
        """Rows of the system block."""
        return 0 if self.prompt is None else self.prompt.system_rows

    def next_rows(self, start: int, end: int, semantic_start: int) -> Codes:
        """Those rows from ``start`` to before ``end``: int64 ``[T, 1 + num_codebooks]``."""
        assert self.prompt is not None
        opening = len(self.prompt.opening)
        rows = self.prompt.opening[start:end]
        frames = self.codes[max(0, start - opening) : max(0, end - opening)]
        if not frames:
            return rows
        codes = np.stack(frames)
        return np.concatenate([rows, np.hstack([semantic_start + codes[:, :1], codes])])

    def hook(self, unconditional: bool = False) -> LayerHook | None:
        """The steering to apply while one of the prompts is read."""
        if self.vectors is None or self.prompt is None:
            return None
        prompt = self.prompt
        return self.vectors.hook(
            prompt.unconditional_text_rows if unconditional else prompt.text_rows
        )

    def prompt_load(self, chunk: int, chunk_seconds: float, frame_seconds: float) -> float:
        """Share of realtime that reading the prompts of its next segments will take, estimated.

        Args:
            chunk: rows of a prefill chunk.
            chunk_seconds: the cost of one.
            frame_seconds: duration of a frame.
        """
        if self.prompt is None or (self.text.final and self.text.empty):
            return 0.0
        rows = len(self.prompt.rows) - self.system_rows
        frames = self.prompt.cap / CAP_MARGIN
        if self.spoken:
            frames = (self.frames - len(self.codes)) / len(self.spoken)
        else:  # the first and the latest segment will be in it
            rows += 2 * int(frames)
        return -(-rows // chunk) * chunk_seconds / (max(frames, 1) * frame_seconds)

    def earlier(self) -> list[tuple[str, npt.ArrayLike]]:
        """The turns of the scene before this stream."""
        return [*self.request.history, *self.scene.turns]

    def past(self) -> Turns:
        """The part of this stream that the next segment sees: its first and latest segment."""
        if not self.remembers:
            return []
        return self.spoken[:1] + self.spoken[1:][-1:]

    def unread_seconds(self) -> float:
        """Audio that was made and not taken by the listener."""
        return self.speech.unread_seconds + self.playout.undelivered_seconds()

    def summary(self, num_codebooks: int, sample_rate: int) -> SpeechSummary:
        """The summary so far."""
        grids = [codes for _, codes in self.spoken]
        if self.codes:
            grids.append(np.stack(self.codes, 1))
        empty = np.zeros((num_codebooks, 0), dtype=np.int64)
        whole = self.request.text if self.request.final else ""
        return SpeechSummary(
            segments=tuple(self.segments),
            codes=np.concatenate([empty, *grids], axis=1),
            sample_rate=sample_rate,
            seed=self.seed,
            complete=self.complete and not self.cancelled,
            cancelled=self.cancelled,
            delivered=self.playout.delivered,
            durations=self.durations,
            text=whole or " ".join(text for text, _ in self.segments),
        )
