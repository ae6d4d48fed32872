"""Teacher clips on disk: shards of PCM, timing and pitch that later stages read.

A shard is a pair of files, ``clips_NNNN.json`` and ``clips_NNNN.npz``, written under another name
first and renamed, so that whatever is found is whole.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

SAMPLE_RATE = 44_100
FRAME_SAMPLES = 2048
PHONE_SECONDS = 0.025  # grid of the teacher's durations

Samples = npt.NDArray[np.int16]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Word:
    """A word or mark of a sentence as the teacher read it.

    Attributes:
        text: as written.
        phones: phonemes, stress marks among them.
        spaced: whether a space follows.
    """

    text: str
    phones: str
    spaced: bool


@dataclass(frozen=True)
class Sentence:
    """One sentence as the teacher read it.

    Attributes:
        words: in order.
        phones: every phoneme that was voiced, spaces among them.
        durations: of the pause before, each phone and the pause after, on the 25 ms grid.
    """

    words: tuple[Word, ...]
    phones: str
    durations: tuple[int, ...]


@dataclass(frozen=True)
class ClipInfo:
    """Metadata of a clip.

    Attributes:
        line: number of the text line.
        text: that line.
        style: "", or the direction in brackets that it was spoken with ("fast", "slow").
        frames: codec frames of audio.
        sentences: in order.
    """

    line: int
    text: str
    style: str
    frames: int
    sentences: tuple[Sentence, ...]


@dataclass(frozen=True, eq=False)
class Shard:
    """Clips in order, their PCM and pitch codes joined.

    Attributes:
        clips: what is known of each.
        pcm: int16 ``[total frames * 2048]`` at 44.1 kHz.
        pitch: int64 ``[total frames]``, codes of ``phase_lock.pitch_codes``.
    """

    clips: tuple[ClipInfo, ...]
    pcm: Samples
    pitch: Numbers

    def starts(self) -> list[int]:
        """First frame of every clip in the shard."""
        ends = np.cumsum([0] + [clip.frames for clip in self.clips])
        return [int(end) for end in ends[:-1]]


def shard_path(folder: Path, number: int) -> Path:
    """Returns the ``.json`` file of a shard, which is next to its ``.npz``."""
    return folder / f"clips_{number:04d}.json"


def save_shard(folder: Path, number: int, shard: Shard) -> None:
    """Writes a shard's two files, whole or not at all."""
    path = shard_path(folder, number)
    part = path.with_suffix(".part.npz")
    np.savez(part, pcm=shard.pcm, pitch=shard.pitch.astype(np.int16))
    os.replace(part, path.with_suffix(".npz"))
    text = json.dumps([asdict(clip) for clip in shard.clips], ensure_ascii=False)
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)  # last: a shard with its .json is whole


def load_shard(path: Path) -> Shard:
    """Reads a shard by its ``.json`` file."""
    clips = tuple(
        ClipInfo(
            line=entry["line"],
            text=entry["text"],
            style=entry["style"],
            frames=entry["frames"],
            sentences=tuple(
                Sentence(
                    words=tuple(Word(**word) for word in sentence["words"]),
                    phones=sentence["phones"],
                    durations=tuple(sentence["durations"]),
                )
                for sentence in entry["sentences"]
            ),
        )
        for entry in json.loads(path.read_text(encoding="utf-8"))
    )
    with np.load(path.with_suffix(".npz")) as arrays:
        return Shard(clips, arrays["pcm"], arrays["pitch"].astype(np.int64))


def shard_files(folder: Path) -> list[Path]:
    """The whole shards in a folder, in order."""
    return sorted(folder.glob("clips_[0-9][0-9][0-9][0-9].json"))


def codes_path(shard: Path) -> Path:
    """The file with a shard's codes, int16 ``[frames, books]``."""
    return shard.with_name(shard.name.replace("clips", "codes")).with_suffix(".npy")


def trained_on(clip: ClipInfo) -> bool:
    """Whether a clip is for training; one in a hundred is kept for validation."""
    return clip.line % 100 != 99
