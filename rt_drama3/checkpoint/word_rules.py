"""Word rules: a tokenizer's long list of words to be replaced, applied by looking words up.

A normaliser that knows thousands of words (the embedded voice's turns them into phonemes) means
as many regular expressions for every text, and milliseconds in front of the first audio. Which of
them can match is told by the words of the text, so only those are run, in their order: the result,
offsets included, is the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import NormalizedString, Regex, Tokenizer
from tokenizers.normalizers import Normalizer, Sequence

# A word that no letter or apostrophe stands in front of, and what may not follow it.
_RULE = re.compile(r"\(\?<!\[a-z'\]\)([a-z']+)\(\?![^()]*\)")
_RUN = re.compile(r"[a-z']+")
LEAST = 100  # rules in a row that are worth it


def read_tokenizer(path: Path, data: Any) -> Tokenizer:
    """The tokenizer of a ``tokenizer.json``; a long list of word rules in it is looked up.

    With such a list the tokenizer is used as it is from then on: it cannot be saved or copied, and
    changing it while another thread encodes would wait for ever (``tokenizers`` holds a lock, the
    custom normaliser needs the interpreter).

    Args:
        path: of the file.
        data: what is in it, parsed.

    Raises:
        Exception: the file describes none (``tokenizers`` raises nothing more specific).
    """
    normalizer = data.get("normalizer") if isinstance(data, dict) else None
    steps = normalizer.get("normalizers") if isinstance(normalizer, dict) else None
    if not isinstance(steps, list):
        return Tokenizer.from_file(str(path))
    first, last = _longest_list(steps)
    if last - first < LEAST:
        return Tokenizer.from_file(str(path))

    def with_only(steps: list[Any]) -> Tokenizer:
        sequence = {"type": "Sequence", "normalizers": steps}
        return Tokenizer.from_str(json.dumps({**data, "normalizer": sequence}))

    tokenizer, behind = with_only(steps[:first]), with_only(steps[last:]).normalizer
    rules = WordRules((step["pattern"]["Regex"], step["content"]) for step in steps[first:last])
    tokenizer.normalizer = Sequence([tokenizer.normalizer, Normalizer.custom(rules), behind])
    return tokenizer


class WordRules:
    """A custom normaliser of ``tokenizers``: (pattern, content) pairs, applied in order.

    Args:
        rules: each a pattern that ``is_word_rule`` takes, and what its word becomes.
    """

    def __init__(self, rules: Iterable[tuple[str, str]]) -> None:
        self._rules = list(rules)
        self._by_word: dict[str, list[int]] = {}
        for number, (pattern, _) in enumerate(self._rules):
            found = _RULE.fullmatch(pattern)
            assert found is not None
            self._by_word.setdefault(found[1], []).append(number)
        self._longest = max(map(len, self._by_word), default=0)
        self._known: dict[int, Regex] = {}  # compiled ones; at most as many as there are rules

    def normalize(self, text: NormalizedString) -> None:
        """Replaces the words of a text."""
        for number in self._may_match(str(text.normalized)):
            pattern, content = self._rules[number]
            if number not in self._known:
                self._known[number] = Regex(pattern)
            text.replace(self._known[number], content)

    def _may_match(self, text: str) -> list[int]:
        """The rules that could find their words, and perhaps some more."""
        found: set[int] = set()
        for run in set(_RUN.findall(text)):
            # A word begins where a run of letters does, or behind one that was replaced.
            starts = {0}
            for start in range(len(run)):
                if start not in starts:
                    continue
                for end in range(start + 1, min(len(run), start + self._longest) + 1):
                    numbers = self._by_word.get(run[start:end])
                    if numbers:
                        found.update(numbers)
                        starts.add(end)
        return sorted(found)


def is_word_rule(step: Any) -> bool:
    """Whether a step of a normaliser replaces one word, by something without letters."""
    if not isinstance(step, dict) or step.get("type") != "Replace":
        return False
    pattern, content = step.get("pattern"), step.get("content")
    regex = pattern.get("Regex") if isinstance(pattern, dict) else None
    return (
        isinstance(regex, str)
        and _RULE.fullmatch(regex) is not None
        and isinstance(content, str)
        and _RUN.search(content) is None
    )


def _longest_list(steps: list[Any]) -> tuple[int, int]:
    """Where the longest row of word rules begins, and where it has ended."""
    best, first = (0, 0), 0
    for number, step in enumerate([*steps, None]):
        if not is_word_rule(step):
            best = max(best, (first, number), key=lambda row: row[1] - row[0])
            first = number + 1
    return best
