"""The result of a scenario: samples, verdicts and recorded utterances, and their JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rt_drama3_bench import metrics as metric
from rt_drama3_bench.calibration import Calibration, Noise
from rt_drama3_bench.errors import BenchError
from rt_drama3_bench.metrics import Recording

FORMAT = "rt-drama3 latency 1"
OVER_TIME = "over time"  # the fact with the curves of a soak, by name: [seconds, value]
BROKEN = 0.01  # share of the utterances that may go wrong at a level of load that holds
Better = Literal["lower", "higher", "neither"]


@dataclass
class Series:
    """Samples of one kind, none left out.

    Attributes:
        name: what; the same name in two files is the same thing.
        unit: of the samples.
        samples: in the order they were taken.
        better: which way is an improvement.
        minor: left out of the table on a terminal; nowhere else.
    """

    name: str
    unit: str
    samples: list[float]
    better: Better = "lower"
    minor: bool = False

    @property
    def title(self) -> str:
        """Name and unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name


@dataclass
class Verdict:
    """A judged figure.

    Attributes:
        name: what is judged.
        value: the figure.
        limit: for the value.
        at_least: the limit is a minimum, not a maximum.
        detail: the figures behind it.
        unsure: why it was not judged; it is shown and cannot fail.
    """

    name: str
    value: float
    limit: float
    at_least: bool = False
    detail: str = ""
    unsure: str = ""

    @property
    def met(self) -> bool:
        """Whether it is within the limit, or was not judged."""
        if self.unsure:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass
class Result:
    """One run of a scenario.

    Attributes:
        scenario: its name.
        arguments: it was run with.
        environment: the machine.
        preparation: seconds before anything was measured: load, compile, warm-up.
        series: samples.
        verdicts: figures with a limit.
        facts: whatever else was found.
        utterances: as recorded, without samples of sound.
        stages: milliseconds in each stage of the first chunks, for the picture of one utterance.
        before, after, noise: calibration; None until the run is over.
        notes: what was left out, and why.
    """

    scenario: str
    arguments: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    preparation: dict[str, float] = field(default_factory=dict)
    series: list[Series] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    utterances: list[dict[str, Any]] = field(default_factory=list)
    before: Calibration | None = None
    after: Calibration | None = None
    noise: Noise | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def ranked(self) -> list[Series]:
        """The series, minor ones last, and jitter behind all of them."""
        return sorted(self.series, key=lambda one: (one.name.endswith("jitter"), one.minor))

    def add(
        self,
        name: str,
        unit: str,
        samples: Sequence[float],
        better: Better = "lower",
        minor: bool = False,
    ) -> None:
        """Adds samples, if there are any."""
        if samples:
            self.series.append(Series(name, unit, [float(s) for s in samples], better, minor))

    def judge(
        self, name: str, value: float, limit: float, at_least: bool = False, detail: str = ""
    ) -> Verdict:
        """Adds a verdict and returns it."""
        self.verdicts.append(Verdict(name, value, limit, at_least, detail))
        return self.verdicts[-1]

    def record(self, prefix: str, utterances: Sequence[Recording], keep: int = 200) -> None:
        """Measures utterances and adds every figure; keeps the first of them for pictures."""
        good = [u for u in utterances if u.error is None]
        found = metric.columns([metric.measure(u) for u in good])
        for name, samples in found.items():
            unit = next((u for u in ("ms", "s") if name.endswith(f"_{u}")), "")
            plain = name.removesuffix(f"_{unit}") if unit else name
            if plain in ("audio", "late") and not any(samples):
                continue
            title, better = prefix + plain.replace("_", " "), _BETTER.get(name, "lower")
            self.add(title, unit, samples, better, name not in _MAJOR)
        parts: dict[str, list[float]] = {}
        for utterance in good:
            for number, arrival in enumerate(utterance.arrivals):
                for stage, value in metric.stages(arrival).items():
                    if stage in ("codec", "send") or number == 0:
                        parts.setdefault(stage, []).append(value)
        for stage, samples in parts.items():
            self.add(f"{prefix}stage {stage}", "ms", samples)
        failed = [u for u in utterances if u.error is not None]
        if failed:
            self.notes.append(
                f"{prefix}{len(failed)} of {len(utterances)} utterances failed, the first with: "
                f"{failed[0].error}"
            )
        room = max(0, keep - len(self.utterances))
        self.utterances += [trace(u) for u in utterances[:room]]

    @property
    def machine(self) -> str:
        """The processor, its cores and the GPU."""
        where = self.environment
        gpu = (where.get("gpu") or {}).get("name")
        return f"{where.get('cpu')}, {where.get('cores')} cores" + (f", {gpu}" if gpu else "")

    @property
    def target(self) -> str:
        """The server or the model that was measured, without credentials; empty if not known."""
        names = ("url", "dialect", "model", "voice")
        named = {name: str(self.arguments[name]) for name in names if self.arguments.get(name)}
        if "url" not in named:
            named.pop("dialect", None)
        elif self.scenario == "load":  # that of a server it starts itself
            named.pop("model", None)
        return ", ".join(
            re.sub("//[^/]*@", "//", value) if name == "url" else f"{name} {value}"
            for name, value in named.items()
        )

    @property
    def met(self) -> bool:
        """Whether every verdict is met."""
        return all(verdict.met for verdict in self.verdicts)

    def as_json(self) -> str:
        """The whole run."""
        return json.dumps({"format": FORMAT, **_plain(asdict(self))}, indent=1) + "\n"


