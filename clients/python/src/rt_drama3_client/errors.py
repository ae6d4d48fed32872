"""Every error of the client: what happened, whether to try again, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Received:
    """What had come of an utterance when it ended early.

    Attributes:
        messages: with audio.
        samples: they stand for, at the output rate.
        seconds: the same as time.
        text: the pieces of text whose audio had begun.
        audio: the audio itself, where ``read`` was collecting it; whoever iterates has it already.
    """

    messages: int = 0
    samples: int = 0
    seconds: float = 0.0
    text: tuple[str, ...] = ()
    audio: bytes | None = None


class ClientError(Exception):
    """Base of all errors of this package.

    Attributes:
        code: a word for programs.
        message: what was wrong, with the value.
        remedy: what to do about it; may be empty.
        retriable: whether the same request may succeed later or elsewhere.
        request_id: what the server calls the utterance in its logs; None where it has no name.
        received: what had come of the utterance before.
    """

    code = "client_error"
    remedy = ""
    retriable = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        remedy: str | None = None,
        retriable: bool | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = self.code if code is None else code
        self.remedy = self.remedy if remedy is None else remedy
        self.retriable = self.retriable if retriable is None else retriable
        self.request_id = request_id
        self.received = Received()

    def __str__(self) -> str:
        parts = [self.message, self.remedy]
        if self.received.messages:
            parts.append(f"{self.received.seconds:.2f} s of audio had come.")
        if self.request_id:
            parts.append(f"(request {self.request_id})")
        return " ".join(part for part in parts if part)


class UsageError(ClientError, ValueError):
    """The client was called in a way that cannot work; nothing was sent."""

    code = "usage"


class ConnectFailed(ClientError, ConnectionError):  # noqa: N818 - the name is the condition
    """No connection could be opened."""

    code = "connect_failed"
    remedy = "Check the address, and that the server runs."
    retriable = True


class ConnectionLost(ClientError, ConnectionError):  # noqa: N818
    """The connection ended in the middle."""

    code = "connection_lost"
    remedy = "Speak again what was not heard."
    retriable = True


class ServerSilent(ClientError, TimeoutError):  # noqa: N818
    """The server did not answer in time."""

    code = "timeout"
    remedy = "Try again, or raise the timeout."
    retriable = True


class BadServerMessage(ClientError):  # noqa: N818
    """What came is not a message of the protocol."""

    code = "bad_server_message"
    remedy = "Check that the address is an rt-drama3 server, and that its version fits."


class SpeechCancelled(ClientError):  # noqa: N818
    """The utterance was cancelled while somebody still pushed text or read its audio."""

    code = "cancelled"


class ClientClosed(ClientError):  # noqa: N818
    """The client was closed."""

    code = "closed"
    remedy = "Make another client."


class ServerError(ClientError):
    """The server refused or failed; subclasses tell the common kinds.

    Attributes:
        scope: what it ended: ``message``, ``utterance``, ``connection`` or ``request`` (HTTP).
        retry_after: seconds after which to ask again; None where the server did not say.
    """

    scope = "utterance"
    retry_after: float | None = None


class BadRequest(ServerError):  # noqa: N818
    """Something in the request is wrong; sending it again will not help."""


class UnknownVoice(BadRequest):
    """No voice of that name is stored."""


class AccessDenied(ServerError):  # noqa: N818
    """The key is missing or wrong, or this origin may not connect."""


class Overloaded(ServerError):  # noqa: N818
    """More is asked of the server, or of this connection, than can be served now."""


class Unavailable(ServerError):  # noqa: N818
    """The server is starting or stopping, its engine failed, or its operator stopped the speech."""


class TooSlow(ServerError):  # noqa: N818
    """The audio was not read as fast as it is played, and the server ended it."""


class IdleTooLong(ServerError):  # noqa: N818
    """The connection was not used for long."""


class ServerFailed(ServerError):  # noqa: N818
    """A fault of the server; its operator finds more under the request id."""


_KINDS: dict[type[ServerError], tuple[str, ...]] = {
    BadRequest: (
        *("bad_message", "too_large", "too_complex", "unknown_type", "unsupported_version"),
        *("unsupported_media_type", "bad_field", "unsupported_format", "out_of_order"),
        *("bad_text", "text_too_long", "bad_reference", "bad_request", "too_many_errors"),
        "no_such_route",
    ),
    UnknownVoice: ("unknown_voice",),
    AccessDenied: ("unauthorized", "forbidden"),
    Overloaded: ("overloaded", "backlog_full", "too_many_messages"),
    Unavailable: ("not_ready", "shutting_down", "engine_failed", "stopped"),
    TooSlow: ("slow_client",),
    IdleTooLong: ("idle",),
    ServerFailed: ("internal",),
}
_BY_CODE = {code: kind for kind, codes in _KINDS.items() for code in codes}


def server_error(
    code: str,
    message: str,
    *,
    remedy: str = "",
    retriable: bool = False,
    request_id: str | None = None,
    scope: str = "utterance",
) -> ServerError:
    """The error of the class that fits the code; ``ServerError`` itself for an unknown one."""
    kind = _BY_CODE.get(code, ServerError)
    error = kind(message, code=code, remedy=remedy, retriable=retriable, request_id=request_id)
    error.scope = scope
    return error
