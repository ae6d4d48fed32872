"""Inputs of ``speak``: text, references, guidance, steering, earlier takes, best-of.

Heavy imports wait until they are used, so that ``--help`` is fast.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from rt_drama3.errors import RequestError
from rt_drama3.system.text_io import check_argument, decode_utf8, read_stdin

if TYPE_CHECKING:
    from rt_drama3.config import ModelConfig
    from rt_drama3.drama3 import Drama3
    from rt_drama3.engine.best_of import FinishedTake
    from rt_drama3.engine.events import SpeechSummary
    from rt_drama3.engine.speech import Speech, SpeechRequest
    from rt_drama3.scenes.takes import PreviousTake

References: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--ref", help="Reference of the voice: an audio file or a take; repeatable."),
]
Transcripts: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--ref-text", help="Transcript of each --ref, in order; optional for takes."),
]
Guidance: TypeAlias = Annotated[
    float | None,
    typer.Option(help=r"Guidance strength of \[directions]: 0 is off, 4 is strong (default: 0)."),
]
Steer: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=STRENGTH", help="Steering vector from `voice steer`; repeatable, they add up."
    ),
]
PreviousTakesFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="Earlier takes of the scene: a JSON list, or a file from --take-out."),
]
TakeOut: TypeAlias = Annotated[
    Path | None, typer.Option(help="Write the take to this JSON file for reuse or editing.")
]
BestOf: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Number of takes to make; the best one is kept.")
]
AsrModel: TypeAlias = Annotated[
    str | None,
    typer.Option(help="faster-whisper model (name or folder) that ranks --best-of takes."),
]


def read_text(text: str) -> str:
    """Returns the text argument, or stdin for "-".

    Raises:
        RequestError: stdin is closed, or the text is not UTF-8.
    """
    if text != "-":
        check_argument(text)
        return text
    try:
        return decode_utf8(read_stdin()).strip()
    except ValueError as error:
        raise RequestError(f"standard input {error}.") from error


def steering_pairs(given: list[str] | None) -> list[tuple[str | Path, float]]:
    """Parses ``--steer`` into pairs of a name, or the path of a file, and a strength.

    Raises:
        RequestError: an entry is not NAME=STRENGTH.
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
    """Pairs ``--ref`` with ``--ref-text``: one for each file, or for each that is not a take.

    Raises:
        RequestError: the numbers do not match.
    """
    files, transcripts = files or [], transcripts or []
    clips = [file for file in files if not _is_take(file)]
    if len(transcripts) not in (len(files), len(clips)):
        raise RequestError(
            f"{len(files)} --ref and {len(transcripts)} --ref-text were given; every reference "
            "needs its transcript, in the same order (takes include theirs)."
        )
    given = iter(transcripts)
    every = len(transcripts) == len(files)
    return [(next(given) if every or not _is_take(file) else None, file) for file in files]


def read_grids(
    references: list[tuple[str | None, Path]], config: ModelConfig
) -> list[tuple[str, Any]]:
    """Loads the codes of references that are takes (.json files); audio files stay paths.

    Raises:
        RequestError: a take cannot be used, or its text differs from the given transcript.
    """
    from rt_drama3.scenes.takes import read_takes

    found: list[tuple[str, Any]] = []
    for text, source in references:
        if _is_take(source):
            takes = read_takes(source, config)
            if len(takes) != 1 or takes[0].codes is None:
                raise RequestError(f"--ref {source} is not a single take with codes.")
            found.append((_transcript(source, takes[0].text, text), takes[0].codes))
        else:
            assert text is not None
            found.append((text, source))
    return found


def _is_take(file: Path) -> bool:
    return file.suffix == ".json"


def _transcript(source: Path, own: str, given: str | None) -> str:
    """Returns the text of a take, with the speaker tag of the given transcript, if any."""
    if given is None:
        return own
    (tag, words), (own_tag, own_words) = _split_tag(given), _split_tag(own)
    if words != own_words or (tag and own_tag and tag != own_tag):
        raise RequestError(
            f"--ref-text {given!r} differs from the text of the take {source}, {own!r}; omit it."
        )
    return given if tag and not own_tag else own


def _split_tag(text: str) -> tuple[str, str]:
    """Returns the leading speaker tag of a text, or "", and its words."""
    from rt_drama3.text.rules import SPEAKER_TAG

    words = " ".join(text.split())
    tag = SPEAKER_TAG.match(words)
    return (tag[0], words[tag.end() :].lstrip()) if tag else ("", words)


def open_speech(
    loaded: Drama3, request: SpeechRequest, count: int | None, asr_model: str | None
) -> Speech | FinishedTake:
    """Opens a stream, or makes several takes and returns the best as one.

    Raises:
        RtDrama3Error: the request or an option cannot be used.
    """
    from rt_drama3.engine.best_of import FinishedTake
    from rt_drama3.engine.speech import SpeechSettings
    from rt_drama3.scenes import best_of

    if count is None:
        if asr_model is not None:
            raise RequestError("--asr-model ranks takes; set their number with --best-of.")
        return loaded.engine.open(request)
    scorer = best_of.duration_sanity if asr_model is None else best_of.AsrScorer(asr_model)
    settings: Any = {name: getattr(request, name) for name in SpeechSettings.__annotations__}
    started = time.monotonic()
    best = loaded.best_of(request.text, count, scorer, **settings).best
    return FinishedTake(best, best.durations, started)


def previous_takes(path: Path | None, config: ModelConfig) -> list[PreviousTake]:
    """Reads ``--previous-takes-file``, if there is one.

    Raises:
        RequestError: the takes cannot be used.
    """
    from rt_drama3.scenes.takes import read_takes

    return [] if path is None else read_takes(path, config)


def write_take_out(path: Path | None, summary: SpeechSummary) -> None:
    """Writes ``--take-out``.

    Raises:
        RequestError: nothing was spoken, or the file cannot be written.
    """
    from rt_drama3.scenes.takes import write_take

    if path is not None:
        if not summary.codes.shape[1]:
            raise RequestError(f"the text is not speakable, so {path} was not written.")
        facts = {"seed": summary.seed, "complete": summary.complete}
        write_take(path, summary.text, summary.codes, **facts)
