"""SocketLine: what a connection has not sent yet, and a bound for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from typing import Any

LARGEST_BUFFER = 1 << 16  # bytes that asyncio's transports keep by default


class SocketLine:
    """A protocol that knows what its peer has yet to take; a mix-in for ``asyncio.Protocol``."""

    transport: asyncio.Transport

    def held(self) -> int:
        """See ``LineControl``."""
        if self.transport.is_closing():
            return 0
        connection = self.transport.get_extra_info("socket")
        in_system = 0 if connection is None else _in_system(connection)
        return self.transport.get_write_buffer_size() + in_system

    def limit_unsent(self, size: int) -> None:
        """See ``LineControl``."""
        if self.transport.is_closing():
            return
        self.transport.set_write_buffer_limits(high=min(size, LARGEST_BUFFER))
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError):  # it has just been closed, or has no such option
                connection.setsockopt(*_UNSENT, size)


if sys.platform == "linux":
    import fcntl
    import termios

    # Bytes on their way do not count, so a long way stays fast.
    _UNSENT = (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)

    def _in_system(connection: Any) -> int:
        """Bytes that the system has sent without an acknowledgement, or has yet to send."""
        try:
            found = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:  # a sandbox that does not know it
            return 0
        return int.from_bytes(found, sys.byteorder)

else:
    _UNSENT = (socket.SOL_SOCKET, socket.SO_SNDBUF)

    def _in_system(connection: Any) -> int:
        """Nothing: what the system has taken counts as the client's, and is bounded."""
        return 0
