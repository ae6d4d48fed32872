"""The examples of docs/protocol.md: made by the sessions, checked and rewritten by these lines.

``python -m tests.protocol.examples`` rewrites them in the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from rt_drama3.errors import Overloaded
from rt_drama3.protocol import (
    ListenOptions,
    ListenSession,
    ListenStream,
    Outcome,
    stop_message,
)
from tests.protocol.tools import FACTS, Clock, Send, as_json, fish, native

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
WIDTH = 100
MARK = re.compile(r"(?<=<!-- example: )(\w+ \w+)( -->\n\n```text\n)(.*?)(?=```)", re.DOTALL)
PCM = np.array([0, 1, -1, 257], "<i2").tobytes()


@dataclass(frozen=True)
class Stamps:
    accepted: float = 100.0
    prefilled: float = 100.0042
    sampled: tuple[float, float] = (100.011, 100.011)
    decoded: float = 100.0145


def examples() -> dict[str, bytes]:
    """One message of every type, by dialect and name."""
    found = {"native": native_examples(), "fish": fish_examples(), "listen": listen_examples()}
    return {
        f"{dialect} {name}": data
        for dialect, messages in found.items()
        for name, data in messages.items()
    }


def native_examples() -> dict[str, bytes]:
    client = native()
    found: dict[str, bytes] = {}

    def send(message: dict[str, Any]) -> None:
        data = msgpack.packb(message)
        found.setdefault(message["type"], data)
        keep([event.data for event in client.send(data) if isinstance(event, Send)])

    def hear(report: Callable[..., None], *arguments: Any) -> None:
        keep(client.bytes_of(report, *arguments))

    def keep(messages: list[bytes]) -> None:
        for data in messages:
            found.setdefault(msgpack.unpackb(data)["type"], data)

    start = {"type": "start", "version": 1, "voice": "anna", "sample_rate": 16_000, "seed": 7}
    send({**start, "timings": True, "take": True, "speed": 2})
    utterance = client.utterance
    hear(utterance.ready, "anna")
    hear(utterance.queued, 1)
    send({"type": "text", "text": "Hello there. "})
    send({"type": "flush"})
    send({"type": "ping", "data": 5})
    hear(utterance.segment, 0, "Hello there.", 0)
    hear(utterance.notice, "the tag <jump> is unknown and not spoken.")
    client.clock.now = 100.015
    hear(utterance.audio, PCM, len(PCM) // 2, Stamps())
    send({"type": "finish"})
    timings = {"prefill_ms": 3.1, "frame_ms": 6.2, "codec_ms": 3.3, "rtf": 0.27}
    codes = np.arange(10).reshape(10, 1)
    hear(utterance.done, Outcome(1, 7, True, 1, timings, codes, "Hello there. "))
    send({"type": "start"})
    send({"type": "cancel"})
    found["cancelled"] = msgpack.packb(client.last())
    client.send({"type": "start"})
    error = Overloaded("at capacity: 20 streams active or queued (limit 20).")
    client.session.fail(client.utterance, error)
    keep(client.session.data_to_send())
    return found


def fish_examples() -> dict[str, bytes]:
    client = fish()
    found: dict[str, bytes] = {}
    request = {"text": "", "format": "pcm", "sample_rate": 16_000, "prosody": {"speed": 1.1}}
    messages = [
        {"event": "start", "request": request},
        {"event": "text", "text": "Hello there. "},
        {"event": "flush"},
        {"event": "text", "text": "<|im_end|>"},
        {"event": "stop"},
    ]
    for message in messages:
        data = msgpack.packb(message)
        found.setdefault(message["event"], data)
        for event in client.send(data):
            if isinstance(event, Send):
                found["error"] = event.data
    [found["warning"]] = client.bytes_of(client.utterance.ready)
    [found["audio"]] = client.bytes_of(client.utterance.audio, PCM, len(PCM) // 2)
    client.clock.now = 101.25
    found["finish"] = fish_finish()
    [found["failure"]] = client.bytes_of(client.utterance.done, Outcome())
    return found


def listen_examples() -> dict[str, bytes]:
    session = ListenSession(FACTS, clock=Clock())
    options = ListenOptions(48_000, "queue")
    stream = ListenStream("7", "utterance-1", None)
    session.ready(options, True)
    said = [*session.data_to_send(), stream.begin(), stream.segment("Hello there.", 0)]
    said += [*stream.audio(PCM), stream.end(False), stop_message(20.0)]
    found: dict[str, bytes] = {}
    for message in ({"type": "ping", "data": 5}, {"type": "stop"}, {"type": "start"}):
        data = msgpack.packb(message)
        found["client_stop" if message["type"] == "stop" else message["type"]] = data
        session.receive(data)
        said += session.data_to_send()
    del found["start"]
    return found | {msgpack.unpackb(data)["type"]: data for data in said}


def fish_finish() -> bytes:
    client = fish()
    client.send({"event": "start", "request": {}})
    client.send({"event": "stop"})
    client.clock.now = 101.25
    [data] = client.bytes_of(client.utterance.done, Outcome())
    return data


def written(data: bytes) -> str:
    """A message as the page has it: as JSON, and in hexadecimal."""
    message = as_json(msgpack.unpackb(data))
    lines = [""]
    for field in re.split(r'(?<=, )(?=["{])', json.dumps(message, ensure_ascii=False)):
        if len(lines[-1]) + len(field) > WIDTH:
            lines.append(" ")
        lines[-1] += field
    rows = [data[at : at + 32].hex(" ") for at in range(0, len(data), 32)]
    return "\n".join([*(line.rstrip() for line in lines), "", *rows]) + "\n"


def rewritten(page: str) -> str:
    """The page with every example as it should be."""
    found = examples()
    return MARK.sub(lambda mark: mark[1] + mark[2] + written(found[mark[1]]), page)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
