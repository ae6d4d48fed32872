"""Words that are foreign to the field do not come back, in code, help and pages.

``python -m tests.house.test_words PATH ...`` lists what is found under some paths.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest

from tests.house.words import Passage, passages

# A phrase, and what to write instead.
PHRASES = {
    r"(?<!cannot )\b(?:tell|tells|told|telling)\b(?! me\b)": "return, report, raise, log or send",
    r"\b(?:whoever|whosever|nobody|everybody|somebody|anybody)\b": "clients, listeners, callers",
    r"\bat most\b[^.]{1,60}\bmay\b": "N is over the limit of M",
    r"(?<!there )\b(?:is|are|was|were) no (?!longer|more|less)": "is not a",
    r"\bat once\b": "immediately, concurrently or in one call",
    r"\bbeside\b": "next to, alongside or while",
    r"\bso (?:many|much)\b": "the number, or a comparison",
    r"\b(?:to|of|for|from|with|than|at|by) who\b": "clients that, callers that",
    r"(?:^|(?<=[a-z)][.:;] )(?<!Dr. ))(?-i:Who)\b(?![^.]*\?)": "clients that, the stream that",
    r"^(?-i:Of) (?:the|a|an|all|every|each|what|it)\b": "the noun itself: Random seed.",
    r"\b(?:go|goes|went|going|gone) on\b": "continue",
    r"\banew\b": "again, from scratch",
    r"\blook(?:s|ed|ing) at\b": "check, inspect, read",
    r"\b(?:look|looks|looked|looking) after\b": "update, manage",
    r"\blet(?:s|ting)? go\b": "abandon, release",
    r"\b(?:died|failed) of\b": "the error that ended it",
    r"\b(?:twin|untaken|unheeded|heed|heeded|trodden)\b": "a word of the glossary",
    r"\b(?:frame maker|prompt reader|prompt desk|steering shelf|text gate|teller)\b": (
        "StepRunner, Prefiller, SteeringStore, TextBuffer, SpeechSender"
    ),
}
FOREIGN = re.compile(
    "|".join(f"({phrase})" for phrase in PHRASES).replace(" ", r"\s"), re.IGNORECASE
)
INSTEAD = list(PHRASES.values())


def findings(*paths: str) -> Iterator[tuple[Passage, re.Match[str]]]:
    for passage in passages():
        if paths and not passage.path.startswith(paths):
            continue
        if passage.path not in ("tests/house/test_words.py", "tests/house/words.py"):
            for match in FOREIGN.finditer(passage.text):
                yield passage, match


def shown(passage: Passage, match: re.Match[str]) -> str:
    line = passage.line + passage.text.count("\n", 0, match.start())
    around = passage.text[max(0, match.start() - 40) : match.end() + 40].replace("\n", " ")
    instead = INSTEAD[(match.lastindex or 1) - 1]
    return f"{passage.path}:{line}: {match[0].strip()!r} in «{around}»; write: {instead}"


def test_words_foreign_to_the_field_do_not_come_back() -> None:
    found = list(findings())
    assert not found, "\n".join(shown(passage, match) for passage, match in found)


@pytest.mark.parametrize(
    "text",
    [
        "nobody is told",
        "20 streams speak, and at most 4 may",
        "that is no number",
        "the PCM to who listens",
        "Who waits longest goes first.",
        "Of the schedule.",
    ],
)
def test_foreign_words_are_found(text: str) -> None:
    assert FOREIGN.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "there is no CUDA device",
        "it is no longer open",
        "Who may listen? Clients with a key.",
        "callers who hold a key",
        "at most 4 streams",
        "list of the schedule",
    ],
)
def test_words_of_the_field_pass(text: str) -> None:
    assert not FOREIGN.search(text)


if __name__ == "__main__":
    print(*(shown(*found) for found in findings(*sys.argv[1:])), sep="\n")  # noqa: T201
