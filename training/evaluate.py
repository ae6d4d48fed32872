"""How intelligible and clean a voice is, on sentences it never saw, through the product itself.

Prints the word error rate by kind of sentence next to the teacher's own, lengths against the
teacher's, loudness, and what a click or a hum would show in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from training.asr import Judge, errors_at, word_errors, words
from training.clips import ClipInfo, Shard
from training.codebooks import Codebooks

QUICK = 20  # sentences of the short form, spread over all kinds
LENGTHS = (0.6, 1.6)  # of the teacher's, outside of which a take ran on or stopped early
_EDGE_SECONDS = 0.02
_STEP = 0.6  # between neighbouring samples; speech at -20 LUFS does not jump so far

Wave = npt.NDArray[np.float32]


def held_out(quick: bool = False) -> list[tuple[str, str]]:
    """Kind and text of the held-out sentences."""
    path = Path(__file__).parent / "heldout.json"
    groups: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8"))
    everything = [(kind, text) for kind, texts in groups.items() for text in texts]
    return everything[2 :: len(everything) // QUICK][:QUICK] if quick else everything


@dataclass(frozen=True)
class Heard:
    """One sentence.

    Attributes:
        kind, text: of the sentence.
        heard: what was understood.
        errors, words: wrong words, and words in all.
        seconds: of the take.
        ratio: of that to the teacher's.
        teacher_errors: wrong words of the teacher's reading.
        edges: level of the first and last 20 ms, dB full scale.
        jumps: steps between samples that speech does not make.
    """

    kind: str
    text: str
    heard: str
    errors: int
    words: int
    seconds: float
    ratio: float
    teacher_errors: int
    edges: tuple[float, float]
    jumps: int


@dataclass
class Report:
    """All sentences of a voice."""

    sentences: list[Heard] = field(default_factory=list)
    loudness: float = -70.0

    def rate(self, kind: str | None = None) -> float:
        """Word error rate of one kind of sentence, or of all."""
        return self._rate("errors", kind)

    def teacher_rate(self, kind: str | None = None) -> float:
        return self._rate("teacher_errors", kind)

    def _rate(self, errors: str, kind: str | None) -> float:
        some = [one for one in self.sentences if kind in (None, one.kind)]
        wrong: int = sum(getattr(one, errors) for one in some)
        return wrong / max(1, sum(one.words for one in some))

    @property
    def astray(self) -> list[Heard]:
        """Sentences that ran on or stopped early."""
        low, high = LENGTHS
        return [one for one in self.sentences if not low <= one.ratio <= high]

    def lines(self) -> list[str]:
        """The report as text."""
        kinds = list(dict.fromkeys(one.kind for one in self.sentences))
        found = [
            f"{kind or 'all':10s} word error rate {100 * self.rate(kind):5.1f} %  "
            f"teacher {100 * self.teacher_rate(kind):5.1f} %"
            for kind in [*kinds, None]
        ]
        ratios = [one.ratio for one in self.sentences]
        edges = [max(one.edges) for one in self.sentences]
        found += [
            f"length     {min(ratios):.2f} to {max(ratios):.2f} of the teacher's, "
            f"{len(self.astray)} outside {LENGTHS[0]} to {LENGTHS[1]}",
            f"loudness   {self.loudness:.1f} LUFS; loudest edge {max(edges):.1f} dB; "
            f"{sum(one.jumps for one in self.sentences)} jumps",
        ]
        return found

    def json(self) -> dict[str, Any]:
        return {
            "word_error_rate": round(self.rate(), 4),
            "teacher_word_error_rate": round(self.teacher_rate(), 4),
            "loudness": round(self.loudness, 2),
            "astray": len(self.astray),
            "sentences": [asdict(one) for one in self.sentences],
        }


def evaluate(
    drama: Any, teacher: Any, judge: Judge, sentences: Iterable[tuple[str, str]], seed: int = 0
) -> Report:
    """Speaks and judges.

    Args:
        drama: ``rt_drama3.Drama3``, or ``Copies`` of one.
        teacher: ``hibari.Hibari``.
        judge: the recogniser.
        sentences: kind and text.
        seed: of the first sentence; the others count on.
    """
    report = Report()
    waves = []
    rate = drama.sample_rate
    for number, (kind, text) in enumerate(sentences):
        take = drama.generate(text, seed=seed + number)
        taught: Wave = teacher(text, seed=seed + number)
        wanted = words(text)
        heard = judge.hear(take.audio, rate)
        teacher_heard = judge.hear(taught, teacher.sample_rate)
        seconds = len(take.audio) / rate
        report.sentences.append(
            Heard(
                kind=kind,
                text=text,
                heard=heard,
                errors=word_errors(wanted, words(heard)),
                words=len(wanted),
                seconds=round(seconds, 2),
                ratio=round(seconds / (_spoken(taught) / teacher.sample_rate), 3),
                teacher_errors=word_errors(wanted, words(teacher_heard)),
                edges=_edges(take.audio, rate),
                jumps=int((np.abs(np.diff(take.audio)) > _STEP).sum()),
            )
        )
        waves.append(take.audio)
    report.loudness = loudness(np.concatenate(waves), rate)
    return report


@dataclass(frozen=True)
class Part:
    """A third of a long text as heard: wrong words, words in all, loudness in LUFS."""

    errors: int
    words: int
    loudness: float

    def line(self) -> str:
        rate = 100 * self.errors / max(1, self.words)
        return f"{self.words:4d} words, error rate {rate:5.1f} %, {self.loudness:.1f} LUFS"


def paragraph() -> str:
    """A long text that the training texts do not hold."""
    return (Path(__file__).parent / "paragraph.txt").read_text(encoding="utf-8")


def evaluate_long(drama: Any, judge: Judge, text: str, seed: int = 0) -> list[Part]:
    """Speaks a long text in one take and judges it by thirds, to show whether it wears off.

    Args:
        drama: ``rt_drama3.Drama3``.
        judge: the recogniser.
        text: of three words at least.
        seed: of the take.
    """
    take = drama.generate(text, seed=seed)
    wanted = words(text)
    errors = errors_at(wanted, words(judge.hear(take.audio, take.sample_rate)))
    places = [len(wanted) * third // 3 for third in range(4)]
    waves = np.array_split(take.audio, 3)
    return [
        Part(sum(errors[first:last]), last - first, round(loudness(wave, take.sample_rate), 1))
        for first, last, wave in zip(places[:-1], places[1:], waves, strict=True)
    ]


class Copies:
    """Says every text with the teacher's codes, so that ``evaluate`` judges the codec alone.

    Args:
        drama: ``rt_drama3.Drama3`` whose codec is judged.
        teacher: ``training.teacher.Teacher``.
        codebooks: that the codec was trained with.
    """

    def __init__(self, drama: Any, teacher: Any, codebooks: Codebooks) -> None:
        self._drama, self._teacher, self._codebooks = drama, teacher, codebooks
        self.sample_rate: int = drama.sample_rate

    def generate(self, text: str, seed: int) -> Copy:
        """The teacher's reading of ``text``, encoded by analysis and decoded by the voice."""
        reading = self._teacher.read(text, seed=seed)
        clip = ClipInfo(0, text, "", len(reading.pitch), reading.sentences)
        shard = Shard((clip,), reading.pcm, reading.pitch)
        return Copy(self._drama.decode(self._codebooks.encode_shard(shard).numpy().T))


