"""VoiceStore: named voices whose clips are encoded once, in memory and in a folder.

A voice is ``<digest of its name>.json`` and ``.npz``; a client's name never becomes a path.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import threading
import time
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rt_drama3.errors import RequestError, RtDrama3Error
from rt_drama3.protocol import Reference, Refused
from rt_drama3.server.references.clips import read_clip

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3

log = logging.getLogger(__name__)

# What reading a truncated or hand-written file can raise.
_DAMAGED = (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile)
Codes = npt.NDArray[np.int64]


class StorageFailed(RtDrama3Error):  # noqa: N818 - the name is the condition
    """The data folder cannot be written."""


@dataclass(frozen=True)
class Voice:
    """A stored voice.

    Attributes:
        name: the name that clients use.
        texts: transcripts of its clips.
        seconds: total duration of its clips.
        created: in seconds since 1970.
        sample_rate, num_codebooks: those of the codec of its codes; 0 codebooks if the model had a
            fixed voice and nothing was encoded.
        codes: int64 ``[num_codebooks, frames]`` of every clip.
    """

    name: str
    texts: tuple[str, ...]
    seconds: float
    created: int
    sample_rate: int
    num_codebooks: int
    codes: tuple[Codes, ...] = field(default=(), repr=False)

    @property
    def references(self) -> list[tuple[str, Codes]]:
        """For the engine's request."""
        return list(zip(self.texts, self.codes, strict=False))

    def public(self) -> dict[str, Any]:
        """As clients see it."""
        return {
            "name": self.name,
            "id": self.name,
            "object": "voice",
            "texts": list(self.texts),
            "seconds": round(self.seconds, 3),
            "created": self.created,
        }


class VoiceStore:
    """The voices of a folder. Thread-safe.

    Args:
        folder: created when the first voice is stored.
        limit: of stored voices.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._lock = threading.Lock()  # held while files are written, which may take long
        # Replaced and never changed: the event loop reads it without waiting for a disk.
        self._voices: dict[str, Voice] = {}

    def adopt(self, drama: Drama3) -> None:
        """Reads the folder for a model; voices of other codecs are ignored."""
        found = {}
        for path in sorted(self._folder.glob("*.json")) if self._folder.is_dir() else ():
            try:
                voice = _read(path)
            except _DAMAGED as error:
                log.warning("voice file %s cannot be used: %s", path.name, error)
                continue
            fits = (drama.sample_rate, drama.config.num_codebooks)
            if drama.fixed_voice or (voice.sample_rate, voice.num_codebooks) == fits:
                found[voice.name] = voice
            else:
                log.warning("voice file %s belongs to another codec", path.name)
        with self._lock:
            self._voices = found

    def get(self, name: str) -> Voice | None:
        """The voice of that name."""
        return self._voices.get(name)

    def all(self) -> list[Voice]:
        """Every voice, by name."""
        return sorted(self._voices.values(), key=lambda voice: voice.name)

    def add(
        self, name: str, clips: tuple[Reference, ...], drama: Drama3, max_seconds: float
    ) -> Voice:
        """Encodes and stores a voice, replacing one of that name. Takes seconds.

        Raises:
            RequestError: a clip cannot be used, or too many voices are stored.
            StorageFailed: the folder cannot be written.
        """
        if name not in self._voices and len(self._voices) >= self._limit:
            raise RequestError(
                f"{self._limit} voices are stored, which is the limit (max_voices); delete one, or "
                "ask the operator to raise it."
            )
        codes, seconds = [], 0.0
        for number, clip in enumerate(clips):
            what = "the clip" if len(clips) == 1 else f"references[{number}]"
            made, length = _encode(clip, what, drama, max_seconds)
            seconds += length
            if made is not None:
                codes.append(made)
        books = drama.config.num_codebooks if codes else 0
        voice = Voice(
            name,
            tuple(clip.text for clip in clips),
            seconds,
            int(time.time()),
            drama.sample_rate,
            books,
            tuple(codes),
        )
        with self._lock:
            try:
                self._write(voice)
            except OSError as error:
                log.error("a voice cannot be stored in %s: %s", self._folder, error)
                raise StorageFailed(f"{self._folder} cannot be written: {error}") from error
            self._voices = {**self._voices, name: voice}
        return voice

    def remove(self, name: str) -> bool:
        """Removes a voice; false if there was none.

        Raises:
            StorageFailed: its files cannot be removed; it is still there.
        """
        with self._lock:
            if name not in self._voices:
                return False
            try:  # the json first: without it, the rest is not a voice
                for suffix in (".json", ".npz"):
                    self._path(name, suffix).unlink(missing_ok=True)
            except OSError as error:
                log.error("a voice cannot be removed from %s: %s", self._folder, error)
                raise StorageFailed(f"{self._folder} cannot be written: {error}") from error
            self._voices = {key: one for key, one in self._voices.items() if key != name}
            return True

    def _path(self, name: str, suffix: str) -> Path:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:40]
        return self._folder / (digest + suffix)

    def _write(self, voice: Voice) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        arrays = {str(n): codes.astype("<u2") for n, codes in enumerate(voice.codes)}
        facts = {k: v for k, v in asdict(voice).items() if k != "codes"}
        # The codes first: a voice exists as soon as its json does.
        with _replacing(self._path(voice.name, ".npz")) as path, path.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        with _replacing(self._path(voice.name, ".json")) as path:
            path.write_text(json.dumps(facts, ensure_ascii=False), encoding="utf-8")


@contextlib.contextmanager
def _replacing(path: Path) -> Any:
    """A file to write, which then replaces ``path`` in one step."""
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    try:
        yield Path(name)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _encode(
    clip: Reference, what: str, drama: Drama3, max_seconds: float
) -> tuple[Codes | None, float]:
    """Codes of a clip (none for a fixed voice) and its duration."""
    if clip.audio is None:
        assert clip.codes is not None
        return clip.codes, clip.codes.shape[1] / drama.codec.config.frame_rate
    samples, rate = read_clip(clip, what, max_seconds)
    try:
        codes = None if drama.fixed_voice else drama.encode(samples, rate)
    except RequestError as error:
        raise Refused("bad_reference", f"{what}: {error}") from error
    return codes, len(samples) / rate


def _read(path: Path) -> Voice:
    facts = json.loads(path.read_text(encoding="utf-8"))
    facts["texts"] = tuple(facts["texts"])
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:
        codes = tuple(arrays[str(n)].astype(np.int64) for n in range(len(arrays.files)))
    return Voice(**facts, codes=codes)
