"""``rt-drama3-client --measure``: latency and speed as a listener experiences them."""

from __future__ import annotations

import array
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rt_drama3_client.address import Settings
from rt_drama3_client.client import AsyncClient
from rt_drama3_client.errors import ClientError
from rt_drama3_client.messages import AudioChunk

AUDIBLE = 328  # of 32,768: -40 dBFS
TEXT = "Thank you for calling. Your order has been shipped and should arrive on Monday."


@dataclass(frozen=True)
class Run:
    """One utterance; milliseconds, except for ``rtf`` and ``seconds``.

    Attributes:
        connect: time to open a connection.
        first_audio: from sending ``start``, over the open connection, to the first sample.
        first_audible: to the time at which a player that starts with it plays the first sample
            above -40 dBFS; None if there is none.
        rtf: time from start to end, divided by the duration of the audio.
        worst_underrun: longest underrun of that player.
        seconds: duration of the audio.
    """

    connect: float
    first_audio: float
    first_audible: float | None
    rtf: float
    worst_underrun: float
    seconds: float


@dataclass(frozen=True)
class Report:
    """Runs, and milliseconds from ``cancel`` to the server's response, if measured."""

    model: str
    sample_rate: int
    runs: list[Run]
    barge_in: list[float]

    def as_json(self) -> dict[str, Any]:
        """Returns it for ``json.dumps``."""
        return {**asdict(self), "summary": {name: _sum(v) for name, v in self._columns().items()}}

    def table(self) -> str:
        """Returns it as a text table."""
        lines = [f"{self.model}, {self.sample_rate} Hz, {len(self.runs)} utterances"]
        lines.append(f"{'':22}{'p50':>9}{'p95':>9}{'worst':>9}")
        for name, values in self._columns().items():
            if values:
                unit = "" if name == "rtf" else " ms"
                columns = "".join(f"{value:9.2f}" for value in _sum(values).values())
                lines.append(f"{name.replace('_', ' ') + unit:22}{columns}")
        return "\n".join(lines)

    def _columns(self) -> dict[str, list[float]]:
        names = ("connect", "first_audio", "first_audible", "rtf", "worst_underrun")
        columns = {
            name: [value for run in self.runs if (value := getattr(run, name)) is not None]
            for name in names
        }
        return {**columns, "barge_in_to_cancelled": self.barge_in}


async def measure(
    url: str | None,
    key: str | None,
    settings: Settings,
    text: str,
    times: int,
    barge_in: bool,
    options: Mapping[str, Any],
) -> Report:
    """Speaks a text ``times`` times in sequence, each over its own connection.

    One warm-up utterance before them is not counted.

    Raises:
        ClientError: an utterance failed, or had no audio.
    """
    runs: list[Run] = []
    cancels: list[float] = []
    model, rate = "", 0
    for number in range(times + 1):
        async with AsyncClient(url, api_key=key, settings=settings) as client:
            connect = await client.connect()
            speech = client.speak(text, **{**options, "format": "pcm"})
            chunks = [chunk async for chunk in speech]
            playback, timings, ready = speech.timings.playback, speech.timings, speech.ready
            if timings.first_audio is None or timings.total is None or ready is None:
                raise ClientError("nothing to measure: the text produced no audio.")
            model, rate = ready.model, ready.sample_rate
            seconds = sum(chunk.samples for chunk in chunks) / rate
            audible = _first_audible(chunks, rate)
            run = Run(
                connect=_ms(connect),
                first_audio=_ms(timings.first_audio),
                first_audible=None if audible is None else _ms(timings.first_audio + audible),
                rtf=round(timings.total / seconds, 4),
                worst_underrun=_ms(playback.worst_underrun),
                seconds=round(seconds, 3),
            )
            if number:
                runs.append(run)
            if barge_in and number:
                cancels.append(await _barge_in(client, text, options))
    return Report(model, rate, runs, cancels)


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)


async def _barge_in(client: AsyncClient, text: str, options: Mapping[str, Any]) -> float:
    async with client.speak(f"{text} " * 8, **{**options, "format": "pcm"}) as speech:
        async for _ in speech:
            break
        began = time.perf_counter()
        await speech.cancel()
        return _ms(time.perf_counter() - began)


def _first_audible(chunks: Sequence[AudioChunk], rate: int) -> float | None:
    """Returns the seconds from the first sample to the first audible one, in playback."""
    ends = chunks[0].arrived
    for chunk in chunks:
        samples = array.array("h", bytes(chunk))
        if sys.byteorder == "big":
            samples.byteswap()
        begins = max(ends, chunk.arrived)
        for index, sample in enumerate(samples):
            if abs(sample) >= AUDIBLE:
                return begins + index / rate - chunks[0].arrived
        ends = begins + len(samples) / rate
    return None


def _sum(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    ranked = sorted(values)
    p95 = ranked[math.ceil(0.95 * len(ranked)) - 1]
    return {"p50": statistics.median(ranked), "p95": p95, "worst": ranked[-1]}
