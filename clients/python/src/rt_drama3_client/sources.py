"""Text sources: strings and iterables of text, read while the utterance is being spoken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator
from contextlib import aclosing, suppress
from enum import Enum
from typing import Final, Literal, TypeAlias

from rt_drama3_client.errors import UsageError

MESSAGE_CHARACTERS = 16_384  # per text message


class _Flush(Enum):
    FLUSH = "flush"


# Among parts of text: speak the text so far, although the sentence is incomplete.
FLUSH: Final = _Flush.FLUSH
Part: TypeAlias = str | Literal[_Flush.FLUSH]
TextSource: TypeAlias = str | Iterable[Part] | AsyncIterable[Part]


def check_source(source: object) -> None:
    """Refuses what is not text, in particular None, which would wait for pushed text forever.

    Raises:
        UsageError: it is not text.
    """
    if source is None:
        raise UsageError("text is None; give a string, or use stream() to push text.")
    if isinstance(source, bytes | bytearray):
        raise UsageError(f"text is {type(source).__name__}; decode it to a string.")
    if not isinstance(source, str | Iterable | AsyncIterable):
        raise UsageError(f"text is a {type(source).__name__}, not a string or an iterable of them.")


def cut(text: str) -> Iterator[str]:
    """Splits text into parts that fit into a message."""
    for start in range(0, len(text), MESSAGE_CHARACTERS):
        yield text[start : start + MESSAGE_CHARACTERS]


async def parts(source: TextSource) -> AsyncGenerator[Part, None]:
    """Yields the parts of a source of any kind.

    An iterable that is not a plain list or tuple may block, for example on a language model or a
    keyboard, so it is read in a thread of its own. That thread cannot be interrupted while the
    iterable blocks; it ends at the next part, and does not keep the process alive.

    Raises:
        UsageError: a part is neither text nor ``FLUSH``.
        BaseException: whatever the source raises.
    """
    check_source(source)
    if isinstance(source, str):
        source = (source,)
    if isinstance(source, AsyncGenerator):
        async with aclosing(source):  # so that a model stops when the utterance ends
            async for part in source:
                yield _checked(part)
    elif isinstance(source, AsyncIterable):
        async for part in source:
            yield _checked(part)
    elif isinstance(source, list | tuple):
        for part in source:
            yield _checked(part)
    else:
        async with aclosing(_threaded(source)) as threaded:
            async for part in threaded:
                yield _checked(part)


def _checked(part: object) -> Part:
    if part is FLUSH:
        return FLUSH
    if not isinstance(part, str):
        raise UsageError(f"a part of the text is {part!r:.60}, not a string.")
    return part


class _End:
    """The end of the source, or the error it raised."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


async def _threaded(source: Iterable[Part]) -> AsyncGenerator[Part, None]:
    """Reads the source in a thread, not more than one part ahead."""
    loop = asyncio.get_running_loop()
    wanted = threading.Semaphore(0)
    over = threading.Event()
    received: asyncio.Queue[Part | _End] = asyncio.Queue()

    def deliver(part: Part | _End) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(received.put_nowait, part)

    def read() -> None:
        try:
            for part in source:
                wanted.acquire()
                if over.is_set():
                    return
                deliver(part)
            deliver(_End())
        except BaseException as error:  # raised to the caller that passed the source
            deliver(_End(error))
            if not isinstance(error, Exception):
                raise

    threading.Thread(target=read, name="rt-drama3-client text", daemon=True).start()
    try:
        while True:
            wanted.release()
            part = await received.get()
            if isinstance(part, _End):
                if part.error is not None:
                    raise part.error
                return
            yield part
    finally:
        over.set()
        wanted.release()
