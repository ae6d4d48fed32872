"""EngineStream: everything the engine knows of one stream, and how its text becomes pieces."""

from __future__ import annotations

import enum
import logging
import math
import secrets
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch

from rt_drama3.codec_stream import CodecStream
from rt_drama3.config import SamplingConfig
from rt_drama3.engine.guidance import Direction
from rt_drama3.engine.speech import Durations, Queued, Speech, SpeechRequest, SpeechSummary
from rt_drama3.errors import DeviceError, RequestError, RtDrama3Error
from rt_drama3.model import Snapshot
from rt_drama3.text.cutting import size, spoken_so_far
from rt_drama3.text.directions import spoken_words
from rt_drama3.text.rules import (
    SEGMENT_BYTES,
    check_part,
    check_text,
    flatten,
    last_speaker_tag,
    split_text,
    with_speaker_tag,
)

log = logging.getLogger(__name__)

Codes = npt.NDArray[np.int64]
LONGEST_PENDING = 1_000_000  # characters of text that may wait in one stream
LONGEST_SENTENCE = 2 * SEGMENT_BYTES  # bytes after which the end of a sentence is not waited for
CAP_MARGIN = 3  # a piece may take about three times the frames that it usually does
LONGEST_TOKEN = 24  # characters; a special token may arrive in parts


class Phase(enum.Enum):
    """Where a stream stands."""

    IDLE = "waiting for text"
    PREPARING = "prompt being built"
    WAITING = "waiting for a slot"
    PREFILL = "prompt being read"
    SPEAKING = "frames being made"
    DONE = "ended"


class TextIntake:
    """Text as it arrives, given out in pieces to be spoken one after the other. Thread-safe.

    What is refused changes nothing: the text before it is still there.

    Attributes:
        count: pieces given out or waiting.
        final: no more text comes.
        reads_directions: the checkpoint makes something of them; otherwise pieces go without.
        longest: UTF-8 bytes of a piece.
    """

    def __init__(self) -> None:
        self._pushing = threading.Lock()  # held while text is looked at, which may take long
        self._lock = threading.Lock()  # guards the pieces
        self._growing = ""
        self._speaker = ""  # tag of the turn that the text is in
        self._pieces: deque[str] = deque()
        self._waiting = 0  # characters in the pieces
        self._flushed = False
        self.count = 0
        self.final = False
        self.reads_directions = True
        self.longest = SEGMENT_BYTES

    def set_whole(self, text: str) -> None:
        """Takes all of the text at once; sentences then share pieces where they fit.

        Raises:
            RequestError: the text is empty or cannot be spoken.
        """
        check_text(text)
        with self._pushing:
            self._add(text)
            self.final = True

    def push(self, text: str) -> None:
        """Adds text; its whole sentences become pieces.

        Raises:
            RequestError: the text is final already, cannot be spoken, or is too long.
        """
        with self._pushing:
            if self.final:
                raise RequestError(
                    "the text of this stream is finished; open a new stream for more."
                )
            if not isinstance(text, str):
                raise RequestError(f"text must be a string, not {type(text).__name__}.")
            growing = self._growing + text
            check_part(_arrived(growing))
            if len(growing) + self._waiting > LONGEST_PENDING:
                raise RequestError(
                    f"more than {LONGEST_PENDING} characters wait to be spoken; send text later."
                )
            whole = spoken_so_far(growing)
            ready, growing = growing[:whole], growing[whole:]
            if size(growing) > LONGEST_SENTENCE:  # it would be cut anyway
                *cut, rest = split_text(growing, self.longest) or [""]
                ready, growing = " ".join([ready, *cut]), rest + growing[len(growing.rstrip()) :]
            self._add(ready)
            self._growing = growing

    def flush(self) -> None:
        """Makes pieces of everything.

        Raises:
            RequestError: the text cannot be spoken; it is dropped.
        """
        with self._pushing:
            self._flush()
            self._flushed = True

    def finish(self) -> None:
        """Flushes; no more text comes.

        Raises:
            RequestError: what was left of the text cannot be spoken; it is dropped.
        """
        with self._pushing:
            try:
                self._flush()
            finally:
                self.final = True

    def next_piece(self) -> str | None:
        """The next piece of text, or None while there is none."""
        with self._lock:
            if not self._pieces:
                return None
            piece = self._pieces.popleft()
            self._waiting -= len(piece)
            return piece

    def empty(self) -> bool:
        """Whether nothing waits to be spoken now."""
        return not self._pieces

    @property
    def waiting(self) -> int:
        """Characters that were not given out yet."""
        return self._waiting + len(self._growing)

    def take_flushed(self) -> bool:
        """Whether there was a flush since the last call."""
        flushed, self._flushed = self._flushed, False
        return flushed

    def begun(self) -> bool:
        """Whether a sentence has begun that is not whole yet."""
        return bool(self._growing.strip())

    def _flush(self) -> None:
        text, self._growing = self._growing, ""
        self._add(check_part(text))

    def _add(self, text: str) -> None:
        if not self.reads_directions:
            text = spoken_words(text)
        if not flatten(text).strip():
            return
        own = with_speaker_tag(text) == text
        pieces = split_text(text if own else self._speaker + text, self.longest)
        self._speaker = last_speaker_tag(text) or self._speaker
        with self._lock:
            self._pieces.extend(pieces)
            self._waiting += sum(map(len, pieces))
            self.count += len(pieces)


