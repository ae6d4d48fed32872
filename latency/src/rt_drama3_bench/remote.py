"""Scenarios that measure a server from outside: ``client``, ``peer`` and ``load``."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rt_drama3_bench import metrics, seams
from rt_drama3_bench.dialects import Interruption, make_client, record_utterance
from rt_drama3_bench.drive import drive, most_concurrent
from rt_drama3_bench.endpoint import Endpoint
from rt_drama3_bench.errors import BenchError
from rt_drama3_bench.estimates import percentile
from rt_drama3_bench.metrics import TOLERATED, Metrics, Recording
from rt_drama3_bench.result import BROKEN, Result
from rt_drama3_bench.schedules import TEXTS, ScheduledRequest, fixed, poisson, turns
from rt_drama3_bench.server_process import ServerProcess

SENTENCE, LONG = TEXTS[2], TEXTS[4]
PATTERNS = ("steady", "fixed", "poisson", "turns")
BARGE_IN = 0.5  # seconds after the first audio, or this share of what a sentence takes to be sent
PATIENCE = 2_000.0  # milliseconds to the first audio; longer is not realtime


def peer(
    result: Result, endpoint: Endpoint, times: int = 20, barge_ins: int = 5, pause: float = 0.3
) -> None:
    """Utterances one after the other, then some that are interrupted.

    Args:
        result: receives the measurements.
        endpoint: the server.
        times: utterances that are measured; one before them warms the server and the way to it.
        barge_ins: utterances that are interrupted half a second after their first audio, or sooner
            where the server would have sent all of it by then.
        pause: seconds between them, so that the server is idle.

    Raises:
        BenchError: the first utterance failed.
    """
    first, spoken, cut = asyncio.run(converse(endpoint, times, barge_ins, pause))
    figures = metrics.measure(first)
    result.preparation["connection"] = first.connect
    result.preparation["first utterance of all"] = (figures.total_ms or 0.0) / 1e3
    result.facts["sample rate"], result.facts["channels"] = first.rate, first.channels
    if first.assumed:
        values = {"rate": f"{first.rate} Hz", "channels": f"{first.channels} channel(s)"}
        assumed = " and ".join(values[name] for name in first.assumed)
        options = ", ".join(f"--{name}" for name in first.assumed)
        result.notes.append(f"assumed, as the answer does not state it: {assumed} ({options})")
    result.facts["audio seconds"] = sum(u.seconds for u in [first, *spoken, *cut])
    result.record("", spoken)
    result.add("barge in", "ms", _known(cut, lambda m: m.barge_in_ms))
    result.add("barge in to its answer", "ms", _known(cut, lambda m: m.silent_ms))
    if cut and all(u.cancelled is None and u.error is None for u in cut):
        result.notes.append("barge-in: the server had sent everything before an interruption")
    elif cut and not any(u.silent is not None for u in cut):
        result.notes.append("barge-in: this dialect has no answer to it; not measured")
    judge_failures(result, [*spoken, *cut])
    judge_continuity(result, spoken)
    judge_seams(result, spoken)


def client(
    result: Result,
    model: str = "nano",
    step_mode: str | None = None,
    times: int = 20,
    barge_ins: int = 5,
    rate: int = 16_000,
) -> None:
    """Our own server in another process, as a listener hears it."""
    with ServerProcess(model, step_mode, max_streams=1) as served:
        result.preparation["server ready"] = served.started
        peer(result, Endpoint(served.url, "native", rate=rate), times, barge_ins)


def judge_failures(result: Result, records: Sequence[Recording]) -> None:
    """Judges that no utterance failed, and keeps 0 or 1 of each for ``bench compare``."""
    errors = [one.error for one in records if one.error is not None]
    result.add("failed", "share", [float(one.error is not None) for one in records], minor=True)
    detail = f"of {len(records)}" + (f", the first with: {errors[0]}" if errors else "")
    result.judge("utterances that failed", len(errors), 0, detail=detail)


def judge_continuity(
    result: Result, spoken: Sequence[Recording], name: str = "continuity", limit: float = TOLERATED
) -> None:
    """Judges the longest underrun, in milliseconds, if anything was spoken."""
    found = [metrics.measure(one) for one in spoken if one.error is None]
    if found:
        worst = max(m.underrun_worst_ms for m in found)
        detail = f"{sum(m.gapless for m in found)} of {len(found)} without any"
        result.judge(f"{name}: worst underrun, ms", worst, limit, detail=detail)


def judge_seams(result: Result, spoken: Sequence[Recording]) -> None:
    """Judges audible faults at the seams of the audio."""
    faults = [
        (number, fault)
        for number, one in enumerate(spoken)
        if one.error is None and one.rate
        for fault in seams.check(one.audio(), one.seams(), one.rate)
    ]
    count = sum(max(0, len(one.arrivals) - 1) for one in spoken)
    detail = ", ".join(f"{f.kind} at {f.sample} of utterance {n}" for n, f in faults[:3])
    result.judge(f"faults that can be heard at {count} seams", len(faults), 0, detail=detail)


def load(
    result: Result,
    endpoint: Endpoint | None,
    pattern: str = "steady",
    levels: Sequence[float] = (),
    seconds: float = 20.0,
    seed: int = 0,
    model: str = "nano",
    step_mode: str | None = None,
    max_streams: int = 64,
    price: float | None = None,
) -> None:
    """Raises the load until listeners hear underruns, wait too long, or are refused.

    Args:
        result: receives the measurements.
        endpoint: the server; None starts one.
        pattern: steady (streams without a pause), fixed and poisson (requests a second), or turns
            (conversations with barge-ins).
        levels: streams, or requests a second; default: doubled until it breaks.
        seconds: of one level.
        seed: of the schedule.
        model, step_mode, max_streams: of a server that is started. It admits as usual: what it
            cannot speak in realtime waits, and waiting counts.
        price: of the machine for an hour, to say what a stream costs.

    Raises:
        BenchError: the pattern is unknown.
        BenchError: not even the first level could be served.
    """
    if pattern not in PATTERNS:
        raise BenchError(f"the pattern is {pattern!r}; use one of {', '.join(PATTERNS)}.")
    unit = "streams" if pattern in ("steady", "turns") else "requests a second"
    with contextlib.ExitStack() as stack:
        if endpoint is None:
            served = stack.enter_context(ServerProcess(model, step_mode, max_streams))
            result.preparation["server ready"] = served.started
            endpoint = Endpoint(served.url)
        reached = _ramp(result, endpoint, pattern, unit, levels, seconds, seed)
    for number, one in enumerate(reached):
        if levels or number == 0:  # a search for the limit ends at a level that does not hold
            wrong = one.failed + one.stuttered + one.waited
            detail = f"{one.failed} failed, {one.stuttered} with underruns, {one.waited} late"
            name = f"{one.load:g} {unit}: share that went wrong"
            result.judge(name, wrong / one.asked, BROKEN, detail=detail)
    held = [level for level in reached if level.holds]
    last = max((level.load for level in held), default=0)
    result.facts["pattern"], result.facts["unit"] = pattern, unit
    result.facts[f"{unit} that stay realtime"] = last
    most = max((level.concurrent for level in held), default=0)
    result.facts["at the same time, at the most"] = most
    result.facts["audio seconds"] = sum(level.audio_s for level in reached)
    if price is not None and last and unit == "streams":
        result.facts["price of an hour of one stream"] = price / last
    if not levels and reached and reached[-1].holds:
        result.notes.append(f"{unit}: the highest level held; the limit lies above it")


@dataclass(frozen=True)
class LoadLevel:
    """The outcome of one level of load.

    Attributes:
        load: streams, or requests a second.
        asked: utterances.
        failed: ended by an error, a refusal included.
        stuttered: with an underrun beyond 100 ms.
        waited: more than two seconds for the first audio.
        worst_ms: underrun.
        concurrent: largest number of concurrent utterances.
        first_p95_ms: first audible sample, from when it was due.
        audio_s: seconds of audio.
    """

    load: float
    asked: int
    failed: int
    stuttered: int
    waited: int
    worst_ms: float
    concurrent: int
    first_p95_ms: float | None
    audio_s: float

    @property
    def holds(self) -> bool:
        """Whether nearly all listeners heard everything, promptly and without an underrun."""
        return self.failed + self.stuttered + self.waited <= BROKEN * self.asked


def judge_level(load: float, records: Sequence[Recording]) -> LoadLevel:
    """Summarises one level."""
    good = [record for record in records if record.error is None]
    found = [metrics.measure(record) for record in good]
    firsts = [m.first_pcm_ms if m.first_audible_ms is None else m.first_audible_ms for m in found]
    known = [first for first in firsts if first is not None]
    return LoadLevel(
        load,
        len(records),
        len(records) - len(good),
        sum(not m.tolerable for m in found),
        sum(m.tolerable and (m.first_pcm_ms or 0.0) > PATIENCE for m in found),
        max((m.underrun_worst_ms for m in found), default=0.0),
        most_concurrent(records),
        percentile(known, 0.95) if known else None,
        sum(m.audio_s for m in found),
    )


def schedule(pattern: str, level: float, seconds: float, seed: int) -> list[ScheduledRequest]:
    """The requests of one level."""
    if pattern == "fixed":
        return fixed(level, seconds)
    if pattern == "poisson":
        return poisson(level, seconds, seed)
    if pattern == "turns":
        return turns(round(level), seconds, seed)
    # One long text for each caller, all at the same moment: the hardest beginning.
    length = max(1, round(seconds / 15))
    return [
        ScheduledRequest(0.0, caller, " ".join([LONG] * length)) for caller in range(round(level))
    ]


def _ramp(
    result: Result,
    endpoint: Endpoint,
    pattern: str,
    unit: str,
    levels: Sequence[float],
    seconds: float,
    seed: int,
) -> list[LoadLevel]:
    """Raises the load level by level, until one does not hold where none were given."""
    warm = asyncio.run(_once(endpoint))
    if warm.error is not None:
        raise BenchError(f"the first utterance failed: {warm.error}")
    result.preparation["first utterance of all"] = (warm.ended or warm.due) - warm.due
    reached: list[LoadLevel] = []
    patient = replace(endpoint, timeout=max(endpoint.timeout, 6 * seconds))
    for level in levels or doubling(pattern):
        due = schedule(pattern, level, seconds, seed)
        if not due:
            continue
        records = asyncio.run(drive(due, lambda: make_client(patient), patient.timeout))
        found = judge_level(level, records)
        reached.append(found)
        prefix = f"{level:g} {unit}: "
        result.record(prefix, records, keep=400)
        failed = [float(one.error is not None) for one in records]
        result.add(f"{prefix}failed", "share", failed, minor=True)
        result.facts.setdefault("levels", []).append(found.__dict__ | {"holds": found.holds})
        if not found.holds and not levels:
            break
    return reached


def doubling(pattern: str) -> Iterator[float]:
    """Levels: 1, 2, 3, 4, 6, 8, 12 ...; a quarter of them where they are requests a second."""
    scale = 1.0 if pattern in ("steady", "turns") else 0.25
    grown = (scale * n * 2**k for k in range(1, 8) for n in (2, 3))
    return itertools.chain([scale], [2 * scale, 3 * scale], grown)


async def _once(endpoint: Endpoint) -> Recording:
    caller = make_client(endpoint)
    now = asyncio.get_running_loop().time()
    try:
        return await record_utterance(caller, SENTENCE, now, limit=endpoint.timeout)
    finally:
        await caller.close()


async def converse(
    endpoint: Endpoint, times: int, barge_ins: int, pause: float
) -> tuple[Recording, list[Recording], list[Recording]]:
    """The utterances of ``peer``: the very first, those to measure, and the interrupted ones.

    Raises:
        BenchError: the first utterance failed.
    """
    caller, loop = make_client(endpoint), asyncio.get_running_loop()

    async def one(text: str, cut: Interruption | None = None) -> Recording:
        made = await record_utterance(caller, text, loop.time(), cut, endpoint.timeout)
        await asyncio.sleep(pause)
        return made

    try:
        first = await one(SENTENCE)
        if first.error is not None:
            raise BenchError(f"{endpoint.address} did not speak: {first.error}")
        spoken = [await one(SENTENCE) for _ in range(times)]
        sending = [u.ended - u.arrivals[0].at for u in spoken if u.ended and u.arrivals]
        usual = statistics.median(sending) if sending else 1.0
        soon = Interruption(after=BARGE_IN * min(1.0, usual))
        cut = [await one(LONG, soon) for _ in range(barge_ins)]
    finally:
        await caller.close()
    return first, spoken, cut


def _known(records: Sequence[Recording], figure: Callable[[Metrics], float | None]) -> list[float]:
    values = (figure(metrics.measure(one)) for one in records if one.error is None)
    return [value for value in values if value is not None]
