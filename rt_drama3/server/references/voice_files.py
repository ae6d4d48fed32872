"""Voice, and its two files: ``<digest of its name>.json`` and ``.npz``.

A client's name never becomes a path. The folder may be written by others, so whatever is read from
it is checked like the fields of a request.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rt_drama3.errors import RequestError, RtDrama3Error
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.order import checked_voice
from rt_drama3.text.prompt import check_codes
from rt_drama3.text.rules import check_text

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3

LARGEST_FILE = 64 << 20  # bytes; sixteen clips of a minute have 0.4 million
_LATEST = 1 << 53  # a whole number that every JSON reader keeps
_MOST_RATE, _MOST_BOOKS, _MOST_SECONDS = 768_000, 1_024, 1e6
# What parsing a truncated or hand-written file can raise: no JSON or not UTF-8, nested too deeply,
# no archive, an encrypted one, an array that does not fit into memory.
_DAMAGED = (ValueError, RuntimeError, TypeError, KeyError, EOFError, MemoryError, OverflowError)
Codes = npt.NDArray[np.int64]


class BadVoiceFile(RtDrama3Error):  # noqa: N818 - the name is the condition
    """A file of the voices' folder that cannot be used; the message says why."""


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


def voice_file(folder: Path, name: str, suffix: str) -> Path:
    """The path of one of a voice's files."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:40]
    return folder / (digest + suffix)


def write_voice(folder: Path, voice: Voice) -> None:
    """Writes both files of a voice.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {str(n): codes.astype("<u2") for n, codes in enumerate(voice.codes)}
    facts = {k: v for k, v in asdict(voice).items() if k != "codes"}
    # The codes first: a voice exists as soon as its json does.
    with _replacing(voice_file(folder, voice.name, ".npz")) as path, path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    with _replacing(voice_file(folder, voice.name, ".json")) as path:
        path.write_text(json.dumps(facts, ensure_ascii=False), encoding="utf-8")


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file to write, which then replaces ``path`` in one step."""
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    try:
        yield Path(name)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_voice(path: Path, drama: Drama3) -> Voice:
    """Reads a voice from its ``.json`` and the ``.npz`` next to it.

    Args:
        path: the ``.json``.
        drama: the model that will speak in that voice, unless it has a fixed one.

    Raises:
        BadVoiceFile: a file is missing, damaged, or holds what no voice can have.
    """
    try:
        facts = json.loads(_checked_file(path).read_text(encoding="utf-8"))
        if not isinstance(facts, dict):
            raise BadVoiceFile("it is not a JSON object")
        voice = _voice(Fields(facts))
        fits = (drama.sample_rate, drama.config.num_codebooks)
        if not drama.fixed_voice and (voice.sample_rate, voice.num_codebooks) != fits:
            raise BadVoiceFile("it belongs to another codec")
        if path != (own := voice_file(path.parent, voice.name, ".json")):  # it could not be removed
            raise BadVoiceFile(f"voice {voice.name!r} belongs into {own.name}")
        codes = _codes(_checked_file(path.with_suffix(".npz")), voice, drama)
    except RequestError as error:
        raise BadVoiceFile(str(error)) from error
    except OSError as error:
        raise BadVoiceFile(f"{error.filename or path}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, *_DAMAGED) as error:
        raise BadVoiceFile(f"it is damaged ({error or type(error).__name__})") from error
    return Voice(**{**vars(voice), "codes": codes})


def _checked_file(path: Path) -> Path:
    """Refuses what cannot be read whole: pipes and files of any size."""
    if not path.is_file():
        raise BadVoiceFile(f"{path.name} is missing, or no file")
    if (size := path.stat().st_size) > LARGEST_FILE:
        raise BadVoiceFile(f"{path.name} has {size} bytes; the limit is {LARGEST_FILE}")
    return path


def _voice(fields: Fields) -> Voice:
    """A voice without its codes."""
    texts = fields.value("texts")
    if not isinstance(texts, list) or not texts:
        raise fields.refuse("texts", "a list of transcripts is needed")
    for number, text in enumerate(texts):
        check_text(text, f"texts[{number}]")
    numbers = (
        fields.number("seconds", 0, _MOST_SECONDS),
        fields.integer("created", 0, _LATEST),
        fields.integer("sample_rate", 1, _MOST_RATE),
        fields.integer("num_codebooks", 0, _MOST_BOOKS),
    )
    seconds, created, rate, books = numbers
    if seconds is None or created is None or rate is None or books is None:
        raise BadVoiceFile("seconds, created, sample_rate or num_codebooks is missing")
    name = checked_voice(fields, "name", fields.value("name"))
    return Voice(name, tuple(texts), seconds, created, rate, books)


def _codes(path: Path, voice: Voice, drama: Drama3) -> tuple[Codes, ...]:
    """The codes of every clip; none for a voice that was stored with a fixed one."""
    with zipfile.ZipFile(path) as archive:
        stored = archive.infolist()
        wanted = len(voice.texts) if voice.num_codebooks else 0
        if len(stored) != wanted:
            raise BadVoiceFile(f"{path.name} has {len(stored)} clips for {wanted} transcripts")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in stored):
            raise BadVoiceFile(f"{path.name} is compressed")  # its size says nothing then
        return tuple(_clip(archive, number, voice, drama) for number in range(wanted))


def _clip(archive: zipfile.ZipFile, number: int, voice: Voice, drama: Drama3) -> Codes:
    with archive.open(f"{number}.npy") as file:
        codes = np.lib.format.read_array(file, allow_pickle=False)
    if not drama.fixed_voice:
        return check_codes(codes, drama.config, f"clip {number}")
    if codes.ndim != 2 or codes.shape[0] != voice.num_codebooks or codes.dtype.kind not in "iu":
        raise BadVoiceFile(f"clip {number} has codes {codes.dtype} {list(codes.shape)}")
    return codes.astype(np.int64)
