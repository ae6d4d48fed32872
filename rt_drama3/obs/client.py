"""ObsClient: the part of the obs-websocket 5 protocol that setting up sources needs.

Written from the published protocol document. The existing libraries depend on a second WebSocket
implementation or read settings from their own files; this is one connection, a few requests, and a
timeout for every wait.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import time
from typing import Any, Self

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI, WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from rt_drama3.errors import RtDrama3Error

URL = "ws://127.0.0.1:4455"
RPC_VERSION = 1
MAX_MESSAGE = 4 << 20  # bytes; a list of all devices has a few kilobytes
HELLO, IDENTIFY, IDENTIFIED, REQUEST, RESPONSE = 0, 1, 2, 6, 7
_JSON = Subprotocol("obswebsocket.json")
# Close codes of obs-websocket.
_AUTHENTICATION_FAILED, _WRONG_VERSION = 4009, 4010
NOT_FOUND = 600  # status of a request for something that does not exist


class ObsError(RtDrama3Error):
    """OBS cannot be reached, or a request failed."""


class RequestFailed(ObsError):  # noqa: N818 - the name is the condition
    """OBS responded to a request with an error.

    Attributes:
        code: obs-websocket's ``RequestStatus``.
    """

    def __init__(self, request: str, code: int, comment: str) -> None:
        reason = f": {comment}" if comment else ""
        super().__init__(f"OBS refused {request} (code {code}){reason}.")
        self.code = code


class ObsClient:
    """A connection to OBS; a context manager.

    Args:
        url: address of its WebSocket server.
        password: its password; None if it requires none.
        seconds: timeout for connecting, and for each response.

    Attributes:
        version: obs-websocket's version as reported by the server.

    Raises:
        ObsError: OBS cannot be reached, the password is wrong, or its version is not supported.
    """

    def __init__(self, url: str = URL, password: str | None = None, seconds: float = 5.0) -> None:
        self._url, self._seconds = url, seconds
        self._number = 0
        with contextlib.ExitStack() as until_closed:
            self._socket = self._connect(until_closed)
            self.version = self._identify(password)
            self._until_closed = until_closed.pop_all()

    def request(self, kind: str, **data: Any) -> dict[str, Any]:
        """Sends a request and waits for its response.

        Args:
            kind: name of the request.
            data: its fields.

        Returns:
            The fields of the response.

        Raises:
            RequestFailed: OBS refused.
            ObsError: the connection was closed, or the response timed out.
        """
        self._number += 1
        name = str(self._number)
        message = {"requestType": kind, "requestId": name, "requestData": data}
        self._send(REQUEST, message)
        deadline = time.monotonic() + self._seconds
        while True:
            answer = self._receive(RESPONSE, deadline, f"the response to {kind}")
            if answer.get("requestId") == name:
                break
        status = self._map(answer.get("requestStatus"), f"a response to {kind} without a status")
        if status.get("result") is not True:
            code = status.get("code")
            comment = str(status.get("comment") or "").strip().rstrip(".")
            raise RequestFailed(kind, code if isinstance(code, int) else 0, comment[:200])
        found = answer.get("responseData") or {}
        return self._map(found, f"a response to {kind} that is not an object")

    def close(self) -> None:
        """Closes the connection."""
        self._until_closed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _connect(self, until_closed: contextlib.ExitStack) -> ClientConnection:
        try:
            return until_closed.enter_context(
                connect(
                    self._url,
                    subprotocols=[_JSON],
                    open_timeout=self._seconds,
                    close_timeout=1,
                    max_size=MAX_MESSAGE,
                    proxy=None,
                )
            )
        except InvalidURI as error:
            raise ObsError(
                f"{self._url!r} is not a WebSocket address; use ws://HOST:4455."
            ) from error
        except (InvalidHandshake, EOFError) as error:
            raise ObsError(
                f"the server at {self._url} is not obs-websocket; see Tools, WebSocket Server "
                "Settings in OBS for its port."
            ) from error
        except (OSError, TimeoutError, WebSocketException) as error:
            raise ObsError(
                f"OBS does not respond at {self._url}: start OBS 28 or newer and enable its "
                "WebSocket server (Tools, WebSocket Server Settings)."
            ) from error

    def _identify(self, password: str | None) -> str:
        deadline = time.monotonic() + self._seconds
        hello = self._receive(HELLO, deadline, "Hello")
        version = str(hello.get("obsWebSocketVersion", "of unknown version"))[:40]
        rpc = hello.get("rpcVersion")
        if not isinstance(rpc, int) or rpc < RPC_VERSION:
            raise self._wrong_version(version)
        identify: dict[str, Any] = {"rpcVersion": RPC_VERSION, "eventSubscriptions": 0}
        challenge = hello.get("authentication")
        if challenge is not None:
            if not password:
                raise ObsError(
                    "OBS requires a password: set RT_DRAMA3_OBS_PASSWORD or use --password "
                    "(Tools, WebSocket Server Settings, Show Connect Info)."
                )
            challenge = self._map(challenge, "a challenge that is not an object")
            salt, word = str(challenge.get("salt", "")), str(challenge.get("challenge", ""))
            identify["authentication"] = authentication(password, salt, word)
        self._send(IDENTIFY, identify)
        try:
            self._receive(IDENTIFIED, deadline, "Identified")
        except ObsError as error:
            code = getattr(error.__cause__, "rcvd", None)
            code = None if code is None else code.code
            if code == _AUTHENTICATION_FAILED:
                raise ObsError(
                    "OBS rejected the password; Tools, WebSocket Server Settings, Show Connect "
                    "Info shows it."
                ) from error
            if code == _WRONG_VERSION:
                raise self._wrong_version(version) from error
            raise
        return version

    def _send(self, op: int, data: dict[str, Any]) -> None:
        try:
            self._socket.send(json.dumps({"op": op, "d": data}))
        except (ConnectionClosed, OSError) as error:
            raise self._closed() from error

    def _receive(self, op: int, deadline: float, what: str) -> dict[str, Any]:
        """Returns the data of the next message with that opcode; skips others, such as events."""
        while True:
            try:
                text = self._socket.recv(timeout=max(0.0, deadline - time.monotonic()))
            except TimeoutError as error:
                raise ObsError(
                    f"OBS did not send {what} within {self._seconds:g} s; is it showing a dialog?"
                ) from error
            except (ConnectionClosed, OSError) as error:
                raise self._closed() from error
            try:
                message = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise self._invalid("a message that is not JSON") from error
            message = message if isinstance(message, dict) else {}
            data = self._map(message.get("d"), "a message without data")
            if message.get("op") == op:
                return data

    def _map(self, value: object, otherwise: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._invalid(otherwise)
        return value

    def _closed(self) -> ObsError:
        return ObsError(f"OBS closed the connection to {self._url}; try again.")

    def _invalid(self, what: str) -> ObsError:
        return ObsError(f"{self._url} sent {what}; it is not obs-websocket 5.")

    def _wrong_version(self, version: str) -> ObsError:
        return ObsError(
            f"obs-websocket {version} does not support protocol version {RPC_VERSION}; use OBS 28 "
            "or newer, which includes obs-websocket 5."
        )


def authentication(password: str, salt: str, challenge: str) -> str:
    """Answers a challenge: base64(sha256(base64(sha256(password + salt)) + challenge))."""
    secret = _hashed(password + salt)
    return _hashed(secret + challenge)


def _hashed(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
