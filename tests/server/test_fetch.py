"""URL references: fetched only when asked for, from where it is allowed, and within bounds.

Nothing here reaches outside: names are resolved by a table, to servers of this process.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rt_drama3.protocol import Refused
from rt_drama3.server.references.fetch import Fetcher, Target
from tests.server.test_voices import clip
from tests.server.tools import Place, serving
from tests.small import WAIT, ending_drama, until

OK = b"HTTP/1.1 200 OK\r\n"
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Host:
    """A web server of the test: what it answers by path, and what it was asked."""

    answers: dict[str, bytes | Answer]
    port: int = 0
    asked: list[bytes] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(request)
            answer = self.answers[request.split()[1].decode()]
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort() if writer.transport.is_closing() else writer.close()
            self.gone.set()


def body(data: bytes, *headers: bytes) -> bytes:
    lines = b"".join(line + b"\r\n" for line in (b"Content-Length: %d" % len(data), *headers))
    return OK + lines + b"\r\n" + data


def moved(to: str) -> bytes:
    return b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + to.encode() + b"\r\n\r\n"


async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accepts and says nothing until the other side leaves."""
    await reader.read()


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A body that never ends."""
    writer.write(OK + b"\r\n")
    while True:
        writer.write(b"x" * 65_536)
        await writer.drain()


@contextmanager
def hosting(
    answers: dict[str, bytes | Answer], tls: ssl.SSLContext | None = None
) -> Iterator[Host]:
    host, loop = Host(answers), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        start = asyncio.start_server(host.serve, "127.0.0.1", 0, ssl=tls)
        server = asyncio.run_coroutine_threadsafe(start, loop).result(WAIT)
        host.port = server.sockets[0].getsockname()[1]
        yield host
        loop.call_soon_threadsafe(server.close)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def table(**names: Sequence[str]) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """A resolver that knows some names; ``_`` stands for a dot."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        try:
            return names[host.replace(".", "_")]
        except KeyError:
            raise socket.gaierror("no such name") from None

    return resolve


def fetcher(*ports: int, **more: Any) -> Fetcher:
    """One to whom 127.0.0.1 is public, and nothing else."""
    settings = {
        "seconds": WAIT,
        "resolve": table(clips_test=["127.0.0.1"], inside_test=["127.0.0.2"], none_test=[]),
        "allowed": lambda address: address == "127.0.0.1",
        **more,
    }
    return Fetcher(ports=ports, **settings)


def get(one: Fetcher, *urls: str, each: int = 1_000, together: int = 10_000) -> list[bytes]:
    return asyncio.run(one.fetch(urls, each, together))


def refused(one: Fetcher, *urls: str, **more: Any) -> str:
    with pytest.raises(Refused) as caught:
        get(one, *urls, **more)
    assert caught.value.code == "bad_reference"
    return caught.value.message


def test_a_clip_is_fetched_from_the_address_that_was_judged() -> None:
    with hosting({"/a?b=c": body(b"clip"), "/": body(b"")}) as host:
        url = f"http://clips.test:{host.port}/a?b=c#d"
        assert get(fetcher(host.port), url) == [b"clip"]
        assert get(fetcher(host.port), f"http://CLIPS.test:{host.port}") == [b""]
    request = host.asked[0].decode()
    assert request.startswith("GET /a?b=c HTTP/1.1\r\n")
    assert f"Host: clips.test:{host.port}\r\n" in request
    assert not any(name in request.lower() for name in ("authorization", "cookie", "referer"))


def test_the_name_is_resolved_once_for_each_connection() -> None:
    """A name whose address changes after it was judged gains nothing."""
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])

    async def rebinding(host: str, port: int) -> Sequence[str]:
        return next(answers)

    with hosting({"/": body(b"clip")}) as host:
        one = fetcher(host.port, resolve=rebinding)
        assert get(one, f"http://clips.test:{host.port}/") == [b"clip"]
        assert "not public" in refused(one, f"http://clips.test:{host.port}/")


