"""The client's errors: what happened, whether to retry, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Received:
    """What was received of an utterance that ended early.

    Attributes:
        messages: number of audio messages.
        samples: their samples, at the output rate.
        seconds: their duration.
        text: the segments whose audio had begun.
        audio: the audio itself, if ``read`` was collecting it; None when iterating.
    """

    messages: int = 0
    samples: int = 0
    seconds: float = 0.0
    text: tuple[str, ...] = ()
    audio: bytes | None = None


class ClientError(Exception):
    """Base of all errors of this package.

    Attributes:
        code: a stable identifier.
        message: what was wrong, with the value.
        remedy: what to do about it; may be empty.
        retriable: whether the same request may succeed later or elsewhere.
        request_id: the utterance's id in the server's logs; None if it has none.
        received: what was received of the utterance before.
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
            parts.append(f"{self.received.seconds:.2f} s of audio were received.")
        if self.request_id:
            parts.append(f"(request {self.request_id})")
        return " ".join(part for part in parts if part)


class UsageError(ClientError, ValueError):
    """The client was called with invalid arguments; nothing was sent."""

    code = "usage"


class ConnectFailed(ClientError, ConnectionError):  # noqa: N818 - the name is the condition
    """The connection could not be opened."""

    code = "connect_failed"
    remedy = "Check the address, and that the server is running."
    retriable = True


class ConnectionLost(ClientError, ConnectionError):  # noqa: N818
    """The connection was lost during an utterance."""

    code = "connection_lost"
    remedy = "Repeat the part that was not heard."
    retriable = True


class ServerSilent(ClientError, TimeoutError):  # noqa: N818
    """The server did not respond in time."""

    code = "timeout"
    remedy = "Try again, or increase the timeout."
    retriable = True


class BadServerMessage(ClientError):  # noqa: N818
    """The server sent something that is not a message of the protocol."""

    code = "bad_server_message"
    remedy = "Check that the address is an rt-drama3 server of a compatible version."


class SpeechCancelled(ClientError):  # noqa: N818
    """The utterance was cancelled while text was pushed or its audio was read."""

    code = "cancelled"


class ClientClosed(ClientError):  # noqa: N818
    """The client was closed."""

    code = "closed"
    remedy = "Create a new client."


class ServerError(ClientError):
    """The server refused the request or failed; there are subclasses for common kinds.

    Attributes:
        scope: what was ended: ``message``, ``utterance``, ``connection`` or ``request`` (HTTP).
        retry_after: seconds to wait before retrying; None if the server did not say.
    """

    scope = "utterance"
    retry_after: float | None = None


class BadRequest(ServerError):  # noqa: N818
    """The request is invalid; sending it again will not help."""


class UnknownVoice(BadRequest):
    """There is no stored voice of that name."""


class AccessDenied(ServerError):  # noqa: N818
    """The key is missing or wrong, or this origin may not connect."""


class Overloaded(ServerError):  # noqa: N818
    """The server, or this connection, is at capacity."""


class Unavailable(ServerError):  # noqa: N818
    """The server is starting or stopping, its engine failed, or an operator stopped the speech."""


class TooSlow(ServerError):  # noqa: N818
    """The audio was read more slowly than real time, and the server ended it."""


class IdleTooLong(ServerError):  # noqa: N818
    """The connection was idle for too long."""


class ServerFailed(ServerError):  # noqa: N818
    """An internal error of the server; its logs have details under the request id."""


_KINDS: dict[type[ServerError], tuple[str, ...]] = {
    BadRequest: (
        *("bad_message", "too_large", "too_complex", "unknown_type", "unsupported_version"),
        *("unsupported_media_type", "bad_field", "unsupported_format", "out_of_order"),
        *("bad_text", "text_too_long", "bad_reference", "bad_request", "too_many_errors"),
        *("model_not_found", "no_such_route"),
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
    """Returns the error of the class for a code; ``ServerError`` itself for an unknown one."""
    kind = _BY_CODE.get(code, ServerError)
    error = kind(message, code=code, remedy=remedy, retriable=retriable, request_id=request_id)
    error.scope = scope
    return error
