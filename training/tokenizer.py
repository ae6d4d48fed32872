"""The voice's ``tokenizer.json``: maps written text to the tokens that the model was trained on.

Everything happens in the file's normaliser, a list of replacements: directions in brackets are
read past, numbers, prices, times and addresses become the words of ``spelling``, and words of the
lexicon become phonemes, each one character of the private use area. The model of the tokenizer then
gives every character its token. Replacements have fixed contents, so a sign that must move behind a
number ("$5") is carried over it digit by digit.
"""
# ruff: noqa: RUF001 - quotation marks and dashes are replaced here

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.codebooks import CODES
from training.lexicon import Lexicon
from training.spelling import ONES, TENS, listed, ordinal
from training.vocabulary import (
    DIRECTION_CHARS,
    IDS,
    LETTERS,
    MARKS,
    PHRASES,
    SOUND_CHARS,
    SPECIAL,
    TEXT_TOKENS,
    UNKNOWN,
    split_sounds,
)

# Digits that are read one by one, and signs on their way behind a number.
_SINGLE = [chr(0xE100 + digit) for digit in range(10)]
_ANY = f"[0-9{_SINGLE[0]}-{_SINGLE[9]}]"
_UNITS = {"$": "dollar", "€": "euro", "£": "pound"}
_CENTS = "\ue110"
_LONGEST_AMOUNT = 11  # digits, commas and points that a sign is carried over

_TITLES = {"Mr": "mister", "Mrs": "misses", "Ms": "miss", "Dr": "doctor", "Prof": "professor"}
_SHORT = {
    "e.g.": "for example",
    "i.e.": "that is",
    "etc.": "et cetera",
    "vs.": "versus",
    "approx.": "approximately",
    "dept.": "department",
    "apt.": "apartment",
    "ave.": "avenue",
    "blvd.": "boulevard",
    "jan.": "january",
    "feb.": "february",
    "aug.": "august",
    "sept.": "september",
    "oct.": "october",
    "nov.": "november",
    "dec.": "december",
}
_MEASURES = {
    "km": "kilometers",
    "cm": "centimeters",
    "mm": "millimeters",
    "kg": "kilograms",
    "lbs": "pounds",
    "lb": "pounds",
    "oz": "ounces",
    "mph": "miles per hour",
    "ft": "feet",
    "min": "minutes",
    "sec": "seconds",
    "hrs": "hours",
    "gb": "gigabytes",
    "mb": "megabytes",
}
_FRACTIONS = {
    "1/2": "one half",
    "1/3": "one third",
    "2/3": "two thirds",
    "1/4": "one quarter",
    "3/4": "three quarters",
}
_INITIALS = listed(
    "ABC AC AI API ATM BBC CBS CD CEO CFO CIA CNN CPU CV DIY DNA DVD EU FAQ FBI FM GPS GPU HD "
    "HR HTML HTTP ID IP IRS LA LED MBA MRI NBA NBC NFL NHL NYC PC PDF PDT PM PR PST PT QR "
    "RSVP SMS SOS SQL SUV TBD TV UFO UK UN URL US USA USB UTC UV VAT VIP VPN WWW XML"
)
_SIGNS = {"&": "and", "+": "plus", "=": "equals", "°": "degrees", "%": "percent"}

Rule = dict[str, Any]


def _regex(pattern: str, content: str) -> Rule:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _text(pattern: str, content: str) -> Rule:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def _markup(directions: bool) -> Iterator[Rule]:
    """Unicode forms, directions, tags, abbreviations and initials (before case is lost)."""
    yield {"type": "NFKD"}
    yield {"type": "StripAccents"}
    for curly in "‘’ʼ":
        yield _text(curly, "'")
    for name, char in DIRECTION_CHARS.items() if directions else ():
        yield _regex(rf"(?i)\[{name}\] *", f"{char} ")
    yield _regex(r"\[[^\[\]]*\] *", "")
    yield _regex(r"</?[A-Za-z][^<>]*>", "")
    for short, full in _TITLES.items():
        yield _regex(rf"\b{short}\.?(?= [A-Z])", full)
    yield _regex(r"\bSt\.(?= [A-Z])", "saint")
    yield _regex(r"\bNo\.(?= ?\d)", "number")
    for initials in _INITIALS:
        yield _regex(rf"\b{initials}\b", " ".join(initials.lower()))
    yield _regex(r"(?<=\.[A-Z])\.(?= [a-z])", "")  # "U.S. " but not at the end of a sentence
    yield _regex(r"(?<=\b[A-Za-z])\.(?=[A-Za-z]\b)", " ")
    yield {"type": "Lowercase"}
    yield _regex(r"\bok\b", "okay")
    for short, full in _SHORT.items():
        yield _regex(rf"\b{re.escape(short)}", full)


