"""Addresses where something else listens, or that should not be shown: what is said of them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from rt_drama3_client import (
    AsyncClient,
    BadServerMessage,
    ClientError,
    ConnectFailed,
    ServerError,
    Settings,
    UsageError,
)
from rt_drama3_client.address import URL_VARIABLE, read_address
from rt_drama3_client.cli import main
from rt_drama3_client.connection import connect_failed
from tests.clients.python.fake import QUICK, Peer, run, served
from tests.server.tools import Place


async def spoken(peer: Peer) -> None:
    await peer.speak()


@asynccontextmanager
async def saying(words: bytes) -> AsyncIterator[str]:
    """A port that sends this to every client and closes the connection."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(words)
        await writer.drain()
        writer.write_eof()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("scheme", ["https", "wss"])
def test_server_without_tls_is_distinguished_from_a_forbidden_one(
    ending: Place, scheme: str
) -> None:
    async def work() -> None:
        async with AsyncClient(f"{scheme}://127.0.0.1:{ending.port}", settings=QUICK) as client:
            for work in (client.speak("Hi.").read, client.voices):
                with pytest.raises(ConnectFailed, match="the TLS handshake failed") as caught:
                    await work()
                assert "http://" in caught.value.remedy
                assert "permitted" not in str(caught.value)
                assert not caught.value.retriable

    run(work())


def test_server_that_closes_on_tls() -> None:
    async def work() -> None:
        settings = replace(QUICK, attempts=1)
        async with served(spoken) as (server, _):
            client = AsyncClient(f"wss://{server.url}", settings=settings)
            with pytest.raises(ConnectFailed, match=r"closed|reset") as caught:
                await client.speak("Hi.").read()
            assert "http://" in caught.value.remedy

    run(work())


def test_untrusted_certificate() -> None:
    error = ssl.SSLCertVerificationError(1, "[SSL] failed")
    error.verify_message = "self-signed certificate"
    failed = connect_failed(read_address("https://host"), error)
    assert "not trusted (self-signed certificate)" in str(failed)
    assert "tls" in failed.remedy


@pytest.mark.parametrize(
    "words",
    [
        b"SSH-2.0-OpenSSH_9\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\n" + 200 * b"a: b\r\n" + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz",
        b"\x15\x03\x01\x00\x02\x02\x46",  # TLS: an alert
    ],
)
def test_any_other_server_raises_client_error(words: bytes) -> None:
    async def work() -> None:
        async with saying(words) as url, AsyncClient(url, settings=QUICK) as client:
            for work in (client.voices, client.models, client.speak("Hi.").read):
                with pytest.raises(ClientError):
                    await work()

    run(work())


def test_unknown_host() -> None:
    async def work() -> None:
        settings = replace(QUICK, attempts=1, proxy=None)
        async with AsyncClient("http://" + 70 * "a", settings=settings) as client:
            for work in (client.voices, client.speak("Hi.").read):
                with pytest.raises(ConnectFailed):
                    await work()

    run(work())


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (200, "<html>", BadServerMessage, "is not an rt-drama3 server: it responded .* 200"),
        (302, "", BadServerMessage, "is not an rt-drama3 server"),
        (404, "<html>", ServerError, "404.*Check that the address is an rt-drama3 server"),
    ],
)
def test_other_http_server(status: int, body: str, kind: type[Any], message: str) -> None:
    async def work() -> None:
        def answer(connection: Any, request: Any) -> Any:
            return connection.respond(status, body)

        async with served(spoken, process_request=answer) as (_, client):
            with pytest.raises(kind, match=message):
                await client.speak("Hi.").read()

    run(work())


@pytest.mark.parametrize(
    "url",
    ["http://me:secret@host", "me:secret@host", "ftp://me:secret@h", "http://[me:secret@h"],
)
def test_password_is_not_shown(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, url)
    for arguments in (["Hi.", "-o", "-", "--url", url], ["Hi.", "-o", "-"]):
        with pytest.raises(SystemExit) as leaving:
            main(arguments)
        assert leaving.value.code == 2
        said = capsys.readouterr().err
        assert "--api-key" in said
        assert "secret" not in said


def test_key_in_a_query_is_not_shown() -> None:
    for url in ("http://host/?key=secret", "http://host#secret"):
        with pytest.raises(UsageError, match="invalid address 'http://host") as caught:
            read_address(url)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("proxy", ["me:secret@proxy", "odd://me:secret@proxy"])
def test_password_of_a_proxy_is_not_shown(proxy: str) -> None:
    async def work() -> None:
        settings = Settings(proxy=proxy, attempts=1)
        async with AsyncClient("http://192.0.2.1:9", settings=settings) as client:
            with pytest.raises(UsageError, match="proxy") as caught:
                await client.speak("Hi.").read()
            assert "secret" not in str(caught.value)

    run(work())


@pytest.mark.parametrize("url", ["http://host/a b", "http://host/\u00fc", "http://host/\x01"])
def test_invalid_paths_raise(url: str) -> None:
    with pytest.raises(UsageError, match=r"invalid address|must not contain"):
        read_address(url)
