"""Which pages may have speech, where no key keeps those of others out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from rt_drama3.protocol import Refused
from rt_drama3.server.config import ServerConfig
from rt_drama3.server.origins import (
    check_handshake,
    check_listener,
    check_reader,
    check_request,
)
from tests.server.tools import serving
from tests.small import ending_drama

HERE = (
    None,  # no browser
    "http://127.0.0.1:8035",
    "http://localhost:3000",
    "https://app.localhost",
    "http://[::1]:8080",
    "file://",
    "chrome-extension://abcdefgh",
)
ELSEWHERE = (
    "https://evil.example",
    "http://evil.example:8035",  # a name that was made to point here
    "http://127.0.0.1.evil.example",
    "http://localhost.evil.example",
    "http://192.168.0.7:8035",
    "null",
    "",
    "http://[",
)


def refused(check: Any, *arguments: Any) -> bool:
    try:
        check(*arguments)
    except Refused as error:
        return error.code == "forbidden"
    return False


@pytest.mark.parametrize("check", [check_handshake, check_request])
def test_pages_of_this_machine_where_nothing_else_is_said(check: Any) -> None:
    assert [origin for origin in HERE if refused(check, ServerConfig(), origin)] == []
    assert [origin for origin in ELSEWHERE if not refused(check, ServerConfig(), origin)] == []


@pytest.mark.parametrize("check", [check_handshake, check_request])
@pytest.mark.parametrize("settings", [{"api_keys": ("key",)}, {"insecure": True}])
def test_a_key_is_enough_and_so_is_the_word_of_the_operator(
    check: Any, settings: dict[str, Any]
) -> None:
    for origin in (*HERE, *ELSEWHERE):
        assert not refused(check, ServerConfig(**settings), origin)


def test_what_the_operator_allows() -> None:
    config = ServerConfig(allowed_origins=("https://a.example",), api_keys=("key",))
    assert not refused(check_handshake, config, "https://a.example")
    for origin in ("https://b.example", "http://localhost:3000"):
        assert refused(check_handshake, config, origin)
    for settings in ({"allowed_origins": ("*",)}, {"cors_origins": ("https://b.example",)}):
        assert not refused(check_request, ServerConfig(**settings), "https://b.example")
    assert not refused(check_handshake, ServerConfig(allowed_origins=("*",)), "null")


def test_a_list_of_others_does_not_lock_the_servers_own_page_out() -> None:
    config = ServerConfig(allowed_origins=("https://a.example",))
    assert not refused(check_handshake, config, "http://127.0.0.1:8035", "127.0.0.1:8035")
    assert not refused(check_handshake, config, "http://localhost:8035", "localhost:8035")
    for origin, host in (
        ("http://127.0.0.1:3000", "127.0.0.1:8035"),
        ("http://evil.example:8035", "evil.example:8035"),  # a name that was made to point here
        ("http://127.0.0.1:8035", None),
    ):
        assert refused(check_handshake, config, origin, host)


def test_listeners_are_the_servers_own_pages() -> None:
    config = ServerConfig()
    assert not refused(check_listener, config, "http://127.0.0.1:8035", "127.0.0.1:8035")
    assert not refused(check_listener, config, None, None)
    for origin in ("http://localhost:3000", "file://", *ELSEWHERE):
        host = "evil.example:8035" if "evil" in origin else "127.0.0.1:8035"
        assert refused(check_listener, config, origin, host)


READERS = ("/v1/voices", "/v1/voices/anna", "/v1/models", "/metrics")


def test_a_name_that_was_made_to_point_here_reads_nothing(tmp_path: Path) -> None:
    with serving(ending_drama(), tmp_path) as place:
        foreign = {"Host": f"evil.example:{place.port}"}
        for path in READERS:
            answer = place.get(path, headers=foreign)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), path
            assert "evil.example" in answer.json()["message"]
            assert place.get(path).status_code == (404 if "anna" in path else 200)
        assert place.get("/health", headers=foreign).status_code == 200


def test_hosts_that_may_read() -> None:
    config = ServerConfig()
    for host in (
        None,
        "",
        "127.0.0.1",
        "127.0.0.1:8035",
        "LOCALHOST.:8035",
        "127.0.0.1.",
        "[::1]:80",
        "a.localhost",
    ):
        assert not refused(check_reader, config, host), host
    other = (
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:80",
        "[",
        "x@127.0.0.1",
    )
    for settings in ({}, {"allowed_origins": ("null",)}, {"allowed_hosts": ("good.example",)}):
        for host in other:
            assert refused(check_reader, ServerConfig(**settings), host), host
    for settings in (
        {"api_keys": ("key",)},
        {"insecure": True},
        {"allowed_origins": ("*",)},
        {"allowed_origins": ("https://evil.example",)},
        {"cors_origins": ("https://evil.example",)},
        {"allowed_hosts": ("*",)},
        {"allowed_hosts": ("Evil.Example",)},
        {"allowed_hosts": ("evil.example:8035",)},
    ):
        assert not refused(check_reader, ServerConfig(**settings), "evil.example:8035")


def test_every_route_that_speaks_asks(tmp_path: Path) -> None:
    foreign = {"Origin": "https://evil.example"}
    with serving(ending_drama(), tmp_path) as place:
        for path in ("/v1/stream", "/v1/tts/live"):
            with (
                pytest.raises(InvalidStatus) as caught,
                place.connect(path, additional_headers=foreign),
            ):
                pass
            assert caught.value.response.status_code == 403
        for path in ("/v1/tts", "/v1/audio/speech", "/v1/voices"):
            # Without a Content-Type no browser asks beforehand, and JSON is assumed.
            answer = httpx.post(place.url + path, content=b"{}", headers=foreign)
            assert answer.status_code == 403, answer.text
            assert b"forbidden" in answer.content
        answer = httpx.delete(place.url + "/v1/voices/anna", headers=foreign)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        own = {"Origin": place.url}
        assert place.post("/v1/tts", json={"text": "Hi."}, headers=own).status_code == 200
