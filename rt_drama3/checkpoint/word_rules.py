"""Word rules: a tokenizer's long list of word replacements, applied by dictionary lookup.

The embedded voice's normalizer knows thousands of words, which it replaces with phonemes. Run as
regular expressions over every text, they would add milliseconds to the first audio. Only the rules
whose word occurs in the text can match, so only those are run, in their order; the result, offsets
included, is the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from tokenizers import NormalizedString, Regex, Tokenizer
from tokenizers.normalizers import Normalizer, Sequence

# A word without a letter or apostrophe before it, and a negative lookahead.
_RULE = re.compile(r"\(\?<!\[a-z'\]\)([a-z']+)\(\?![^()]*\)")
_RUN = re.compile(r"[a-z']+")
MIN_RULES = 100  # consecutive rules from which the lookup pays off


def read_tokenizer(text: bytes, data: Any) -> Tokenizer:
    """Builds the tokenizer of a ``tokenizer.json``, with a lookup for a long list of word rules.

    A tokenizer with such a list cannot be saved, copied or changed afterwards: changing it while
    another thread encodes would deadlock (``tokenizers`` holds its lock while the custom normalizer
    waits for the interpreter).

    Args:
        text: the file's content.
        data: its parsed content.

    Raises:
        Exception: the file does not describe a tokenizer (``tokenizers`` raises nothing more
            specific).
    """
    normalizer = data.get("normalizer") if isinstance(data, dict) else None
    steps = normalizer.get("normalizers") if isinstance(normalizer, dict) else None
    if not isinstance(steps, list):
        return Tokenizer.from_str(text.decode())
    first, last = _longest_run(steps)
    if last - first < MIN_RULES:
        return Tokenizer.from_str(text.decode())

    def with_only(steps: list[Any]) -> Tokenizer:
        sequence = {"type": "Sequence", "normalizers": steps}
        return Tokenizer.from_str(json.dumps({**data, "normalizer": sequence}))

    tokenizer, rest = with_only(steps[:first]), with_only(steps[last:]).normalizer
    rules = WordRules((step["pattern"]["Regex"], step["content"]) for step in steps[first:last])
    tokenizer.normalizer = Sequence([tokenizer.normalizer, Normalizer.custom(rules), rest])
    return tokenizer


class WordRules:
    """A custom normalizer for ``tokenizers``: (pattern, content) pairs, applied in order.

    Args:
        rules: patterns that ``is_word_rule`` accepts, each with the replacement of its word.
    """

    def __init__(self, rules: Iterable[tuple[str, str]]) -> None:
        self._rules = list(rules)
        self._by_word: dict[str, list[int]] = {}
        for number, (pattern, _) in enumerate(self._rules):
            found = _RULE.fullmatch(pattern)
            assert found is not None
            self._by_word.setdefault(found[1], []).append(number)
        self._longest = max(map(len, self._by_word), default=0)
        self._compiled: dict[int, Regex] = {}

    def normalize(self, text: NormalizedString) -> None:
        """Applies the rules to a text in place."""
        for number in self._candidates(str(text.normalized)):
            pattern, content = self._rules[number]
            if number not in self._compiled:
                self._compiled[number] = Regex(pattern)
            text.replace(self._compiled[number], content)

    def _candidates(self, text: str) -> list[int]:
        """Numbers of the rules that may match; a superset of those that do."""
        found: set[int] = set()
        for run in set(_RUN.findall(text)):
            # A word starts at the start of a run of letters, or after a replaced word.
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
    """Whether a normalizer step replaces one word with something without letters."""
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


def _longest_run(steps: list[Any]) -> tuple[int, int]:
    """Half-open range of the longest run of word rules."""
    best, first = (0, 0), 0
    for number, step in enumerate([*steps, None]):
        if not is_word_rule(step):
            best = max(best, (first, number), key=lambda run: run[1] - run[0])
            first = number + 1
    return best
