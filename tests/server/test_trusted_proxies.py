"""Whose word about a client's address and scheme is believed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from websockets.exceptions import InvalidStatus

from rt_drama3.errors import ConfigError
from rt_drama3.server.config import ServerConfig, forwarders, read_server_config
from tests.server.tools import serving
from tests.small import ending_drama

PROXIES = ("127.0.0.1", "10.0.0.0/8", "fd00::/8")


def seen(peer: str, forwarded: str, proxies: tuple[str, ...] = PROXIES) -> str:
    """The client's address as the application sees it."""
    found: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(scope["client"][0])

    headers = [(b"x-forwarded-for", forwarded.encode())]
    scope: Any = {"type": "http", "client": (peer, 1), "scheme": "http", "headers": headers}
    middleware = ProxyHeadersMiddleware(app, forwarders(proxies))
    asyncio.run(middleware(scope, None, None))  # type: ignore[arg-type]
    return found[0]


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("127.0.0.1", "203.0.113.1", "203.0.113.1"),
        ("10.1.2.3", "203.0.113.1", "203.0.113.1"),
        ("::ffff:10.1.2.3", "203.0.113.1", "203.0.113.1"),  # a server that listens on ::
        ("::ffff:127.0.0.1", "203.0.113.1", "203.0.113.1"),
        ("fd00::1", "2001:db8::1", "2001:db8::1"),
        ("10.1.2.3", "203.0.113.9, 203.0.113.1", "203.0.113.1"),  # the first is the client's word
        ("10.1.2.3", "203.0.113.9, 203.0.113.1, 10.9.9.9, fd00::2", "203.0.113.1"),
        ("10.1.2.3", "203.0.113.1, ::ffff:10.9.9.9", "203.0.113.1"),
        ("10.1.2.3", "", "10.1.2.3"),
        ("203.0.113.7", "203.0.113.1", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.1", "::ffff:203.0.113.7"),
        ("11.0.0.1", "127.0.0.1", "11.0.0.1"),
        ("fe00::1", "203.0.113.1", "fe00::1"),
    ],
)
def test_the_last_address_that_no_proxy_has(peer: str, forwarded: str, client: str) -> None:
    assert seen(peer, forwarded) == client


def status(place: Any, forwarded: str) -> int:
    headers = {"X-Forwarded-For": forwarded}
    code: int = place.post("/v1/tts", json={"text": "Hi."}, headers=headers).status_code
    return code


def test_limits_count_the_clients_of_a_proxy(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"connections_per_client": 1, "trusted_proxies": ("127.0.0.0/8",)}
    with serving(ending_drama(), tmp_path, **settings) as place:
        forwarded = {"X-Forwarded-For": "203.0.113.1"}
        with place.native(additional_headers=forwarded):
            assert status(place, "203.0.113.1") == 429
            assert status(place, "203.0.113.2, 203.0.113.1") == 429  # its own word comes first
            assert status(place, "203.0.113.2") == 200
            with place.fish(additional_headers={"X-Forwarded-For": "203.0.113.3"}):
                assert status(place, "203.0.113.3") == 429
            with (
                pytest.raises(InvalidStatus, match="429"),
                place.native(additional_headers=forwarded),
            ):
                pass


@pytest.mark.parametrize("proxies", [(), ("192.0.2.1", "10.0.0.0/8")])
def test_a_peer_that_is_not_trusted_cannot_forge_its_address(
    proxies: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # uvicorn's own setting is not ours
    settings: dict[str, Any] = {"connections_per_client": 1, "trusted_proxies": proxies}
    with (
        serving(ending_drama(), tmp_path, **settings) as place,
        place.native(additional_headers={"X-Forwarded-For": "203.0.113.1"}),
    ):
        assert status(place, "203.0.113.2") == 429
        with (
            pytest.raises(InvalidStatus, match="429"),
            place.native(additional_headers={"X-Forwarded-For": "203.0.113.3"}),
        ):
            pass


@pytest.mark.parametrize(("proxies", "scheme"), [((), "http"), (("127.0.0.1",), "https")])
def test_the_scheme_of_redirects(proxies: tuple[str, ...], scheme: str, tmp_path: Path) -> None:
    with serving(ending_drama(), tmp_path, trusted_proxies=proxies) as place:
        answer = place.get("/v1/voices/", headers={"X-Forwarded-Proto": "https"})
        assert answer.status_code == 307
        assert answer.headers["location"] == f"{scheme}://127.0.0.1:{place.port}/v1/voices"


def test_settings() -> None:
    there = {"RT_DRAMA3_SERVER_TRUSTED_PROXIES": "10.0.0.0/8, ::1"}
    assert read_server_config(environment=there).trusted_proxies == ("10.0.0.0/8", "::1")
    for wrong in ("10.0.0.1/8", "proxy.example", "*", ""):
        with pytest.raises(ConfigError, match="use an address") as caught:
            ServerConfig(trusted_proxies=("10.0.0.1", wrong))
        assert repr(wrong) in str(caught.value)