def _arrived(text: str) -> str:
    """The text without a special token at its end that is still arriving."""
    start = text.rfind("<|")
    arriving = start >= 0 and len(text) - start < LONGEST_TOKEN and "|>" not in text[start:]
    return text[:start] if arriving else text


@dataclass(eq=False)
class ReadAhead:
    """The part of a stream's next prompt that was read while it speaks the present piece.

    Attributes:
        blocks: the rows read, ``[T, 1 + num_codebooks]`` each.
        read: how many those are in all.
        snapshot: the state behind them; None while it is in the spare slot.
    """

    blocks: list[torch.Tensor] = field(default_factory=list)
    read: int = 0
    snapshot: Snapshot | None = None

    def note(self, rows: torch.Tensor) -> None:
        """Counts rows as read."""
        self.blocks.append(rows)
        self.read += len(rows)


@dataclass(eq=False)
class EngineStream:
    """One stream inside the engine. Fields belong to the device thread unless said otherwise.

    Attributes:
        speech: the client's handle.
        text: pieces to come (thread-safe).
        sampling, seed: of every draw.
        codec: frames to PCM.
        accepted: when it was opened.
        wake: makes the device thread look at it.
        direction: what directs it.
        wanted: until when text came for it, or was heard, so far (see ``engine_places``).
        rested: when its last piece was made.
        asked: when its present turn began.
        queued: where its client knows it in the queue.
        busy: it became busy since its latest ``Idle`` event.
        fresh: nothing of that turn was spoken yet.
        voice: references as codes, once prepared.
        rows: prompt of the present piece, int64 ``[T, 1 + num_codebooks]`` on the device.
        system_rows, voice_key: its system block.
        read: prompt rows read so far.
        opening: the rows that the next piece's prompt begins with, before the codes of this one.
        ahead: what was read of that prompt already.
        position: rows in the caches.
        remembers: a piece sees earlier ones.
        cap: frames that the present piece may still make.
        failure: what to end it with (any thread sets it, the device thread acts).
        prefill_started: when it got its slot.
        epoch: counts pieces, to tell late results of an earlier one.
        held: a code-0 frame that is dropped if eos follows.
        paused_since, paused_at: when its listener last took audio while it is paused, and how many
            seconds were left to take.
        delivered: frames that became chunks (codec thread).
        announced: segments whose ``Segment`` event was put (codec thread).
        playing_since: when a player that never waits longer than it must would have begun, had it
            played everything without a gap (codec thread).
    """

    speech: Speech
    sampling: SamplingConfig
    seed: int
    codec: CodecStream
    accepted: float
    wake: Callable[[], None]
    direction: Direction = field(default_factory=Direction)
    text: TextIntake = field(default_factory=TextIntake)
    phase: Phase = Phase.IDLE
    wanted: float = -math.inf
    rested: float = -math.inf
    asked: float = 0.0
    queued: Queued | None = None
    busy: bool = False
    fresh: bool = True
    cancelled: bool = False
    failure: RtDrama3Error | None = None
    voice: list[tuple[str, Codes]] | None = None
    spoken: list[tuple[str, Codes]] = field(default_factory=list)
    segments: list[tuple[str, int]] = field(default_factory=list)
    rows: torch.Tensor | None = None
    system_rows: int = 0
    voice_key: str = ""
    read: int = 0
    opening: Codes = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    ahead: ReadAhead | None = None
    prefill_started: float = 0.0
    slot: int = -1
    position: int = 0
    remembers: bool = True
    cap: int = 0
    frames: int = 0
    epoch: int = 0
    piece_frames: list[Codes] = field(default_factory=list)
    held: tuple[Codes, float] | None = None
    prefilled: float = 0.0
    paused_since: float | None = None
    paused_at: float = 0.0
    complete: bool = True
    delivered: int = 0
    announced: int = 0
    playing_since: float | None = None
    durations: Durations = field(default_factory=Durations)

    @classmethod
    def open(
        cls,
        speech: Speech,
        sampling: SamplingConfig,
        codec: CodecStream,
        now: float,
        wake: Callable[[], None],
        direction: Direction | None = None,
    ) -> EngineStream:
        """A stream for a request whose settings were checked."""
        request = speech.request
        seed = secrets.randbits(32) if request.seed is None else int(request.seed)
        return cls(speech, sampling, seed, codec, now, wake, direction or Direction())

    def attempt(self, work: Callable[[EngineStream], object]) -> None:
        """Does a part of its work so that a failure ends this stream alone (any thread)."""
        failure: RtDrama3Error
        try:
            work(self)
        except RtDrama3Error as error:
            failure = error
        except Exception as error:
            log.error("a stream failed", exc_info=error)
            failure = DeviceError(
                f"the stream failed: {error}; the log has the details. Others go on."
            )
        else:
            return
        self.failure = self.failure or failure  # the first tells most
        self.wake()

    @property
    def request(self) -> SpeechRequest:
        return self.speech.request

    @property
    def known_rows(self) -> int:
        """Rows of the next piece's prompt that are certain by now."""
        if not self.remembers:
            return self.system_rows
        return len(self.opening) + len(self.piece_frames)

    def next_rows(self, start: int, end: int, semantic_start: int) -> Codes:
        """Those rows from ``start`` to before ``end``: int64 ``[T, 1 + num_codebooks]``."""
        opening = len(self.opening)
        rows = self.opening[start:end]
        frames = self.piece_frames[max(0, start - opening) : max(0, end - opening)]
        if not frames:
            return rows
        codes = np.stack(frames)
        return np.concatenate([rows, np.hstack([semantic_start + codes[:, :1], codes])])

    def prompt_load(self, block: int, block_seconds: float, frame_seconds: float) -> float:
        """Share of realtime that reading the prompts of its pieces to come will take, about.

        Args:
            block: rows of a prompt block.
            block_seconds: what one costs.
            frame_seconds: of audio.
        """
        if self.rows is None or (self.text.final and self.text.empty()):
            return 0.0
        rows, frames = len(self.rows) - self.system_rows, self.cap / CAP_MARGIN
        if self.spoken:
            frames = sum(codes.shape[1] for _, codes in self.spoken) / len(self.spoken)
        else:  # the first and the latest piece will be in it
            rows += 2 * int(frames)
        return -(-rows // block) * block_seconds / (max(frames, 1) * frame_seconds)

    def earlier(self) -> list[tuple[str, npt.ArrayLike]]:
        """The turns of the scene before this stream."""
        return [*self.request.history, *self.direction.turns]

    def past(self) -> list[tuple[str, Codes]]:
        """What the next piece sees of this stream: the first and the latest piece, if any."""
        if not self.remembers:
            return []
        return self.spoken[:1] + self.spoken[1:][-1:]

    @property
    def resting(self) -> bool:
        """Whether it waits for text and everything before was delivered."""
        # The phase first: it is set behind the last frames of a piece, by another thread.
        idle = self.phase is Phase.IDLE and self.text.empty()
        return idle and self.delivered == self.codec.submitted

    def lead(self, now: float, frame_seconds: float) -> float:
        """Seconds of audio that the listener has beyond what it has played by ``now``."""
        if not self.request.audio:
            return math.inf
        if self.playing_since is None:
            return 0.0
        return self.codec.submitted * frame_seconds - (now - self.playing_since)

    def unheard(self, now: float, frame_seconds: float) -> float:
        """Seconds for which a listener will hear what was made so far, at least."""
        if not self.request.audio:
            return 0.0
        if self.playing_since is None:
            return self.codec.submitted * frame_seconds
        return max(0.0, self.lead(now, frame_seconds))

    def play(self, frames: int, now: float, frame_seconds: float) -> None:
        """Notes that frames were delivered (codec thread); a player that ran dry begins anew."""
        begun = now - self.delivered * frame_seconds
        if self.playing_since is None or self.playing_since < begun:
            self.playing_since = begun
        self.delivered += frames

    def untaken(self, frame_seconds: float) -> float:
        """Seconds of audio that were made and not taken by the listener."""
        waiting = self.codec.submitted - self.delivered
        return self.speech.unread_seconds + waiting * frame_seconds

    def tell(self, summary: SpeechSummary) -> SpeechSummary:
        """The summary with what decoding added since (the codec's thread, or after a cancel)."""
        return replace(summary, delivered=self.delivered)

    def summary(self, num_codebooks: int, sample_rate: int) -> SpeechSummary:
        """What became of it."""
        grids = [codes for _, codes in self.spoken]
        if self.piece_frames:
            grids.append(np.stack(self.piece_frames, 1))
        empty = np.zeros((num_codebooks, 0), dtype=np.int64)
        whole = self.request.text if self.request.final else ""
        return SpeechSummary(
            segments=tuple(self.segments),
            codes=np.concatenate([empty, *grids], axis=1),
            sample_rate=sample_rate,
            seed=self.seed,
            complete=self.complete and not self.cancelled,
            cancelled=self.cancelled,
            delivered=self.delivered,
            durations=self.durations,
            text=whole or " ".join(piece for piece, _ in self.segments),
        )
