"""Our server in a process of its own, as ``rt-drama3 serve`` runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Self

from rt_drama3_bench.errors import BenchError, require_rt_drama3

STOP_SECONDS = 20.0
LINES = 50  # of the log that are kept for messages


class ServerProcess:
    """Starts a server on a free port of this machine and stops it at the end of the block.

    Args:
        model: to serve.
        step_mode: of its engine; None leaves it to the environment.
        max_streams: that speak at the same time; None: the default.
        arguments: further ones of ``rt-drama3 serve``.
        patience: seconds within which it must be ready.

    Attributes:
        url: of the server.
        started: seconds from the start of the process until it was ready.

    Raises:
        BenchError: it did not become ready; the message has the end of its log.
    """

    def __init__(
        self,
        model: str = "nano",
        step_mode: str | None = None,
        max_streams: int | None = None,
        arguments: Sequence[str] = (),
        patience: float = 600.0,
    ) -> None:
        require_rt_drama3("starting a server")
        self._folder = tempfile.TemporaryDirectory(prefix="rt-drama3-bench-")
        command = [sys.executable, "-m", "rt_drama3", "serve", "--port", "0"]
        command += ["--model", model, "--data-folder", self._folder.name, *arguments]
        if step_mode is not None:
            command += ["--step-mode", step_mode]
        if max_streams is not None:
            command += ["--max-streams", str(max_streams)]
        self._log: deque[str] = deque(maxlen=LINES)
        self._ports: list[int] = []  # that it said it listens on
        self._speaks = False
        self._settled = threading.Event()  # it is ready, or has ended
        began = time.monotonic()
        environment = {**os.environ, "RT_DRAMA3_SERVER_API_KEYS": ""}
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._settled.wait(patience)
        self.started = time.monotonic() - began
        if not (self._ports and self._speaks):
            self.close()
            log = "".join(self._log) or "(nothing)"
            raise BenchError(f"the server was not ready within {self.started:.0f} s. Log:\n{log}")
        self.url = f"http://127.0.0.1:{self._ports[0]}"

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """Stops it, as SIGTERM does, and waits."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(STOP_SECONDS)
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        """Reads the log, so that the pipe never fills."""
        assert self._process.stderr is not None
        for raw in self._process.stderr:
            line = raw.decode(errors="replace")
            self._log.append(line)
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if not isinstance(event, dict):
                continue
            if event.get("event") == "listening":
                self._ports.append(event["port"])
            elif event.get("event") == "ready":
                self._speaks = True
                self._settled.set()
        self._process.stderr.close()
        self._settled.set()
