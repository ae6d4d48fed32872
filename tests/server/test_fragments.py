"""Large frames are cut, and mean what they meant."""

from __future__ import annotations

import random

import pytest
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from rt_drama3.server.transport.fragments import PART, Fragmenter

MOST = 1 << 20


def opened() -> ServerProtocol:
    """A parser behind its handshake."""
    parser = ServerProtocol(max_size=MOST)
    parser.receive_data(
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    (request,) = parser.events_received()
    assert isinstance(request, Request)
    parser.send_response(parser.accept(request))
    return parser


def messages(frames: list[Frame]) -> list[tuple[Opcode, bytes]]:
    """Frames as whole messages; control frames as they are."""
    found: list[tuple[Opcode, bytes]] = []
    open_message: list[Frame] = []
    for frame in frames:
        if frame.opcode in (Opcode.PING, Opcode.PONG, Opcode.CLOSE):
            found.append((frame.opcode, bytes(frame.data)))
            continue
        open_message.append(frame)
        if frame.fin:
            data = b"".join(bytes(one.data) for one in open_message)
            found.append((open_message[0].opcode, data))
            open_message = []
    return found


def through(stream: bytes, sizes: list[int]) -> tuple[list[Frame], ServerProtocol]:
    """What a parser behind a fragmenter sees of a stream that arrives in such pieces."""
    fragmenter, parser, place = Fragmenter(MOST), opened(), 0
    frames: list[Frame] = []
    while place < len(stream):
        size = sizes.pop() if sizes else len(stream)
        for part in fragmenter.feed(stream[place : place + size]):
            parser.receive_data(part)
            frames += [event for event in parser.events_received() if isinstance(event, Frame)]
        place += size
    return frames, parser


def serialized(*frames: Frame) -> bytes:
    return b"".join(frame.serialize(mask=True) for frame in frames)


SENT = [
    Frame(Opcode.BINARY, b""),
    Frame(Opcode.BINARY, random.Random(1).randbytes(PART)),
    Frame(Opcode.PING, b"between"),
    Frame(Opcode.BINARY, random.Random(2).randbytes(PART + 1)),
    Frame(Opcode.TEXT, b"t" * (3 * PART), fin=False),
    Frame(Opcode.PING, b"within"),
    Frame(Opcode.CONT, random.Random(3).randbytes(2 * PART + 3), fin=False),
    Frame(Opcode.CONT, b"end"),
    Frame(Opcode.BINARY, random.Random(4).randbytes(5 * PART + 7)),
    Frame(Opcode.BINARY, b"x" * 126),
]


@pytest.mark.parametrize("seed", range(20))
def test_the_parser_sees_the_same_messages_in_small_frames(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice((1, 2, 3, 13, 1_000, 70_000, 262_144)) for _ in range(3_000)]
    frames, _ = through(serialized(*SENT), sizes)
    assert messages(frames) == messages(SENT)
    assert max(len(frame.data) for frame in frames) <= PART


def test_a_frame_that_is_too_large_is_refused_at_its_header() -> None:
    stream = Frame(Opcode.BINARY, bytes(MOST + 1)).serialize(mask=True)
    _, parser = through(stream[:14], [])
    assert parser.close_sent is not None
    assert parser.close_sent.code == 1009


def test_a_message_that_is_too_large_in_sum_is_refused() -> None:
    half = bytes(MOST // 2 + 1)
    stream = serialized(Frame(Opcode.BINARY, half, fin=False), Frame(Opcode.CONT, half))
    _, parser = through(stream, [])
    assert parser.close_sent is not None
    assert parser.close_sent.code == 1009


@pytest.mark.parametrize(
    "head", [b"\x82\x7f" + bytes(5) + b"\x02\x00\x00", b"\xc2\xff" + bytes(5) + b"\x02\x00\x00mask"]
)
def test_frames_that_break_the_rules_still_do(head: bytes) -> None:
    """Unmasked, and with a reserved bit."""
    _, parser = through(head + bytes(0x20000), [])
    assert parser.close_sent is not None
    assert parser.close_sent.code == 1002
