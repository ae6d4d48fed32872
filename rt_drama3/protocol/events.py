"""What a session asks of its server after each message: what to do, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rt_drama3.protocol.refusals import Refused
    from rt_drama3.protocol.utterance import Utterance


@dataclass(frozen=True)
class Start:
    """Open a stream for ``utterance.order``, then call ``utterance.ready()``.

    It is spoken after those utterances of the connection that still speak and were not cancelled.

    Attributes:
        refused: the error that it fails with when its turn comes, if it cannot be served.
    """

    utterance: Utterance
    refused: Refused | None = None


@dataclass(frozen=True)
class Text:
    """Give the stream more text, which has passed every check but the engine's."""

    utterance: Utterance
    text: str


@dataclass(frozen=True)
class Flush:
    """Speak the text so far without waiting for the end of its sentence."""

    utterance: Utterance


@dataclass(frozen=True)
class Finish:
    """No more text comes; call ``utterance.done()`` when all of it was spoken."""

    utterance: Utterance


@dataclass(frozen=True)
class Cancel:
    """Stop the stream and drop its audio, then call ``utterance.cancelled()``.

    Attributes:
        answer: whether the client waits for that answer.
    """

    utterance: Utterance
    answer: bool = False


@dataclass(frozen=True)
class Mute:
    """Mute what still plays elsewhere of this client's earlier speech; nothing of it runs.

    From a listener: mute everything that plays, of every client.
    """


Event: TypeAlias = Start | Text | Flush | Finish | Cancel | Mute
