"""What ``speak`` takes to direct a voice: guidance, steering, earlier takes, the best of several.

Heavy imports wait until they are used, so that ``--help`` answers at once.
"""

from __future__ import annotations

import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from rt_drama3.errors import RequestError

if TYPE_CHECKING:
    from rt_drama3.config import ModelConfig
    from rt_drama3.drama3 import Drama3
    from rt_drama3.engine.speech import Speech, SpeechRequest, SpeechSummary
    from rt_drama3.scenes.best_of import Chosen

Guidance: TypeAlias = Annotated[
    float | None,
    typer.Option(help=r"How strongly \[directions] are followed: 0 is off, 4 is strong."),
]
Steer: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=STRENGTH", help="A vector made by `voice steer`; repeatable, they add up."
    ),
]
PreviousTakesFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="Earlier takes of the scene: JSON, a list or what --take-out wrote."),
]
TakeOut: TypeAlias = Annotated[
    Path | None, typer.Option(help="Keep the take here, to go on from it or to edit it.")
]
BestOf: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Make so many takes and keep the best.")
]
AsrModel: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Judge --best-of by what this model of faster-whisper hears: a name or a folder."
    ),
]


def steering_pairs(given: list[str] | None) -> list[tuple[str | Path, float]]:
    """``--steer``: a name or the path of a file, and a strength.

    Raises:
        RequestError: an entry has another form.
    """
    pairs: list[tuple[str | Path, float]] = []
    for entry in given or []:
        name, separator, strength = entry.rpartition("=")
        try:
            number = float(strength)
        except ValueError:
            separator = ""
        if not separator or not name:
            raise RequestError(f"--steer {entry!r} is not NAME=STRENGTH, such as glad=1.5.")
        pairs.append((Path(name) if name.endswith(".safetensors") else name, number))
    return pairs


def paired(
    files: list[Path] | None, transcripts: list[str] | None
) -> list[tuple[str | None, Path]]:
    """``--ref`` with ``--ref-text``: one for each, or one for each that is no take.

    Raises:
        RequestError: there are other numbers of them.
    """
    files, transcripts = files or [], transcripts or []
    silent = [file for file in files if not _is_take(file)]
    if len(transcripts) not in (len(files), len(silent)):
        raise RequestError(
            f"{len(files)} --ref and {len(transcripts)} --ref-text were given; every reference "
            "needs the words it says, in the same order (a take brings its own)."
        )
    given = iter(transcripts)
    every = len(transcripts) == len(files)
    return [(next(given) if every or not _is_take(file) else None, file) for file in files]


def read_grids(
    references: list[tuple[str | None, Path]], config: ModelConfig
) -> list[tuple[str, Any]]:
    """References, of which those in .json files are takes: their codes are the reference.

    Raises:
        RequestError: a take cannot be used, or says something else than was given for it.
    """
    from rt_drama3.scenes.takes import read_takes

    found: list[tuple[str, Any]] = []
    for text, source in references:
        if _is_take(source):
            takes = read_takes(source, config)
            if len(takes) != 1 or takes[0].codes is None:
                raise RequestError(f"--ref {source} is not one take with codes.")
            found.append((_said(source, takes[0].text, text), takes[0].codes))
        else:
            assert text is not None
            found.append((text, source))
    return found


def _is_take(file: Path) -> bool:
    return file.suffix == ".json"


def _said(source: Path, own: str, given: str | None) -> str:
    """What a take says: its own text, perhaps with the speaker that was given in front of it."""
    if given is None:
        return own
    (tag, words), (own_tag, own_words) = _parted(given), _parted(own)
    if words != own_words or (tag and own_tag and tag != own_tag):
        raise RequestError(
            f"--ref-text {given!r} is not what the take {source} says, {own!r}; leave it out."
        )
    return given if tag and not own_tag else own


def _parted(text: str) -> tuple[str, str]:
    """The speaker tag in front of a text, if any, and its words."""
    from rt_drama3.text.rules import SPEAKER_TAG

    words = " ".join(text.split())
    tag = SPEAKER_TAG.match(words)
    return (tag[0], words[tag.end() :].lstrip()) if tag else ("", words)


def begin(
    loaded: Drama3, request: SpeechRequest, count: int | None, asr_model: str | None
) -> Speech | Chosen:
    """Opens a stream, or makes several takes and gives the best as one.

    Raises:
        RtDrama3Error: the request or an option cannot be used.
    """
    from rt_drama3.scenes import best_of

    if count is None:
        if asr_model is not None:
            raise RequestError("--asr-model judges takes; say how many by --best-of.")
        return loaded.engine.open(request)
    scorer = best_of.duration_sanity if asr_model is None else best_of.AsrScorer(asr_model)
    settings = {field.name: getattr(request, field.name) for field in fields(request)}
    for name in ("text", "final", "audio"):
        del settings[name]
    started = time.monotonic()
    ranking = loaded.best_of(request.text, count, scorer, **settings)
    return best_of.Chosen(ranking.best, started)


def settings(
    config: ModelConfig,
    guidance: float | None,
    steer: list[str] | None,
    previous_takes_file: Path | None,
) -> dict[str, Any]:
    """Keywords of ``SpeechRequest`` for these options.

    Raises:
        RequestError: an option cannot be used.
    """
    from rt_drama3.scenes.takes import read_takes

    takes = [] if previous_takes_file is None else read_takes(previous_takes_file, config)
    return {"guidance": guidance, "steering": steering_pairs(steer), "previous_takes": takes}


def check_take_out(path: Path | None) -> None:
    """Refuses ``--take-out`` before anything is made.

    Raises:
        RequestError: its folder does not exist.
    """
    if path is not None and not path.parent.is_dir():
        raise RequestError(f"cannot write {path}: {path.parent} is not a folder; create it first.")


def write_take_out(path: Path | None, summary: SpeechSummary) -> None:
    """Writes ``--take-out``.

    Raises:
        RequestError: nothing was spoken, or the file cannot be written.
    """
    from rt_drama3.scenes.takes import write_take

    if path is not None:
        if not summary.codes.shape[1]:
            raise RequestError(f"nothing was spoken, so {path} was not written; give some words.")
        facts = {"seed": summary.seed, "complete": summary.complete}
        write_take(path, summary.text, summary.codes, **facts)
