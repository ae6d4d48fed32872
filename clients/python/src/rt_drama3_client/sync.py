"""Client: a blocking wrapper of ``AsyncClient``, with an event loop in a thread per client."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, Self, TypeVar, Unpack

from rt_drama3_client.address import Settings
from rt_drama3_client.client import AsyncClient
from rt_drama3_client.clips import Clip
from rt_drama3_client.errors import ClientClosed
from rt_drama3_client.messages import AudioChunk, Cancelled, Done, Event, Pong, Ready, Segment
from rt_drama3_client.options import Options
from rt_drama3_client.routes import Voice
from rt_drama3_client.sources import TextSource
from rt_drama3_client.speech import AsyncSpeech
from rt_drama3_client.timings import Timings

T = TypeVar("T")
POLL_SECONDS = 0.2  # some systems deliver Ctrl-C only between waits


class Client:
    """Like ``AsyncClient``, blocking. Its methods may be called from any thread.

    Use it with ``with``, or call ``close``.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._client = AsyncClient(url, api_key=api_key, settings=settings)
        self._loop = _Loop()
        self._finalizer = weakref.finalize(self, _Loop.stop, self._loop)

    def speak(self, text: TextSource, **options: Unpack[Options]) -> Speech:
        """See ``AsyncClient.speak``; an iterable of text is read in a thread of its own."""
        return Speech(self, self._loop, self._client.speak(text, **options))

    def stream(self, **options: Unpack[Options]) -> Speech:
        """See ``AsyncClient.stream``."""
        return Speech(self, self._loop, self._client.stream(**options))

    def connect(self) -> float:
        """See ``AsyncClient.connect``."""
        return self._loop.run(self._client.connect())

    def ping(self) -> Pong:
        """See ``AsyncClient.ping``."""
        return self._loop.run(self._client.ping())

    def voices(self) -> list[Voice]:
        """See ``AsyncClient.voices``."""
        return self._loop.run(self._client.voices())

    def add_voice(self, name: str, clips: Sequence[Clip]) -> Voice:
        """See ``AsyncClient.add_voice``."""
        return self._loop.run(self._client.add_voice(name, clips))

    def delete_voice(self, name: str) -> None:
        """See ``AsyncClient.delete_voice``."""
        self._loop.run(self._client.delete_voice(name))

    def models(self) -> list[str]:
        """See ``AsyncClient.models``."""
        return self._loop.run(self._client.models())

    def close(self) -> None:
        """Closes all connections and ends the thread; a second call does nothing."""
        if self._finalizer.detach() is not None:
            self._loop.run(self._client.close())
            self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Speech:
    """One utterance, see ``AsyncSpeech``; text and audio may be handled by different threads.

    It, and a loop over it, keep a reference to the client, which is closed when the last one is
    gone.
    """

    def __init__(self, client: Client, loop: _Loop, speech: AsyncSpeech) -> None:
        self._client = client
        self._loop = loop
        self._speech = speech

    @property
    def ready(self) -> Ready | None:
        """See ``AsyncSpeech.ready``."""
        return self._speech.ready

    @property
    def done(self) -> Done | None:
        """See ``AsyncSpeech.done``."""
        return self._speech.done

    @property
    def request_id(self) -> str | None:
        """See ``AsyncSpeech.request_id``."""
        return self._speech.request_id

    @property
    def segments(self) -> list[Segment]:
        """See ``AsyncSpeech.segments``."""
        return self._speech.segments

    @property
    def notices(self) -> list[str]:
        """See ``AsyncSpeech.notices``."""
        return self._speech.notices

    @property
    def timings(self) -> Timings:
        """See ``AsyncSpeech.timings``."""
        return self._speech.timings

    @property
    def buffered_seconds(self) -> float:
        """See ``AsyncSpeech.buffered_seconds``."""
        return self._speech.buffered_seconds

    def push(self, text: str) -> None:
        """See ``AsyncSpeech.push``."""
        self._loop.run(self._speech.push(text))

    def flush(self) -> None:
        """See ``AsyncSpeech.flush``."""
        self._loop.run(self._speech.flush())

    def finish(self) -> None:
        """See ``AsyncSpeech.finish``."""
        self._loop.run(self._speech.finish())

    def __iter__(self) -> Iterator[AudioChunk]:
        return self._iterate(self._speech.__aiter__())

    def events(self) -> Iterator[Event]:
        """See ``AsyncSpeech.events``."""
        return self._iterate(self._speech.events())

    def read(self) -> bytes:
        """See ``AsyncSpeech.read``."""
        return self._loop.run(self._speech.read())

    def save(self, path: str | os.PathLike[str]) -> Done:
        """See ``AsyncSpeech.save``."""
        return self._loop.run(self._speech.save(path))

    def cancel(self) -> Cancelled:
        """See ``AsyncSpeech.cancel``."""
        return self._loop.run(self._speech.cancel())

    def ping(self) -> Pong:
        """See ``AsyncSpeech.ping``."""
        return self._loop.run(self._speech.ping())

    def __enter__(self) -> Self:
        self._loop.run(self._speech.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._speech.__aexit__())

    def _iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        yield from self._loop.iterate(source)  # this frame holds the speech, and so the client


