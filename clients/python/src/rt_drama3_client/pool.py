"""Pool: the connections of a client, which are reused."""

from __future__ import annotations

import asyncio
import weakref

from rt_drama3_client.address import Server
from rt_drama3_client.connection import Connection
from rt_drama3_client.errors import ClientClosed


class Pool:
    """Idle connections, most recently used first.

    Args:
        server: that they lead to.

    Attributes:
        settings: those of the server.
    """

    def __init__(self, server: Server) -> None:
        self.settings = server.settings
        self._server = server
        self._idle: list[Connection] = []
        # Weak, since nothing else holds a connection that has ended by itself.
        self._all: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def acquire(self) -> tuple[Connection, bool]:
        """Returns a connection, and whether it was already open."""
        while self._idle and not self._closed:
            connection = self._idle.pop()
            if connection.alive:
                return connection, True
            self._close_later(connection)
        self._check_open()
        connection = await Connection.open(self._server)
        self._all.add(connection)
        try:
            self._check_open()
        except ClientClosed:
            await connection.close()
            raise
        return connection, False

    def release(self, connection: Connection) -> None:
        """Takes a connection back."""
        usable = connection.alive and not self._closed
        if usable and len(self._idle) < self.settings.max_idle:
            self._idle.append(connection)
        else:
            self._close_later(connection)

    async def close(self) -> None:
        """Closes all connections, those in use as well."""
        self._closed = True
        self._idle.clear()
        await asyncio.gather(*(connection.close() for connection in list(self._all)))
        if self._closing:
            await asyncio.wait(self._closing)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client was closed.")

    def _close_later(self, connection: Connection) -> None:
        task = asyncio.create_task(connection.close(), name="rt-drama3-client close")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
