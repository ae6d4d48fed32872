"""Stage 1: the lines that the teacher reads, mixed so that any first part of them is a fair sample.

Sources: example sentences and definitions of WordNet 3.0 (the Debian package ``wordnet-base``), own
patterns (``templates``), and carrier sentences for common words that occur nowhere else. Lines with
offensive words or subjects and the held-out evaluation sentences are left out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

from training.templates import Phrases
from training.wordlists import proper_names
from training.words import blocked_words, common_words, is_clean, synsets, teacher_lexicon

LINES = 45_000
LEXICON_WORDS = 15_500
EVERYDAY_WORDS = 5_000
_QUESTION = re.compile(
    r"(?:who|what|when|where|why|how|is|are|do|does|did|can|could|will|would|have|has|should) ",
    re.IGNORECASE,
)
_CARRIERS = (
    "The words are {}, {} and {}.",
    "First {}, then {}, and finally {}.",
    "Please write down {}, {}, {}.",
    "Is it {}, {}, or {}?",
    "They talked about {}, {}, and {}.",
)


def sentences(wordnet: Path) -> tuple[list[str], list[str]]:
    """Example sentences and definitions that read as plain sentences, sorted, without end marks."""
    examples, definitions = set(), set()
    for _, gloss in synsets(wordnet):
        examples |= {_tidy(found) for found in re.findall(r'"([^"]+)"', gloss)}
        definitions.add(_tidy(re.sub(r'"[^"]*"', "", gloss).split(";")[0]))
    return (
        sorted(line for line in examples if _readable(line, 14, 150)),
        sorted(line for line in definitions if _readable(line, 20, 130)),
    )


def _tidy(text: str) -> str:
    text = text.strip(".;:, ").replace("`", "'").replace("--", ", ").replace(" ,", ",")
    return re.sub(r"\s+", " ", text)


def _readable(line: str, shortest: int, longest: int) -> bool:
    words = line.split()
    return (
        shortest <= len(line) <= longest
        and len(words) >= 3
        and re.fullmatch(r"[A-Za-z' ,\-?!.]+", line) is not None
        and not re.search(r"(^| )'|'( |$)|\b[A-Z]{2,}\b|\.\S", line)
        and sum(word[:1].isupper() for word in words[1:]) <= 2
    )


def finish(line: str, random: Random) -> str:
    """The line as a sentence: a capital first, an end mark last."""
    line = line[0].upper() + line[1:]
    if line[-1] in ".?!":
        return line
    if _QUESTION.match(line):
        return line + "?"
    return line + random.choice("." * 11 + "!")


def plain_words(text: str) -> tuple[str, ...]:
    """Returns the lower-case words, for detecting equal sentences."""
    return tuple(re.findall(r"[a-z']+", text.lower()))


def rare_first(lines: list[str], wanted: Iterable[str], random: Random) -> list[str]:
    """The lines in random order, those first that show a wanted word for the first two times."""
    order = random.sample(lines, len(lines))
    missing = dict.fromkeys(wanted, 2)
    first: list[str] = []
    rest: list[str] = []
    for line in order:
        useful = [word for word in set(plain_words(line)) if missing.get(word)]
        for word in useful:
            missing[word] -= 1
        (first if useful else rest).append(line)
    random.shuffle(first)
    return first + rest


def carriers(words: list[str], random: Random) -> list[str]:
    """Sentences that hold the words, three in each."""
    words = random.sample(words, len(words))
    threes = zip(*[iter(words)] * 3, strict=False)
    return [random.choice(_CARRIERS).format(*three) for three in threes]


def make_lines(
    wordnet: Path,
    assets: Path,
    vocabulary: list[str],
    held_out: Iterable[str],
    count: int = LINES,
    seed: int = 1,
) -> tuple[list[str], list[str]]:
    """The lines and the common words, most common first.

    Args:
        wordnet: folder with WordNet's ``data.*`` files.
        assets: folder with the teacher's lexicon.
        vocabulary: see ``words.common_words``.
        held_out: sentences that must not occur.
        count: how many lines.
        seed: of the choice and the mix.
    """
    random = Random(seed)
    lexicon = common_words(wordnet, vocabulary, teacher_lexicon(assets), LEXICON_WORDS)
    blocked = blocked_words(wordnet, lexicon[:EVERYDAY_WORDS])
    lexicon = [word for word in lexicon if is_clean(word, blocked)]
    lexicon += [name for name in proper_names() if name not in set(lexicon)]
    examples, definitions = (
        rare_first([line for line in lines if is_clean(line, blocked)], lexicon, random)
        for lines in sentences(wordnet)
    )
    sources = {
        "example": iter(examples),
        "definition": iter(definitions),
        "pattern": _endless(Phrases(random)),
    }
    weights = {"example": 0.46, "definition": 0.18, "pattern": 0.36}
    seen = {plain_words(sentence) for sentence in held_out}
    lines: list[str] = []
    room = int(count * 0.93)
    while len(lines) < room and sources:
        kind = random.choices(list(sources), [weights[name] for name in sources])[0]
        line = next(sources[kind], None)
        if line is None:
            del sources[kind]
            continue
        line = line if kind == "pattern" else finish(line, random)
        if len(line) < 45 and random.random() < 0.4:
            extra = next(sources[kind], None)
            line += f" {finish(extra, random)}" if extra else ""
        if len(line) <= 180 and plain_words(line) not in seen:
            seen.add(plain_words(line))
            lines.append(line)
    shown = Counter(word for line in lines for word in plain_words(line))
    rare = [word for word in lexicon if shown[word] < 2]
    lines += carriers(rare + rare, random)[: count - room]
    return _mix(lines, random), lexicon


def _mix(lines: list[str], random: Random) -> list[str]:
    """Shuffled in full, so that any first part is a sample of the whole."""
    random.shuffle(lines)
    return lines


def _endless(phrases: Phrases) -> Iterator[str]:
    while True:
        yield phrases.sentence()


def write(target: Path, lines: list[str], lexicon: list[str]) -> None:
    """Writes ``text.json``: the lines and the common words."""
    text = json.dumps({"lines": lines, "lexicon": lexicon}, ensure_ascii=False, indent=0)
    target.write_text(text, encoding="utf-8")


def load(path: Path) -> tuple[list[str], list[str]]:
    """Lines and common words of ``text.json``."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return found["lines"], found["lexicon"]