_BETTER: dict[str, Better] = {
    "audio_s": "neither",
    "least_lead_ms": "higher",
    "lead_slope": "higher",
    "late_ms": "neither",
    "jitter_ms": "neither",  # of chunks that grow, or that come in one burst
    "interval_p50_ms": "neither",
    "interval_max_ms": "neither",
}


_MAJOR = {
    *("first_byte_ms", "first_pcm_ms", "first_audible_ms", "delivery_rtf"),
    *("underrun_worst_ms", "least_lead_ms", "barge_in_ms", "silent_ms"),
}


def trace(utterance: Recording) -> dict[str, Any]:
    """An utterance for the JSON: times in milliseconds since it was due, and no sound."""
    due = utterance.due
    figures = metric.measure(utterance)
    played = metric.play(utterance.arrivals, utterance.rate) if utterance.rate else []
    return {
        "label": utterance.label,
        "due_s": due,
        "rate": utterance.rate,
        "first_audible_ms": figures.first_audible_ms,
        "underrun_worst_ms": figures.underrun_worst_ms,
        "ended_ms": figures.total_ms,
        "cancelled_ms": None if utterance.cancelled is None else 1e3 * (utterance.cancelled - due),
        "error": utterance.error,
        "pieces": [
            {
                "at_ms": 1e3 * (arrival.at - due),
                "heard_ms": 1e3 * (chunk.heard - due),
                "lead_ms": 1e3 * chunk.lead,
                "audio_ms": 1e3 * arrival.samples / utterance.rate,
                "bytes": arrival.size,
                "stamps": arrival.stamps,
            }
            for arrival, chunk in zip(utterance.arrivals, played, strict=False)
        ],
    }


def read(path: Path) -> Result:
    """Reads a run that was written.

    Raises:
        BenchError: the file cannot be read, or is something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
        raise BenchError(f"{path} was not written by rt-drama3 bench: it is not {FORMAT!r}.")
    try:
        found["series"] = [Series(**one) for one in found["series"]]
        found["verdicts"] = [Verdict(**one) for one in found["verdicts"]]
        for name in ("before", "after"):
            found[name] = found[name] and Calibration(**found[name])
        found["noise"] = found["noise"] and Noise(**found["noise"])
        return Result(**found)
    except (KeyError, TypeError) as error:
        raise BenchError(f"{path} is damaged: {error}.") from error


def _plain(value: Any) -> Any:
    """What JSON can hold: infinities and NaN become null."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
