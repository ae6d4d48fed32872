"""Numbers, dates, times, amounts and signs as English words.

Each rule turns one kind of written form into words without digits, so no later rule reads it
again, and normalising words changes nothing. The order of the rules is the order in which a
reader would try them: long forms first.
"""
# ruff: noqa: RUF001 - signs are the subject here

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from rt_drama3.text.normalize.characters import name_signs, write_plainly
from rt_drama3.text.normalize.dates import (
    CHAPTERS,
    RULERS,
    say_day_month,
    say_decade,
    say_month_day,
    say_roman,
    say_slash_date,
    say_stamp,
    say_time,
)
from rt_drama3.text.normalize.short import PER
from rt_drama3.text.normalize.words import (
    CURRENCIES,
    GAP,
    SCALES,
    SIGNS,
    UNITS,
    cardinal,
    decimal,
    digits,
    fraction,
    ordinal,
    year,
)

Match = re.Match[str]

_INT = r"(?:(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?:['’]\d{3})+|\d{1,2}(?:,\d{2})+,\d{3})(?!\d)|\d+)"
_NUM = rf"(?:{_INT}(?:\.\d+)?|\.\d+)"
_START = r"(?<![\w.,])"
_END = r"(?![\w]|[.,]\d)"
_MINUS = r"[-\u2212\u2013\u2010\u2011]"
_SIGN = rf"(?:(?<![\w)]){_MINUS} ?)?"
_AMPM = r"(?P<half>[AaPp])\.? ?[Mm](?P<dot>\.?)(?!\w)"
_MONTH = (
    r"(?P<month>Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)(?:\.|\b)"
)


def _value(text: str) -> str:
    """A written number with its separators of thousands removed."""
    return re.sub(rf"[,'’]|{GAP}", "", text)


def _signed(text: str) -> tuple[str, str]:
    """("minus " or nothing, the number without separators)."""
    bare = re.sub(rf"^{_MINUS} ?", "", text)
    return ("minus " if bare != text else ""), _value(bare)


def _number(text: str) -> str:
    sign, bare = _signed(text)
    return sign + decimal(bare)


def _is_one(text: str) -> bool:
    return _value(text).lstrip("0") in ("1",)


# --- amounts --------------------------------------------------------------------------------------


def _money(number: str, sign: str, scale: str) -> str:
    one, many, cent, cents = CURRENCIES.get(sign) or CURRENCIES[sign.upper()]
    minus, bare = _signed(number)
    if scale:
        return f"{minus}{decimal(bare)} {SCALES[scale.lower()]} {many}"
    whole, _, behind = bare.partition(".")
    if len(behind) > 2:
        return f"{minus}{decimal(bare)} {many}"
    hundredths = int(behind.ljust(2, "0")) if behind else 0
    parts = []
    if int(whole or 0) or not hundredths:
        parts.append(f"{cardinal(int(whole or 0))} {one if int(whole or 0) == 1 else many}")
    if hundredths:
        parts.append(f"{cardinal(hundredths)} {cent if hundredths == 1 else cents}")
    return minus + " and ".join(parts)


def _comma_decimal(text: str) -> str:
    """``1.234,56`` and ``5,50``, as written in Europe, as ``1234.56`` and ``5.50``."""
    if re.fullmatch(rf"(?:{_MINUS} ?)?(?:\d{{1,3}}(?:\.\d{{3}})+|\d+),\d{{1,2}}", text):
        return text.replace(".", "").replace(",", ".")
    if re.fullmatch(rf"(?:{_MINUS} ?)?\d{{1,3}}(?:\.\d{{3}})+", text):
        return text.replace(".", "")
    return text


def _money_before(found: Match) -> str:
    minus = "-" if found["minus"] or found["inner"] else ""
    return _money(minus + _comma_decimal(found["number"]), found["sign"], found["scale"] or "")


def _money_behind(found: Match) -> str:
    return _money(_comma_decimal(found["number"]), found["sign"], found["scale"] or "")


def _unit(found: Match) -> str:
    one, many = UNITS.get(found["unit"]) or UNITS[found["unit"].lower()]
    return f"{_number(found['number'])} {one if _is_one(found['number']) else many}"


def _scaled(found: Match) -> str:
    return f"{_number(found['number'])} {SCALES[found['scale'].lower()]}"


def _feet(found: Match) -> str:
    feet, inches = int(found[1]), int(found[2])
    words = f"{cardinal(feet)} {'foot' if feet == 1 else 'feet'}"
    words += f" {cardinal(inches)}"
    return words + (f" inch{'' if inches == 1 else 'es'}" if found[3] else "")