def _addresses() -> Iterator[Rule]:
    """E-mail and web addresses, and signs that are words."""
    yield _regex(r"https?://", "")
    yield _regex(r"\bwww\.", "w w w dot ")
    yield _regex(r"(?<=[a-z0-9])@(?=[a-z0-9])", " at ")
    yield _regex(r"(?<=[a-z]{2})\.(?=[a-z]{2})|(?<=[a-z])\.(?=[a-z0-9]{2})", " dot ")
    yield _regex(r"(?<=[a-z0-9])_(?=[a-z0-9])", " underscore ")
    yield _regex(r"(?<=[a-z])/(?=[a-z])", " slash ")
    yield _regex(r"#(?=\d)", "number ")
    for sign, word in _SIGNS.items():
        yield _text(sign, f" {word} ")


def _amounts() -> Iterator[Rule]:
    """Prices: the sign goes behind the number, cents become a number of their own."""
    for sign, unit in _UNITS.items():
        yield _regex(rf"{re.escape(sign)} ?(?=\d)", sign)
        for _ in range(_LONGEST_AMOUNT):
            for digit in range(10):
                yield _text(f"{sign}{digit}", f"{digit}{sign}")
            yield _regex(rf"{re.escape(sign)},(?=\d{{3}})", f",{sign}")
        for scale in ("thousand", "million", "billion"):
            for digit in range(10):  # "$2.5 million"
                yield _regex(rf"{re.escape(sign)}\.{digit} {scale}\b", f".{digit} {scale} {unit}s")
            yield _text(f"{sign} {scale}", f" {scale} {unit}s")
        yield _regex(rf"{re.escape(sign)}\.00(?!\d)", sign)
        yield _regex(rf"{re.escape(sign)}\.0(?=[1-9](?!\d))", f" {unit}s and {_CENTS}")
        yield _regex(rf"{re.escape(sign)}\.(?=\d\d(?!\d))", f" {unit}s and {_CENTS}")
        yield _regex(rf"(?<![\d.,])1{re.escape(sign)}", f"1 {unit}")
        yield _regex(rf"(?<![\d.,])1 {unit}s", f"1 {unit}")
        yield _text(sign, f" {unit}s")
    for _ in range(2):
        for digit in range(10):
            yield _text(f"{_CENTS}{digit}", f"{digit}{_CENTS}")
    yield _regex(rf"(?<!\d)1{_CENTS}", "1 cent")
    yield _text(_CENTS, " cents")


def _relations() -> Iterator[Rule]:
    """Fractions, ranges, negative numbers and decades."""
    yield _text("\u2044", "/")
    for fraction, words in _FRACTIONS.items():
        yield _regex(rf"(?<=\d) ?{fraction}(?![\d/])", f" and {words}")
        yield _regex(rf"(?<![\d/]){fraction}(?![\d/])", words)
    short = r"(?<=^\d|^\d\d|[^\d-]\d|[^\d-]\d\d)-(?=\d{1,2}(?![\d-]))"
    yield _regex(short, " to ")
    yield _regex(r"(?<![a-z\d-])-(?=\d)", "minus ")
    for ten, word in enumerate(TENS, 2):
        yield _regex(rf"(?<!\d)'?{ten}0'?s\b", word.removesuffix("y") + "ies")
        yield _regex(rf"(?<=\d\d){ten}0'?s\b", f" {word.removesuffix('y')}ies")


