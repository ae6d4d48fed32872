"""What a session tells its server after each message: what to do, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rt_drama3.protocol.utterance import Utterance


@dataclass(frozen=True)
class Start:
    """Open a stream for ``utterance.order``, then ``utterance.ready()``.

    Where others of the connection were not cancelled and still speak, it is spoken after them. One
    that has ``refused`` fails with that when its turn comes.
    """

    utterance: Utterance


@dataclass(frozen=True)
class Text:
    """Give the stream more text; it has passed every check but those of the engine."""

    utterance: Utterance
    text: str


@dataclass(frozen=True)
class Flush:
    """Speak what came so far without waiting for the end of its sentence."""

    utterance: Utterance


@dataclass(frozen=True)
class Finish:
    """No more text comes; ``utterance.done()`` when all of it was spoken."""

    utterance: Utterance


@dataclass(frozen=True)
class Cancel:
    """Stop the stream now, drop its audio, then send what ``utterance.cancelled()`` gives."""

    utterance: Utterance


@dataclass(frozen=True)
class Hush:
    """Nothing of the client runs, but what was spoken last may still sound elsewhere: end that.

    From a listener: everything that sounds, whoever has it spoken.
    """


@dataclass(frozen=True)
class Send:
    """Send this binary message to the client."""

    data: bytes


@dataclass(frozen=True)
class Close:
    """Close the connection; nothing more is read from it.

    Attributes:
        code: of the WebSocket close frame.
        reason: at most 123 bytes of ASCII.
    """

    code: int
    reason: str


Event: TypeAlias = Start | Text | Flush | Finish | Cancel | Hush | Send | Close
