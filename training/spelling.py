"""Numbers, times, prices and addresses as spoken: words only, no digits.

The training text is written with these, and the voice's tokenizer turns digits into the same words
(``tokenizer.py``), so that the model meets one way of reading.
"""

from __future__ import annotations


def listed(words: str) -> list[str]:
    """The words of a string, for lists that would else be long."""
    return words.split()


ONES = listed(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
TENS = listed("twenty thirty forty fifty sixty seventy eighty ninety")
SCALES = ("", "thousand", "million", "billion")
_IRREGULAR = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}


def cardinal(number: int) -> str:
    """``1234`` -> "one thousand two hundred thirty four"; 0 to 10^12 - 1."""
    if not 0 <= number < 10**12:
        raise ValueError(f"{number} is outside 0 .. 10^12 - 1")
    if number < 1000:
        return _below_thousand(number)
    words = []
    groups = []
    while number:
        number, group = divmod(number, 1000)
        groups.append(group)
    for scale in range(len(groups) - 1, -1, -1):
        if groups[scale]:
            words.append(f"{_below_thousand(groups[scale])} {SCALES[scale]}".strip())
    return " ".join(words)


def _below_thousand(number: int) -> str:
    if number < 20:
        return ONES[number]
    if number < 100:
        ten, one = divmod(number, 10)
        return TENS[ten - 2] + (f" {ONES[one]}" if one else "")
    hundred, rest = divmod(number, 100)
    return f"{ONES[hundred]} hundred" + (f" {_below_thousand(rest)}" if rest else "")


def ordinal(number: int) -> str:
    """``21`` -> "twenty first"."""
    *head, last = cardinal(number).split()
    if last in _IRREGULAR:
        last = _IRREGULAR[last]
    elif last.endswith("y"):
        last = last[:-1] + "ieth"
    else:
        last += "th"
    return " ".join([*head, last])


def digits(text: str) -> str:
    """Every digit by itself: ``"407"`` -> "four zero seven"."""
    return " ".join(ONES[int(char)] for char in text)


def year(number: int) -> str:
    """``1987`` -> "nineteen eighty seven", ``2005`` -> "two thousand five"; 1000 to 2999."""
    century, rest = divmod(number, 100)
    if century % 10 == 0 and rest < 10:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def clock(hour: int, minute: int) -> str:
    """``(7, 5)`` -> "seven oh five", ``(7, 0)`` -> "seven"."""
    if minute == 0:
        return cardinal(hour)
    return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}"


def dollars(amount: int, cents: int = 0) -> str:
    """``(1, 50)`` -> "one dollar and fifty cents"."""
    words = f"{cardinal(amount)} dollar{'' if amount == 1 else 's'}"
    if cents:
        words += f" and {cardinal(cents)} cent{'' if cents == 1 else 's'}"
    return words
