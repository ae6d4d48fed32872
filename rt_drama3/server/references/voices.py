"""VoiceStore: named voices whose clips are encoded once, in memory and in a folder."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rt_drama3.errors import RequestError, RtDrama3Error
from rt_drama3.protocol import Reference, Refused
from rt_drama3.server.references.clips import read_clip
from rt_drama3.server.references.voice_files import (
    BadVoiceFile,
    Codes,
    Voice,
    read_voice,
    voice_file,
    write_voice,
)

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3

log = logging.getLogger(__name__)


class StorageFailed(RtDrama3Error):  # noqa: N818 - the name is the condition
    """The data folder cannot be written."""


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
        """Reads the folder for a model; files that cannot be used are logged and skipped."""
        found = {}
        for path in self._files():
            try:
                voice = read_voice(path, drama)
            except BadVoiceFile as error:
                log.warning("voice file %s is skipped: %s", path, error)
            else:
                found[voice.name] = voice
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
                write_voice(self._folder, voice)
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
                    voice_file(self._folder, name, suffix).unlink(missing_ok=True)
            except OSError as error:
                log.error("a voice cannot be removed from %s: %s", self._folder, error)
                raise StorageFailed(f"{self._folder} cannot be written: {error}") from error
            self._voices = {key: one for key, one in self._voices.items() if key != name}
            return True

    def _files(self) -> list[Path]:
        """The files that name a voice."""
        try:
            return sorted(self._folder.glob("*.json")) if self._folder.is_dir() else []
        except OSError as error:
            log.warning("the voices in %s are skipped: %s", self._folder, error)
            return []


def _encode(
    clip: Reference, what: str, drama: Drama3, max_seconds: float
) -> tuple[Codes | None, float]:
    """Codes of a clip (none for a fixed voice) and its duration."""
    if clip.sound is None:
        assert clip.codes is not None
        return clip.codes, clip.codes.shape[1] / drama.codec.config.frame_rate
    samples, rate = read_clip(clip, what, max_seconds)
    try:
        codes = None if drama.fixed_voice else drama.encode(samples, rate)
    except RequestError as error:
        raise Refused("bad_reference", f"{what}: {error}") from error
    return codes, len(samples) / rate
