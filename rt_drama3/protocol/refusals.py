"""Every error that a client can get: its code, whether to retry, a hint, and its status codes.

``KINDS`` is the complete list; the tables in docs/protocol.md are checked against it. Inside the
package bad input raises ``Refused``; sessions answer with it, and parsers of HTTP bodies raise it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rt_drama3.errors import DeviceError, Overloaded, RequestError, RtDrama3Error

SHOWN_CHARACTERS = 60
MESSAGE_CHARACTERS = 500


@dataclass(frozen=True)
class Kind:
    """The properties of an error code.

    Attributes:
        remedy: a hint at what the client can do.
        retriable: whether the same request may succeed later or elsewhere.
        http: status code.
        close: WebSocket close code if the error ends the connection.
    """

    remedy: str
    retriable: bool = False
    http: int = 400
    close: int = 1008


KINDS: dict[str, Kind] = {
    "bad_message": Kind("Send one complete MessagePack map per binary message."),
    "too_large": Kind("Send less in one message; shorten reference clips.", http=413, close=1009),
    "too_complex": Kind("Send flat messages: no deep nesting, no lists of thousands of values."),
    "unknown_type": Kind("Send one of the message types of this protocol version."),
    "unsupported_version": Kind("Use a version that the server supports."),
    "unsupported_media_type": Kind("Send application/json or application/msgpack.", http=415),
    "bad_field": Kind("Correct the field."),
    "unsupported_format": Kind("Request a format and sample rate that the server supports."),
    "out_of_order": Kind("Send start, then text, then finish; then the next start."),
    "bad_text": Kind("Remove what cannot be spoken and send the text again."),
    "text_too_long": Kind("Send less text in one message.", http=413),
    "backlog_full": Kind("Wait until some of the text was spoken, then send more.", True, http=429),
    "bad_reference": Kind("Send a clip of speech as a common audio file, with its transcript."),
    "bad_request": Kind("Correct the request as described in the message."),
    "unknown_voice": Kind("Name a voice that the server lists under /v1/voices.", http=404),
    "model_not_found": Kind(
        "Name the model that GET /v1/models lists; speech routes accept any name.", http=404
    ),
    "too_many_messages": Kind(
        "Send larger parts of the text, less often.", retriable=True, http=429, close=4429
    ),
    "too_many_errors": Kind("Fix the client, then connect again.", http=429, close=4429),
    "no_such_route": Kind("GET /openapi.json lists every route.", http=404),
    "unauthorized": Kind("Send a valid key: Authorization: Bearer <key>.", http=401, close=4401),
    "forbidden": Kind(
        "Connect from an allowed origin, or by the IP address.", http=403, close=4403
    ),
    "idle": Kind("Connect again when there is something to say.", True, http=408, close=4408),
    "slow_client": Kind("Read audio as fast as it is played.", True, http=408, close=4409),
    "overloaded": Kind("Try again in a moment, or on another server.", True, http=429, close=1013),
    "not_ready": Kind("Wait until /ready answers 200.", True, http=503, close=1013),
    "shutting_down": Kind("Connect again, or to another server.", True, http=503, close=1001),
    "engine_failed": Kind("Try again; notify the operator.", True, http=503, close=1011),
    "stopped": Kind("Speak again when the operator allows it.", http=409, close=1001),
    "internal": Kind("Report it to the operator, with the request id.", http=500, close=1011),
}


class Refused(RequestError):  # noqa: N818 - the name is the condition
    """A client's input that is not accepted.

    Attributes:
        code: one of ``KINDS``.
        message: what is wrong, with the value.
        remedy: a hint; that of the code, unless a more specific one was given.
    """

    def __init__(self, code: str, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = clean(message)
        self.remedy = remedy or KINDS[code].remedy

    def advising(self, **remedies: str) -> Refused:
        """Returns the same error, with another remedy if one is given for its code."""
        return Refused(self.code, self.message, remedies.get(self.code, self.remedy))

    @property
    def kind(self) -> Kind:
        """The properties of the code."""
        return KINDS[self.code]

    def details(self) -> dict[str, Any]:
        """The fields of an error besides its message."""
        return {"code": self.code, "remedy": self.remedy, "retriable": self.kind.retriable}


def as_refused(error: RtDrama3Error) -> Refused:
    """Any error of the package as a client sees it."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, Overloaded):
        return Refused("overloaded", str(error))
    if isinstance(error, RequestError):
        return Refused("bad_request", str(error))
    if isinstance(error, DeviceError):
        return Refused("engine_failed", str(error))
    # Its text is for the operator only: it may name files and settings.
    return Refused("internal", "the server failed to serve this request.")


def show(value: object) -> str:
    """A client's value for a message: short whatever its size, printable, valid UTF-8."""
    if isinstance(value, str | bytes):
        text = repr(value[:SHOWN_CHARACTERS])
        return f"{text}..." if len(value) > SHOWN_CHARACTERS else text
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "a huge number"
    if isinstance(value, bool | int | float) or value is None:
        return repr(value)
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'map'} of {len(value)}"
    return f"a {type(value).__name__}"


def clean(message: str) -> str:
    """A message that every encoder takes and no log line breaks on, of bounded length."""
    whole = message.encode("utf-8", "replace").decode()
    line = "".join(char if char.isprintable() else " " for char in whole)
    return line if len(line) <= MESSAGE_CHARACTERS else line[: MESSAGE_CHARACTERS - 3] + "..."
