"""Text from wherever it comes, piece by piece, for an utterance that is already being spoken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator
from contextlib import aclosing, suppress
from enum import Enum
from typing import Final, Literal, TypeAlias

from rt_drama3_client.errors import UsageError

PIECE = 16_384  # characters of one message


class _Flush(Enum):
    FLUSH = "flush"


# Among pieces of text: speak what there is, although the sentence is open.
FLUSH: Final = _Flush.FLUSH
Piece: TypeAlias = str | Literal[_Flush.FLUSH]
TextSource: TypeAlias = str | Iterable[Piece] | AsyncIterable[Piece]


def check_source(source: object) -> None:
    """Refuses what cannot be text, None in particular: it would wait for pushed text for ever.

    Raises:
        UsageError: it says what was given.
    """
    if source is None:
        raise UsageError("text is None; give a string, or use stream() to push text.")
    if isinstance(source, bytes | bytearray):
        raise UsageError(f"text is {type(source).__name__}; decode it to a string.")
    if not isinstance(source, str | Iterable | AsyncIterable):
        raise UsageError(f"text is a {type(source).__name__}, not a string or an iterable of them.")


def cut(text: str) -> Iterator[str]:
    """Text in pieces that fit into a message."""
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]


async def pieces(source: TextSource) -> AsyncGenerator[Piece, None]:
    """What a source gives, whatever kind of source it is.

    An iterable that is not a plain list or tuple may wait for something, a language model or a
    keyboard, so it is read in a thread of its own. That thread cannot be interrupted while the
    iterable waits; it ends at the next piece, and does not keep the process alive.

    Raises:
        UsageError: something in it is neither text nor ``FLUSH``.
        BaseException: whatever the source raises.
    """
    check_source(source)
    if isinstance(source, str):
        source = (source,)
    if isinstance(source, AsyncGenerator):
        async with aclosing(source):  # so that a model stops writing when nobody listens
            async for piece in source:
                yield _checked(piece)
    elif isinstance(source, AsyncIterable):
        async for piece in source:
            yield _checked(piece)
    elif isinstance(source, list | tuple):
        for piece in source:
            yield _checked(piece)
    else:
        async with aclosing(_threaded(source)) as threaded:
            async for piece in threaded:
                yield _checked(piece)


def _checked(piece: object) -> Piece:
    if piece is FLUSH:
        return FLUSH
    if not isinstance(piece, str):
        raise UsageError(f"a piece of text is {piece!r:.60}, not a string.")
    return piece


class _End:
    """The source has no more, or raised ``error``."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


async def _threaded(source: Iterable[Piece]) -> AsyncGenerator[Piece, None]:
    """Reads one piece ahead at most."""
    loop = asyncio.get_running_loop()
    wanted = threading.Semaphore(0)
    over = threading.Event()
    came: asyncio.Queue[Piece | _End] = asyncio.Queue()

    def tell(piece: Piece | _End) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(came.put_nowait, piece)

    def read() -> None:
        try:
            for piece in source:
                wanted.acquire()
                if over.is_set():
                    return
                tell(piece)
            tell(_End())
        except BaseException as error:  # it belongs to whoever gave the source
            tell(_End(error))
            if not isinstance(error, Exception):
                raise

    threading.Thread(target=read, name="rt-drama3-client text", daemon=True).start()
    try:
        while True:
            wanted.release()
            piece = await came.get()
            if isinstance(piece, _End):
                if piece.error is not None:
                    raise piece.error
                return
            yield piece
    finally:
        over.set()
        wanted.release()
