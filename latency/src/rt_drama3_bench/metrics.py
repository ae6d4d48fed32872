"""What a listener notices of one utterance, from when its audio arrived: docs/latency.md in code.

Times are seconds of any one monotonic clock; the figures are milliseconds unless their name says
otherwise. Nothing here reads a clock.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]

AUDIBLE = 0.01  # of full scale: -40 dBFS
AUDIBLE_WINDOW = 0.005  # seconds in which a share of the samples must reach it, so no click counts
AUDIBLE_SHARE = 0.25
TOLERATED = 100.0  # milliseconds: the second of the two limits of continuity
_EXACT = 1e-3  # milliseconds: below, an underrun is the rounding of floats


@dataclass(frozen=True)
class Arrival:
    """One chunk of audio as it arrived.

    Attributes:
        at: arrival of its last byte.
        samples: number of samples.
        size: bytes of audio.
        pcm: the samples, float32 within -1..1, where kept.
        excused: a gap before it does not count: its text was missing.
        stamps: milliseconds since the request was accepted, by stage, where the server sends them.
    """

    at: float
    samples: int
    size: int = 0
    pcm: Samples | None = field(default=None, repr=False, compare=False)
    excused: bool = False
    stamps: dict[str, float] | None = None


@dataclass
class Recording:
    """The record of one utterance.

    Attributes:
        due: when it should have begun: the time in the schedule, where there is one, even if the
            client was late. Everything counts from here.
        rate: samples per second; 0 while unknown.
        channels: of the audio as it came; the samples are their mean.
        assumed: which of "rate" and "channels" the answer did not state.
        sent: when the request went out.
        connect: seconds to open the connection; 0 where it was open already.
        first_byte: when the first byte of the answer came.
        arrivals: of audio.
        ended: when the server reported the end.
        cancelled, silent: when a barge-in was sent, and when its answer came.
        error: what ended it early.
        label: which stream it belongs to.
    """

    due: float
    rate: int = 0
    channels: int = 1
    assumed: tuple[str, ...] = ()
    sent: float = 0.0
    connect: float = 0.0
    first_byte: float | None = None
    arrivals: list[Arrival] = field(default_factory=list)
    ended: float | None = None
    cancelled: float | None = None
    silent: float | None = None
    error: str | None = None
    label: str = ""

    @property
    def seconds(self) -> float:
        """Seconds of audio that arrived."""
        return sum(a.samples for a in self.arrivals) / self.rate if self.rate else 0.0

    def audio(self) -> Samples:
        """All samples that were kept, as one array."""
        kept = [a.pcm for a in self.arrivals if a.pcm is not None]
        return np.concatenate(kept) if kept else np.zeros(0, np.float32)

    def seams(self) -> list[int]:
        """Sample numbers at which the second and later chunks begin."""
        ends = np.cumsum([a.samples for a in self.arrivals])
        return [int(end) for end in ends[:-1]]


@dataclass(frozen=True)
class PlayedArrival:
    """One chunk in a player that starts with the first chunk and never waits on purpose.

    Attributes:
        at: when it arrived.
        heard: when its first sample is played.
        lead: seconds buffered just before it arrived; negative during an underrun.
        gap: seconds of silence before it.
        until: when its last sample has been played.
    """

    at: float
    heard: float
    lead: float
    gap: float
    until: float


def play(arrivals: Sequence[Arrival], rate: int) -> list[PlayedArrival]:
    """Plays chunks as they come; see ``PlayedArrival``."""
    played: list[PlayedArrival] = []
    until = arrivals[0].at if arrivals else 0.0
    for number, arrival in enumerate(arrivals):
        heard = max(until, arrival.at)
        gap = 0.0 if number == 0 or arrival.excused else heard - until
        lead = until - arrival.at
        until = heard + arrival.samples / rate
        played.append(PlayedArrival(arrival.at, heard, lead, gap, until))
    return played


@dataclass(frozen=True)
class Metrics:
    """The figures of one utterance; None for what did not happen or cannot be known.

    Attributes:
        first_byte_ms, first_pcm_ms, first_audible_ms: from when it was due.
        total_ms: until the server reported the end.
        audio_s: seconds of audio.
        delivery_rtf: time from due to the end, by the duration of the audio.
        underruns, underrun_worst_ms, underrun_all_ms: silences while the player had no audio.
        least_lead_ms: least buffered audio when a chunk arrived (from the second one).
        interval_p50_ms, interval_max_ms: between chunks.
        lead_slope: seconds of buffered audio gained per second; 0 keeps pace exactly.
        barge_in_ms: from a barge-in to the last audio that came, or to its answer if none did.
        silent_ms: from a barge-in to its answer, after which no audio comes.
        late_ms: how late the client itself sent, included in all of the above.
        jitter_ms: see ``jitter``; it says nothing about what a listener hears.
    """

    first_byte_ms: float | None
    first_pcm_ms: float | None
    first_audible_ms: float | None
    total_ms: float | None
    audio_s: float
    delivery_rtf: float | None
    underruns: int
    underrun_worst_ms: float
    underrun_all_ms: float
    least_lead_ms: float | None
    interval_p50_ms: float | None
    interval_max_ms: float | None
    lead_slope: float | None
    barge_in_ms: float | None
    silent_ms: float | None
    late_ms: float
    jitter_ms: float | None

    @property
    def gapless(self) -> bool:
        """Continuity at 0 ms."""
        return self.underrun_worst_ms == 0

    @property
    def tolerable(self) -> bool:
        """Continuity at 100 ms."""
        return self.underrun_worst_ms <= TOLERATED


def measure(utterance: Recording) -> Metrics:
    """The figures of an utterance; see ``Metrics``."""
    due, arrivals, rate = utterance.due, utterance.arrivals, utterance.rate
    played = play(arrivals, rate) if rate else []
    gaps = [1e3 * p.gap for p in played if 1e3 * p.gap > _EXACT]
    intervals = [1e3 * (b.at - a.at) for a, b in itertools.pairwise(arrivals)]
    seconds = utterance.seconds
    audible = _first_audible(arrivals, played, rate)
    ended = utterance.ended
    rtf = None
    if ended is not None and seconds and utterance.cancelled is None:
        rtf = (ended - due) / seconds
    cut = utterance.cancelled
    late_audio = [a.at for a in arrivals if cut is not None and a.at > cut]
    stop = max(late_audio, default=None)
    return Metrics(
        first_byte_ms=_since(due, utterance.first_byte),
        first_pcm_ms=_since(due, arrivals[0].at if arrivals else None),
        first_audible_ms=_since(due, audible),
        total_ms=_since(due, ended),
        audio_s=seconds,
        delivery_rtf=rtf,
        underruns=len(gaps),
        underrun_worst_ms=max(gaps, default=0.0),
        underrun_all_ms=sum(gaps),
        least_lead_ms=min((1e3 * p.lead for p in played[1:]), default=None),
        interval_p50_ms=statistics.median(intervals) if intervals else None,
        interval_max_ms=max(intervals, default=None),
        lead_slope=_slope(played),
        barge_in_ms=None if cut is None else _since(cut, stop or utterance.silent),
        silent_ms=None if cut is None else _since(cut, utterance.silent),
        late_ms=max(0.0, 1e3 * (utterance.sent - due)) if utterance.sent else 0.0,
        jitter_ms=jitter(arrivals, rate),
    )


def jitter(arrivals: Sequence[Arrival], rate: int) -> float | None:
    """Milliseconds; see docs/latency.md. None below three chunks.

    ``D_i`` is by how much chunk i came later after the one before than that one lasts. Its
    deviation is large wherever chunks are of different lengths or come in bursts, which a listener
    does not hear: it is an improvement in neither direction. Underruns and the least lead measure
    lateness against playback.
    """
    if len(arrivals) < 3:
        return None
    differences = [1e3 * (b.at - a.at - a.samples / rate) for a, b in itertools.pairwise(arrivals)]
    middle = statistics.median(differences)
    return float(np.sqrt(np.mean(np.square(np.asarray(differences) - middle))))


def audible_sample(pcm: Samples, rate: int) -> int | None:
    """Index of the first audible sample; None for silence.

    It reaches -40 dBFS, and so does a quarter of the 5 ms that begin with it.
    """
    loud = np.abs(pcm) >= AUDIBLE
    if not loud.any():
        return None
    window = max(1, round(AUDIBLE_WINDOW * rate))
    sums = np.concatenate([[0], np.cumsum(loud)])
    begins = np.flatnonzero(loud)
    ends = np.minimum(begins + window, len(pcm))
    dense = sums[ends] - sums[begins] >= AUDIBLE_SHARE * window
    return int(begins[dense][0]) if dense.any() else None


def stages(arrival: Arrival) -> dict[str, float]:
    """Milliseconds that one chunk spent in each stage, from the server's own stamps.

    ``prefill`` counts from the acceptance of the request and belongs to its first chunk alone;
    ``frames`` is from the prompt read to the last frame drawn.
    """
    stamps = arrival.stamps
    if not stamps:
        return {}
    order = ("prefilled", "sampled", "decoded", "sent")
    names = ("prefill", "frames", "codec", "send")
    found: dict[str, float] = {}
    before = 0.0
    for name, stamp in zip(names, order, strict=True):
        if stamp in stamps:
            found[name] = stamps[stamp] - before
            before = stamps[stamp]
    return found


def columns(metrics: Sequence[Metrics]) -> dict[str, list[float]]:
    """Every figure over many utterances; what was None is left out."""
    names = [name for name in Metrics.__dataclass_fields__ if name != "underruns"]
    found: dict[str, list[float]] = {}
    for name in names:
        values: list[Any] = [getattr(m, name) for m in metrics]
        kept = [float(v) for v in values if v is not None]
        if kept:
            found[name] = kept
    return found


def _since(start: float, moment: float | None) -> float | None:
    return None if moment is None else 1e3 * (moment - start)


def _first_audible(
    arrivals: Sequence[Arrival], played: Sequence[PlayedArrival], rate: int
) -> float | None:
    if not played or any(a.pcm is None for a in arrivals):
        return None
    pcm = np.concatenate([a.pcm for a in arrivals if a.pcm is not None])
    number = audible_sample(pcm, rate)
    if number is None:
        return None
    for arrival, chunk in zip(arrivals, played, strict=True):
        if number < arrival.samples:
            return chunk.heard + number / rate
        number -= arrival.samples
    return None


def _slope(played: Sequence[PlayedArrival]) -> float | None:
    """Least squares of lead over time, from the second chunk on."""
    if len(played) < 3:
        return None
    at = np.asarray([p.at for p in played[1:]])
    lead = np.asarray([p.lead for p in played[1:]])
    at = at - at.mean()
    spread = float(np.sum(at * at))
    return float(np.sum(at * (lead - lead.mean())) / spread) if spread > 0 else None
