"""Every error that a client can meet: its code, whether to retry, what to do, and its numbers.

``KINDS`` is the whole list; the tables in docs/protocol.md are checked against it. Inside the
package a bad input raises ``Refused``; the sessions answer with it, and what parses HTTP bodies
lets it out.
"""

from __future__ import annotations

from dataclasses import dataclass

from rt_drama3.errors import DeviceError, Overloaded, RequestError, RtDrama3Error

LONGEST_SHOWN = 60
LONGEST_MESSAGE = 500


@dataclass(frozen=True)
class Kind:
    """What is known of an error by its code alone.

    Attributes:
        remedy: what the client can do about it.
        retriable: whether the same request may succeed later or elsewhere.
        http: status code.
        close: WebSocket close code, where the error ends the connection.
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
    "unsupported_version": Kind("Speak a version that the server supports."),
    "unsupported_media_type": Kind("Send application/json or application/msgpack.", http=415),
    "bad_field": Kind("Correct the field."),
    "unsupported_format": Kind("Ask for a format and sample rate that the server supports."),
    "out_of_order": Kind("Send start, then text, then finish; the next start begins anew."),
    "bad_text": Kind("Remove what cannot be spoken and send the text again."),
    "text_too_long": Kind("Send less text at once.", http=413),
    "backlog_full": Kind("Send more text when some of it was spoken.", True, http=429),
    "bad_reference": Kind("Send a clip of speech as a common audio file, with its transcript."),
    "bad_request": Kind("Correct the request as the message says."),
    "unknown_voice": Kind("Name a voice that the server lists under /v1/voices.", http=404),
    "too_many_messages": Kind(
        "Send larger pieces of text, less often.", retriable=True, http=429, close=4429
    ),
    "too_many_errors": Kind("Fix the client, then connect again.", http=429, close=4429),
    "no_such_route": Kind("GET /openapi.json names every route.", http=404),
    "unauthorized": Kind("Send a valid key: Authorization: Bearer <key>.", http=401, close=4401),
    "forbidden": Kind(
        "Connect from an allowed origin, or by the IP address.", http=403, close=4403
    ),
    "idle": Kind("Connect again when there is something to say.", True, http=408, close=4408),
    "slow_client": Kind("Read audio as fast as it is played.", True, http=408, close=4409),
    "overloaded": Kind("Try again in a moment, or elsewhere.", True, http=429, close=1013),
    "not_ready": Kind("Wait until /ready answers 200.", True, http=503, close=1013),
    "shutting_down": Kind("Connect again, or elsewhere.", True, http=503, close=1001),
    "engine_failed": Kind("Try again; tell the operator.", True, http=503, close=1011),
    "stopped": Kind("Speak again when the operator wants it.", http=409, close=1001),
    "internal": Kind("Tell the operator, with the request id.", http=500, close=1011),
}


class Refused(RequestError):  # noqa: N818 - the name is the condition
    """A client's input that is not accepted.

    Attributes:
        code: one of ``KINDS``.
        message: what was wrong, with the value.
        remedy: what to do about it: that of the code, where nothing more fitting was given.
    """

    def __init__(self, code: str, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = clean(message)
        self.remedy = remedy or KINDS[code].remedy

    def advising(self, **remedies: str) -> Refused:
        """The same error, with another remedy where one is given for its code."""
        return Refused(self.code, self.message, remedies.get(self.code, self.remedy))

    @property
    def kind(self) -> Kind:
        """What is known of the code."""
        return KINDS[self.code]


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
    # What it says is for the operator's eyes: it may name files and settings.
    return Refused("internal", "the server failed at this request.")


def show(value: object) -> str:
    """A client's value for a message: short whatever its size, printable, valid UTF-8."""
    if isinstance(value, str | bytes):
        text = repr(value[:LONGEST_SHOWN])
        return f"{text}..." if len(value) > LONGEST_SHOWN else text
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
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 3] + "..."
