"""The words that the voice must know, and those that the training text must not contain.

Common words are ranked by the order in which a speech recogniser's byte-pair vocabulary learned
them (frequent first) and by their count in WordNet's glosses; only words that the teacher's lexicon
can read count. The words to keep out are found in WordNet itself, whose glosses mark slurs and
obscenities, and completed by a short list of subjects.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from training.spelling import listed

PARTS = ("noun", "verb", "adj", "adv")
_MARKED = re.compile(
    r"\b(?:ethnic slur|offensive (?:term|name|word)|obscen|vulgar|slang terms? for|disparaging"
    r"|derogatory|sexual|prostitut|genital|excrement|urinat|defecat|intercourse)"
)
# Stems of subjects that a product's voice need not have practised.
_STEMS = listed(
    "sex rape rapist kill murder suicid slaughter massacre genocid hitler nazi terroris tortur "
    "behead lynch damn bastard bitch breast nude naked porn erotic homosexual lesbian gay jew jews "
    "jewish moslem muslim islam christian catholic protestant slave slaver retard idiot moron "
    "cripple midget drunk heroin cocaine opium corpse cadaver bomb bomber gun rifle stab strangl "
    "molest incest abortion fetus pregnan menstru sperm castrat virgin brothel vomit fuck shit "
    "piss whore slut cunt penis vagina tits ass asses goddamn"
)
_WHOLE = frozenset(listed("ass asses gay jew jews gun tits drunk"))
_STEM = re.compile(
    r"\b(?:" + "|".join(stem + (r"\b" if stem in _WHOLE else r"\w*") for stem in _STEMS) + r")",
    re.IGNORECASE,
)
_INNOCENT = re.compile(r"\b(?:sextant|sextet|killjoy)\b", re.IGNORECASE)


def synsets(wordnet: Path) -> Iterator[tuple[list[str], str]]:
    """Every synset's lemmas (spaces as underscores) and gloss (definition; examples in quotes)."""
    for part in PARTS:
        with (wordnet / f"data.{part}").open(encoding="latin1") as lines:
            for line in lines:
                if line.startswith("  "):  # the licence
                    continue
                head, _, gloss = line.partition(" | ")
                fields = head.split()
                count = int(fields[3], 16)
                yield fields[4 : 4 + 2 * count : 2], gloss.strip()


def blocked_words(wordnet: Path, everyday: Iterable[str]) -> frozenset[str]:
    """Lower-case single words that WordNet marks as slurs or obscene in any of their senses.

    ``everyday`` words ("blue", "partner") have such senses too, but are meant innocently.
    """
    blocked = set()
    for lemmas, gloss in synsets(wordnet):
        if _MARKED.search(gloss):
            blocked |= {lemma.lower() for lemma in lemmas if lemma.isalpha() and len(lemma) > 2}
    return frozenset(blocked - set(everyday))


def is_clean(text: str, blocked: frozenset[str]) -> bool:
    """Whether a line holds no blocked word (or its plural) and none of the avoided subjects."""
    if _STEM.search(_INNOCENT.sub("", text)):
        return False
    found = re.findall(r"[a-z]+", text.lower())
    return not any(word in blocked or word.removesuffix("s") in blocked for word in found)


def teacher_lexicon(assets: Path) -> frozenset[str]:
    """Words (as written) that the teacher reads from its lexicon."""
    known: set[str] = set()
    for name in ("lexicon_us_gold.json.gz", "lexicon_us_silver.json.gz"):
        with gzip.open(assets / name, "rt", encoding="utf-8") as file:
            known |= json.load(file).keys()
    return frozenset(known)


def _stems(word: str) -> list[str]:
    """Words that this one may be a regular form of; the teacher derives those itself."""
    found = []
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 2:
            found += [word.removesuffix(ending) + end for end in instead]
    if re.search(r"(.)\1(?:ed|ing)$", word):  # stopped, running
        found.append(re.sub(r".(?:ed|ing)$", "", word))
    return found


_ENDINGS = (
    ("ies", ["y"]),
    ("ied", ["y"]),
    ("es", [""]),
    ("s", [""]),
    ("ed", ["", "e"]),
    ("ing", ["", "e"]),
)


def common_words(
    wordnet: Path, vocabulary: Iterable[str], lexicon: frozenset[str], count: int
) -> list[str]:
    """The ``count`` most common words, lower case, most common first.

    Args:
        wordnet: folder with WordNet's ``data.*`` files.
        vocabulary: tokens of a byte-pair vocabulary in the order learned, "Ġ" for a leading space.
        lexicon: from ``teacher_lexicon``.
        count: how many.
    """
    listed = {word.lower() for word in lexicon if re.fullmatch(r"[A-Za-z]+(?:'[a-z]+)?", word)}

    def readable(word: str) -> bool:
        if len(word) == 1:
            return word in "ai"
        return word in listed or any(stem in listed for stem in _stems(word))

    ranked: dict[str, int] = {}
    for token in vocabulary:
        word = token.removeprefix("Ġ").lower()
        if token.startswith("Ġ") and readable(word):
            ranked.setdefault(word, len(ranked))
    counts: Counter[str] = Counter()
    for _, gloss in synsets(wordnet):
        counts.update(re.findall(r"[a-z]+(?:'[a-z]+)?", gloss.lower()))
    # A word's place is the better of the two; WordNet's list leans to plants and animals.
    places = {word: float(place) for word, place in ranked.items()}
    for place, (word, _) in enumerate(counts.most_common()):
        if readable(word):
            places[word] = min(places.get(word, 1e9), 1.5 * place)
    return sorted(places, key=lambda word: (places[word], word))[:count]
