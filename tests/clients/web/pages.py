"""What tests of /obs do with the page."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from tests.clients.web.chromium import Page


def listening(page: Page, url: str) -> None:
    """Opens the page and waits until it hears; its captions are written down with their times.

    Unless the address says how late it may be, nothing is late enough to be skipped: a busy machine
    may be late as well.
    """
    page.open(url if "late=" in url else f"{url}{'&' if '?' in url else '?'}late=3600000")
    page.until("globalThis.rtDrama3?.listener.state === 'listening'")
    page.until("rtDrama3.player.state === 'running'")
    page.run(
        "globalThis.seen = []; globalThis.quiet = 0;"
        "rtDrama3.listener.addEventListener('segment', (e) => seen.push("
        "[e.text, e.firstSample, document.getElementById('caption').textContent]));"
        "rtDrama3.listener.addEventListener('quiet', () => quiet++)"
    )


def only_here(page: Page, port: int) -> None:
    """Nothing was asked for elsewhere, and no policy was broken."""
    here = f"//127.0.0.1:{port}/"
    assert [url for url in page.asked if here not in url and not url.startswith("data:")] == []
    assert page.console == []


def read_picture(path: Path) -> NDArray[np.uint8]:
    """A PNG, ``[height, width, 4]``."""
    with av.open(str(path)) as file:
        return next(file.decode(video=0)).to_ndarray(format="rgba")


@contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """A folder as any static server gives it; its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
