"""Characters that have a plain way to be written, and signs that Unicode's own names read."""
# ruff: noqa: RUF001 - signs are the subject here

from __future__ import annotations

import re
import unicodedata

from rt_drama3.text.normalize.words import CURRENCIES, GAP, SIGNS

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_RAISED = re.compile(r"(?<=[\w)])(?<!m)[⁻⁰¹²³⁴-⁹]+")
_VULGAR = re.compile("[¼½¾⅐-⅞↉]")
_GREEK = re.compile(r"(?<![\u0370-\u03ff])[\u0391-\u03c9](?![\u0370-\u03ff])")
_GREEK_UNIT = re.compile(rf"(?<=\d)({GAP}?(?:[kM](?=\u03a9))?)(\u03bc(?=[A-Za-z])|\u03a9(?!\w))")
_UNIT_SIGNS = {"\u03bc": "\u00b5", "\u03a9": "\u2126"}

# Letters that no decomposition leads to the alphabet of English.
_LETTERS = {
    "ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O",
    "đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ł": "l", "Ł": "L",
    "ħ": "h", "Ħ": "H", "ı": "i", "ŋ": "ng", "Ŋ": "Ng",
}  # fmt: skip
_WIDE = {
    0xFF00 + n: 0x20 + n for n in (4, 5, 11, 13, *range(16, 26), 29)
}  # full width: $ % + - = and digits
_WIDE |= {0xFFE0: "¢", 0xFFE1: "£", 0xFFE5: "¥", 0xFFE6: "₩"}


def _numerals() -> dict[int, str]:
    """Circled, parenthesised, subscript and Roman numerals as digits."""
    found = {}
    for code in (*range(0xBF, 0x2070), *range(0x2080, 0x3000)):  # without superscripts
        value = unicodedata.numeric(chr(code), 0.5)
        if unicodedata.category(chr(code)) in ("No", "Nl") and value.is_integer():
            found[code] = f" {int(value)} "
    return found


_PLAIN = str.maketrans({**_LETTERS, **_WIDE, **_numerals(), 0x2044: "/"})


def _name(sign: str) -> str:
    """``∞`` -> "infinity": the name of a sign without the words that say that it is one."""
    name = unicodedata.name(sign).lower().replace("-", " ")
    return re.sub(r"^(?:superscript|subscript|n ary) | (?:sign|operator)$", "", name)


def _is_sign(code: int) -> bool:
    kind = unicodedata.category(chr(code))
    if 0x22EE <= code <= 0x22F1:  # dots
        return False
    mathematical = code < 0x2300 or 0x27C0 <= code < 0x2B00
    return kind == "Sc" or (kind == "Sm" and mathematical)


_NAMED = {
    sign: _name(sign)
    for sign in map(chr, filter(_is_sign, range(0x80, 0x2E80)))
    if sign not in SIGNS and sign not in CURRENCIES
}
_SIGN = re.compile(f"[{''.join(map(re.escape, _NAMED))}]")


def _vulgar(found: re.Match[str]) -> str:
    """``½`` -> `` 1/2``, after a number as its mixed part."""
    over = unicodedata.normalize("NFKD", found[0]).replace("\u2044", "/")
    before = found.string[: found.start()][-1:]
    return f" {over}" if before.isdigit() else over


def _greek(found: re.Match[str]) -> str:
    return " " + unicodedata.name(found[0]).split()[-1].lower() + " "


def write_plainly(text: str) -> str:
    """Writes fractions, powers, numerals and letters with the characters of a keyboard."""
    text = _VULGAR.sub(_vulgar, text).translate(_PLAIN)
    text = _RAISED.sub(lambda found: "^" + found[0].translate(_SUPERSCRIPTS), text)
    text = _GREEK_UNIT.sub(lambda found: found[1] + _UNIT_SIGNS[found[2]], text)
    return _GREEK.sub(_greek, text)


def without_symbols(text: str) -> str:
    """The text without Greek letters that stand alone, which are signs and no words of Greek."""
    return _GREEK.sub("", text).replace("\u2126", "")


def name_signs(text: str) -> str:
    """Reads the signs that no rule has read by their names."""
    return _SIGN.sub(lambda found: f" {_NAMED[found[0]]} ", text).replace("\u00b5", " micro ")
