"""Markdown, HTML and SSML as plain lines of text.

Everything here is decided from one line alone, never from what an earlier line opened, so text
that arrives in parts reads the same as text that is given whole.
"""
# ruff: noqa: RUF001 - punctuation is the subject here

from __future__ import annotations

import html
import re
from collections.abc import Callable

from rt_drama3.text.sentences import BULLET, FORMATTING, PAUSES, SSML, WHITE_SPACE, closing_tags

Notice = Callable[[str], None]

_WHITE = f"[{WHITE_SPACE}]"
_MARK = re.compile(r"[.,;:!?…。！？؟।][\"'”’)\]»*_~`]*$")
_DROPPED = re.compile(  # fences, rules, rows that separate tables' heads
    rf"{_WHITE}*(?:(?:```|~~~)[^`~]*|(?:[-*_=]{_WHITE}*){{3,}}|\|?[\s:|-]*-[\s:|-]*\|[\s:|-]*)$"
)
_LINK_TARGET = re.compile(rf"{_WHITE}*\[[^\[\]]+\]:{_WHITE}+\S+(?:{_WHITE}+\"[^\"]*\")?{_WHITE}*$")
_PREFIX = re.compile(
    rf"{_WHITE}*(?:(?P<quote>>)|(?P<bullet>{BULLET}){_WHITE}+(?P<task>\[[ xX]\]{_WHITE}+)?"
    rf"|(?P<heading>\#{{1,6}}){_WHITE}+|(?P<number>\d{{1,3}})[.)]{_WHITE}+(?=\S))"
)
_CODE = re.compile(r"(?<!`)(`++)([^`]+)\1(?!`)")
_IMAGE = re.compile(
    r"!\[([^\[\]]*)\](?:\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s+\"[^\"]*\")?\)|\[[^\[\]]*\])"
)
_LINK = re.compile(
    r"\[([^\[\]]+)\](?:\((?:<[^<>]*>|[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+(?:\"[^\"]*\"|'[^']*'))?\)"
    r"|\[[^\[\]]*\])"
)
_AUTOLINK = re.compile(r"<((?:https?|ftp|mailto):[^<>\s]+|[\w.+-]+@[\w-]+(?:\.[\w-]+)+)>")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_COMMENT = re.compile(r"<!--.*?-->|<\?.*?\?>|<![A-Za-z][^<>]*>", re.DOTALL)
_ATTRIBUTES = r"(?:\s+[\w:.-]+\s*=\s*(?:\"[^\"<>]*\"|'[^'<>]*'|[^\s\"'<>=`]+))*"
_TAG = re.compile(rf"<(?P<slash>/?)(?P<name>[A-Za-z][\w:-]*+)(?P<rest>{_ATTRIBUTES})\s*/?>")
_ATTRIBUTE = re.compile(r"([\w:.-]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>/]+))")
_SAY_AS = re.compile(
    rf"<say-as(?P<rest>{_ATTRIBUTES})\s*>(?P<said>[^<>]*)</say-as\s*>", re.IGNORECASE
)
_SUB = re.compile(r"<sub(?P<rest>\s[^<>]*alias[^<>]*)>[^<>]*</sub\s*>", re.IGNORECASE)
_UNSUPPORTED = SSML | {"say-as", "amazon:effect", "mstts:express-as"}
_INDEX = re.compile(r"(?<=[\w)\]])\[\s*(-?\d+|[A-Za-z]|-?\d*:-?\d*|\"\w+\"|'\w+')\s*\]")
_CITATION = re.compile(rf"{_WHITE}*\[\^?[\d,;\s\u2013-]*\]|{_WHITE}*\[\^[^\[\]]*\]")
_EMPHASIS = re.compile(
    r"(?<![\w*])\*{1,3}(?=[^\s*])|(?<=[^\s*])\*{1,3}(?![\w*])|(?<=[^\W\d])\*{2,3}(?=[^\W\d])"
    r"|(?<![\w_])_{1,3}(?=[^\s_])|(?<=[^\s_])_{1,3}(?![\w_])|~~|==(?=\w)|(?<=\w)=="
)
_ELLIPSIS = re.compile(rf"(?P<before>[.!?,;:]?){_WHITE}*(?:[…⋯]+|\.(?:{_WHITE}?\.){{2,}}){_WHITE}*")
_OPENING = "\"'“‘«("
_I = re.compile(r"I(?:'|’|\b)(?!\.)")


def plain_line(block: str, notice: Notice) -> tuple[str, bool]:
    """A block without its markup.

    Args:
        block: one element of ``blocks``, without speaker tags.
        notice: called with a sentence about everything that is not spoken.

    Returns:
        The text, and whether a full stop belongs behind it if it has no mark.
    """
    if _DROPPED.match(block):
        return "", False
    if _LINK_TARGET.match(block):
        notice("link targets are not spoken.")
        return "", False
    text, ends = _without_prefix(block)
    if text.lstrip().startswith("|") and text.count("|") > 1:
        text, ends = ", ".join(filter(None, (c.strip() for c in text.split("|")))), True
    text = re.sub(r" \| ?", ", ", text)
    text = _CODE.sub(_code, text).replace("`", "")
    text = _IMAGE.sub(lambda found: _image(found, notice), text)
    text = _LINK.sub(r"\1", text)
    text = _AUTOLINK.sub(r"\1", text)
    text = _tags(text, notice)
    while (decoded := _ENTITY.sub(_decode, text)) != text:
        text = decoded
    text = _brackets(text, notice)
    text = _EMPHASIS.sub("", text)
    return _ELLIPSIS.sub(_ellipsis, text), ends