def _times() -> Iterator[Rule]:
    """Times of day and measures."""
    half = r" ?(?:a\.? ?m\b\.?|p\.? ?m\b\.?)"
    for letter in "ap":
        yield _regex(rf"(?<=\d) ?{letter}\.? ?m\b(?!\.[a-z])\.?(?= *$)", f" {letter} m.")
        yield _regex(rf"(?<=\d) ?(?:{letter} m\.(?! *$)|{letter}m\b)", f" {letter} m")
    yield _regex(rf"(?<=\d):00(?={half})", "")
    yield _regex(r"(?<=\d):00(?!\d)", " o'clock")
    yield _regex(r"(?<=\d):0(?=[1-9](?!\d))", " oh ")
    yield _regex(r"(?<=\d):(?=[1-5]\d(?!\d))", " ")
    for short, full in _MEASURES.items():
        yield _regex(rf"(?<=\d) ?{short}\b\.?(?! [A-Z])", f" {full}")


def _one_by_one() -> Iterator[Rule]:
    """Marks the digits that are read singly: long runs, decimals, codes, and next to hyphens."""
    yield _regex(r"(?<=\d)\.(?=\d)", " point ")
    runs = "|".join(
        f"(?<={_ANY}{{{before}}})%s(?={_ANY}{{{4 - before}}})" if before else f"%s(?={_ANY}{{4}})"
        for before in range(5)
    ).replace(f"(?={_ANY}{{0}})", "")
    hyphened = f"%s(?={_ANY}{{0,5}}-{_ANY})" + "".join(
        f"|(?<={_ANY}-{_ANY}{{{before}}})%s" for before in range(5)
    )
    # The digits behind the point, and those behind a leading zero
    after = "(?<=point )%s" + "".join(f"|(?<=point {_ANY}{{{n}}})%s" for n in range(1, 6))
    zero = f"(?<![0-9{_SINGLE[0]}-{_SINGLE[9]},])0(?={_ANY})"
    for pattern in (runs, hyphened, after):
        for digit in range(10):
            yield _regex(pattern.replace("%s", str(digit)), _SINGLE[digit])
    yield _regex(zero, _SINGLE[0])
    for _ in range(3):
        for digit in range(10):
            yield _regex(f"(?<=[{_SINGLE[0]}-{_SINGLE[9]}]){digit}", _SINGLE[digit])
    for digit in range(10):
        yield _text(_SINGLE[digit], f" {ONES[digit]} ")
    yield _regex(r"(?<=[a-z] )-(?= [a-z])", ",")


def _cardinals() -> Iterator[Rule]:
    """Ordinals, years, and numbers below a billion."""
    places = [(10 * ten, "th", "00") for ten in range(1, 10)]
    places += [(number, "th", "00") for number in range(11, 20)]
    places += [(n, {1: "st", 2: "nd", 3: "rd"}.get(n, "th"), "0") for n in range(1, 10)]
    for number, ends, zeros in places:
        yield _regex(rf"(?<![\d,]){number}{ends}\b", ordinal(number))
        yield _regex(rf"(?<=[\d,]){number}{ends}\b", f"{zeros} {ordinal(number)}")
    # What stands before an ordinal's zeros is read by the rules below: "20 first", "100 second".
    yield _regex(r"(?<=\d),000,000(?!\d)", " million")
    yield _regex(r"(?<=\d),(?=\d{3},\d{3}(?!\d))", " million ")
    yield _regex(r"(?<= million )000,(?=\d{3}(?!\d))", "")
    yield _regex(r"(?<=\d),000(?!\d)", " thousand")
    yield _regex(r"(?<=\d),(?=\d{3}(?!\d))", " thousand ")
    yield _regex(r"(?<=thousand )0+(?=\d)|(?<=million )0+(?=\d)", "")
    for century in range(11, 21):  # years
        words = " ".join(_two_digits(century))
        if century != 20:
            yield _regex(rf"(?<!\d){century}00(?!\d)", f"{words} hundred")
        yield _regex(rf"(?<!\d){century}(?=[1-9]\d(?!\d))", f"{words} ")
        if century != 20:
            yield _regex(rf"(?<!\d){century}0(?=[1-9](?!\d))", f"{words} oh ")
    for digit in range(1, 10):
        yield _regex(rf"{digit}000(?!\d)", f"{ONES[digit]} thousand")
        yield _regex(rf"{digit}(?=\d{{3}}(?!\d))", f"{ONES[digit]} thousand ")
    yield _regex(r"(?<=thousand )0+(?=\d)", "")
    for digit in range(1, 10):
        yield _regex(rf"{digit}00(?!\d)", f"{ONES[digit]} hundred")
        yield _regex(rf"{digit}(?=\d\d(?!\d))", f"{ONES[digit]} hundred ")
    yield _regex(r"(?<=hundred )0+(?=\d)", "")
    for number in range(19, 9, -1):
        yield _regex(rf"{number}(?!\d)", f" {ONES[number]} ")
    for ten in range(2, 10):
        yield _regex(rf"{ten}0(?!\d)", f" {TENS[ten - 2]} ")
        yield _regex(rf"{ten}(?=\d(?!\d))", f" {TENS[ten - 2]} ")
    for digit in range(10):
        yield _text(str(digit), f" {ONES[digit]} ")
    yield _regex(r" +", " ")


