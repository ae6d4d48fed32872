"""ServerConfig: file, environment, arguments, and bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rt_drama3.errors import ConfigError
from rt_drama3.server.config import ServerConfig, is_loopback, read_server_config


def test_defaults_are_loopback_only() -> None:
    config = read_server_config(environment={})
    assert (config.host, config.port) == ("127.0.0.1", 8035)
    assert config.cors_origins == config.allowed_origins == config.api_keys == ()


def test_file_then_environment_then_arguments(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(
        '[server]\nport = 1\nhost = "::1"\nslow_seconds = 3\napi_keys = ["a"]\n'
        "[limits]\nidle_seconds = 5\n[engine]\nmax_streams = 2\n"
    )
    environment = {
        "RT_DRAMA3_SERVER_PORT": "2",
        "RT_DRAMA3_SERVER_API_KEYS": "b, c",
        "RT_DRAMA3_SERVER_INSECURE": "true",
        "RT_DRAMA3_LIMIT_REFERENCES": "3",
    }
    config = read_server_config(path, environment, port=3, host=None, api_keys=[])
    assert (config.port, config.host, config.slow_seconds) == (3, "::1", 3.0)
    assert (config.api_keys, config.insecure) == (("b", "c"), True)
    assert (config.limits.idle_seconds, config.limits.references) == (5.0, 3)
    assert read_server_config(path, environment).port == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"host": "0.0.0.0"},
        {"host": "example.com"},
        {"port": 65_536},
        {"port": "x"},
        {"port": 1.5},
        {"port": True},
        {"insecure": "maybe"},
        {"api_keys": ["a\n"]},
        {"api_keys": [1]},
        {"host": 7},
        {"nonsense": 1},
        {"slow_seconds": "nan"},
        {"url_references": "perhaps"},
        {"url_ports": ["http"]},
        {"url_ports": [0]},
        {"url_seconds": 0},
        {"url_requests": 0},
        {"listen": "perhaps"},
        {"listen_seconds": 0},
        {"sink": "speech.wav"},
        {"sink": "-"},
        {"sink_mode": "loud"},
        {"sink_seconds": 0},
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        read_server_config(environment={}, **settings)


def test_url_references_are_off_by_default(tmp_path: Path) -> None:
    assert not read_server_config(environment={}).url_references
    path = tmp_path / "settings.toml"
    path.write_text("[server]\nurl_references = true\nurl_ports = [443, 8443]\n")
    config = read_server_config(path, {"RT_DRAMA3_SERVER_URL_SECONDS": "3"})
    assert config.url_references
    assert (config.url_ports, config.url_seconds) == ((443, 8443), 3.0)
    there = {"RT_DRAMA3_SERVER_URL_REFERENCES": "1", "RT_DRAMA3_SERVER_URL_PORTS": "80 8080"}
    assert read_server_config(environment=there).url_ports == (80, 8080)
    assert read_server_config(environment={}, url_references=True).url_references


def test_listening_is_off_by_default(tmp_path: Path) -> None:
    config = read_server_config(environment={})
    assert (config.listen, config.sink, config.sink_mode) == (False, "", "queue")
    path = tmp_path / "settings.toml"
    path.write_text('[server]\nlisten = true\ncaptions = false\nsink = "speaker:USB"\n')
    there = {"RT_DRAMA3_SERVER_SINK": "mic:other", "RT_DRAMA3_SERVER_SINK_SECONDS": "9"}
    config = read_server_config(path, there, sink_mode="mix")
    assert (config.listen, config.captions) == (True, False)
    assert (config.sink, config.sink_mode, config.sink_seconds) == ("mic:other", "mix", 9.0)


def test_listening_beyond_loopback_needs_a_key_or_insecure() -> None:
    assert ServerConfig(host="0.0.0.0", api_keys=("k",)).host == "0.0.0.0"
    assert ServerConfig(host="0.0.0.0", insecure=True).insecure


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(ServerConfig(api_keys=("secret",)))
    with pytest.raises(ConfigError) as caught:
        read_server_config(environment={}, api_keys=[["secret"]])
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.evil.example", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="check the path"):
        read_server_config(tmp_path / "none.toml", {})
    (tmp_path / "bad.toml").write_text("x = ")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_server_config(tmp_path / "bad.toml", {})
    (tmp_path / "odd.toml").write_text("server = 1")
    with pytest.raises(ConfigError, match="ServerConfig settings must be a table"):
        read_server_config(tmp_path / "odd.toml", {})


def test_errors_name_the_source(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("[limits]\nreferences = 'many'\n")
    with pytest.raises(ConfigError, match=r"settings\.toml: references is 'many'; a whole number"):
        read_server_config(path, {})
    with pytest.raises(ConfigError, match=r"^RT_DRAMA3_SERVER_PORT: port is '-1'; .* 0\.\.65535"):
        read_server_config(environment={"RT_DRAMA3_SERVER_PORT": "-1"})
    with pytest.raises(ConfigError, match=r"^ServerConfig: sink_mode is 'loud'; .* mix, queue"):
        ServerConfig(sink_mode="loud")
