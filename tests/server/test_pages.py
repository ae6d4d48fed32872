"""The pages and their files over HTTP, and the key of a browser's WebSocket."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from rt_drama3.server.http import pages
from tests.server.tools import Place, serving
from tests.small import ending_drama

STRICT = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def test_the_page_and_everything_that_it_names(ending: Place) -> None:
    answer = ending.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == STRICT
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert all_of(ending, answer.text) > {"web/page.js", "web/page.css", "web/client/index.js"}
    assert ending.get("/obs").status_code == 404  # listening is disabled here
    assert ending.get("/web/client/processor.js").status_code == 200  # which a script names


def test_the_listening_page_is_there_where_listening_is(tmp_path: Path) -> None:
    with serving(ending_drama(), tmp_path, listen=True) as place:
        answer = place.get("/obs?captions=0")
        assert answer.status_code == 200
        assert "web/obs.js" in all_of(place, answer.text)
        policy = answer.headers["content-security-policy"]
        styles = "style-src 'self' 'unsafe-inline';"  # what OBS's own box for CSS comes as
        assert policy == STRICT.replace("style-src 'self';", styles)


def all_of(place: Place, html: str) -> set[str]:
    """Fetches what a page and its scripts name, and checks that nothing lies elsewhere."""
    assert "http" not in html
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bon\w+=", html)
    names = set(re.findall(r'(?:src|href)="(?!data:)([^"]+)"', html))
    waiting, done = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        done.add(name)
        answer = place.get(f"/{name}")
        kind = "javascript" if name.endswith(".js") else "css"
        assert answer.status_code == 200, name
        assert answer.headers["content-type"] == f"text/{kind}; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        folder = name.rpartition("/")[0]
        for other in re.findall(r'(?:from|import) "(\.[^"]+)"', answer.text):
            waiting.append(f"{folder}/{other.removeprefix('./')}")
    return done


@pytest.mark.parametrize(
    "name",
    [
        "",
        "page.html",
        "client/",
        "client/index.d.ts",
        "../pages.py",
        "..%2fpages.py",
        "%2e%2e/app.py",
        "client/..%2f..%2f..%2fpages.py",
        "/etc/passwd",
        "page.js%00",
        "client\\index.js",
    ],
)
def test_nothing_else_of_the_disk_is_given(ending: Place, name: str) -> None:
    answer = ending.get(f"/web/{name}")
    assert answer.status_code in (404, 405)
    assert "import" not in answer.text


def test_an_installation_without_the_scripts_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "HERE", tmp_path / "site" / "rt_drama3" / "server")
    with pytest.raises(pages.ConfigError, match="reinstall rt-drama3"):
        pages.client_folder()
    packaged = tmp_path / "site" / "rt_drama3" / "server" / "web" / "client"
    packaged.mkdir(parents=True)
    packaged.joinpath("index.js").touch()
    assert pages.client_folder() == packaged


def offer(key: str) -> list[str]:
    text = base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
    return ["rt-drama3", f"rt-drama3.key.{text}"]


def test_a_browser_brings_its_key_as_a_subprotocol(tmp_path: Path) -> None:
    key = "k/+?~ ey"
    with serving(ending_drama(), tmp_path, api_keys=[key], listen=True) as place:
        for path in ("/v1/stream", "/v1/listen", "/v1/tts/live"):
            with place.connect(path, subprotocols=offer(key)) as socket:
                assert socket.subprotocol == "rt-drama3"  # and never the one with the key
            for wrong in (
                *(offer("other"), offer(""), ["rt-drama3"]),
                *(["rt-drama3", "rt-drama3.key.A"], ["rt-drama3", "rt-drama3.key._w"]),
                ["rt-drama3", "rt-drama3.key." + "A" * 5_000],
            ):
                with pytest.raises(InvalidStatus) as refused:
                    place.connect(path, subprotocols=wrong)
                assert refused.value.response.status_code == 401
            # A header that is there decides.
            header = {"Authorization": "Bearer other"}
            with pytest.raises(InvalidStatus):
                place.connect(path, subprotocols=offer(key), additional_headers=header)


def test_clients_that_offer_nothing_get_nothing(ending: Place) -> None:
    with ending.connect("/v1/stream") as socket:
        assert socket.subprotocol is None
    with ending.connect("/v1/stream", subprotocols=["other"]) as socket:
        assert socket.subprotocol is None
