"""Utterance: one start..end on a connection, as the server holds it; the same in both dialects.

A server opens a stream for it and reports to these methods what the stream does; their messages go
into the session's outgoing queue. Reports after the end are ignored (a cancel may cross with the
last audio).
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rt_drama3.protocol.formats import split_audio
from rt_drama3.protocol.limits import ModelFacts, ProtocolLimits
from rt_drama3.protocol.order import SpeechOrder
from rt_drama3.protocol.text_buffer import TextBuffer


class State(enum.Enum):
    """Where an utterance stands."""

    OPEN = "takes text"
    FINISHING = "speaks what is left"
    OVER = "ended"


class StampsLike(Protocol):
    """When audio passed each stage, in seconds of one clock; see the engine's ``Stamps``."""

    @property
    def accepted(self) -> float: ...
    @property
    def prefilled(self) -> float: ...
    @property
    def sampled(self) -> tuple[float, float]: ...
    @property
    def decoded(self) -> float: ...


class Padding(enum.Enum):
    """What to send when a stream has nothing to speak, for now or at its end."""

    NONE = "nothing"
    TAIL = "the samples that the resampler holds back"
    SILENCE = "a moment of silence: the client waits for sound, and its text had none"


@dataclass(frozen=True)
class Outcome:
    """The result of the stream behind an utterance.

    Attributes:
        frames: generated.
        seed: reproduces the same speech.
        complete: the model ended every segment itself; no limit did.
        segments: number of segments spoken.
        timings: milliseconds by stage, and ``rtf``.
        codes: int ``[num_codebooks, frames]``, sent if the client asked for its take.
        text: the spoken text, for the same take.
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
    """Audio sent to the client: messages, bytes, and samples at the output rate."""

    messages: int = 0
    bytes: int = 0
    samples: int = 0


@dataclass(frozen=True)
class AudioPart:
    """Audio for one message.

    Attributes:
        data: bytes in the output's format.
        first_sample: samples before it, at the output rate; for encoded audio, samples that were
            given to the encoder before.
        samples: in this message; the first of several parts of encoded audio counts them all.
    """

    data: bytes
    first_sample: int
    samples: int


class Utterance(ABC):
    """One utterance, as the server sees it.

    Args:
        request_id: for logs and for the client.
        order: what to speak.
        facts, limits: those of the server.
        clock: seconds, as ``time.monotonic``.
        send: puts a message into the session's outgoing queue.

    Attributes:
        accepted: when it began, by the clock.
        sent: audio sent so far.
        state: changed by the session.
        text: checks and counts its text.
        asked: when its first text arrived; None before.
        first_audio: seconds from ``asked`` to the first message with audio.
    """

    def __init__(
        self,
        request_id: str,
        order: SpeechOrder,
        facts: ModelFacts,
        limits: ProtocolLimits,
        clock: Callable[[], float],
        send: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self.id = request_id
        self.order = order
        self.facts = facts
        self.limits = limits
        self.clock = clock
        self.accepted = clock()
        self._send = send
        self.sent = Sent()
        self.state = State.FINISHING if order.final else State.OPEN
        self.text = TextBuffer(limits)
        self.asked = self.accepted if order.text.strip() else None
        self.first_audio: float | None = None
        self._answers_cancel = False

    def take_text(self, text: str) -> str:
        """Takes a delta and returns the text to pass on now; see ``TextBuffer.push``.

        Raises:
            Refused: the delta cannot be accepted.
        """
        passed = self.text.push(text)
        if self.asked is None and text.strip():
            self.asked = self.clock()
        return passed

    def ready(self, voice: str = "", order: SpeechOrder | None = None) -> None:
        """The stream is open.

        Args:
            voice: name of the voice that will speak.
            order: the order as the server opened it, with its notices; None leaves it unchanged.
        """
        if order is not None:
            self.order = order
        if self.state is not State.OVER:
            self._say_ready(voice)

    @abstractmethod
    def queued(self, position: int) -> None:
        """The stream waits in the queue behind ``position`` others."""

    @abstractmethod
    def segment(self, index: int, text: str, first_frame: int) -> None:
        """A segment of the text begins at this frame."""

    def notice(self, text: str) -> None:  # noqa: B027 - not in every dialect
        """Something of its text is not spoken."""

    def audio(self, data: bytes, samples: int, stamps: StampsLike | None = None) -> None:
        """Audio in the output's format; call it when the messages are about to be sent.

        Args:
            data: whole samples if it is PCM, perhaps after a header; empty while an encoder still
                gathers input.
            samples: how many it stands for, at the output rate.
            stamps: of the chunk that it was made from.
        """
        if self.state is State.OVER:
            return
        if data and self.first_audio is None:
            began = self.accepted if self.asked is None else self.asked
            self.first_audio = self.clock() - began
        parts = self._parts(data, samples)
        number = self.sent.messages
        self.sent.samples += samples
        self.sent.messages += len(parts)
        self.sent.bytes += len(data)
        for n, part in enumerate(parts):
            self._send(self._audio_message(number + n, part, stamps))

    def done(self, outcome: Outcome) -> None:
        """Everything was spoken and sent."""
        if self.state is not State.OVER:
            self._send(self._done_message(outcome))
            self._end()

    def cancelled(self, generated_frames: int) -> None:
        """The stream stopped after a ``Cancel``; further calls are ignored."""
        if self._answers_cancel:
            self._answers_cancel = False
            self._say_cancelled(generated_frames)

    def waiting(self, characters: int) -> None:
        """That many characters of its text wait in the engine; makes room for more text."""
        self.text.pending = characters

    def padding(self, ended: bool) -> Padding:
        """What to send now that the stream is idle, or has ended."""
        return Padding.NONE

    def stop(self, answer: bool) -> None:
        """Ends it for the session; ``answer``: the client waits for a ``cancelled``."""
        self._end()
        self._answers_cancel = answer

    def _say_cancelled(self, generated_frames: int) -> None:  # noqa: B027 - not in every dialect
        pass

    def output_samples(self, frames: int) -> int:
        """Converts the model's frames to samples at the output rate."""
        samples = frames * self.facts.frame_samples
        return samples * self.order.output.sample_rate // self.facts.sample_rate

    @abstractmethod
    def _say_ready(self, voice: str) -> None: ...

    @abstractmethod
    def _audio_message(
        self, number: int, part: AudioPart, stamps: StampsLike | None
    ) -> Mapping[str, Any]: ...

    @abstractmethod
    def _done_message(self, outcome: Outcome) -> Mapping[str, Any]: ...

    def _end(self) -> None:
        self.state = State.OVER

    def _parts(self, data: bytes, samples: int) -> Sequence[AudioPart]:
        width = self.order.output.kind.sample_bytes
        header = len(data) - samples * width
        before, parts, place = self.sent.samples, [], 0
        for part in split_audio(data, self.limits.audio_bytes, width):
            place += len(part)
            past = max(0, place - header) // width if width else samples
            first = self.sent.samples + past
            parts.append(AudioPart(part, before, first - before))
            before = first
        return parts