def test_proxies_of_the_environment_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    with hosting({"/": body(b"clip")}) as host:
        assert get(fetcher(host.port), f"http://clips.test:{host.port}/") == [b"clip"]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://clips.test/a", "neither http nor https"),
        ("http://user:word@clips.test/a", "credentials"),
        ("http://clips.test@inside.test/a", "credentials"),
        ("http://clips.test:22/a", "has port 22; allowed are 80, 443"),
        ("http://clips.test:99999/a", "correct it"),
        ("http://clips.test/a b", "percent-encode"),
        ("http://clips.test\\@inside.test/", "percent-encode"),
        ("http://clips.test/\r\nX: y", "percent-encode"),
        ("http:///a", "no host name"),
        ("http://[::1", "correct it"),
        ("http://[fe80::1%25eth0]/", "no host name"),
        ("http://clips_test/", "no host name"),
        ("http://" + "a" * 3_000, "2048"),
        ("http://unknown.test/", "cannot be found"),
        ("http://none.test/", "cannot be found"),
        ("http://inside.test/", "not public"),
    ],
)
def test_urls_that_are_not_fetched(url: str, says: str) -> None:
    assert says in refused(fetcher(80, 443), url)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "0x7f000001", "2130706433", "[::1]", "[::ffff:127.0.0.1]"]
)
def test_addresses_of_this_machine_in_any_spelling(host: str) -> None:
    """By the real resolver and the real rule; numbers are not looked up anywhere."""
    message = refused(Fetcher(), f"http://{host}/")
    assert "not public" in message or "cannot be found" in message


def test_one_address_that_is_not_public_is_enough() -> None:
    one = fetcher(80, resolve=table(clips_test=["127.0.0.1", "10.0.0.1"]))
    assert "not public" in refused(one, "http://clips.test/")


def test_redirects_are_judged_and_counted() -> None:
    answers: dict[str, bytes | Answer] = {f"/{n}": moved(f"/{n - 1}") for n in range(1, 6)}
    answers["/0"] = body(b"clip")
    answers["/in"] = moved("http://inside.test/")
    answers["/file"] = moved("file:///etc/passwd")
    answers["/port"] = moved("http://clips.test:22/")
    answers["/keys"] = moved("//a:b@clips.test/")
    with hosting(answers) as host:
        base, one = f"http://clips.test:{host.port}", fetcher(host.port, 80)
        assert get(one, base + "/3") == [b"clip"]
        assert "redirects more than 3 times" in refused(one, base + "/4")
        assert "not public" in refused(one, base + "/in")
        assert "neither http nor https" in refused(one, base + "/file")
        assert "has port 22" in refused(one, base + "/port")
        assert "credentials" in refused(one, base + "/keys")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "status 404"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "status 204"),
        (body(b"x", b"Content-Encoding: gzip"), "Content-Encoding 'gzip'"),
        (OK + b"Content-Length: 9\r\n\r\nshort", "not answered in full"),
        (b"SSH-2.0-x\r\n", "not as HTTP"),
        (b"", "not answered in full"),
        (OK + b"X: " + b"y" * 100_000 + b"\r\n\r\n", "not as HTTP"),
        (body(b"x" * 1_001), "more than the 1000 bytes"),
        (OK + b"\r\n" + b"x" * 1_001, "more than the 1000 bytes"),
        (
            OK + b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1_001,
            "more than the 1000 bytes",
        ),
        (endless, "more than the 1000 bytes"),
    ],
)
def test_answers_that_are_not_taken(answer: bytes | Answer, says: str) -> None:
    with hosting({"/": answer}) as host:
        assert says in refused(fetcher(host.port), f"http://clips.test:{host.port}/")
        assert host.gone.wait(WAIT)


