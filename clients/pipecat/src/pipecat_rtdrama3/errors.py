"""Converts the client's errors to Pipecat's categories, which decide whether it continues."""

from __future__ import annotations

from pipecat.utils.errors import ErrorCategory

from rt_drama3_client import (
    AccessDenied,
    BadRequest,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    IdleTooLong,
    Overloaded,
    ServerError,
    ServerSilent,
    TooSlow,
    UsageError,
)

# Errors that concern one text only.
_OF_THE_TEXT = frozenset({"bad_text", "text_too_long", "too_large", "too_complex"})
_CONNECTIVITY = (ConnectFailed, ConnectionLost, ServerSilent, TooSlow, IdleTooLong)


def category(error: ClientError) -> ErrorCategory:
    """Returns Pipecat's category of an error.

    Pipecat stops using a service whose key or settings are wrong until its settings change. A text
    that cannot be spoken is an application error and affects only that text.
    """
    if isinstance(error, AccessDenied):
        forbidden = error.code == "forbidden"
        return ErrorCategory.AUTHORIZATION if forbidden else ErrorCategory.AUTHENTICATION
    if error.code in _OF_THE_TEXT:
        return ErrorCategory.APPLICATION
    if isinstance(error, BadRequest | UsageError):
        return ErrorCategory.INVALID_REQUEST
    if isinstance(error, Overloaded):
        return ErrorCategory.RATE_LIMIT
    if isinstance(error, _CONNECTIVITY):
        return ErrorCategory.CONNECTIVITY
    return ErrorCategory.SERVER if isinstance(error, ServerError) else ErrorCategory.UNKNOWN
