"""A headless Chromium that belongs to one test, driven over its DevTools socket."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

SECONDS = 60.0  # the most that any wait takes
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PROGRAM = next((path for name in NAMES if (path := shutil.which(name))), None)
needs_chromium = pytest.mark.skipif(
    PROGRAM is None, reason="needs Chromium (Debian: apt-get install chromium)"
)
FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--window-size=1280,720",
    "--remote-debugging-port=0",
)
KEYS = {"Enter": 13, "Escape": 27}  # codes of keys
AUTOPLAY = "--autoplay-policy=no-user-gesture-required"  # as OBS starts its browser


class Page:
    """One tab.

    Attributes:
        console: what the page logged, as errors above all; policies that it broke are among them.
        asked: addresses of everything that it requested.
        process: group of the browser's processes.
    """

    def __init__(self, socket: ClientConnection, process: int) -> None:
        self._socket = socket
        self.process = process
        self._count = 0
        self.console: list[str] = []
        self.asked: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A DevTools command, answered."""
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=SECONDS))
            if message.get("id") == self._count:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.console.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled":
            parts = [str(one.get("value", one.get("description"))) for one in parameters["args"]]
            self.console.append(" ".join(parts))
        elif method == "Log.entryAdded":
            self.console.append(f"{parameters['entry']['text']} {parameters['entry'].get('url')}")
        elif method == "Network.requestWillBeSent":
            self.asked.append(parameters["request"]["url"])
        elif method == "Network.webSocketCreated":
            self.asked.append(parameters["url"])

    def open(self, url: str) -> None:
        """Goes to an address and waits until the page and its scripts are loaded."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str, gesture: bool = False) -> Any:
        """The value of an expression; a promise is awaited.

        Args:
            script: JavaScript.
            gesture: as if a user had clicked.
        """
        answer = self.call(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            userGesture=gesture,
        )
        failed = answer.get("exceptionDetails")
        assert failed is None, failed.get("exception", {}).get("description", failed)
        return answer["result"].get("value")

    def until(self, script: str) -> Any:
        """Waits until an expression is true, and gives its value."""
        limit = time.monotonic() + SECONDS
        while not (value := self.run(script)):
            assert time.monotonic() < limit, f"waited in vain for {script}; {self.console}"
            time.sleep(0.01)
        return value

    def click(self, selector: str) -> None:
        """Clicks as a user would, in the middle of an element."""
        place = self.run(
            f"(() => {{ const b = document.querySelector({selector!r}).getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=place[0],
                y=place[1],
                button="left",
                clickCount=1,
            )

    def press(self, key: str, control: bool = False) -> None:
        """Presses a key that has a name, such as Enter, as a user would."""
        text = {"text": "\r"} if key == "Enter" and not control else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=KEYS[key],
                modifiers=2 if control else 0,
                **text,
            )

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspends the whole browser, as a machine that sleeps."""
        os.killpg(self.process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.process, signal.SIGCONT)

    def picture(self, path: Path, transparent: bool = False) -> None:
        """A screenshot as PNG."""
        if transparent:
            self.call(
                "Emulation.setDefaultBackgroundColorOverride",
                color={"r": 0, "g": 0, "b": 0, "a": 0},
            )
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def chromium(folder: Path, autoplay: bool = True) -> Iterator[Page]:
    """Starts a browser, with a profile of its own below a folder, and gives its first tab."""
    assert PROGRAM is not None
    profile = folder / "profile"
    flags = [*FLAGS, f"--user-data-dir={profile}", *([AUTOPLAY] if autoplay else [])]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("--no-sandbox")
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, *flags, "about:blank"], stdout=log, stderr=log, start_new_session=True
        )
        try:
            port = _port(process, profile / "DevToolsActivePort")
            with connect(_tab(port), max_size=None, proxy=None, close_timeout=0.5) as socket:
                yield Page(socket, process.pid)
        finally:
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)  # with all of its children
            else:
                process.kill()
            process.wait()


def _port(process: subprocess.Popen[bytes], path: Path) -> int:
    limit = time.monotonic() + SECONDS
    while not (path.exists() and (text := path.read_text()).count("\n")):
        assert process.poll() is None, f"Chromium ended with {process.returncode}"
        assert time.monotonic() < limit, "Chromium did not start"
        time.sleep(0.02)
    return int(text.splitlines()[0])


def _tab(port: int) -> str:
    limit = time.monotonic() + SECONDS
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < limit:
        with opener.open(f"http://127.0.0.1:{port}/json/list", timeout=SECONDS) as answer:
            for tab in json.load(answer):
                if tab["type"] == "page":
                    url: str = tab["webSocketDebuggerUrl"]
                    return url
        time.sleep(0.02)
    raise AssertionError("Chromium has no tab")