def test_all_clips_of_a_request_share_one_bound() -> None:
    with hosting({"/": body(b"x" * 600)}) as host:
        url = f"http://clips.test:{host.port}/"
        assert get(fetcher(host.port), url, together=600) == [b"x" * 600]
        assert "all clips of a request" in refused(fetcher(host.port), url, url, together=1_000)


def test_a_server_that_is_slow_is_cut_off() -> None:
    with hosting({"/": never}) as host:
        message = refused(fetcher(host.port, seconds=0.2), f"http://clips.test:{host.port}/")
        assert "within the 0.2 s" in message
        assert "clips.test" in message
        assert host.gone.wait(WAIT)


def test_a_resolver_that_is_slow_is_cut_off() -> None:
    async def stuck(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return ()

    message = refused(fetcher(80, seconds=0.05, resolve=stuck), "http://clips.test/")
    assert "within the 0.05 s" in message


def test_concurrent_fetches_are_limited() -> None:
    async def both(one: Fetcher, url: str) -> None:
        first = asyncio.create_task(one.fetch([url], 1_000, 1_000))
        while not host.asked:  # noqa: ASYNC110 - the host is a thread
            await asyncio.sleep(0.01)
        second = asyncio.create_task(one.fetch([url], 1_000, 1_000))
        await asyncio.sleep(0.05)
        assert len(host.asked) == 1
        first.cancel()
        while len(host.asked) == 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        second.cancel()
        await asyncio.wait({first, second})

    with hosting({"/": never}) as host:
        one = fetcher(host.port, seconds=WAIT, concurrent=1)
        asyncio.run(both(one, f"http://clips.test:{host.port}/"))


def test_a_fetch_whose_turn_does_not_come_is_overloaded() -> None:
    with pytest.raises(Refused) as caught:
        asyncio.run(fetcher(80, seconds=0.01, concurrent=0).fetch(["http://x/"], 1_000, 1_000))
    assert caught.value.code == "overloaded"


def write_certificate(folder: Path, name: str) -> None:
    """A key and a certificate for a name, signed by itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command to make a certificate")
    command = [openssl, "req", "-x509", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)


def test_tls_verifies_the_name_at_the_pinned_address(tmp_path: Path) -> None:
    write_certificate(tmp_path, "clips.test")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    client = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    with hosting({"/": body(b"clip"), "/down": moved("http://clips.test/")}, server) as host:
        names = table(clips_test=["127.0.0.1"], other_test=["127.0.0.1"])
        one = fetcher(host.port, 80, resolve=names, tls=client)
        assert get(one, f"https://clips.test:{host.port}/") == [b"clip"]
        assert "TLS failed" in refused(one, f"https://other.test:{host.port}/")
        assert "from https to http" in refused(one, f"https://clips.test:{host.port}/down")
        strangers = fetcher(host.port, resolve=names)
        assert "TLS failed" in refused(strangers, f"https://clips.test:{host.port}/")


def test_the_parts_of_a_target() -> None:
    target = Target.parse("http://[2606:4700::1]:8080/a?b", (8080,))
    assert (target.host, target.port, target.path) == ("2606:4700::1", 8080, "/a?b")
    assert target.authority == "[2606:4700::1]:8080"
    assert Target.parse("https://a.test", (443,)).authority == "a.test"


# Through the server.


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return clip(tmp_path_factory.mktemp("clip"))


@contextmanager
def fetching(folder: Path, host: Host) -> Iterator[Place]:
    with serving(ending_drama(), folder, url_references=True) as place:
        place.service.openings.fetcher = fetcher(host.port)
        yield place


def test_every_surface_takes_a_url(tmp_path: Path, sound: bytes) -> None:
    with hosting({"/a.wav": body(sound)}) as host, fetching(tmp_path, host) as place:
        one = {"text": "Hello.", "audio": f"http://clips.test:{host.port}/a.wav"}
        answer = place.post("/v1/tts", json={"text": "Hi.", "references": [one]})
        assert answer.status_code == 200, answer.text
        answer = place.post("/v1/voices", json={"name": "anna", **one})
        assert answer.status_code == 201, answer.text
        with place.native() as client:
            client.send("start", references=[one])
            client.send("text", text="Hello there. ")
            client.send("finish")
            assert client.take_until("done", "error")[-1]["type"] == "done"
        with place.fish() as client:
            client.send("start", request={"text": "Hi. ", "format": "pcm", "references": [one]})
            client.send("stop")
            assert client.take_until("finish")[-1]["reason"] == "stop"
        assert len(host.asked) == 4


def test_what_is_fetched_is_judged_as_what_is_sent(tmp_path: Path) -> None:
    with hosting({"/": body(b"no audio")}) as host, fetching(tmp_path, host) as place:
        one = {"text": "Hello.", "audio": f"http://clips.test:{host.port}/"}
        answer = place.post("/v1/tts", json={"text": "Hi.", "references": [one]})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_reference")
        assert place.post("/v1/voices", json={"name": "a", **one}).json()["code"] == "bad_reference"


def test_urls_are_not_opened_unless_asked_for(ending: Place) -> None:
    one = {"text": "Hello.", "audio": "http://127.0.0.1:9/a.wav"}
    answer = ending.post("/v1/tts", json={"text": "Hi.", "references": [one]})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_reference")
    assert "does not fetch clips from URLs" in answer.json()["message"]
    with ending.native() as client:
        client.send("start", text="Hi.", final=True, references=[one])
        assert client.take()["code"] == "bad_reference"
        client.send("start", text="Hi.", final=True)
        assert client.take_until("done", "error")[-1]["type"] == "done"
    with ending.fish() as client:
        client.send("start", request={"text": "Hi.", "references": [one]})
        assert client.take()["code"] == "bad_reference"


@pytest.mark.parametrize("how", ["close", "cancel", "start", "http", "voice"])
def test_a_fetch_ends_with_its_client(tmp_path: Path, how: str) -> None:
    import httpx

    with hosting({"/": never}) as host, fetching(tmp_path, host) as place:
        one = {"text": "Hello.", "audio": f"http://clips.test:{host.port}/"}
        if how in ("http", "voice"):
            path = "/v1/tts" if how == "http" else "/v1/voices"
            request = {"text": "Hi.", "name": "a", "references": [one]}
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(place.url + path, json=request, timeout=0.3)
        else:
            with place.native() as client:
                client.send("start", text="Hi.", final=True, references=[one])
                client.send("ping", data=1)  # other messages are not kept waiting
                assert client.take_until("pong")
                until(lambda: host.asked, "asking the host")
                if how == "cancel":
                    client.send("cancel")
                    assert client.take()["generated"]["frames"] == 0
                elif how == "start":
                    client.send("start", text="Hi.", final=True)
                    kinds = [m["type"] for m in client.take_until("done", "error")]
                    assert kinds[0] == "cancelled"
                    assert kinds[-1] == "done"
        assert host.gone.wait(WAIT)
        until(lambda: not place.service.access.connections, "counting the client out")


def test_text_that_comes_before_the_clip_is_spoken(tmp_path: Path, sound: bytes) -> None:
    go = threading.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.to_thread(go.wait, WAIT)
        writer.write(body(sound))
        await writer.drain()

    with hosting({"/": late}) as host, fetching(tmp_path, host) as place, place.native() as client:
        one = {"text": "Hello.", "audio": f"http://clips.test:{host.port}/"}
        client.send("start", references=[one])
        for text in ("Hello ", "there. ", "And ", "here. "):
            client.send("text", text=text)
        client.send("finish")
        client.send("ping", data=2)
        assert client.take()["type"] == "pong"
        go.set()
        messages = client.take_until("done", "error")
    segments = [m["text"].split("|> ")[-1] for m in messages if m["type"] == "segment"]
    assert segments == ["Hello there.", "And here."]
    assert messages[0]["type"] == "ready"
