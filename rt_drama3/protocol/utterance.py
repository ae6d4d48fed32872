"""Utterance: one start..end on a connection, as the server holds it; the same in both dialects.

A server opens a stream for it and calls these methods as the stream proceeds; each returns the
messages to send, in order, perhaps none. None of them raises for a call that comes too late: after
the end (a cancel may cross with the last audio) there is nothing to send.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from rt_drama3.protocol.formats import split_audio
from rt_drama3.protocol.limits import ModelFacts, ProtocolLimits
from rt_drama3.protocol.order import SpeechOrder
from rt_drama3.protocol.refusals import Refused
from rt_drama3.protocol.text_gate import TextGate


class State(enum.Enum):
    """Where an utterance stands."""

    OPEN = "takes text"
    FINISHING = "speaks what is left"
    OVER = "ended"


class StampsLike(Protocol):
    """When audio passed each stage, in seconds of one clock; ``speech.Stamps`` is one."""

    @property
    def accepted(self) -> float: ...
    @property
    def prefilled(self) -> float: ...
    @property
    def sampled(self) -> tuple[float, float]: ...
    @property
    def decoded(self) -> float: ...


@dataclass(frozen=True)
class Outcome:
    """What became of the stream behind an utterance.

    Attributes:
        frames: generated.
        seed: that gives the same again.
        complete: the model ended every piece itself, no limit did.
        segments: pieces of text spoken.
        timings: milliseconds by stage, and ``rtf``.
        codes: int ``[num_codebooks, frames]``, sent where the client asked for its take.
        text: what was spoken, of the same take.
    """

    frames: int = 0
    seed: int = 0
    complete: bool = True
    segments: int = 0
    timings: Mapping[str, float] = field(default_factory=dict)
    codes: npt.NDArray[np.integer] | None = None
    text: str = ""


@dataclass
class Sent:
    """What went to the client: messages and bytes of audio, samples at the output rate."""

    messages: int = 0
    bytes: int = 0
    samples: int = 0


@dataclass(frozen=True)
class Piece:
    """Audio for one message.

    Attributes:
        data: bytes in the output's format.
        first_sample: samples before it, at the output rate; for encoded audio, samples that were
            given to the encoder before.
        samples: it brings; the first of several pieces of encoded audio brings all.
    """

    data: bytes
    first_sample: int
    samples: int


class Utterance(ABC):
    """What a server does with one utterance.

    Args:
        request_id: for logs and for the client.
        order: what to speak.
        facts, limits: of the server.
        clock: seconds, as ``time.monotonic``.

    Attributes:
        accepted: when it began, by the clock.
        sent: so far.
        state: where it stands; sessions change it.
        text: what came of its text, and how much waits.
        asked: when its first text came; None as long as there was none.
        first_audio: seconds from ``asked`` to the first message with audio.
        owes_cancelled: the client asked for a cancel and waits for its answer.
        refused: why its start cannot be served, where it has to wait for its turn to be told so.
        rests: what resampling holds back goes out when all text so far was spoken, at the price
            of a sample more than the frames are worth; not where messages count samples.
    """

    rests: ClassVar[bool] = False

    def __init__(
        self,
        request_id: str,
        order: SpeechOrder,
        facts: ModelFacts,
        limits: ProtocolLimits,
        clock: Callable[[], float],
    ) -> None:
        self.id = request_id
        self.order = order
        self.facts = facts
        self.limits = limits
        self.clock = clock
        self.accepted = clock()
        self.refused: Refused | None = None
        self.sent = Sent()
        self.state = State.FINISHING if order.final else State.OPEN
        self.text = TextGate(limits)
        self.asked = self.accepted if order.text.strip() else None
        self.first_audio: float | None = None
        self.owes_cancelled = False

    @property
    def owes_silence(self) -> bool:
        """Whether the client waits for sound of text that turned out to have none."""
        return False

    def take_text(self, text: str) -> str:
        """Takes a delta and returns what can pass now; see ``TextGate.push``.

        Raises:
            Refused: it cannot be taken.
        """
        passed = self.text.push(text)
        if self.asked is None and text.strip():
            self.asked = self.clock()
        return passed

    @abstractmethod
    def ready(self, voice: str = "") -> list[bytes]:
        """The stream is open; ``voice`` is the name of the one that will speak."""

    @abstractmethod
    def queued(self, position: int) -> list[bytes]:
        """So many others are in front."""

    @abstractmethod
    def segment(self, index: int, text: str, first_frame: int) -> list[bytes]:
        """From this frame on, this piece of the text is spoken."""

    def audio(self, data: bytes, samples: int, stamps: StampsLike | None = None) -> list[bytes]:
        """Audio, in the output's format; call it when the messages are about to be sent.

        Args:
            data: whole samples where it is PCM, perhaps behind a header; empty while an encoder
                still gathers.
            samples: how many it stands for, at the output rate.
            stamps: of the chunk it was made from.
        """
        if self.state is State.OVER:
            return []
        if data and self.first_audio is None:
            began = self.accepted if self.asked is None else self.asked
            self.first_audio = self.clock() - began
        pieces = list(self._pieces(data, samples))
        self.sent.samples += samples
        self.sent.messages += len(pieces)
        self.sent.bytes += len(data)
        number = self.sent.messages - len(pieces)
        return [self._audio_message(number + n, piece, stamps) for n, piece in enumerate(pieces)]

    def done(self, outcome: Outcome) -> list[bytes]:
        """All of it was spoken and sent."""
        if self.state is State.OVER:
            return []
        messages = self._done_messages(outcome)
        self._end()
        return messages

    def cancelled(self, generated_frames: int) -> list[bytes]:
        """The stream stopped after a ``Cancel``; calling it again sends nothing."""
        return []

    def waiting(self, characters: int) -> None:
        """So many characters of its text wait in the engine now; makes room for more text."""
        self.text.pending = characters

    def stop(self, answer: bool) -> None:
        """The session ended it; ``answer`` is whether the client is owed a ``cancelled``."""
        self._end()
        self.owes_cancelled = answer

    def output_samples(self, frames: int) -> int:
        """Frames of the model as samples at the output rate."""
        samples = frames * self.facts.frame_samples
        return samples * self.order.output.sample_rate // self.facts.sample_rate

    @abstractmethod
    def _audio_message(self, number: int, piece: Piece, stamps: StampsLike | None) -> bytes: ...

    @abstractmethod
    def _done_messages(self, outcome: Outcome) -> list[bytes]: ...

    def _end(self) -> None:
        self.state = State.OVER

    def _pieces(self, data: bytes, samples: int) -> Sequence[Piece]:
        width = self.order.output.kind.sample_bytes
        header = len(data) - samples * width
        before, pieces, place = self.sent.samples, [], 0
        for part in split_audio(data, self.limits.audio_bytes, width):
            place += len(part)
            past = max(0, place - header) // width if width else samples
            first = self.sent.samples + past
            pieces.append(Piece(part, before, first - before))
            before = first
        return pieces
