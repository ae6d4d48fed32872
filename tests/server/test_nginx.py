"""The nginx configuration of docs/proxies.md, in front of a server."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.house.imports import ROOT
from tests.ports import free_port
from tests.server.test_fetch import write_certificate
from tests.server.tools import LONG, Client, Place, serving
from tests.small import WAIT, Frames, shared_drama, until

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(NGINX is None, reason="needs nginx (Debian: nginx-light)"),
    pytest.mark.skipif(sys.platform != "linux", reason="needs further loopback addresses"),
]
NAME = "speech.example.com"
KEY = {"Authorization": "Bearer key"}
OTHER, THIRD = "127.0.0.2", "127.0.0.3"  # addresses of clients
# nginx speaks HTTP/1.0 to the server unless it is configured not to.
VERSIONS = ["1.1", "1.0"]


@dataclass
class Proxied:
    """A server behind nginx."""

    place: Place
    port: int
    tls: ssl.SSLContext

    def client(self, address: str = OTHER) -> httpx.Client:
        transport = httpx.HTTPTransport(verify=self.tls, local_address=address)
        url = f"https://127.0.0.1:{self.port}"
        return httpx.Client(transport=transport, base_url=url, headers=KEY, timeout=WAIT)

    @contextmanager
    def native(self, address: str = OTHER, **headers: str) -> Iterator[Client]:
        raw = socket.create_connection(("127.0.0.1", self.port), WAIT, (address, 0))
        more = {"additional_headers": {**KEY, **headers}, "open_timeout": WAIT, "proxy": None}
        url = f"wss://{NAME}:{self.port}/v1/stream"
        with connect(url, sock=raw, ssl=self.tls, **more) as one:  # type: ignore[arg-type]
            yield Client(one, "type")


def configuration(port: int, server: int, folder: Path, version: str) -> str:
    """That of the page, with other ports and paths."""
    page = (ROOT / "docs" / "proxies.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```nginx\n(.*?)```", page, re.DOTALL)
    changes = {
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        f"/etc/ssl/{NAME}": str(folder),
        "127.0.0.1:8035": f"127.0.0.1:{server}",
        "proxy_http_version 1.1;": f"proxy_http_version {version};",
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return (
        f"pid {folder}/pid; error_log stderr; daemon off; master_process off; events {{}}\n"
        f"http {{ access_log off; {temporary}\n{text} }}\n"
    )


@contextmanager
def proxied(tmp_path: Path, version: str = "1.1", **settings: Any) -> Iterator[Proxied]:
    assert NGINX is not None
    write_certificate(tmp_path, NAME)
    settings = {"api_keys": ("key",), "trusted_proxies": ("127.0.0.1",), **settings}
    with serving(shared_drama(), tmp_path / "data", **settings) as place:
        port = free_port()
        path = tmp_path / "nginx.conf"
        path.write_text(configuration(port, place.port, tmp_path, version))
        process = subprocess.Popen([NGINX, "-e", "stderr", "-p", str(tmp_path), "-c", str(path)])
        try:

            def listens() -> bool:
                assert process.poll() is None, "nginx ended"
                with socket.socket() as probe:
                    return probe.connect_ex(("127.0.0.1", port)) == 0

            until(listens, "starting nginx")
            yield Proxied(place, port, ssl.create_default_context(cafile=tmp_path / "cert.pem"))
        finally:
            process.terminate()
            process.wait(WAIT)


@pytest.mark.parametrize("version", VERSIONS)
def test_streaming_arrives_unbuffered(version: str, tmp_path: Path) -> None:
    """A second of a low bit rate is less than any buffer, and the engine makes no more."""
    with proxied(tmp_path, version) as proxy, proxy.client() as http:
        assert proxy.place.engine is not None
        frames = Frames(proxy.place.engine)
        frames.hold()
        frames.allow(20)
        body = {"input": LONG, "response_format": "opus", "bitrate": 16_000}
        with http.stream("POST", "/v1/audio/speech", json=body) as answer:
            assert len(next(answer.iter_raw())) < 4_096
            frames.free()
        proxy.place.until_free()


def test_websockets(tmp_path: Path) -> None:
    with proxied(tmp_path) as proxy:
        with proxy.native() as client:
            client.send("ping", data=5)
            assert client.take()["data"] == 5
            client.send("start", text="Hello.", final=True, max_seconds=0.2)
            assert client.take_until("done")[-1]["frames"] == 4
            client.send("start", text=LONG, final=True)
            client.take_until("audio")
            client.send("cancel")
            client.take_until("cancelled")
        proxy.place.until_free()
        with (
            pytest.raises(InvalidStatus, match="401"),
            proxy.native(Authorization="Bearer other"),
        ):
            pass


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["pcm", "mp3"])
def test_a_cut_answer_is_not_complete(version: str, kind: str, tmp_path: Path) -> None:
    with proxied(tmp_path, version) as proxy, proxy.client() as http:
        place = proxy.place
        body = {"input": LONG, "response_format": kind}
        with http.stream("POST", "/v1/audio/speech", json=body) as answer:
            audio = answer.iter_raw()
            assert next(audio)
            assert place.server.loop is not None
            place.server.loop.call_soon_threadsafe(place.service.drain.cut)
            with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
                list(audio)


def test_a_client_that_leaves_is_noticed(tmp_path: Path) -> None:
    with proxied(tmp_path) as proxy, proxy.client() as http:
        body = {"input": LONG, "response_format": "pcm"}
        with http.stream("POST", "/v1/audio/speech", json=body) as answer:
            assert next(answer.iter_raw())
        proxy.place.until_free()


def test_the_address_of_the_client_is_seen(tmp_path: Path) -> None:
    with proxied(tmp_path, connections_per_client=1) as proxy:
        forged = {"X-Forwarded-For": "203.0.113.1"}
        body = {"text": "...", "format": "pcm"}
        with proxy.native(OTHER), proxy.client(OTHER) as same, proxy.client(THIRD) as other:
            for headers in ({}, forged):
                assert same.post("/v1/tts", json=body, headers=headers).status_code == 429
                assert other.post("/v1/tts", json=body, headers=headers).status_code == 200
        with proxy.client() as http:
            location = http.get("/v1/voices/").headers["location"]
            assert location.startswith("https://127.0.0.1")


def test_clips_of_any_size_that_the_server_takes(tmp_path: Path) -> None:
    with proxied(tmp_path) as proxy, proxy.client() as http:
        clip = {"text": "Said.", "audio": "A" * (15 << 20)}
        answer = http.post("/v1/tts", json={"text": "Hi.", "references": [clip]})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_reference")
        assert http.post("/v1/tts", content=bytes(17 << 20)).status_code == 413
