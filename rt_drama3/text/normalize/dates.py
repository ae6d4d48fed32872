"""Dates, times of day, decades and Roman numerals as English words."""

from __future__ import annotations

import datetime
import re

from rt_drama3.text.normalize.words import GAP, MONTHS, cardinal, digits, ordinal, year

Match = re.Match[str]

_NEXT_SENTENCE = re.compile(rf"$|{GAP}+[A-Z\"“(]|[\"”')]")


def _day(year_: int, month: int, day: int) -> str | None:
    try:
        datetime.date(max(year_, 1), month, day)
    except ValueError:
        return None
    return f"{MONTHS[month - 1]} {ordinal(day)}" + (f", {year(year_)}" if year_ else "")


def _clock(hour: int, minute: int, second: int = 0) -> str:
    """``(7, 5)`` -> "seven oh five"; "o'clock" is the caller's."""
    words = cardinal(hour)
    if minute:
        words += f" {'oh ' if minute < 10 else ''}{cardinal(minute)}"
    if second:
        words += " o'clock" if not minute else ""
        words += f" and {cardinal(second)} second{'s' if second != 1 else ''}"
    return words


def say_time(found: Match) -> str:
    """``3:05 pm`` -> "three oh five p m", ``12:00:30`` -> "twelve o'clock and thirty seconds"."""
    hour, minute, second = (int(found[name] or 0) for name in ("hour", "minute", "second"))
    half = found["half"]
    if half:
        words = _clock(hour, minute, second) + f" {half.lower()} m"
        ends = found["dot"] and _NEXT_SENTENCE.match(found.string, found.end())
        return words + ("." if ends else "")
    words = _clock(hour, minute, second)
    return words if minute or second else words + " o'clock"


def say_stamp(found: Match) -> str:
    """ISO dates and stamps; digits in groups if there is no such day."""
    date = _day(int(found["y"]), int(found["m"]), int(found["d"]))
    if date is None:
        return ", ".join(map(digits, re.findall(r"\d+", found[0])))
    if not found["hour"]:
        return date
    words = f"{date}, {say_time(found)}"
    if found["zone"] == "Z":
        return words + " U T C"
    if found["zone"]:
        sign, hours, minutes = found["zone"][0], found["zone"][1:3], found["zone"][-2:]
        words += f" U T C {'plus' if sign == '+' else 'minus'} {cardinal(int(hours))}"
        words += f" {cardinal(int(minutes))}" if int(minutes) else ""
    return words


def say_slash_date(found: Match) -> str:
    """``5/12/2024``, month first unless it cannot be, and ``31.12.2026``, day first."""
    first, second, third = int(found[1]), int(found[3]), int(found[4])
    if len(found[4]) == 2:
        third += 2000 if third < 70 else 1900
    month, day = (second, first) if first > 12 or found[2] == "." else (first, second)
    return _day(third, month, day) or found[0]


def say_month_day(found: Match) -> str:
    """``Dec. 1`` -> "December first"."""
    return f"{_month(found)} {ordinal(int(found['day']))}"


def say_day_month(found: Match) -> str:
    """``12 May`` -> "twelfth of May"."""
    return f"{ordinal(int(found['day']))} of {_month(found)}"


def _month(found: Match) -> str:
    return next(month for month in MONTHS if month.startswith(found["month"][:3]))


def say_decade(found: Match) -> str:
    """``1990s`` -> "nineteen nineties"."""
    century, ten = found[1] or "", int(found[2])
    name = cardinal(10 * ten)
    if ten == 0:
        return f"{year(int(century + '00'))}s" if century else found[0]
    lead = cardinal(int(century)) + " " if century else ""
    return lead + (name[:-1] + "ies" if name.endswith("y") else name + "s")


_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50}
CHAPTERS = (
    "Chapter|Part|Act|Scene|Book|Volume|Vol\\.|Section|Article|Phase|Type|Class|Title|Appendix"
    "|Figure|Table|Level|Grade|War|Bowl|Episode|Season|Round|Stage|Category|Tier|Mark"
)
RULERS = (
    "Henry|Louis|Charles|Elizabeth|George|Edward|James|William|Richard|Paul|Pius|Benedict|Leo"
    "|Philip|Frederick|Napoleon|Catherine|Ivan|Peter|Alexander|Nicholas|Wilhelm|Gregory|Innocent"
    "|Clement|Urban|Francis|Ferdinand|Otto|Mary|John|Ramses|Ptolemy|Xerxes|Darius|Harald|Gustav"
    "|Christian|Haakon|Felipe|Juan|Carlos|Umberto|Leopold|Rudolf|Maximilian|Constantine"
)


def roman(text: str) -> int | None:
    """The value of a Roman numeral up to 89, or None if it is not written as one."""
    if not re.fullmatch(r"(?:XL|L?X{0,3})(?:IX|IV|V?I{0,3})", text) or not text:
        return None
    values = [_ROMAN[char] for char in text]
    pairs = zip(values, [*values[1:], 0], strict=True)
    return sum(value if value >= after else -value for value, after in pairs)


def say_roman(found: Match) -> str:
    """A Roman numeral behind a ruler (ordinal) or a chapter and the like (cardinal)."""
    value = roman(found["roman"])
    if value is None:
        return found[0]
    words = f"the {ordinal(value)}" if found["name"] in RULERS.split("|") else cardinal(value)
    return f"{found['name']} {words}"
