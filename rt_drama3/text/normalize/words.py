"""English words for numbers, and the names of signs, units and currencies."""
# ruff: noqa: RUF001 - signs are the subject here

from __future__ import annotations

import calendar
from functools import lru_cache

from num2words import num2words

GAP = "[ \xa0\u2009\u202f]"  # spaces between a number and its unit, or between groups of digits

SCALES = {
    "k": "thousand",
    "m": "million",
    "mn": "million",
    "mio": "million",
    "b": "billion",
    "bn": "billion",
    "t": "trillion",
    "tn": "trillion",
    **{name: name for name in ("hundred", "thousand", "million", "billion", "trillion")},
}

# (one, many, one hundredth, many hundredths)
_CENT = ("cent", "cents")
_DOLLAR, _EURO = ("dollar", "dollars", *_CENT), ("euro", "euros", *_CENT)
_POUND, _RUPEE = ("pound", "pounds", "penny", "pence"), ("rupee", "rupees", "paisa", "paise")
_YEN, _WON, _YUAN = ("yen", "yen", *_CENT), ("won", "won", *_CENT), ("yuan", "yuan", *_CENT)
_FRANC, _BITCOIN = ("franc", "francs", "centime", "centimes"), ("bitcoin", "bitcoins", *_CENT)
_RUBLE = ("ruble", "rubles", "kopeck", "kopecks")
CURRENCIES = {
    "$": _DOLLAR,
    "US$": ("US dollar", "US dollars", *_CENT),
    "USD": ("US dollar", "US dollars", *_CENT),
    "A$": ("Australian dollar", "Australian dollars", *_CENT),
    "AUD": ("Australian dollar", "Australian dollars", *_CENT),
    "C$": ("Canadian dollar", "Canadian dollars", *_CENT),
    "CAD": ("Canadian dollar", "Canadian dollars", *_CENT),
    "€": _EURO,
    "EUR": _EURO,
    "£": _POUND,
    "GBP": _POUND,
    "¥": _YEN,
    "JPY": _YEN,
    "CNY": _YUAN,
    "₹": _RUPEE,
    "INR": _RUPEE,
    "₩": _WON,
    "KRW": _WON,
    "₽": _RUBLE,
    "RUB": _RUBLE,
    "CHF": ("Swiss franc", "Swiss francs", "centime", "centimes"),
    "₣": _FRANC,
    "₿": _BITCOIN,
    "BTC": _BITCOIN,
    "₺": ("lira", "lira", "kurush", "kurush"),
    "₪": ("shekel", "shekels", "agora", "agorot"),
    "₫": ("dong", "dong", *_CENT),
    "฿": ("baht", "baht", "satang", "satang"),
    "₴": ("hryvnia", "hryvnias", "kopeck", "kopecks"),
    "₦": ("naira", "naira", "kobo", "kobo"),
    "₱": ("peso", "pesos", "centavo", "centavos"),
}


def _plural(*names: str) -> dict[str, tuple[str, str]]:
    """``"km kilometer"`` -> ``{"km": ("kilometer", "kilometers")}``."""
    pairs = (name.split(" ", 1) for name in names)
    return {sign: (word, word + "s") for sign, word in pairs}


def _same(*names: str) -> dict[str, tuple[str, str]]:
    pairs = (name.split(" ", 1) for name in names)
    return {sign: (word, word) for sign, word in pairs}


