"""The server's rooms: WebSocket and HTTP on one port, thin adapters over protocol and engine."""

from rt_drama3.server.app import create_app
from rt_drama3.server.run import Server, serve
from rt_drama3.server.server_config import ServerConfig, read_server_config

__all__ = ["Server", "ServerConfig", "create_app", "read_server_config", "serve"]
