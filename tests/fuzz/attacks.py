"""Clients that do everything wrong, one connection after the other, and the answers to them."""

from __future__ import annotations

import random
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgpack

from tests.fuzz.mutations import broken, spoiled
from tests.fuzz.raw import (
    BINARY,
    CLOSE,
    CONT,
    LEAVING,
    PING,
    PONG,
    TEXT,
    Gone,
    Raw,
    frame,
    handshake,
)

ROUTES = {"native": "/v1/stream", "fish_live": "/v1/tts/live"}
LONG = "This lingers for a while, and says little. " * 20
FORMATS = ("pcm", "pcm_f32", "wav", "mp3", "opus", "flac", "aac")
HUGE = 40 << 20  # bytes of a message, above every limit

# What breaks RFC 6455, and the code that the server closes with.
VIOLATIONS: tuple[tuple[bytes, int], ...] = (
    (frame(BINARY, b"\x80", masked=False), 1002),
    (frame(BINARY, b"\x80", reserved=4), 1002),
    (frame(BINARY, b"\x80", reserved=1), 1002),
    *((frame(opcode), 1002) for opcode in (3, 7, 11, 15)),
    (frame(PING, b"x", fin=False), 1002),
    (frame(CLOSE, fin=False), 1002),
    (frame(PING, b"x" * 126), 1002),
    (frame(CONT, b"x"), 1002),
    (frame(BINARY, b"x", fin=False) + frame(TEXT, b"y"), 1002),
    (frame(TEXT, b"\xff"), 1007),
    (frame(TEXT, b"a\xe2", fin=False) + frame(CONT, b"\x82"), 1007),
    (frame(TEXT, b"\xff") + frame(BINARY, b"\x80") + frame(TEXT, b"\xff"), 1007),
    (frame(BINARY, length=HUGE), 1009),
    (frame(BINARY, length=(1 << 63) - 1), 1009),
    (frame(BINARY, b"x", fin=False) + frame(CONT, length=HUGE), 1009),
    (frame(CLOSE, b"\x03"), 1002),
    (frame(CLOSE, b"\x03\xe7"), 1002),
    (frame(CLOSE, b"\x03\xed"), 1002),
    (frame(CLOSE, b"\x03\xe8\xff\xfe"), 1007),
)
# Requests that are whole, and wrong; every one gets an answer.
REQUESTS: tuple[bytes, ...] = (
    handshake("/v1/nothing"), handshake("/"), handshake("/v1/stream/"), handshake("*"),
    handshake("/v1/%00%ff"), handshake("/" + "a" * 2_000), handshake("/v1/tts"),
    handshake(Sec_WebSocket_Version="12"), handshake(Sec_WebSocket_Version="x"),
    handshake(Sec_WebSocket_Key=""), handshake(Sec_WebSocket_Key="short"),
    handshake(Sec_WebSocket_Key="\xff" * 24), handshake(Connection="close"), handshake(Host="["),
    handshake(Host="\xe9"), handshake(Host="a b"), handshake(Host="x:99999"), handshake(Host=""),
    handshake(Upgrade="h2c"), handshake(Upgrade="websocket, h2c"),
    handshake("/v1/tts/live", model="\xfc\x00", Authorization="Bearer \xff"),
    handshake(Origin="null"), handshake(Sec_WebSocket_Protocol=",,a,\xe9"),
    handshake(Sec_WebSocket_Extensions="permessage-deflate; x=\xff"),
    handshake(Content_Length="5") + b"\x82\x80", handshake(Transfer_Encoding="chunked"),
    handshake().replace(b"GET", b"POST"), handshake().replace(b"1.1", b"9.9"),
    handshake().replace(b"1.1", b"1.0"), handshake().replace(b"\r\n", b"\n"),
    b"GET /nope HTTP/1.1\r\nHost: [\r\n\r\n", b"GET /v1/voices/ HTTP/1.1\r\nHost: [\r\n\r\n",
    b"GET /v1/voices/ HTTP/1.1\r\nHost: a\xe9b\r\n\r\n", b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://[::1/ HTTP/1.1\r\nHost: x\r\n\r\n", b"GET //[ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/voices/%2e%2e%2f%ff%00 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"DELETE /v1/voices/%ed%a0%80 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/tts HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    b"POST /v1/tts HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/tts HTTP/1.1\r\nHost: x\r\nContent-Length: \xb2\r\n\r\n",
    b"POST /v1/tts HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n\r\n",
    b"POST /v1/tts HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Type: \xff/\xfe\r\n\r\n{",
    b"POST /v1/voices?name=%ff&text=%ed%a0%80 HTTP/1.1\r\nHost: x\r\nContent-Type: audio/wav\r\n"
    b"Content-Length: 4\r\n\r\nRIFF",
    b"HEAD /v1/tts HTTP/1.1\r\nHost: x\r\n\r\n", b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40) + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 12_000 + b"\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", b"\r\n" * 40_000 + b"x\r\n\r\n",
)  # fmt: skip


