"""The best of several takes of one text, by a scorer: offline, when quality counts more than time.

The takes are made side by side in one batch. A scorer is any function from a ``Take`` to a number,
higher is better; here are two: ``duration_sanity``, which needs nothing, and ``AsrScorer``, which
listens with faster-whisper where that is installed.
"""

from __future__ import annotations

import importlib.util
import math
import re
import secrets
import time
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rt_drama3.audio import resample
from rt_drama3.engine.speech import Audio, SpeechSummary, Stamps
from rt_drama3.errors import ConfigError, RequestError
from rt_drama3.text.directions import strip_directions
from rt_drama3.text.rules import usual_seconds

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3, Take
    from rt_drama3.engine.engine import Engine
    from rt_drama3.engine.speech import Speech, SpeechRequest

Scorer: TypeAlias = "Callable[[Take], float]"
Transcribe = Callable[[npt.NDArray[np.float32]], str]  # float32 [samples] at 16 kHz -> text

MOST = 32
ASR_RATE = 16_000
_CHUNK = 21  # frames, about a second
_CUT = 2.0  # what a take loses that was cut by its limit
_SPECIAL = re.compile(r"<\|[^|<>]*\|>")


@dataclass(frozen=True)
class Ranking:
    """Takes with their scores, best first; equal ones in the order of their seeds.

    Attributes:
        takes: the takes.
        scores: of each.
    """

    takes: tuple[Take, ...]
    scores: tuple[float, ...]

    @property
    def best(self) -> Take:
        """The take with the highest score."""
        return self.takes[0]


class Chosen:
    """A finished take, to be taken from like a stream (see ``Speech``), in chunks of a second.

    Args:
        take: with what is heard.
        accepted: when it was asked for, in seconds of ``time.monotonic``.
    """

    ended = True

    def __init__(self, take: Take, accepted: float) -> None:
        self._take, self._accepted = take, accepted
        self.pieces = int(bool(len(take.audio)))
        self.segments = ((take.text, 0),) * self.pieces

    def __iter__(self) -> Iterator[Audio]:
        """The chunks, if there is sound."""
        take, now = self._take, time.monotonic()
        stamps = Stamps(self._accepted, now, (now, now), now)
        frames = take.codes.shape[1]
        samples = len(take.audio) // max(frames, 1)
        for first in range(0, frames, _CHUNK):
            count = min(_CHUNK, frames - first)
            pcm = take.audio[first * samples : (first + count) * samples]
            yield Audio(pcm, first, count, take.sample_rate, 0, stamps)

    async def __aiter__(self) -> AsyncIterator[Audio]:
        """The same, for asyncio."""
        for chunk in self:
            yield chunk

    def cancel(self) -> None:
        """There is nothing to stop."""

    def result(self) -> SpeechSummary:
        """What became of it."""
        take = self._take
        return SpeechSummary(
            segments=self.segments,
            codes=take.codes,
            sample_rate=take.sample_rate,
            seed=take.seed,
            complete=take.complete,
            cancelled=False,
            delivered=take.codes.shape[1],
            durations=take.durations,
            text=take.text,
        )

    async def summary(self) -> SpeechSummary:
        """``result`` for asyncio."""
        return self.result()


def summaries(engine: Engine, request: SpeechRequest, count: int) -> list[SpeechSummary]:
    """Makes takes side by side, in codes alone; take k has the seed of the request plus k.

    No more are open at a time than the engine speaks at once, so others find it usable.

    Raises:
        RtDrama3Error: one of them failed; the others are stopped.
    """
    seed = secrets.randbits(32) if request.seed is None else request.seed
    request = engine.normalize_guidance(request)  # so that a notice comes once
    opened: list[Speech] = []
    try:
        for number in range(count):
            if number >= engine.config.max_streams:
                opened[number - engine.config.max_streams].result()
            opened.append(engine.open(replace(request, seed=seed + number, audio=False)))
        return [speech.result() for speech in opened]
    finally:
        for speech in opened:
            speech.cancel()


def decoded(drama: Drama3, summary: SpeechSummary) -> Take:
    """The take of a stream that was made in codes alone; decoding it counts as the codec's time.

    Args:
        drama: that made it.
        summary: of the stream.
    """
    from rt_drama3.drama3 import Take  # imports this module

    started = time.monotonic()
    audio = drama.decode(summary.codes)
    durations = replace(summary.durations, codec=time.monotonic() - started)
    return Take(
        text=summary.text,
        codes=summary.codes,
        audio=audio,
        sample_rate=summary.sample_rate,
        seed=summary.seed,
        complete=summary.complete,
        durations=durations,
    )


def rank(takes: Iterable[Take], scorer: Scorer) -> Ranking:
    """Scores takes and sorts them.

    Raises:
        RequestError: a score is no number.
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
    """How many takes to make.

    Raises:
        RequestError: no whole number within bounds.
    """
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or not 1 <= n <= MOST:
        raise RequestError(f"best_of is {n!r}; a whole number from 1 to {MOST} is needed.")
    return int(n)


def duration_sanity(take: Take) -> float:
    """0 for a take as long as a usual reading, below for one that dawdles, rushes or was cut.

    The distance is the logarithm of the ratio: twice as long is as bad as half as long.
    """
    if not take.codes.shape[1]:
        return -math.inf
    usual = usual_seconds(
        strip_directions(_SPECIAL.sub(" ", take.text))
    )  # directions are not spoken
    distance = abs(math.log(take.seconds / usual)) if usual else 0.0
    return -distance - (0.0 if take.complete else _CUT)


class AsrScorer:
    """How well a take is understood: 0 where every character is heard, below 0 with errors.

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

    def __call__(self, take: Take) -> float:
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
