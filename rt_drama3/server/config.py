"""ServerConfig: where the server listens, who may use it, and how long it waits for them.

Settings come from the ``[server]`` and ``[limits]`` tables of a TOML file, then the environment
(``RT_DRAMA3_SERVER_<NAME>``, ``RT_DRAMA3_LIMIT_<NAME>``), then the command line. No torch here.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rt_drama3.errors import ConfigError
from rt_drama3.protocol import ProtocolLimits
from rt_drama3.protocol.listening import MODES
from rt_drama3.system.data_folder import default_data_folder

SERVER_PREFIX = "RT_DRAMA3_SERVER_"
LIMIT_PREFIX = "RT_DRAMA3_LIMIT_"
LONGEST_KEY = 1_024
SINKS = ("speaker", "mic")  # files would grow for as long as the server runs


@dataclass(frozen=True)
class ServerConfig:
    """Settings of a server.

    Attributes:
        host: address to listen on; another than a loopback address needs ``api_keys`` or
            ``insecure``.
        port: 0 lets the system choose.
        api_keys: any of which opens the server (``Authorization: Bearer <key>``); none means that
            no key is asked for.
        insecure: listen beyond loopback without a key.
        cors_origins: web pages from these origins may call the HTTP routes; ``*`` is any.
        allowed_origins: WebSocket handshakes with an ``Origin`` other than these are refused;
            none means pages of this machine where there is neither ``api_keys`` nor ``insecure``,
            and else any (see ``origins``).
        allowed_hosts: names (``Host``) by which a server without a key may be asked for voices,
            models and metrics, besides this machine's addresses; ``*`` is any.
        connections: WebSockets and speech requests that may be open in all.
        connections_per_client: and of one client (address).
        slow_seconds: how far the reading of a client may fall behind realtime, in all, once its
            buffers are full; then it is ended.
        ping_seconds: between the server's WebSocket pings, and for their answer; 0 sends none.
        drain_seconds: that running speech has after SIGTERM; then it is faded out.
        data_folder: of named voices.
        max_voices: that may be stored.
        send_buffer: bytes that the system may hold for a connection; bounds what a client that
            stopped reading costs, and how late that is noticed.
        body_seconds: for a request's body to arrive once its head has, for which a minute is
            given.
        url_references: fetch reference clips from http and https URLs that clients name.
        url_seconds: that all of one request's may take.
        url_ports: that they may name.
        url_requests: that may fetch at the same time; others wait, within their time.
        listen: let listeners hear what clients have spoken (``/v1/listen`` and ``/obs``).
        captions: tell listeners the text as well.
        listen_seconds: of audio that may wait for a listener; one that is further behind is ended,
            and in a queue half of it may wait for its turn.
        sink: plays what clients have spoken on this machine, too: ``speaker[:DEVICE]`` or
            ``mic[:NAME]``.
        sink_mode: how clients share it: ``queue`` (one utterance after the other) or ``mix``; also
            what listeners get who do not say.
        sink_seconds: of sound that may wait to be played there; utterances beyond are cut there.
    """

    host: str = "127.0.0.1"
    port: int = 8035
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    insecure: bool = False
    cors_origins: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    connections: int = 512
    connections_per_client: int = 64
    slow_seconds: float = 10.0
    ping_seconds: float = 20.0
    drain_seconds: float = 10.0
    data_folder: str = ""
    max_voices: int = 1_000
    send_buffer: int = 262_144
    body_seconds: float = 30.0
    url_references: bool = False
    url_seconds: float = 10.0
    url_ports: tuple[str, ...] = ("80", "443")
    url_requests: int = 8
    listen: bool = False
    captions: bool = True
    listen_seconds: float = 300.0
    sink: str = ""
    sink_mode: str = "queue"
    sink_seconds: float = 300.0
    limits: ProtocolLimits = field(default_factory=ProtocolLimits)

    def __post_init__(self) -> None:
        """Checks every value."""
        for name, low, high in (
            ("port", 0, 65_535),
            ("connections", 1, 1_000_000),
            ("connections_per_client", 1, 1_000_000),
            ("slow_seconds", 0.1, 3_600),
            ("ping_seconds", 0, 3_600),
            ("drain_seconds", 0, 3_600),
            ("max_voices", 0, 1_000_000),
            ("send_buffer", 4_096, 1 << 30),
            ("body_seconds", 0.1, 3_600),
            ("url_seconds", 0.1, 3_600),
            ("url_requests", 1, 1_000),
            ("listen_seconds", 1, 3_600),
            ("sink_seconds", 1, 3_600),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} is {value!r}; it must lie in {low}..{high}.")
        if self.sink and self.sink.partition(":")[0] not in SINKS:
            raise ConfigError(
                f"sink is {self.sink!r}; it must be speaker, speaker:DEVICE, mic or mic:NAME."
            )
        if self.sink_mode not in MODES:
            raise ConfigError(
                f"sink_mode is {self.sink_mode!r}; it must be one of {', '.join(MODES)}."
            )
        for port in self.url_ports:
            if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65_535):
                raise ConfigError(f"url_ports has {port!r}; numbers in 1..65535 are needed.")
        for key in self.api_keys:
            if not 1 <= len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable():
                raise ConfigError(
                    f"an API key has {len(key)} characters; 1 to {LONGEST_KEY} printable ASCII "
                    "characters are needed."
                )
        if not (is_loopback(self.host) or self.api_keys or self.insecure):
            raise ConfigError(
                f"host is {self.host!r}, which others can reach; set an API key (--api-key), or "
                "--insecure to serve anybody."
            )

    @property
    def folder(self) -> Path:
        """The data folder in force."""
        return Path(self.data_folder).expanduser() if self.data_folder else default_data_folder()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_server_config(
    path: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    **overrides: Any,
) -> ServerConfig:
    """Server settings from a TOML file, then the environment, then keywords.

    Args:
        path: a TOML file with ``[server]`` and ``[limits]``; other tables are left to others.
        environment: None is the process's.
        overrides: settings of the server that win; None and empty lists are left out.

    Raises:
        ConfigError: the file cannot be read, a name is unknown, or a value does not fit.
    """
    there = os.environ if environment is None else environment
    tables = _read_tables(path)
    limits = _collect(ProtocolLimits(), tables.get("limits", {}), path, there, LIMIT_PREFIX)
    values = _collect(ServerConfig(), tables.get("server", {}), path, there, SERVER_PREFIX)
    wanted = {k: v for k, v in overrides.items() if v is not None and v != []}
    values.update(_checked(ServerConfig(), wanted, "argument"))
    return replace(ServerConfig(), **values, limits=replace(ProtocolLimits(), **limits))


def _collect(
    defaults: Any,
    table: Any,
    path: str | os.PathLike[str] | None,
    environment: Mapping[str, str],
    prefix: str,
) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: [server] and [limits] must be tables.")
    values = _checked(defaults, table, str(path))
    for setting in fields(defaults):
        text = environment.get(prefix + setting.name.upper())
        if text is not None and setting.name != "limits":
            values |= _checked(defaults, {setting.name: text}, prefix + setting.name.upper())
    return values


def _checked(defaults: Any, values: Mapping[str, Any], source: str) -> dict[str, Any]:
    known = [f.name for f in fields(defaults) if f.name != "limits"]
    found = {}
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"{source}: {name!r} is no setting; known: {', '.join(known)}.")
        found[name] = _convert(name, value, getattr(defaults, name), source)
    return found


def _convert(name: str, value: Any, default: Any, source: str) -> Any:
    """A value as the type of its default; text may come from the environment."""
    text = value.strip() if isinstance(value, str) else None
    try:
        if isinstance(default, bool):
            if text is not None:
                return {"1": True, "true": True, "0": False, "false": False}[text.lower()]
            if isinstance(value, bool):
                return value
        elif isinstance(default, tuple):
            parts = value.replace(",", " ").split() if isinstance(value, str) else value
            if name == "url_ports":  # numbers are what people write there
                parts = [str(part) for part in parts]
            if all(isinstance(part, str) for part in parts):
                return tuple(parts)
        elif isinstance(default, str):
            if text is not None:
                return text
        elif not isinstance(value, bool):
            number = float(value)
            if isinstance(default, float):
                return number
            if number.is_integer():
                return int(number)
    except (ValueError, TypeError, KeyError, OverflowError):
        pass  # said below
    shown = "what it is" if name == "api_keys" else repr(value)
    wanted = {bool: "true or false", tuple: "a list of texts", str: "text", int: "a whole number"}
    raise ConfigError(f"{source}: {name} is {shown}; {wanted.get(type(default), 'a number')}.")


def _read_tables(path: str | os.PathLike[str] | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