class Attacker:
    """One pest.

    Args:
        port: of the server.
        rng: decides what comes.
        pool: conversations by dialect.
        patience: seconds after which the server counts as hanging.
    """

    def __init__(
        self, port: int, rng: random.Random, pool: dict[str, list[Any]], patience: float
    ) -> None:
        self._port = port
        self._rng = rng
        self._pool = pool
        self._patience = patience
        self._kinds: list[tuple[Callable[[], int], int]] = [
            (self.talk, 8), (self.vanish, 3), (self.violate, 3), (self.request, 3),
            (self.half_request, 2), (self.noise, 1), (self.flood, 1),
        ]  # fmt: skip

    def attack(self) -> int:
        """Does one thing; returns how many messages or connections that were."""
        kinds, weights = zip(*self._kinds, strict=True)
        attack: Callable[[], int] = self._rng.choices(kinds, weights)[0]
        return attack()

    def _connect(self) -> Raw:
        return Raw(self._port, self._patience)

    def _leave(self, raw: Raw) -> None:
        raw.leave(self._rng.choice(LEAVING))

    def talk(self) -> int:
        """Messages of a dialect, most of them a little wrong, in frames of any kind."""
        rng, sent = self._rng, 1
        dialect = rng.choice(list(self._pool))
        raw = self._connect()
        with suppress(Gone):
            raw.upgrade(ROUTES[dialect])
            for message in rng.choice(self._pool[dialect]):
                sent += 1
                raw.send(self._in_frames(spoiled(message, rng)))
                while rng.random() < 0.5 and _readable(raw):
                    raw.read()
        self._leave(raw)
        return sent

    def _in_frames(self, data: bytes) -> bytes:
        rng = self._rng
        if rng.random() < 0.05:
            return frame(TEXT, data.decode("utf-8", "replace").encode())
        if rng.random() < 0.8:
            return frame(BINARY, data)
        cut = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 5)))
        pieces = [data[a:b] for a, b in zip([0, *cut], [*cut, len(data)], strict=True)]
        last = len(pieces) - 1
        return b"".join(
            frame(CONT if n else BINARY, piece, fin=n == last) + frame(PING, b"?") * (n < last)
            for n, piece in enumerate(pieces)
        )

    def vanish(self) -> int:
        """A client that is right, and gone at any moment of its speech."""
        rng = self._rng
        raw = self._connect()
        settings = {"format": rng.choice(FORMATS), "seed": rng.randrange(9)}
        if rng.random() < 0.5:
            raw.upgrade(ROUTES["native"])
            start = {"type": "start", "text": LONG, "final": rng.random() < 0.5, **settings}
        else:
            raw.upgrade(ROUTES["fish_live"])
            settings["format"] = rng.choice([n for n in FORMATS if n != "pcm_f32"])
            start = {"event": "start", "request": {"text": LONG, **settings}}
        raw.send(frame(BINARY, msgpack.packb(start)))
        with suppress(Gone):
            for _ in range(rng.choice((0, 0, 1, 2, 5, 12))):
                raw.read()
            for name in rng.sample(("cancel", "stop", "finish", "flush"), rng.randrange(3)):
                raw.send(frame(BINARY, msgpack.packb({"type": name, "event": name})))
        self._leave(raw)
        return 2

    def violate(self) -> int:
        """A broken frame, perhaps while it is spoken to; the close code says what was wrong."""
        rng = self._rng
        data, code = rng.choice(VIOLATIONS)
        raw = self._connect()
        raw.upgrade(rng.choice(list(ROUTES.values())))
        if rng.random() < 0.3:
            raw.send(frame(BINARY, msgpack.packb({"type": "start", "text": LONG})))
        raw.send(data)
        found = raw.code()
        raw.socket.close()
        assert found == code, f"{data[:20]!r} was closed with {found}, not {code}"
        return 1

    def request(self) -> int:
        """A whole request that is wrong: an answer comes, and it is not a 500."""
        data = self._rng.choice(REQUESTS)
        raw = self._connect()
        status = 0
        with suppress(Gone):
            raw.send(data)
            status = raw.response()
        raw.leave("reset" if self._rng.random() < 0.3 else "drop")
        assert status < 500, f"{data[:80]!r} was answered by {status}"
        return 1

    def half_request(self) -> int:
        """A part of a request or handshake, whole or byte by byte, and then the end."""
        rng = self._rng
        body = b'{"text": "Hello there."}'
        post = b"POST /v1/tts HTTP/1.1\r\nHost: x\r\nContent-Length: 24\r\n\r\n" + body
        whole = rng.choice((handshake(), handshake("/v1/tts/live"), post, rng.choice(REQUESTS)))
        data = whole[: rng.randrange(len(whole))]
        raw = self._connect()
        with suppress(Gone):
            if rng.random() < 0.3:
                for byte in data[:60]:
                    raw.send(bytes([byte]))
            else:
                raw.send(data)
        raw.leave(rng.choice(("drop", "reset", "half")) if data else "drop")
        return 1

    def noise(self) -> int:
        """Bytes without sense, before or after the handshake."""
        rng = self._rng
        raw = self._connect()
        with suppress(Gone):
            if rng.random() < 0.5:
                raw.upgrade(rng.choice(list(ROUTES.values())))
                raw.send(rng.randbytes(rng.randrange(1, 300)))
            else:
                raw.send(broken(handshake(), rng))
                raw.send(b"\r\n\r\n")
        self._leave_unread(raw)
        return 1

    def flood(self) -> int:
        """Many frames in one write, as control frames, fragments, or empty messages."""
        rng = self._rng
        raw = self._connect()
        raw.upgrade(ROUTES["native"])
        many = rng.randrange(50, 400)
        data, last = rng.choice(
            [
                (frame(PING, b"x" * 125), b""),
                (frame(PONG, b"x"), b""),
                (frame(CONT, b"", fin=False), frame(BINARY, b"x", fin=False)),
                (frame(CONT, b"\x91", fin=False), frame(BINARY, b"\x91", fin=False)),
                (frame(BINARY), b""),
                (frame(BINARY, msgpack.packb({"type": "ping", "data": 1})), b""),
            ]
        )
        with suppress(Gone):
            raw.send(last + data * many)
        self._leave_unread(raw)
        return 1 + many // 50

    def _leave_unread(self, raw: Raw) -> None:
        raw.leave(self._rng.choice(("drop", "reset")))


def _readable(raw: Raw) -> bool:
    return bool(select.select([raw.socket], [], [], 0.002)[0])