# --- codes ----------------------------------------------------------------------------------------


def _groups(found: Match) -> str:
    """Digits one by one, with a pause between the groups; phone numbers and the like."""
    plus = "plus " if found[0].lstrip().startswith("+") else ""
    return plus + ", ".join(map(digits, re.findall(r"\d+", found[0])))


def _by(found: Match) -> str:
    return " by " if "x" in found[0] else " times "


def _called(found: Match) -> str:
    return f"{found[0][:-3]}{digits(found[0][-3:])}"


def _is_grouped(parts: list[str]) -> bool:
    """Whether periods group the digits of one number, as in Europe; IP addresses are four."""
    first, *others = parts
    groups = len(first) < 4 and first[0] != "0" and all(len(part) == 3 for part in others)
    return groups and (len(parts) != 4 or "000" in parts)


def _version(found: Match) -> str:
    parts = found["parts"].split(".")
    if not found["v"] and _is_grouped(parts):
        return cardinal(int("".join(parts)))
    dot = " dot " if len(parts) == 4 else " point "
    read = digits if len(parts) == 4 else lambda part: cardinal(int(part))
    return ("version " if found["v"] else "") + dot.join(map(read, parts))


def _mixed(found: Match) -> str:
    return f"{cardinal(int(found[1]))} and {fraction(int(found[2]), int(found[3]))}"


def _plain_fraction(found: Match) -> str:
    if found[0] in ("24/7", "9/11"):
        return " ".join(cardinal(int(part)) for part in found[0].split("/"))
    return fraction(int(found[1]), int(found[2]))


def _power(found: Match) -> str:
    sign, bare = _signed(found[1])
    named = {"2": "squared", "3": "cubed"}.get(sign + bare)
    return f" {named or 'to the power of ' + sign + cardinal(int(bare))} "


def _scientific(found: Match) -> str:
    return f"{decimal(_value(found[1]))} times ten to the power of {cardinal(int(found[2]))}"


def _integer(found: Match) -> str:
    """A number that no other rule has read."""
    sign, bare = _signed(found[0])
    if "." in bare or sign:
        return sign + decimal(bare)
    if bare != found[0]:
        return cardinal(int(bare))
    if len(bare) > 1 and bare.startswith("0"):
        return digits(bare)
    if len(bare) == 4 and (1100 <= int(bare) < 2000 or 2010 <= int(bare) < 2100):
        return year(int(bare))
    if len(bare) > 4 and not bare.endswith("00"):
        return digits(bare)  # a code; amounts are written with separators
    return cardinal(int(bare))


def _spaced(rule: Callable[[Match], str]) -> Callable[[Match], str]:
    """Puts spaces around a rule's words where letters or digits touch them."""

    def apply(found: Match) -> str:
        before, after = found.string[: found.start()][-1:], found.string[found.end() :][:1]
        left = " " if before.isalnum() else ""
        return left + rule(found) + (" " if after.isalnum() else "")

    return apply


def _word(words: str) -> Callable[[Match], str]:
    return lambda _: f" {words} "


def _alternatives(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True)))


_SIGNED = rf"(?P<number>{_SIGN}{_NUM})"
_CURRENCY = f"(?:{_alternatives(CURRENCIES)})"
_CODES = "|".join(sign for sign in CURRENCIES if sign.isalpha())
_SHORT_SCALE = r"(?:(?i:k|mn?|mio|bn?|tn?)\b)"
_SCALE = rf"(?:{GAP}?(?P<scale>{_SHORT_SCALE}|(?:hundred|thousand|[mb]illion|trillion)\b))?"
_LETTER_UNITS = _alternatives(u for u in UNITS if u[0].isalpha() and u != "x")
_SIGN_UNITS = _alternatives(u for u in UNITS if not u[0].isalpha() and u != "×")
_CLOCK = r"(?P<hour>[01]?\d|2[0-4]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d)(?:[.,]\d+)?)?"
_NONE = r"(?P<half>(?!))?(?P<dot>(?!))?"

_Rule = tuple[re.Pattern[str], Callable[[Match], str]]


