"""EngineStream: everything the engine knows of one stream, and how its text becomes pieces."""

from __future__ import annotations

import enum
import secrets
import threading
from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch

from rt_drama3.codec_stream import CodecStream
from rt_drama3.config import SamplingConfig
from rt_drama3.errors import RequestError, RtDrama3Error
from rt_drama3.speech import Durations, Speech, SpeechRequest, SpeechSummary
from rt_drama3.text import check_text, flatten, split_text
from rt_drama3.text_cuts import spoken_so_far

Codes = npt.NDArray[np.int64]
LONGEST_PENDING = 1_000_000  # characters of text that may wait in one stream


class Phase(enum.Enum):
    """Where a stream stands."""

    IDLE = "waiting for text"
    PREPARING = "prompt being built"
    WAITING = "waiting for a slot"
    PREFILL = "prompt being read"
    SPEAKING = "frames being made"
    DONE = "ended"


class TextIntake:
    """Text as it arrives, given out in pieces to be spoken one after the other. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._growing = ""
        self._pieces: deque[str] = deque()
        self.count = 0  # pieces given out or waiting
        self.final = False

    def set_whole(self, text: str) -> None:
        """Takes all of the text at once; sentences then share pieces where they fit.

        Raises:
            RequestError: the text is empty or cannot be spoken.
        """
        check_text(text)
        with self._lock:
            self._add(text)
            self.final = True

    def push(self, text: str) -> None:
        """Adds text; its whole sentences become pieces.

        Raises:
            RequestError: the text is final already, cannot be spoken, or is too long.
        """
        with self._lock:
            if self.final:
                raise RequestError(
                    "the text of this stream is finished; open a new stream for more."
                )
            if text.strip():
                check_text(self._growing + text)
            if len(self._growing) + len(text) + sum(map(len, self._pieces)) > LONGEST_PENDING:
                raise RequestError(
                    f"more than {LONGEST_PENDING} characters wait to be spoken; send text later."
                )
            self._growing += text
            whole = spoken_so_far(self._growing)
            ready, growing = self._growing[:whole], self._growing[whole:]
            self._add(ready)
            self._growing = growing

    def flush(self) -> None:
        """Makes pieces of everything.

        Raises:
            RequestError: the text cannot be spoken.
        """
        with self._lock:
            self._add(self._growing)
            self._growing = ""

    def finish(self) -> None:
        """Flushes; no more text comes."""
        self.flush()
        self.final = True

    def next_piece(self) -> str | None:
        """The next piece of text, or None while there is none."""
        with self._lock:
            return self._pieces.popleft() if self._pieces else None

    def empty(self) -> bool:
        """Whether nothing waits to be spoken now."""
        with self._lock:
            return not self._pieces

    def _add(self, text: str) -> None:
        if flatten(text).strip():
            pieces = split_text(text)
            self._pieces.extend(pieces)
            self.count += len(pieces)


@dataclass(eq=False)
class EngineStream:
    """One stream inside the engine. Fields belong to the device thread unless said otherwise.

    Attributes:
        speech: the client's handle.
        text: pieces to come (thread-safe).
        sampling, seed: of every draw.
        codec: frames to PCM.
        accepted: when it was opened.
        voice: references as codes, once prepared.
        rows: prompt of the present piece, int64 ``[T, 1 + num_codebooks]`` on the device.
        system_rows, voice_key: its system block.
        read: prompt rows read so far.
        position: rows in the caches.
        cap: frames that the present piece may still make.
        failure: what to end it with (any thread sets it, the device thread acts).
        prefill_started: when it got its slot.
        epoch: counts pieces, to tell late results of an earlier one.
        held: a code-0 frame that is dropped if eos follows.
        delivered: frames that became chunks (codec thread).
        playing_since: when the first chunk was delivered (codec thread).
    """

    speech: Speech
    sampling: SamplingConfig
    seed: int
    codec: CodecStream
    accepted: float
    text: TextIntake = field(default_factory=TextIntake)
    phase: Phase = Phase.IDLE
    cancelled: bool = False
    failure: RtDrama3Error | None = None
    voice: list[tuple[str, Codes]] | None = None
    history: list[tuple[str, Codes]] = field(default_factory=list)
    spoken: list[tuple[str, Codes]] = field(default_factory=list)
    segments: list[tuple[str, int]] = field(default_factory=list)
    rows: torch.Tensor | None = None
    system_rows: int = 0
    voice_key: str = ""
    read: int = 0
    prefill_started: float = 0.0
    slot: int = -1
    position: int = 0
    cap: int = 0
    frames: int = 0
    epoch: int = 0
    piece_frames: list[Codes] = field(default_factory=list)
    held: tuple[Codes, float] | None = None
    prefilled: float = 0.0
    paused_since: float | None = None
    complete: bool = True
    delivered: int = 0
    playing_since: float | None = None
    durations: Durations = field(default_factory=Durations)

    @classmethod
    def open(
        cls, speech: Speech, sampling: SamplingConfig, codec: CodecStream, now: float
    ) -> EngineStream:
        """A stream for a request whose settings were checked."""
        request = speech.request
        seed = secrets.randbits(32) if request.seed is None else request.seed
        stream = cls(speech, sampling, seed, codec, now)
        stream.history = [(text, np.asarray(codes)) for text, codes in request.history]
        return stream

    @property
    def request(self) -> SpeechRequest:
        return self.speech.request

    def turns(self) -> list[tuple[str, Codes]]:
        """The history of the next piece: the request's, then the first and the latest piece."""
        return self.history + self.spoken[:1] + self.spoken[1:][-1:]

    def lead(self, now: float, frame_seconds: float) -> float:
        """Seconds of audio that the listener has beyond what it has played by ``now``."""
        if self.playing_since is None:
            return 0.0
        return self.codec.submitted * frame_seconds - (now - self.playing_since)

    def tell(self, summary: SpeechSummary) -> SpeechSummary:
        """The summary with what decoding added since (codec thread)."""
        return replace(summary, delivered=self.delivered)

    def summary(self, num_codebooks: int, sample_rate: int) -> SpeechSummary:
        """What became of it."""
        grids = [codes for _, codes in self.spoken]
        if self.piece_frames:
            grids.append(np.stack(self.piece_frames, 1))
        empty = np.zeros((num_codebooks, 0), dtype=np.int64)
        return SpeechSummary(
            segments=tuple(self.segments),
            codes=np.concatenate([empty, *grids], axis=1),
            sample_rate=sample_rate,
            seed=self.seed,
            complete=self.complete and not self.cancelled,
            cancelled=self.cancelled,
            delivered=self.delivered,
            durations=self.durations,
        )
