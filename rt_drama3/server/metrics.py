"""Metrics for Prometheus at /metrics; one registry per server."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30)
_FRAME = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.046, 0.07, 0.1, 0.2, 0.5)
_ADDED = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2)


class Metrics:
    """Counters and histograms of a server.

    Args:
        streams: returns the number of streams in each of the engine's phases.
    """

    def __init__(self, streams: Callable[[], Mapping[str, int]]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Streams(streams))

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"rt_drama3_{name}", what, labels, registry=self.registry)

        def histogram(name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"rt_drama3_{name}", what, buckets=buckets, registry=self.registry)

        self.connections = Gauge(
            "rt_drama3_connections", "Open connections.", ["route"], registry=self.registry
        )
        self.requests = counter("utterances_total", "Utterances begun.", "route")
        self.errors = counter("errors_total", "Errors sent to clients.", "code")
        self.waits = counter(
            "waits_total", "Streams that had to wait, by reason: load or max_streams.", "reason"
        )
        self.cancels = counter("cancels_total", "Speech that was cut short.", "reason")
        self.underruns = counter("underruns_total", "Gaps that a listener heard.")
        self.sink_cuts = counter(
            "sink_cuts_total", "Utterances cut because the local sink was too far behind."
        )
        self.sent = counter("sent_bytes_total", "Audio sent.", "route")
        self.frames = counter("frames_total", "Frames generated.")
        self.clip_requests = Gauge(
            "rt_drama3_clip_requests",
            "Requests whose reference clips are decoded, or wait for that.",
            registry=self.registry,
        )
        self.clip = histogram(
            "clip_seconds", "A reference clip's wait for a thread and its decoding.", _SECONDS
        )
        self.first_audio = histogram(
            "first_audio_seconds", "From the start of an utterance to its first audio.", _SECONDS
        )
        self.frame = Weighted(
            "rt_drama3_frame_seconds",
            "Time per frame; all frames of an utterance count with their mean.",
            _FRAME,
        )
        self.registry.register(self.frame)
        self.added = histogram(
            "added_seconds", "From PCM in the engine to bytes on their way.", _ADDED
        )

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)


class Weighted(Collector):
    """A histogram that counts a value several times in one call.

    Args:
        name: the metric's name.
        what: its description.
        buckets: upper bounds, ascending.
    """

    def __init__(self, name: str, what: str, buckets: tuple[float, ...]) -> None:
        self._name, self._what = name, what
        self._bounds = (*buckets, math.inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float, times: int) -> None:
        """Counts a value ``times`` times."""
        self._counts[bisect.bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        names = ["+Inf" if math.isinf(bound) else str(bound) for bound in self._bounds]
        sums = [float(count) for count in itertools.accumulate(self._counts)]
        buckets = list(zip(names, sums, strict=True))
        yield HistogramMetricFamily(self._name, self._what, buckets=buckets, sum_value=self._sum)


class _Streams(Collector):
    def __init__(self, streams: Callable[[], Mapping[str, int]]) -> None:
        self._streams = streams

    def collect(self) -> Iterator[Metric]:
        phases = self._streams()
        family = GaugeMetricFamily("rt_drama3_streams", "Streams by phase.", labels=["phase"])
        for phase, count in phases.items():
            family.add_metric([phase], count)
        yield family
        waiting = phases.get("waiting", 0)
        yield GaugeMetricFamily("rt_drama3_queue", "Streams that wait for a slot.", waiting)