UNITS = {
    **_plural(
        "km kilometer", "m meter", "cm centimeter", "mm millimeter", "µm micrometer",
        "nm nanometer", "mi mile", "yd yard", "kg kilogram", "g gram", "mg milligram",
        "µg microgram", "lb pound", "lbs pound", "oz ounce", "l liter", "L liter",
        "ml milliliter", "mL milliliter", "cl centiliter", "dl deciliter", "h hour", "hr hour",
        "hrs hour", "min minute", "mins minute", "s second", "sec second", "secs second",
        "ms millisecond", "µs microsecond", "ns nanosecond", "KB kilobyte", "kB kilobyte",
        "MB megabyte", "GB gigabyte", "TB terabyte", "PB petabyte", "KiB kibibyte",
        "MiB mebibyte", "GiB gibibyte", "TiB tebibyte", "Mb megabit", "Gb gigabit", "W watt",
        "kW kilowatt", "MW megawatt", "GW gigawatt", "V volt", "mV millivolt", "kV kilovolt",
        "mA milliamp", "\u2126 ohm", "k\u2126 kilo ohm", "M\u2126 mega ohm", "µA microamp",
        "µV microvolt", "µF microfarad", "nF nanofarad", "pF picofarad", "µL microliter", "J joule",
        "kJ kilojoule", "cal calorie",
        "kcal kilocalorie", "dB decibel", "px pixel", "Pa pascal", "hPa hectopascal",
        "kPa kilopascal", "Wh watt hour", "kWh kilowatt hour", "MWh megawatt hour",
        "mAh milliamp hour", "ha hectare", "m² square meter", "km² square kilometer",
        "cm² square centimeter", "m³ cubic meter", "cm³ cubic centimeter", "m2 square meter",
        "km2 square kilometer", "m3 cubic meter", "% percent", "° degree",
        "¢ cent",
    ),
    **_same(
        "Hz hertz", "kHz kilohertz", "MHz megahertz", "GHz gigahertz", "bar bar", "psi psi",
        "fps frames per second", "rpm revolutions per minute", "mph miles per hour",
        "kph kilometers per hour", "km/h kilometers per hour", "kmh kilometers per hour",
        "m/s meters per second", "m/s² meters per second squared", "kbps kilobits per second",
        "Mbps megabits per second", "Gbps gigabits per second", "kbit/s kilobits per second",
        "Mbit/s megabits per second", "MB/s megabytes per second", "GB/s gigabytes per second",
        "°C degrees Celsius", "°F degrees Fahrenheit", "℃ degrees Celsius",
        "℉ degrees Fahrenheit", "‰ per mille", "% percent", "x times", "× times",
    ),
    "ft": ("foot", "feet"),
    "sq ft": ("square foot", "square feet"),
}  # fmt: skip

# Signs that are words wherever they stand; the spaces around them are made by the caller.
SIGNS = {
    "×": "times",
    "÷": "divided by",
    "±": "plus or minus",
    "≥": "greater than or equal to",
    "≤": "less than or equal to",
    "≠": "not equal to",
    "≈": "approximately",
    "√": "square root of",
    "∛": "cube root of",
    "∓": "minus or plus",
    "∙": "times",
    "⋅": "times",
    "∗": "times",
    "∕": "over",
    "∶": "to",
    "♯": "sharp",
    "∞": "infinity",
    "§": "section",
    "¶": "paragraph",
    "∑": "sum of",
    "∆": "delta",
    "∂": "partial",
    "∫": "integral of",
    "∈": "in",
    "→": "to",
    "⇒": "implies",
    "←": "from",
    "&": "and",
    "=": "equals",
    "+": "plus",
    "%": "percent",
    "‰": "per mille",
    "°": "degrees",
    "<": "less than",
    ">": "greater than",
    "©": "copyright",
    "№": "number",
    **{sign: many for sign, (_, many, _, _) in CURRENCIES.items() if not sign.isalpha()},
}

MONTHS = list(calendar.month_name)[1:]


def _plain(words: str) -> str:
    """The library's words as the voices were trained: no hyphens, commas or "and"."""
    return words.replace("-", " ").replace(",", "").replace(" and ", " ")


@lru_cache(4096)
def cardinal(number: int) -> str:
    """``1234`` -> "one thousand two hundred thirty four"; "minus" in front of negative ones."""
    return _plain(num2words(number))


@lru_cache(1024)
def ordinal(number: int) -> str:
    """``21`` -> "twenty first"."""
    return _plain(num2words(number, to="ordinal"))


@lru_cache(1024)
def year(number: int) -> str:
    """``1987`` -> "nineteen eighty seven"."""
    return _plain(num2words(number, to="year"))


def digits(text: str) -> str:
    """Every digit by itself: ``"407"`` -> "four zero seven"; other characters are dropped."""
    return " ".join(cardinal(int(char)) for char in text if char in "0123456789")


def decimal(text: str) -> str:
    """``"3.14"`` -> "three point one four"; without a point the cardinal."""
    whole, point, behind = text.partition(".")
    words = cardinal(int(whole)) if whole else "zero"
    return f"{words} point {digits(behind)}" if point else words


def fraction(over: int, under: int) -> str:
    """``(3, 4)`` -> "three quarters"; improper and long ones are "N over M"."""
    if not 0 < over < under or under > 100:
        return f"{cardinal(over)} over {cardinal(under)}"
    name = {2: "half", 4: "quarter"}.get(under, ordinal(under))
    many = "halves" if under == 2 else name + "s"
    return f"{cardinal(over)} {name if over == 1 else many}"