class _Loop:
    """An event loop in a thread, which is started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for a coroutine; if the wait is interrupted, cancels it first."""
        future: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []
        try:
            self._begin(work, future, tasks)
            _wait(future)
        finally:
            if not future.done():  # interrupted, for example by Ctrl-C, perhaps while starting
                self._abandon(work, future, tasks)
                _wait(future)
        return future.result()

    def _begin(
        self, work: Coroutine[Any, Any, T], future: Future[T], tasks: list[asyncio.Task[T]]
    ) -> None:
        def begin() -> None:
            task = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(finish)
            tasks.append(task)

        def finish(task: asyncio.Task[T]) -> None:
            error = None if task.cancelled() else task.exception()
            if task.cancelled():
                future.set_exception(ClientClosed("the client was closed."))
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(task.result())

        with self._lock:  # work that starts before the loop is stopped is waited for
            try:
                self._running().call_soon_threadsafe(begin)
            except ClientClosed as error:
                work.close()
                future.set_exception(error)

    def _abandon(
        self, work: Coroutine[Any, Any, T], future: Future[T], tasks: list[asyncio.Task[T]]
    ) -> None:
        def abandon() -> None:
            for task in tasks:
                task.cancel()
            if not tasks:  # otherwise it would have been started by now
                work.close()
                future.set_exception(ClientClosed("the client was closed."))

        with self._lock:
            if self._loop is not None and not self._stopped:
                self._loop.call_soon_threadsafe(abandon)
            elif self._loop is None:
                abandon()

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Converts an asynchronous generator to a synchronous one."""
        try:
            while True:
                try:
                    item = self.run(_next(source))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            close = getattr(source, "aclose", None)
            # The garbage collector may end a loop over audio in any thread. The loop's own thread
            # cannot wait for itself; there, the event loop closes abandoned generators.
            if close is not None and threading.current_thread() is not self._thread:
                with suppress(ClientClosed):
                    self.run(close())

    def stop(self) -> None:
        """Ends the thread."""
        with self._lock:
            self._stopped = True
            loop, thread = self._loop, self._thread
            if loop is None or thread is None:
                return
            if thread.is_alive():
                loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._stopped:
            raise ClientClosed("the client was closed.")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_run, args=(self._loop,), name="rt-drama3-client", daemon=True
            )
            self._thread.start()
        return self._loop


def _wait(future: Future[T]) -> None:
    """Waits in intervals that are short enough for Ctrl-C."""
    while not future.done():
        wait((future,), POLL_SECONDS)


async def _next(source: AsyncIterator[T]) -> T:
    return await anext(source)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Runs the loop until it is stopped, then cancels its remaining tasks."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=POLL_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
