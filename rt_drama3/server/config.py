"""ServerConfig: address, access, quotas and timeouts of the server.

Settings come from the ``[server]`` and ``[limits]`` tables of a TOML file, then the environment
(``RT_DRAMA3_SERVER_<NAME>``, ``RT_DRAMA3_LIMIT_<NAME>``), then the command line. No torch here.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rt_drama3.errors import ConfigError
from rt_drama3.protocol import ProtocolLimits
from rt_drama3.protocol.listening import MODES
from rt_drama3.protocol.order import is_voice_name
from rt_drama3.system.paths import data_dir
from rt_drama3.system.settings import check_settings, read_settings, read_toml, setting

SERVER_PREFIX = "RT_DRAMA3_SERVER_"
LIMIT_PREFIX = "RT_DRAMA3_LIMIT_"
LONGEST_KEY = 1_024
UNKNOWN_VOICE = ("auto", "default", "error")
SINKS = ("speaker", "mic")  # files would grow for as long as the server runs


@dataclass(frozen=True)
class ServerConfig:
    """Settings of a server.

    Attributes:
        host: address to listen on; other than loopback addresses need ``api_keys`` or
            ``insecure``.
        port: 0 lets the system choose.
        api_keys: accepted keys (``Authorization: Bearer <key>``); empty means no authentication.
        insecure: allow listening beyond loopback without a key.
        cors_origins: origins of web pages that may call the HTTP routes; ``*`` is any.
        allowed_origins: accepted ``Origin`` headers of WebSocket handshakes; empty means pages of
            this machine where there is neither ``api_keys`` nor ``insecure``, and else any (see
            ``origins``).
        allowed_hosts: ``Host`` names under which a server without a key serves voices, models and
            metrics, in addition to this machine's addresses; ``*`` is any.
        connections: open WebSockets and speech requests in total.
        connections_per_client: open WebSockets and speech requests per client address.
        trusted_proxies: addresses and networks of proxies whose ``X-Forwarded-For`` and
            ``X-Forwarded-Proto`` are believed.
        slow_seconds: how far a client may be behind realtime, once it has played all it took,
            before its connection is closed.
        ping_seconds: interval of WebSocket pings, and timeout of their answers while an utterance
            is open; 0 sends none.
        drain_seconds: time for running speech to finish after SIGTERM; then it is faded out.
        data_folder: folder of named voices.
        max_voices: maximum number of stored voices.
        unknown_voice: for a voice that is not stored, ``error`` refuses, ``default`` speaks in the
            default voice, with a notice; ``auto`` is ``default`` where the checkpoint has one fixed
            voice. OpenAI's own names and the ids of Fish's cloud mean the default voice anyway.
        voice_aliases: names that clients use for stored voices, such as the ids of a cloud; an
            empty name is the default voice.
        send_buffer: bytes that the system may buffer per connection. Of audio that was not sent yet
            it buffers less: ``pace.UNSENT_SECONDS``.
        body_seconds: time for a request's body to arrive after its head (which has a minute).
        url_references: fetch reference clips from http and https URLs that clients name.
        url_seconds: time for all URLs of one request.
        url_ports: ports that URLs may name.
        url_requests: requests that may fetch concurrently; others wait, within their time.
        listen: enable the listen endpoints (``/v1/listen`` and ``/obs``).
        captions: include the text for listeners.
        listen_seconds: seconds of audio buffered per listener; one that is further behind is
            disconnected, and half of it may wait in a queue.
        sink: also play clients' speech on this machine: ``speaker[:DEVICE]`` or ``mic[:NAME]``.
        sink_mode: ``queue`` (one utterance after the other) or ``mix``; also the default of
            listeners.
        sink_seconds: seconds of audio buffered for ``sink``; utterances beyond are cut there.
        limits: limits of the protocol.
    """

    host: str = "127.0.0.1"
    port: int = setting(8035, 0, 65_535)
    api_keys: tuple[str, ...] = setting((), secret=True)
    insecure: bool = False
    cors_origins: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    connections: int = setting(512, 1, 1_000_000)
    connections_per_client: int = setting(64, 1, 1_000_000)
    trusted_proxies: tuple[str, ...] = ()
    slow_seconds: float = setting(10.0, 0.1, 3_600)
    ping_seconds: float = setting(20.0, 0, 3_600)
    drain_seconds: float = setting(10.0, 0, 3_600)
    data_folder: str = ""
    max_voices: int = setting(1_000, 0, 1_000_000)
    unknown_voice: str = setting("auto", choices=UNKNOWN_VOICE)
    voice_aliases: tuple[tuple[str, str], ...] = ()
    send_buffer: int = setting(262_144, 4_096, 1 << 30)
    body_seconds: float = setting(30.0, 0.1, 3_600)
    url_references: bool = False
    url_seconds: float = setting(10.0, 0.1, 3_600)
    url_ports: tuple[int, ...] = setting((80, 443), 1, 65_535)
    url_requests: int = setting(8, 1, 1_000)
    listen: bool = False
    captions: bool = True
    listen_seconds: float = setting(300.0, 1, 3_600)
    sink: str = ""
    sink_mode: str = setting("queue", choices=MODES)
    sink_seconds: float = setting(300.0, 1, 3_600)
    limits: ProtocolLimits = field(default_factory=ProtocolLimits)

    def __post_init__(self) -> None:
        """Checks every value; a dataclass made in code has the same limits as a file."""
        check_settings(self)
        if self.sink and self.sink.partition(":")[0] not in SINKS:
            raise ConfigError(
                f"sink is {self.sink!r}; it must be speaker, speaker:DEVICE, mic or mic:NAME."
            )
        forwarders(self.trusted_proxies)
        for name in [name for pair in self.voice_aliases for name in pair]:
            if name and not is_voice_name(name):
                raise ConfigError(
                    f"voice_aliases has {name!r}; a voice's name has up to 128 letters, digits, "
                    "spaces and . : @ + - _, a letter or digit first."
                )
        for key in self.api_keys:
            if not 1 <= len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable():
                raise ConfigError(
                    f"an API key has {len(key)} characters; use 1 to {LONGEST_KEY} printable "
                    "ASCII characters."
                )
        if not (is_loopback(self.host) or self.api_keys or self.insecure):
            raise ConfigError(
                f"host is {self.host!r}, which other machines can reach; set an API key "
                "(--api-key), or --insecure to serve without one."
            )

    @property
    def folder(self) -> Path:
        """The data folder, also where none is set."""
        return Path(self.data_folder).expanduser() if self.data_folder else data_dir()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def forwarders(proxies: tuple[str, ...]) -> list[str]:
    """The addresses and networks of trusted proxies, in every form that a peer may have.

    A server that listens on ``::`` sees IPv4 peers as IPv4-mapped IPv6 addresses.

    Raises:
        ConfigError: one is neither an address nor a network.
    """
    found = []
    for proxy in proxies:
        try:
            network = ipaddress.ip_network(proxy)
        except ValueError as error:
            raise ConfigError(
                f"trusted_proxies has {proxy!r}: {error}; use an address (10.0.0.1, fd00::1) or a "
                "network (10.0.0.0/8)."
            ) from error
        found.append(str(network))
        if network.version == 4:
            found.append(f"::ffff:{network.network_address}/{96 + network.prefixlen}")
    return found


def read_server_config(
    path: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    **overrides: Any,
) -> ServerConfig:
    """Server settings from a TOML file, then the environment, then keywords.

    Args:
        path: a TOML file with ``[server]`` and ``[limits]``; other tables are ignored.
        environment: None is the process's.
        overrides: settings of the server that win; None and empty lists are left out.

    Raises:
        ConfigError: the file cannot be read, a name is unknown, or a value cannot be used.
    """
    tables = read_toml(path)
    limits, _ = read_settings(
        ProtocolLimits, tables.get("limits", {}), path, LIMIT_PREFIX, environment
    )
    values, _ = read_settings(
        ServerConfig, tables.get("server", {}), path, SERVER_PREFIX, environment, overrides
    )
    return ServerConfig(**values, limits=ProtocolLimits(**limits))
