"""Test doubles: a sink that records, fails and blocks on request, and a fake PyAudio."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rt_drama3.errors import SinkError
from rt_drama3.sinks.pcm_format import Pcm, PcmFormat
from rt_drama3.sinks.sink import FADE_MS, Sink, SinkStats, already_open, not_open


class MemorySink(Sink):
    """Records what is written.

    Attributes:
        events: names of the calls other than writes, in order.
        failing: raised by every call, or None.
        gate: writes block until it is set.
        holds, lost: ``buffered_ms`` and ``lost`` of ``stats``.
    """

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self.events: list[str] = []
        self.chunks: list[NDArray[np.float32]] = []
        self.failing: SinkError | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.holds = 0.0
        self.lost = 0
        self.format: PcmFormat | None = None
        self.waiting = threading.Event()  # a write waits at the gate
        self._stopped = False

    @property
    def samples(self) -> NDArray[np.float32]:
        return np.concatenate([*self.chunks, np.zeros(0, np.float32)])

    def _check(self) -> None:
        if self.failing is not None:
            raise self.failing

    def open(self, format: PcmFormat) -> None:
        self._check()
        if self.format is not None:
            raise already_open(self.name)
        self.events.append("open")
        self.format = format

    def write(self, pcm: Pcm) -> None:
        self._check()
        if self.format is None:
            raise not_open(self.name)
        frames = self.format.frames(pcm)
        self._stopped = False
        while not self.gate.wait(0.01):
            self.waiting.set()
            if self._stopped:
                return
        self.chunks.append(frames[:, 0].copy())

    def finish(self) -> None:
        self._check()
        self.events.append("finish")

    def drain(self) -> None:
        self._check()
        self.events.append("drain")

    def stop(self, fade_ms: float = FADE_MS) -> None:
        self._stopped = True
        self.events.append("stop")

    def close(self) -> None:
        if self.format is not None:
            self.events.append("close")
        self.format = None

    @property
    def stats(self) -> SinkStats:
        return SinkStats(buffered_ms=self.holds, lost=self.lost)


def card(name: str, outputs: int = 2, inputs: int = 0, rate: int = 48_000) -> dict[str, Any]:
    return {
        "name": name,
        "hostApi": 0,
        "maxOutputChannels": outputs,
        "maxInputChannels": inputs,
        "defaultSampleRate": float(rate),
        "defaultLowOutputLatency": 0.01,
        "defaultLowInputLatency": 0.02,
    }


class FakePyAudio:
    """The module ``pyaudio`` with cards that can be unplugged and made to refuse.

    Attributes:
        cards: current devices; as with the real library, they are listed when it starts.
        refuse: called with the arguments of every ``open``; raises to refuse.
        played: blocks ``[frames, channels]`` in order, by the card's name.
        opened: arguments of the opened streams.
        flags: passed to the callbacks; 4 reports an output underflow.
        users: number of current users of PortAudio.
    """

    paInt16, paContinue = 8, 0  # noqa: N815 - PortAudio's names

    def __init__(self, *cards: dict[str, Any]) -> None:
        self.cards = list(cards)
        self.refuse: Callable[[dict[str, Any]], None] = lambda _arguments: None
        self.played: dict[str, list[NDArray[np.int16]]] = {}
        self.opened: list[dict[str, Any]] = []
        self.flags = 0
        self.streams: list[_Stream] = []
        self.users = 0

    def PyAudio(self) -> _Audio:  # noqa: N802 - PyAudio's name
        self.users += 1
        return _Audio(self, list(self.cards))

    def samples(self, name: str) -> NDArray[np.int16]:
        blocks = self.played.get(name, [])
        return np.concatenate(blocks) if blocks else np.zeros((0, 1), np.int16)

    def unplug(self, name: str) -> None:
        self.cards = [facts for facts in self.cards if facts["name"] != name]
        for stream in self.streams:
            if stream.name == name:
                stream.running = False


class _Audio:
    def __init__(self, owner: FakePyAudio, cards: list[dict[str, Any]]) -> None:
        self._owner, self._cards = owner, cards

    def get_device_count(self) -> int:
        return len(self._cards)

    def get_device_info_by_index(self, index: int) -> dict[str, Any]:
        return {"index": index, **self._cards[index]}

    def get_host_api_info_by_index(self, index: int) -> dict[str, Any]:
        return {"name": "Fake"}

    def get_default_output_device_info(self) -> dict[str, Any]:
        return self._first("maxOutputChannels")

    def get_default_input_device_info(self) -> dict[str, Any]:
        return self._first("maxInputChannels")

    def _first(self, key: str) -> dict[str, Any]:
        for index, facts in enumerate(self._cards):
            if facts[key]:
                return {"index": index, **facts}
        raise OSError("No Default Device Available")

    def open(self, **arguments: Any) -> _Stream:
        self._owner.refuse(arguments)
        self._owner.opened.append(arguments)
        stream = _Stream(
            self._owner, self._cards[arguments["output_device_index"]]["name"], arguments
        )
        self._owner.streams.append(stream)
        return stream

    def terminate(self) -> None:
        self._owner.users -= 1


class _Stream:
    """Calls back as fast as the machine allows, in a thread."""

    def __init__(self, owner: FakePyAudio, name: str, arguments: dict[str, Any]) -> None:
        self.name, self.running = name, True
        self._owner = owner
        self._blocks = owner.played.setdefault(name, [])
        self._arguments = arguments
        self._thread = threading.Thread(target=self._run, name=f"fake card {name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        count, channels = self._arguments["frames_per_buffer"], self._arguments["channels"]
        while self.running:
            data, _ = self._arguments["stream_callback"](None, count, {}, self._owner.flags)
            self._blocks.append(np.frombuffer(data, np.int16).reshape(-1, channels))
            time.sleep(0)

    def is_active(self) -> bool:
        return self.running

    def get_output_latency(self) -> float:
        return 0.02

    def close(self) -> None:
        self.running = False
        self._thread.join()


def error(code: int, text: str) -> OSError:
    """An error as PyAudio raises it."""
    return OSError(code, text)
