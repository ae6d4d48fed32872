"""The prose of the project: names, comments, docstrings, messages, help, and pages."""

from __future__ import annotations

import re
import subprocess
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.house.imports import ROOT

# What the voice is trained and measured with, others' words, and vocabularies.
CORPORA = ("training/heldout.json", "training/templates.py", "training/wordlists.py")
SKIPPED = ("LICENSE", "NOTICE", "rt_drama3/voices/", *CORPORA)
TEXT = {".md", ".js", ".mjs", ".ts", ".html", ".css", ".toml", ".cpp", ".json", ""}
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
STRINGS = {
    tokenize.STRING,
    getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING),  # from Python 3.12
}


@dataclass(frozen=True)
class Passage:
    """A stretch of prose without indentation, and the line where it starts."""

    path: str
    line: int
    text: str


def passages() -> Iterator[Passage]:
    """All prose in the files that git knows."""
    for path in tracked():
        if path.suffix == ".py":
            yield from _python(path)
        elif path.suffix in TEXT:
            yield from _text(path)


@cache
def tracked() -> tuple[Path, ...]:
    """The files of the repository, new ones included, in the order of their names."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(
        path
        for name in sorted(names.splitlines())
        if not name.startswith(SKIPPED) and not name.endswith("LICENSE")
        if (path := ROOT / name).is_file()
    )


def _python(path: Path) -> Iterator[Passage]:
    name = str(path.relative_to(ROOT))
    names: set[str] = set()
    comment: list[str] = []
    start = 0
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                start = start if comment else token.start[0]
                comment.append(token.string.lstrip("#: "))
                continue
            if comment and token.type not in (tokenize.NL, tokenize.NEWLINE):
                yield Passage(name, start, "\n".join(comment))
                comment = []
            if token.type == tokenize.NAME:
                if token.string not in names and token.string != "tell":  # of files
                    names.add(token.string)
                    words = " ".join(WORD.findall(token.string)).lower()
                    yield Passage(name, token.start[0], words)
            elif token.type in STRINGS:
                yield Passage(name, token.start[0], _unquoted(token.string))


def _unquoted(string: str) -> str:
    text = re.sub(r"^[a-zA-Z]*(\"\"\"|'''|\"|')|(\"\"\"|'''|\"|')$", "", string)
    return flush(text.replace("\\n", " "))


def flush(text: str) -> str:
    """Without indentation and repeated spaces; line breaks stay, so that lines can be counted."""
    return re.sub(r"\s+", lambda space: "\n" * space[0].count("\n") or " ", text)


def _text(path: Path) -> Iterator[Passage]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    line = 1
    for part in re.split(r"(\n\s*\n)", text):
        marks = re.sub(r"(?m)^\s*(?://|\*|#|>)+ ?", "", part)
        yield Passage(str(path.relative_to(ROOT)), line, flush(marks).strip())
        line += part.count("\n")