def _two_digits(number: int) -> list[str]:
    if number < 20:
        return [ONES[number]]
    return [TENS[number // 10 - 2]] + ([ONES[number % 10]] if number % 10 else [])


def _words(lexicon: Lexicon) -> Iterator[Rule]:
    """Known words as phonemes; a possessive keeps its "'s" as letters."""
    # Contractions first, or "it" would be found in "it's".
    for word, phones in sorted(lexicon.words.items(), key=lambda entry: "'" not in entry[0]):
        coded = "".join(_CHARS[token] for token, _ in split_sounds(phones) if token >= 0)
        yield _regex(rf"(?<![a-z']){word}(?!'?[a-rt-z]|s|'s[a-z])", coded)


_CHARS = {index: token for token, index in IDS.items()}


def normalizer(lexicon: Lexicon, directions: bool) -> list[Rule]:
    """All replacements, in order."""
    kept = re.escape(LETTERS + MARKS).replace("\\'", "'")
    sounds = f"{min(SOUND_CHARS.values())}-{max(DIRECTION_CHARS.values())}"
    return [
        *_markup(directions),
        *_addresses(),
        *_amounts(),
        *_times(),
        *_relations(),
        *_one_by_one(),
        *_cardinals(),
        *_words(lexicon),
        _regex("(?:--+|[–—;(])", ","),
        _regex(f"[^{kept}{sounds} \n]", ""),
        _regex(r" +", " "),
        _regex(rf" (?=[{re.escape(MARKS)}])", ""),
    ]


def tokenizer_json(lexicon: Lexicon, directions: bool = True) -> dict[str, Any]:
    """The whole file.

    Args:
        lexicon: words that become phonemes.
        directions: whether the voice was taught ``DIRECTIONS``; else they are read past too.
    """
    semantic = [f"<|semantic:{code}|>" for code in range(CODES)]
    vocabulary = IDS | {token: TEXT_TOKENS + code for code, token in enumerate(semantic)}
    phrases = [phrase for phrase in PHRASES if len(phrase) > 1]
    added = [
        {
            "id": vocabulary[token],
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": token not in phrases,
        }
        for token in sorted([*SPECIAL, *phrases, *semantic], key=vocabulary.__getitem__)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": normalizer(lexicon, directions)},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": r"[\s\S]"},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": UNKNOWN},
    }


def write(path: Path, lexicon: Lexicon, directions: bool = True) -> None:
    """Writes ``tokenizer.json``; see ``tokenizer_json``."""
    text = json.dumps(
        tokenizer_json(lexicon, directions), ensure_ascii=False, separators=(",", ":")
    )
    path.write_text(text, encoding="utf-8")