def needs_mark(text: str) -> bool:
    """Whether a text has words and no mark at its end."""
    return any(map(str.isalnum, text)) and not _MARK.search(text.rstrip(WHITE_SPACE))


def _without_prefix(block: str) -> tuple[str, bool]:
    text, ends = block, False
    while found := _PREFIX.match(text):
        text = text[found.end() :]
        ends = ends or not found["quote"]
        if found["heading"]:
            text = re.sub(rf"{_WHITE}+\#+{_WHITE}*$", "", text)
        if found["number"]:
            return f"{found['number']}, {text}", True
    return text, ends


def _code(found: re.Match[str]) -> str:
    return found[2].translate({ord("["): " ", ord("]"): " ", ord("<"): "&lt;", ord(">"): "&gt;"})


def _image(found: re.Match[str], notice: Notice) -> str:
    if not found[1].strip():
        notice("images without a description are not spoken.")
    return found[1]


def _decode(found: re.Match[str]) -> str:
    text = html.unescape(found[0])
    if text == found[0]:  # unknown
        return text
    return {"<": " less than ", ">": " greater than ", "[": "(", "]": ")"}.get(text, text)


def _attributes(rest: str) -> dict[str, str]:
    return {name.lower(): "".join(values) for name, *values in _ATTRIBUTE.findall(rest)}


def _tags(text: str, notice: Notice) -> str:
    """Applies SSML and HTML, keeps pairs of other tags (directions), reads the rest aloud."""
    if "<" not in text and ">" not in text:
        return text

    def comment(_: re.Match[str]) -> str:
        notice("comments are not spoken.")
        return " "

    def say_as(found: re.Match[str]) -> str:
        kind = _attributes(found["rest"]).get("interpret-as", "")
        if kind in ("characters", "digits", "spell-out", "verbatim", "telephone"):
            return " ".join(char for char in found["said"] if not char.isspace())
        notice(f"<say-as interpret-as={kind!r}> is not supported; its text is read as usual.")
        return found["said"]

    text = _COMMENT.sub(comment, text)
    text = _SAY_AS.sub(say_as, text)
    text = _SUB.sub(lambda found: _attributes(found["rest"]).get("alias", ""), text)
    tags = list(_TAG.finditer(text))
    pairs = closing_tags(tags)
    partners = {*pairs, *(close.start() for close in pairs.values())}
    parts, done = [], 0
    for tag in tags:
        parts += [_compare(text[done : tag.start()]), _tag(tag, tag.start() in partners, notice)]
        done = tag.end()
    return "".join([*parts, _compare(text[done:])])


def _compare(text: str) -> str:
    """Angle brackets that belong to no tag."""
    text = re.sub(r"(?<=\s)->(?=\s)|(?<=\s)=>(?=\s)", " to ", text)
    text = re.sub(r"<-+>?|-+>", " ", text)
    return text if not re.search("[<>]", text) else re.sub(
        "([<>])(=?)", lambda f: f" {'less' if f[1] == '<' else 'greater'} than "
        + ("or equal to " if f[2] else ""), text)  # fmt: skip


def _tag(tag: re.Match[str], paired: bool, notice: Notice) -> str:
    name = tag["name"].lower()
    if name == "break":
        return _pause(_attributes(tag["rest"]), notice)
    if name in PAUSES:
        return "\n"
    if name in FORMATTING or name == "sub":
        return ""
    if name in _UNSUPPORTED:
        notice(f"<{name}> is not supported; its text is read as usual.")
        return " "
    if paired:
        return tag[0]
    if tag[0].endswith("/>") or tag["rest"]:
        notice(f"the tag <{name}> is unknown and not spoken.")
        return " "
    return f" {tag['name']} "  # a placeholder, or a type: List<String>


def _pause(attributes: dict[str, str], notice: Notice) -> str:
    found = re.fullmatch(r"([\d.]{1,8})(m?)s", attributes.get("time", ""))
    try:
        seconds = float(found[1]) / (1000 if found[2] else 1) if found else 0.5
    except ValueError:
        seconds = 0.5
    if attributes.get("strength") in ("none", "x-weak") or seconds == 0:
        return " "
    if seconds > 1:
        notice("<break> gives the pause between two sentences; longer ones are not supported.")
    return "\v" if seconds < 0.25 or attributes.get("strength") == "weak" else "\n"


def _brackets(text: str, notice: Notice) -> str:
    text = _INDEX.sub(lambda found: " " + re.sub("[\"':]", " ", found[1]) + " ", text)

    def citation(found: re.Match[str]) -> str:
        if any(map(str.isalnum, found[0])):
            notice(f"{found[0].strip()} is not spoken.")
        return ""

    return _CITATION.sub(citation, text)


def _ellipsis(found: re.Match[str]) -> str:
    """Three dots as the voices know them: a comma within a sentence, a full stop behind one."""
    before, rest = found["before"], found.string[found.end() :]
    if before in ("!", "?", ".") and not found[0].startswith(".."):
        return f"{before} "
    if not any(map(str.isalnum, found.string[: found.start()])):
        return before
    if found[0][-1].isspace() or rest.startswith(("“", "‘", "«", "(")):
        rest = rest.lstrip(_OPENING)  # a quote behind a space begins something
    if not rest or rest[0] in "\"”'’)]»":
        return before or "."
    if rest[0] in ".,;:!?":
        return before
    continues = rest[0].islower() or rest[0].isdigit() or _I.match(rest)
    return (before or ("," if continues else ".")) + " "
