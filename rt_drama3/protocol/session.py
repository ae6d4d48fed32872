"""Session: what the two dialects have in common; one connection, without a socket."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Generic, TypeVar

from rt_drama3.errors import RtDrama3Error
from rt_drama3.protocol.budget import Budget
from rt_drama3.protocol.events import Cancel, Event, Flush, Text
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.limits import ModelFacts, ProtocolLimits
from rt_drama3.protocol.refusals import Refused, as_refused
from rt_drama3.protocol.utterance import State, Utterance
from rt_drama3.protocol.wire import unpack

U = TypeVar("U", bound=Utterance)
Handlers = Mapping[str, Callable[[Fields], list[Event]]]


def new_request_id() -> str:
    """A name for one utterance, in logs and at the client."""
    return secrets.token_hex(8)


class Session(ABC, Generic[U]):
    """The server's side of one connection.

    Feed every message to ``receive`` and do what the events say, in order. Nothing that a client
    sends makes it raise. Not for several threads at once.

    Args:
        facts, limits: of the server.
        clock: seconds, as ``time.monotonic``.
        new_id: makes request ids.
    """

    _key: ClassVar[str]  # the field that names a message's type

    def __init__(
        self,
        facts: ModelFacts,
        limits: ProtocolLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = new_request_id,
    ) -> None:
        self._facts = facts
        self._limits = limits or ProtocolLimits()
        self._clock = clock
        self._new_id = new_id
        self._budget = Budget(self._limits, clock)
        self._utterance: U | None = None
        self._closed = False
        self._handlers: Handlers = {}

    @property
    def idle(self) -> bool:
        """Whether no utterance is open.

        Clients of Fish's dialect that never stop keep one open for hours: only its stream tells
        whether anything is being spoken.
        """
        return self._running() is None

    def receive(
        self, data: bytes | bytearray | memoryview | str | Mapping[str, object] | Refused
    ) -> list[Event]:
        """Takes one message (str for a text message) and returns what to do, in order.

        Instead of a large message, what ``wire.unpack`` made of it in a thread: a map or an error.
        """
        if self._closed:
            return []
        if not self._budget.take_message():
            return self.close("too_many_messages", "more messages came than the server takes.")
        try:
            if isinstance(data, Refused):
                raise data
            message = data if isinstance(data, Mapping) else unpack(data, self._limits)
            kind = message.get(self._key)
            handler = self._handlers.get(kind) if isinstance(kind, str) else None
            return self._unknown(kind) if handler is None else handler(Fields(message))
        except Refused as error:
            return self._refuse(error)

    def close(self, code: str, message: str) -> list[Event]:
        """Ends the connection for a reason of the server's: idle, slow_client, shutting_down...

        Args:
            code: one of ``refusals.KINDS``.
            message: what happened, with the value.
        """
        return [] if self._closed else self._end_connection(Refused(code, message))

    def fail(self, utterance: U, error: RtDrama3Error) -> list[Event]:
        """The stream of an utterance ended with an error, or could not be opened.

        Nothing comes of it when the utterance had ended already.
        """
        if self._closed or utterance.state is State.OVER:
            return []
        return self._fail(utterance, as_refused(error))

    def disconnected(self) -> list[Event]:
        """The client is gone: what to stop."""
        self._closed = True
        return self._stop_running()

    @abstractmethod
    def _unknown(self, kind: object) -> list[Event]:
        """A message of an unknown type."""

    @abstractmethod
    def _refuse(self, error: Refused) -> list[Event]:
        """A message that was wrong."""

    @abstractmethod
    def _fail(self, utterance: U, error: Refused) -> list[Event]:
        """The running utterance failed."""

    @abstractmethod
    def _end_connection(self, error: Refused) -> list[Event]:
        """Stops what runs, says why, and closes."""

    def _flush(self, fields: Fields) -> list[Event]:
        running = self._running()
        if running is None or running.state is State.FINISHING or not running.text.unflushed:
            return []
        events = self._rest(running)
        return events if self._closed else [*events, Flush(running)]

    def _rest(self, running: U) -> list[Event]:
        """Text that the gate held; where it turns out unspeakable, the error about it."""
        try:
            rest = running.text.flush()
        except Refused as error:
            return self._refuse(error)
        return [Text(running, rest)] if rest else []

    def _running(self) -> U | None:
        last = self._utterance
        return None if last is None or last.state is State.OVER else last

    def _stop_running(self, *, answer: bool = False) -> list[Event]:
        running = self._running()
        return [] if running is None else self._stop_one(running, answer)

    def _stop_one(self, utterance: U, answer: bool = False) -> list[Event]:
        utterance.stop(answer)
        return [Cancel(utterance)]
