"""Converts errors of the client to errors of LiveKit, which decide whether it retries."""

from __future__ import annotations

from livekit.agents import APIConnectionError, APIError, APIStatusError, APITimeoutError

from rt_drama3_client import (
    AccessDenied,
    BadRequest,
    ClientClosed,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    IdleTooLong,
    Overloaded,
    ServerError,
    ServerFailed,
    ServerSilent,
    TooSlow,
    Unavailable,
    UnknownVoice,
)

# Equivalent HTTP statuses; the first matching class applies.
_STATUSES: tuple[tuple[type[ServerError], int], ...] = (
    (UnknownVoice, 404),
    (BadRequest, 400),
    (Overloaded, 429),
    (Unavailable, 503),
    (TooSlow, 408),
    (IdleTooLong, 408),
    (ServerFailed, 500),
)


def api_error(error: ClientError) -> APIError:
    """Returns the equivalent LiveKit error.

    ``APITimeoutError`` for a server that does not respond, ``APIConnectionError`` for a connection
    that failed or was lost, and ``APIStatusError`` for errors of the server, with the equivalent
    HTTP status; its ``body`` has the server's ``code`` and ``remedy``. ``retryable`` is the
    client's ``retriable``.
    """
    message = str(error)
    if isinstance(error, ServerError):
        body = {"code": error.code, "remedy": error.remedy, "retriable": error.retriable}
        return APIStatusError(
            message,
            status_code=_status(error),
            request_id=error.request_id,
            body=body,
            retryable=error.retriable,
        )
    if isinstance(error, ServerSilent):
        return APITimeoutError(message, retryable=error.retriable)
    if isinstance(error, ConnectFailed | ConnectionLost | ClientClosed):
        return APIConnectionError(message, retryable=error.retriable)
    return APIError(message, retryable=error.retriable)


def _status(error: ServerError) -> int:
    if isinstance(error, AccessDenied):
        return 403 if error.code == "forbidden" else 401
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
