"""Server: the application on one port, the model loading in a thread, and graceful shutdown.

/health answers immediately; /ready and speech wait until the engine is warm.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette

from rt_drama3.audio import StreamResampler
from rt_drama3.engine.speech import SpeechRequest
from rt_drama3.errors import ConfigError, DeviceError, RtDrama3Error
from rt_drama3.protocol import FORMATS
from rt_drama3.server.app import create_app
from rt_drama3.server.config import ServerConfig, forwarders
from rt_drama3.server.service import Service
from rt_drama3.server.transport.http import TimedHttp, timed_http
from rt_drama3.server.transport.websockets import WebSockets

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3

log = logging.getLogger("rt_drama3.server")

OVERSIZE = 1 << 20  # bytes above the message limit at which the frame itself is refused
KEEP_ALIVE_SECONDS = 30
SHUTDOWN_SECONDS = 2  # for connections to close after the last speech
STUCK_SECONDS = 300  # without an acknowledgement; a listener may be playing what it has
FORCED_SECONDS = 0.2  # for last messages to be sent in a forced shutdown
PORT_ATTEMPTS = 10  # to find a port that is free on every address
_NO_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # a family that this machine lacks
SWITCH_SECONDS = 0.0005  # for which a thread may keep the interpreter from the event loop


def settle() -> None:
    """Prepares the interpreter for short pauses, once everything is loaded."""
    gc.collect()
    gc.freeze()  # collecting through everything torch holds would block the event loop
    sys.setswitchinterval(SWITCH_SECONDS)


class _Uvicorn(uvicorn.Server):
    """Without uvicorn's signal handling, which would cut off running speech."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """An application on a port. Binds immediately; serves while ``run`` runs.

    Args:
        app: from ``create_app``.
        config: settings.

    Attributes:
        port: the one it listens on.
        loop: the event loop, once it runs.

    Raises:
        ConfigError: the address cannot be used.
    """

    def __init__(self, app: Starlette, config: ServerConfig) -> None:
        self.service: Service = app.state.service
        self._listeners = listen(config.host, config.port, config.send_buffer)
        self.port: int = self._listeners[0].getsockname()[1]
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
            proxy_headers=bool(config.trusted_proxies),
            forwarded_allow_ips=forwarders(config.trusted_proxies),
            lifespan="on",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        self._uvicorn = _Uvicorn(settings)
        self._loop_factory = settings.get_loop_factory()
        self._stopping: asyncio.Event | None = None
        self._forced: asyncio.Event | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._failure: RtDrama3Error | None = None

    def run(self, load: Callable[[], Drama3] | None = None) -> None:
        """Serves until ``stop``, or a signal where this is the main thread.

        Args:
            load: returns the model with a warm engine; called in a thread.

        Raises:
            RtDrama3Error: the model could not be loaded, or the local sink could not be opened.
        """
        broadcaster = self.service.broadcaster
        with (
            contextlib.nullcontext() if broadcaster is None else broadcaster.sink_open(),
            asyncio.Runner(loop_factory=self._loop_factory) as runner,
        ):
            host = self.service.config.host
            log.info("listening", extra={"fields": {"host": host, "port": self.port}})
            runner.run(self._run(load))
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Lets running speech finish within the deadline, then ends ``run``; thread-safe."""
        self._set(self._stopping)

    def force_stop(self) -> None:
        """Ends running speech immediately, once ``stop`` was called; thread-safe."""
        self._set(self._forced)

    def _set(self, event: asyncio.Event | None) -> None:
        if self.loop is not None and event is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self.loop.call_soon_threadsafe(event.set)

    async def _run(self, load: Callable[[], Drama3] | None) -> None:
        self.loop = asyncio.get_running_loop()
        self._stopping, self._forced = asyncio.Event(), asyncio.Event()
        with self._signals():
            serving = asyncio.create_task(self._uvicorn.serve(sockets=self._listeners))
            if load is not None:
                threading.Thread(
                    target=self._load, args=(load,), name="rt-drama3-load", daemon=True
                ).start()
            stopped = asyncio.create_task(self._stopping.wait())
            await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            await self._drain(self._forced)
            # Ended connections end their tasks; uvicorn would cancel these, with a traceback.
            self._end_connections(unfinished=True)
            seconds = FORCED_SECONDS if self._forced.is_set() else SHUTDOWN_SECONDS - 0.5
            self.loop.call_later(seconds, self._end_connections)
            self._uvicorn.should_exit = True
            await serving

    def _end_connections(self, unfinished: bool = False) -> None:
        """Aborts connections: all, or those whose request has not arrived completely."""
        for connection in list(self._uvicorn.server_state.connections):
            if isinstance(connection, TimedHttp):
                if not unfinished or connection.unfinished():
                    connection.abort()
            elif not unfinished:
                connection.transport.abort()

    async def _drain(self, forced: asyncio.Event) -> None:
        draining = asyncio.create_task(self.service.drain.drain())
        forcing = asyncio.create_task(forced.wait())
        await asyncio.wait({draining, forcing}, return_when=asyncio.FIRST_COMPLETED)
        cut_short = not draining.done()
        for task in (draining, forcing):
            task.cancel()
        await asyncio.wait({draining, forcing})
        if cut_short:
            log.info("forced shutdown", extra={"fields": {}})
            await self.service.drain.end()
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
        except Exception as error:  # otherwise /ready would report "loading" forever
            log.error("loading failed", exc_info=error)
            self._fail(DeviceError(f"the model could not be loaded: {error!r}; see the log."))
        else:
            log.info("ready", extra={"fields": {"model": self.service.facts.name}})

    def _fail(self, error: RtDrama3Error) -> None:
        self.service.load_error = "the model could not be loaded."
        self._failure = error
        self.stop()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self.service.drain.draining:
                self.force_stop()
            self.stop()

        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listen(host: str, port: int, send_buffer: int) -> list[socket.socket]:
    """Returns a listening socket for every address of a host, all on one port.

    Accepted connections inherit their options. For ``localhost`` the addresses are usually
    127.0.0.1 and ::1; a family that this machine lacks is left out.

    Args:
        host: name or address.
        port: 0 picks a free one.
        send_buffer: bytes that the system buffers for a connection.

    Raises:
        ConfigError: the address cannot be used.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror or error}.") from error
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    addresses.sort(key=lambda entry: entry[0] != socket.AF_INET)  # what most clients try first
    for _ in range(PORT_ATTEMPTS if port == 0 else 1):
        listeners: list[socket.socket] = []
        failure: OSError | None = None
        for family, address in addresses:
            chosen = listeners[0].getsockname()[1] if listeners else port
            try:
                listeners.append(_listener(family, (address[0], chosen, *address[2:]), send_buffer))
            except OSError as error:
                if failure is None or error.errno not in _NO_ADDRESS:
                    failure = error
        if listeners and (failure is None or failure.errno in _NO_ADDRESS):
            return listeners
        for listener in listeners:
            listener.close()
    assert failure is not None
    raise ConfigError(
        f"cannot listen on {host}:{port}: {failure.strerror or failure}; choose another --port, or "
        "stop the program that uses it."
    ) from failure


def _listener(family: int, address: tuple[Any, ...], send_buffer: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":  # where it would let other processes take over the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        with contextlib.suppress(OSError, AttributeError):  # Linux only
            option = socket.TCP_USER_TIMEOUT
            listener.setsockopt(socket.IPPROTO_TCP, option, 1_000 * STUCK_SECONDS)
        listener.bind(address)
        listener.listen(2_048)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def serve(config: ServerConfig, load: Callable[[], Drama3], name: str) -> None:
    """Serves a model until a signal; returns when everything is closed.

    Args:
        config: settings.
        load: returns the model; called in a thread while the server is up.
        name: the model's name for clients.

    Raises:
        RtDrama3Error: the address cannot be used, or the model cannot be loaded.
    """
    loaded: list[Drama3] = []

    def keep() -> Drama3:
        drama = load()
        loaded.append(drama)
        drama.engine.wait_until_warm()
        _warm_up(drama)
        settle()
        return drama

    server = Server(create_app(config=config, name=name), config)
    try:
        server.run(keep)
    finally:
        for drama in loaded:
            drama.close()
    if any(thread.name == "rt-drama3-load" for thread in threading.enumerate()):
        # Stopped while loading: a thread inside torch would crash a normal interpreter exit.
        logging.shutdown()
        os._exit(0)


def _warm_up(drama: Drama3) -> None:
    """Makes one request, so that the first real one hits warm caches.

    Afterwards the voice cache holds the system block, which the default voice shares, and the
    resamplers have their tables, which cost the first stream of each rate up to 5 ms.
    """
    for rate in FORMATS["pcm"].rates:
        StreamResampler(drama.codec.config.sample_rate, rate)
    try:
        for _ in drama.engine.open(SpeechRequest("Hello.", seed=0, max_frames=4)):
            pass
    except RtDrama3Error as error:
        log.warning("warm-up request failed: %s", error)
