"""Server: uvicorn on our socket, the model loaded beside it, and a stop that loses no word.

/health answers at once; /ready and speech wait until the engine is warm.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette

from rt_drama3.audio import StreamResampler
from rt_drama3.engine.speech import SpeechRequest
from rt_drama3.errors import DeviceError, RtDrama3Error
from rt_drama3.protocol import FORMATS
from rt_drama3.server.app import create_app
from rt_drama3.server.config import ServerConfig
from rt_drama3.server.guards import timed_http
from rt_drama3.server.service import Service
from rt_drama3.server.ws.sockets import WebSockets, listen

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3

log = logging.getLogger("rt_drama3.server")

OVERSIZE = 1 << 20  # bytes above the limit of a message at which it is refused without a word
KEEP_ALIVE_SECONDS = 30
SHUTDOWN_SECONDS = 2  # for connections to close once nothing is spoken any more
SWITCH_SECONDS = 0.0005  # that a thread may keep the interpreter while the event loop waits for it


def settle() -> None:
    """Prepares the interpreter for short pauses, once everything is loaded."""
    gc.collect()
    gc.freeze()  # a collection over all that torch holds would stop the event loop for long
    sys.setswitchinterval(SWITCH_SECONDS)


class _Uvicorn(uvicorn.Server):
    """Leaves signals to us: its own handling would cut running speech off."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """An application on a port. Binds at once; serves while ``run`` runs.

    Args:
        app: of ``create_app``.
        config: settings.

    Attributes:
        port: that it listens on.
        loop: the event loop, once it runs.

    Raises:
        ConfigError: the address cannot be used.
    """

    def __init__(self, app: Starlette, config: ServerConfig) -> None:
        self.service: Service = app.state.service
        self._listener = listen(config.host, config.port, config.send_buffer)
        self.port: int = self._listener.getsockname()[1]
        ping = config.ping_seconds or None
        settings = uvicorn.Config(
            app,
            ws=WebSockets,
            ws_max_size=config.limits.message_bytes + OVERSIZE,
            ws_ping_interval=ping,
            ws_ping_timeout=ping,
            ws_per_message_deflate=False,
            http=timed_http(config.body_seconds),
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        self._uvicorn = _Uvicorn(settings)
        self._loop_factory = settings.get_loop_factory()
        self._stopping: asyncio.Event | None = None
        self._hurry: asyncio.Event | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._failure: RtDrama3Error | None = None

    def run(self, load: Callable[[], Drama3] | None = None) -> None:
        """Serves until ``stop``, or a signal where this is the main thread.

        Args:
            load: gives the model, its engine warm; called in a thread.

        Raises:
            RtDrama3Error: the model could not be loaded, or the local sink not be opened.
        """
        hub = self.service.hub
        with (
            contextlib.nullcontext() if hub is None else hub.sink_open(),
            asyncio.Runner(loop_factory=self._loop_factory) as runner,
        ):
            host = self.service.config.host
            log.info("listening", extra={"fields": {"host": host, "port": self.port}})
            runner.run(self._run(load))
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Finishes what is spoken, within the deadline, and ends ``run``; for any thread."""
        self._set(self._stopping)

    def hurry(self) -> None:
        """Waits for no speech any more, once ``stop`` was called; for any thread."""
        self._set(self._hurry)

    def _set(self, event: asyncio.Event | None) -> None:
        if self.loop is not None and event is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self.loop.call_soon_threadsafe(event.set)

    async def _run(self, load: Callable[[], Drama3] | None) -> None:
        self.loop = asyncio.get_running_loop()
        self._stopping, self._hurry = asyncio.Event(), asyncio.Event()
        with self._signals():
            serving = asyncio.create_task(self._uvicorn.serve(sockets=[self._listener]))
            if load is not None:
                threading.Thread(
                    target=self._load, args=(load,), name="rt-drama3-load", daemon=True
                ).start()
            stopped = asyncio.create_task(self._stopping.wait())
            await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            await self._drain(self._hurry)
            self._uvicorn.should_exit = True
            await serving

    async def _drain(self, hurry: asyncio.Event) -> None:
        draining = asyncio.create_task(self.service.drain())
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait({draining, hurried}, return_when=asyncio.FIRST_COMPLETED)
        cut_short = not draining.done()
        for task in (draining, hurried):
            task.cancel()
        await asyncio.wait({draining, hurried})
        if cut_short:
            log.info("hurrying", extra={"fields": {}})
            await self.service.end()
        else:
            draining.result()

    def _load(self, load: Callable[[], Drama3]) -> None:
        try:
            drama = load()
            if not drama.engine.wait_until_warm():
                raise DeviceError("the engine failed while it warmed up; the log has the details.")
            self.service.attach(drama, drama.engine)
        except RtDrama3Error as error:
            self._fail(error)
        except Exception as error:  # else the server would say for ever that it is loading
            log.error("loading failed", exc_info=error)
            self._fail(DeviceError(f"the model could not be loaded: {error!r}; see the log."))
        else:
            log.info("ready", extra={"fields": {"model": self.service.facts.name}})

    def _fail(self, error: RtDrama3Error) -> None:
        self.service.failed = "the model could not be loaded."
        self._failure = error
        self.stop()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self.service.draining:
                self.hurry()
            self.stop()

        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(config: ServerConfig, load: Callable[[], Drama3], name: str) -> None:
    """Serves a model until a signal; returns when all is closed.

    Args:
        config: settings.
        load: gives the model; called in a thread while the server is up.
        name: of the model, for clients.

    Raises:
        RtDrama3Error: the address cannot be used, or the model not be loaded.
    """
    loaded: list[Drama3] = []

    def keep() -> Drama3:
        drama = load()
        loaded.append(drama)
        drama.engine.wait_until_warm()
        _speak_once(drama)
        settle()
        return drama

    server = Server(create_app(config=config, name=name), config)
    try:
        server.run(keep)
    finally:
        for drama in loaded:
            drama.close()
    if any(thread.name == "rt-drama3-load" for thread in threading.enumerate()):
        # Stopped while loading: a thread inside torch would abort a normal exit of the interpreter.
        logging.shutdown()
        os._exit(0)


def _speak_once(drama: Drama3) -> None:
    """A word that nobody hears, so that the first request finds its way trodden.

    The system block, which the default voice shares, is in the voice cache then; and the tables of
    the resampler are made, which cost the first stream of each rate up to 5 ms.
    """
    for rate in FORMATS["pcm"].rates:
        StreamResampler(drama.codec.config.sample_rate, rate)
    try:
        for _ in drama.engine.open(SpeechRequest("Hello.", seed=0, max_frames=4)):
            pass
    except RtDrama3Error as error:
        log.warning("the word to warm up with failed: %s", error)