class Copy(NamedTuple):
    """What ``Copies`` says."""

    audio: Wave


def _spoken(wave: Wave) -> int:
    """Samples from the first to the last sound: the teacher leaves long silences around it."""
    loud = np.flatnonzero(np.abs(wave) > 0.006)
    return int(loud[-1] - loud[0]) if len(loud) else len(wave)


def _edges(wave: Wave, rate: int) -> tuple[float, float]:
    size = int(_EDGE_SECONDS * rate)

    def level(part: Wave) -> float:
        return round(float(10 * np.log10(np.mean(np.square(part)) + 1e-12)), 1)

    return (level(wave[:size]), level(wave[-size:])) if len(wave) else (-120.0, -120.0)


def loudness(wave: Wave, rate: int) -> float:
    """Integrated loudness in LUFS (ITU-R BS.1770: K weighting, 400 ms blocks, both gates)."""
    spectrum = np.fft.rfft(wave.astype(np.float64))
    weighted = np.fft.irfft(spectrum * _k_weighting(len(wave), rate), len(wave))
    block, step = int(0.4 * rate), int(0.1 * rate)
    powers = np.array(
        [
            np.mean(np.square(weighted[start : start + block]))
            for start in range(0, max(1, len(wave) - block), step)
        ]
    )
    heard = powers[_lufs(powers) > -70]
    if not len(heard):
        return -70.0
    heard = heard[_lufs(heard) > _lufs(heard.mean()) - 10]
    return float(_lufs(heard.mean()))


def _lufs(power: Any) -> Any:
    return -0.691 + 10 * np.log10(np.maximum(power, 1e-12))


def _k_weighting(samples: int, rate: int) -> npt.NDArray[np.complex128]:
    """The two filters of the standard as analogue prototypes: a shelf and a high pass."""
    s = 2j * np.pi * np.fft.rfftfreq(samples, 1 / rate)
    shelf_at, shelf_q, gain = 2 * np.pi * 1681.97, 0.7072, 10 ** (3.99984 / 20)
    band = gain**0.4996667741545416
    low, low_q = 2 * np.pi * 38.1355, 0.5003
    shelf = (gain * s**2 + band * shelf_at / shelf_q * s + shelf_at**2) / (
        s**2 + shelf_at / shelf_q * s + shelf_at**2
    )
    high: npt.NDArray[np.complex128] = shelf * s**2 / (s**2 + low / low_q * s + low**2)
    return high
