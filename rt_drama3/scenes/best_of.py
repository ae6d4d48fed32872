"""Ranks takes of one text by a scorer, for offline use where quality counts more than time.

A scorer is any function from a take to a number, higher is better; here are two:
``duration_sanity``, which needs nothing, and ``AsrScorer``, which transcribes with faster-whisper
if that is installed.
"""

from __future__ import annotations

import importlib.util
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from rt_drama3.audio import resample
from rt_drama3.errors import ConfigError, RequestError
from rt_drama3.text.directions import strip_directions
from rt_drama3.text.rules import usual_seconds

Transcribe = Callable[[npt.NDArray[np.float32]], str]  # float32 [samples] at 16 kHz -> text

MAX_TAKES = 32
ASR_RATE = 16_000
_INCOMPLETE = 2.0  # subtracted from the score of a take that was cut by its limit
_SPECIAL = re.compile(r"<\|[^|<>]*\|>")


class RankedTake(Protocol):
    """A take as scorers see it; see ``drama3.Take``."""

    @property
    def text(self) -> str: ...
    @property
    def codes(self) -> npt.NDArray[np.int64]: ...
    @property
    def audio(self) -> npt.NDArray[np.float32]: ...
    @property
    def sample_rate(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def complete(self) -> bool: ...
    @property
    def seconds(self) -> float: ...


T = TypeVar("T", bound=RankedTake)


@dataclass(frozen=True)
class Ranking(Generic[T]):
    """Takes with their scores, best first; equal ones in the order of their seeds.

    Attributes:
        takes: the takes.
        scores: the score of each.
    """

    takes: tuple[T, ...]
    scores: tuple[float, ...]

    @property
    def best(self) -> T:
        """The take with the highest score."""
        return self.takes[0]


def rank(takes: Iterable[T], scorer: Callable[[T], float]) -> Ranking[T]:
    """Scores takes and sorts them.

    Raises:
        RequestError: a score is NaN.
    """
    scored = []
    for take in takes:
        score = float(scorer(take))
        if math.isnan(score):
            raise RequestError(f"the scorer gave NaN for seed {take.seed}; a number is needed.")
        scored.append((score, take))
    scored.sort(key=lambda pair: -pair[0])  # stable
    return Ranking(tuple(take for _, take in scored), tuple(score for score, _ in scored))


def check_count(n: object) -> int:
    """Checks the number of takes.

    Raises:
        RequestError: it is not a whole number within bounds.
    """
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or not 1 <= n <= MAX_TAKES:
        raise RequestError(f"best_of is {n!r}; a whole number from 1 to {MAX_TAKES} is needed.")
    return int(n)


def duration_sanity(take: RankedTake) -> float:
    """0 for a take as long as a usual reading, less for one that drags, rushes or was cut.

    The distance is the logarithm of the ratio: twice as long is as bad as half as long.
    """
    if not take.codes.shape[1]:
        return -math.inf
    usual = usual_seconds(
        strip_directions(_SPECIAL.sub(" ", take.text))
    )  # directions are not spoken
    distance = abs(math.log(take.seconds / usual)) if usual else 0.0
    return -distance - (0.0 if take.complete else _INCOMPLETE)


class AsrScorer:
    """How well a take is understood: 0 if every character is recognized, less with errors.

    Directions and speaker tags are not expected to be heard; case, punctuation and spaces do not
    count.

    Args:
        model: of faster-whisper: a folder, or a name that it downloads.
        language: None lets it guess, which short takes make harder.
        transcribe: listens instead of faster-whisper.

    Raises:
        ConfigError: faster-whisper is not installed, or its model does not load.
    """

    def __init__(
        self,
        model: str = "base",
        language: str | None = None,
        transcribe: Transcribe | None = None,
    ) -> None:
        self._transcribe = transcribe or _faster_whisper(model, language)

    def __call__(self, take: RankedTake) -> float:
        """The score of a take."""
        wanted = _letters(strip_directions(_SPECIAL.sub(" ", take.text)))
        if not wanted:
            return 0.0
        if not len(take.audio):
            return -1.0
        heard = _letters(self._transcribe(resample(take.audio, take.sample_rate, ASR_RATE)))
        return -_edits(wanted, heard) / len(wanted)


def _faster_whisper(model: str, language: str | None) -> Transcribe:
    if importlib.util.find_spec("faster_whisper") is None:
        raise ConfigError(
            "scoring by speech recognition needs faster-whisper; `pip install faster-whisper`, or "
            "use duration_sanity."
        )
    from faster_whisper import WhisperModel

    try:
        listener: Any = WhisperModel(model, device="cpu", compute_type="int8")
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"faster-whisper cannot load {model!r} ({error}); name a model folder."
        ) from error

    def transcribe(audio: npt.NDArray[np.float32]) -> str:
        segments, _ = listener.transcribe(audio, language=language, beam_size=1)
        return " ".join(segment.text for segment in segments)

    return transcribe


def _letters(text: str) -> str:
    """What counts of a text: letters and digits, without case."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return "".join(char for char in plain if char.isalnum())


def _edits(one: str, other: str) -> int:
    """Insertions, deletions and replacements that make one of the other."""
    *_, last = _edit_rows(one, other)
    return last[-1]


def _edit_rows(one: str, other: str) -> Iterator[list[int]]:
    row = list(range(len(other) + 1))
    yield row
    for i, char in enumerate(one, 1):
        before, row = row, [i]
        for j, there in enumerate(other, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (char != there)))
        yield row