def _rules() -> list[_Rule]:
    def rule(pattern: str, words: Callable[[Match], str]) -> _Rule:
        return re.compile(pattern), _spaced(words)

    date = r"(?P<y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)"
    zone = r"(?P<zone>Z|[+-]\d\d:?\d\d)?"
    return [
        rule(rf"{_START}{date}(?:[T ]{_CLOCK}{zone})?{_NONE}(?!\w|-\d)", say_stamp),
        rule(
            rf"{_START}(\d{{1,2}})([/.])(\d{{1,2}})\2(\d{{4}}|\d\d)(?![\w/]|\.\d)", say_slash_date
        ),
        rule(rf"{_START}{_CLOCK}(?:{GAP}?{_AMPM})?(?![\d:])", say_time),
        rule(
            rf"{_START}(?P<hour>1?\d)(?P<minute>(?!))?(?P<second>(?!))?{GAP}?{_AMPM}", say_time
        ),
        # Phone numbers and other digits in groups.
        rule(rf"(?<![\w+])\+\d{{1,3}}(?:[-. ]?\(?\d{{1,5}}\)?){{2,5}}{_END}", _groups),
        rule(
            rf"(?<![\w.,])(?:1[-. ])?\(?\d{{3}}\)?[-. ]\d{{3}}[-. ]\d{{4}}{_END}", _groups
        ),
        rule(r"(?<![\w.,-])\d{3}-\d{4}(?![\w-]|[.,]\d)", _groups),
        rule(r"(?<![\w.,-])(?<!\d )0\d{2,4}(?:[ -]\d{2,5}){1,4}(?![\w-]|[.,]\d)", _groups),
        rule(r"(?<![\w.,-])\d+(?:-\d+){2,}(?![\w-])", _groups),
        rule(r"(?<![\w.])(?P<v>[vV]\.?)?(?P<parts>\d+(?:\.\d+){2,})(?![\w]|\.\d)", _version),
        rule(r"(?<![\w.])(?P<v>[vV])(?P<parts>\d+(?:\.\d+)?)(?!\w|\.\d)", _version),
        # Groups of three digits between spaces, underscores or, as in Europe, periods.
        (
            re.compile(r"(?<![\w.,])[1-9]\d{0,2}(?:_\d{3})+(?!\w|\.\d)"),
            lambda found: found[0].replace("_", ","),
        ),
        (
            re.compile(rf"(?<![\w.,])(?<!\d{GAP})\d{{1,3}}(?:{GAP}\d{{3}})+(?!\w|{GAP}\d|,\d)"),
            lambda found: re.sub(GAP, ",", found[0]) if found[0][0] != "0" else found[0],
        ),
        (re.compile(rf"(?<=\d)[-\u2013](?={_NUM} ?=)"), _word("minus")),
        (re.compile(r"(?<=\d)\.\.(?=\d)"), _word("to")),
        # Ranges keep their numbers for the rules below.
        (re.compile(rf"(?<![\w.,-])({_CURRENCY}?{_NUM})[-\u2013\u2014](?=({_CURRENCY}?{_NUM})"
                    rf"(?![\d-]))"), lambda found: f"{found[1]} to "),
        (re.compile(rf"(?<=\d)([%°]?){GAP}?\u2013{GAP}?(?=\d)"), lambda found: f"{found[1]} to "),
        rule(
            rf"(?P<minus>(?<![\w)]){_MINUS} ?)?(?<!\w)(?P<sign>{_CURRENCY}){GAP}?"
            rf"(?P<inner>{_MINUS})?(?P<number>(?:\d{{1,3}}(?:\.\d{{3}})+,\d{{2}}|\d+,\d\d?(?![\d,.])|{_NUM}))"
            rf"{_SCALE}(?!\d)",
            _money_before,
        ),
        rule(
            rf"{_START}(?P<number>{_SIGN}(?:\d{{1,3}}(?:\.\d{{3}})+(?:,\d\d)?|\d+,\d\d?(?!\d)|{_NUM}))"
            rf"{_SCALE}{GAP}?(?P<sign>[$€£¥₹₩₽₣₿₺₪₫฿₴₦₱]|(?:{_CODES})\b)",
            _money_behind,
        ),
        rule(rf"{_START}(\d)['′](\d{{1,2}})([\"″”]|'')?(?!\w)", _feet),
        # Fractions.
        rule(r"(?<![\w.,/])(\d+)[ -](\d+)/(\d+)(?![\w/])", _mixed),
        rule(r"(?<![\w/.,])(\d+)/(\d+)(?![\w/]|\.\d)", _plain_fraction),
        rule(r"(?<![\w.,])['’]?(\d\d)?(\d)0['’]?s\b", say_decade),
        # Units; a period is part of the unit where the sentence continues.
        rule(rf"(?<![\w.,]){_SIGNED}{GAP}?(?P<unit>{_SIGN_UNITS})(?!\w)", _unit),
        rule(
            rf"(?<![\w.,]){_SIGNED}[ \xa0\u2009\u202f-]?(?P<unit>{_LETTER_UNITS})(?![\w²³'’])"
            r"(?:\.(?= [a-z]))?",
            _unit,
        ),
        rule(rf"(?<![\w.,]){_SIGNED}(?P<unit>[x×])(?![\w×]| ?\d)", _unit),
        rule(rf"(?<![\w.,]){_SIGNED}(?P<scale>k|(?<=\d\d)K|M|mn|bn|B|mio)(?!\w)", _scaled),
        # Powers.
        (re.compile(r"(?<=\w)\*\*(?=\w)"), lambda _: "^"),
        (re.compile(rf"(?<=[\w)])\^\(?({_MINUS}?\d+)\)?(?!\.\d)"), _power),
        rule(rf"{_START}({_NUM})[eE]([+-]?\d+){_END}", _scientific),
        (re.compile(r"(?<=\d) ?[x×] ?(?=[\d(])"), _by),
        # Ordinals, decades.
        rule(
            rf"(?<![\w.,])({_INT})(?:st|nd|rd|th)\b",
            lambda found: ordinal(int(_value(found[1]))),
        ),
        rule(rf"\b{_MONTH} (?P<day>[12]\d|3[01]|0?[1-9])(?![\w:/]|[.,]\d|-\d)", say_month_day),
        rule(rf"(?<![\w.,])(?P<day>[12]\d|3[01]|[1-9]) {_MONTH}(?= |,|$)", say_day_month),
        (
            re.compile(
                rf"\b(?P<name>{CHAPTERS}|{RULERS})[ \xa0]"
                r"(?P<roman>(?:[IVXL]{2,}|(?<!\b(?:Mary|Paul|John) )[VX](?!\.))(?<!L))(?!\w|['’])"
            ),
            say_roman,
        ),
        (
            re.compile(r"\b(?P<name>Chapter|Part|Act|Scene|Book|Volume|War|Phase|Type) "
                       r"(?P<roman>I)(?=[.,:;)\n]|$)"),
            say_roman,
        ),
        # Signs next to numbers and letters.
        (re.compile(r"\b([A-G])#(?!\w)"), lambda found: f"{found[1]} sharp"),
        (re.compile(r"\b([A-Za-z])\+\+(?!\w)"), lambda found: f"{found[1]} plus plus"),
        (re.compile(r"#(?=\d)"), _word("number")),
        (re.compile(r"(?:(?<=[\w)])| )\* ?(?=[\w(])|(?<=[\w)]) \* "), _word("times")),
        (re.compile(r"(?<=[\w)])\u00b7(?=[\w(])|(?<=\d) \u00b7 (?=\d)"), _word("times")),
        (re.compile(r"(?<=[\w)]) [-\u2212\u2013] (?=\d)|(?<=\d)\u2212(?=\d)"), _word("minus")),
        (re.compile(r"(?<=\d):(?=\d)"), _word("to")),
        (re.compile(r"(?<=\d) ?/ ?(?=\d)"), _word("over")),
        (re.compile(r"(?<![\w)])[~\u223c] ?(?=\d)"), _word("about")),
        (re.compile(r"&&"), _word("and")),
        (re.compile(r"\|\|"), _word("or")),
        (re.compile(r"[\u2265\u2264<>]=?|[!=]=+|<=|>="), lambda found: _compare(found[0])),
        (re.compile(r"(?i:\b(?:call|dial|text) )\d{3}(?![\w,.]\d)"), _called),
        (re.compile(rf"(?<=[a-z])/(?={PER.pattern})"), _word("per")),
        # What is left: numbers, also within words ("H2O", "GPT-4").
        (re.compile(r"(?<=[^\W\d])-(?=\d)|(?<=\d)-(?=[^\W\d])"), lambda _: " "),
        rule(rf"(?<!\d){_SIGN}{_NUM}", _integer),
        (re.compile(r"(?<=[^\W\d_])\^(?=[^\W\d_])"), _word("to the power of")),
        (re.compile(_alternatives(SIGNS)), lambda found: f" {SIGNS[found[0]]} "),
    ]  # fmt: skip


def _compare(sign: str) -> str:
    names = {"==": "equals", "===": "equals", "=": "equals", "!=": "not equal to"}
    equal = sign.endswith("=") and sign[0] in "<>"
    base = {"≥": "greater than or equal to", "≤": "less than or equal to"}.get(sign[0])
    base = base or {"<": "less than", ">": "greater than"}.get(sign[0])
    return f" {names.get(sign) or (base or 'equals') + (' or equal to' if equal else '')} "


_RULES = _rules()


def say_numbers(text: str) -> str:
    """Replaces numbers and the signs around them with words.

    Args:
        text: one line of plain text.
    """
    text = write_plainly(text)
    for pattern, words in _RULES:
        text = pattern.sub(words, text)
    return name_signs(text)
