"""What the transport room uses of uvicorn's private API is still there."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from rt_drama3.server.transport.http import TimedHttp
from rt_drama3.server.transport.websockets import WebSockets

OVERRIDES = {
    H11Protocol: (
        TimedHttp,
        {"connection_made", "connection_lost", "data_received", "handle_websocket_upgrade"},
    ),
    WebSocketsSansIOProtocol: (
        WebSockets,
        {
            "connection_lost",
            "data_received",
            "handle_connect",
            "handle_cont",
            "handle_parser_exception",
            "handle_ping",
            "keepalive_timeout",
            "receive",
            "send",
            "send_receive_event_to_app",
        },
    ),
}
ATTRIBUTES = {
    TimedHttp: "connections conn cycle flow loop scope transport",
    WebSockets: "close_sent close_timer config conn curr_msg_data_type disconnected frames "
    "handshake_complete handshake_initiated loop queue read_paused stop_keepalive transport "
    "writable",
}


@pytest.mark.parametrize("base", OVERRIDES)
def test_the_overridden_methods_are_those_of_uvicorn(base: type) -> None:
    ours, expected = OVERRIDES[base]
    overridden = {
        name
        for name, value in vars(ours).items()
        if inspect.isfunction(value) and not name.startswith("__") and hasattr(base, name)
    }
    assert overridden == expected
    for name in overridden:
        theirs = inspect.signature(getattr(base, name)).parameters
        assert list(inspect.signature(getattr(ours, name)).parameters) == list(theirs), name


@pytest.mark.parametrize("ours", ATTRIBUTES)
def test_the_attributes_are_those_of_uvicorn(ours: type) -> None:
    async def no_app(scope: Any, receive: Any, send: Any) -> None:
        """Never called."""

    async def missing() -> list[str]:
        config = uvicorn.Config(no_app, log_config=None)
        config.load()
        protocol = ours(config, ServerState(), {})
        return [name for name in ATTRIBUTES[ours].split() if not hasattr(protocol, name)]

    assert asyncio.run(missing()) == []
