"""Abbreviations, web and mail addresses, and paths as words."""

from __future__ import annotations

import re

_SHORT = {
    r"e\.? ?g\.": "for example",
    r"i\.? ?e\.": "that is",
    r"w/o\b": "without",
    r"w/(?=\s|\w)": "with",
    r"and/or\b": "and or",
    r"n/a\b": "not applicable",
}
_RULES = [
    (re.compile(rf"(?<![\w.]){short}", re.IGNORECASE), words) for short, words in _SHORT.items()
]
_BEFORE_NUMBER = re.compile(
    r"\b([Nn]os?|[Ff]ig|[Vv]ol|[Cc]h|[Ss]ec|[Ee]q|[Aa]rt|pp?|[Ee]xt)\.(?= ?\d)"
)
_NAMES = {
    "no": "number",
    "nos": "numbers",
    "fig": "figure",
    "vol": "volume",
    "ch": "chapter",
    "sec": "section",
    "eq": "equation",
    "art": "article",
    "p": "page",
    "pp": "pages",
    "ext": "extension",
}
# A period is part of these unless a sentence begins after it.
_LISTED = re.compile(
    r"(?<!\w)(?i:(etc|et al|dept|est|inc|ltd|corp|bros|jr|sr|ave|blvd))\."
    r"(?P<ends>$|(?= [A-Z\"“(])|(?=[\"”')]))?"
)
# After these a sentence continues, whatever comes.
_BETWEEN = re.compile(r"(?<!\w)(vs|approx|ca|cf|viz)\.(?=,? ?[\w\"“\u2018(~$€£])", re.IGNORECASE)
_BETWEEN_WORDS = {
    "vs": "versus",
    "approx": "approximately",
    "ca": "circa",
    "cf": "compare",
    "viz": "namely",
}
_TITLES = {
    "Gen": "General",
    "Col": "Colonel",
    "Maj": "Major",
    "Capt": "Captain",
    "Cmdr": "Commander",
    "Adm": "Admiral",
    "Lt": "Lieutenant",
    "Sgt": "Sergeant",
    "Rev": "Reverend",
    "Hon": "Honorable",
    "Sen": "Senator",
    "Gov": "Governor",
    "Mt": "Mount",
    "Ft": "Fort",
}
_TITLE = re.compile(rf"\b({'|'.join(_TITLES)})\.(?= [A-Z])")
_LISTED_WORDS = {
    "etc": "et cetera",
    "et al": "and others",
    "dept": "department",
    "est": "established",
    "inc": "Incorporated",
    "ltd": "Limited",
    "corp": "Corporation",
    "bros": "Brothers",
    "jr": "Junior",
    "sr": "Senior",
    "ave": "Avenue",
    "blvd": "Boulevard",
}
_URL = re.compile(r"(?i:(?:https?|ftp)://|mailto:|www\.)[^\s<>\"]*[\w/]")
_MAIL = re.compile(r"(?<![\w.@])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_DOMAIN = re.compile(
    r"(?<![\w.@/-])(?:[A-Za-z0-9-]+\.)+(?:com|org|net|edu|gov|io|dev|ai|app|co|uk|de|fr|eu|info)"
    r"(?:/[^\s<>\"]*\w)?(?![\w@-])"
)
_SIGNS = {
    ".": "dot",
    "/": "slash",
    "@": "at",
    ":": "colon",
    "?": "question mark",
    "&": "and",
    "=": "equals",
    "#": "hash",
    "%": "percent",
    "+": "plus",
    "~": "tilde",
    "-": "dash",
    "_": "underscore",
}
PER = re.compile(  # what follows a slash that is read "per"
    r"(?:second|minute|hour|hr|day|night|week|month|mo|year|yr|person|user|seat|unit|item|kilo"
    r"|mile)s?\b"
)


def say_addresses(text: str) -> str:
    """URLs, mail addresses, domain names and paths as words."""
    for pattern in (_URL, _MAIL, _DOMAIN):
        text = pattern.sub(_address, text)
    text = re.sub(r"(?<=[^\W\d_])_(?=[^\W_])", " underscore ", text)
    text = re.sub(r"(?<!\w)@(?=\w)", "at ", text)
    return re.sub(r"(?<=[^\W\d_]{2})/(?=[^\W\d_]{2})", _slash, text)


def say_short_forms(text: str) -> str:
    """Abbreviations whose period would otherwise end a sentence."""
    for pattern, words in _RULES:
        text = pattern.sub(words, text)
    text = _BEFORE_NUMBER.sub(lambda found: _NAMES[found[1].lower()], text)
    text = _TITLE.sub(lambda found: _TITLES[found[1]], text)
    text = _BETWEEN.sub(lambda found: _BETWEEN_WORDS[found[1].lower()], text)
    return _LISTED.sub(_listed, text)


def _slash(found: re.Match[str]) -> str:
    return "/" if PER.match(found.string, found.end()) else " slash "


def _address(found: re.Match[str]) -> str:
    text = re.sub(r"^(?:(?:https?|ftp)://|mailto:)", "", found[0], flags=re.IGNORECASE)
    text = re.sub(r"^www\.", "w w w.", text, flags=re.IGNORECASE).rstrip("/")
    return re.sub(r"[^\w\s]|_", lambda sign: f" {_SIGNS.get(sign[0], '')} ", text)


def _listed(found: re.Match[str]) -> str:
    words = _LISTED_WORDS[found[1].lower()]
    return words + ("." if found["ends"] is not None else "")
