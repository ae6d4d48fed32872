"""Markdown, HTML and SSML as plain lines of text.

Everything here is decided from one line alone, never from what an earlier line opened, so text
that arrives in parts reads the same as text that is given whole.
"""
# ruff: noqa: RUF001 - punctuation is the subject here

from __future__ import annotations

import html
import re
from collections.abc import Callable

from rt_drama3.text.cutting import WHITE_SPACE, closing_tags

Notice = Callable[[str], None]

LINE_BREAK = re.compile("\r\n|[\n\r\v\f\x85\u2028\u2029]")
_WHITE = f"[{WHITE_SPACE}]"
_BULLET = r"[-*+\u2022\u2023\u25e6\u25aa\u2043]"
_BLOCK = re.compile(  # lines that always begin a block of their own
    rf"{_WHITE}*(?:{_BULLET}{_WHITE}|\d{{1,3}}[.)]{_WHITE}|\#{{1,6}}{_WHITE}|>|\||```|~~~"
    rf"|<\|speaker|(?:[-*_=]{_WHITE}*){{3,}}$)"
)
_SINGLE = re.compile(  # lines that are a block by themselves
    rf"{_WHITE}*(?:\#{{1,6}}{_WHITE}|\||```|~~~|(?:[-*_=]{_WHITE}*){{3,}}$)"
)
_UNDECIDED = re.compile(rf"{_WHITE}*(?:{_BULLET}|\d{{1,3}}[.)]?|\#{{1,6}}|[`~]{{1,2}}|<\|?\w*)?$")
_OPEN_END = re.compile(  # a line that the next one continues, whatever that begins with
    r"(?:[,(\u2013\u2014/&-]|\b(?:a|about|an|and|as|at|because|but|by|for|from|if|in|is|of|on|or"
    r"|than|that|the|to|was|were|when|which|with))$"
)
_WRAPPED = 50  # characters; longer lines were probably wrapped by an editor

_MARK = re.compile(r"[.,;:!?…。！？؟।][\"'”’)\]»*_~`]*$")
_DROPPED = re.compile(  # fences, rules, rows that separate tables' heads
    rf"{_WHITE}*(?:(?:```|~~~)[^`~]*|(?:[-*_=]{_WHITE}*){{3,}}|\|?[\s:|-]*-[\s:|-]*\|[\s:|-]*)$"
)
_LINK_TARGET = re.compile(rf"{_WHITE}*\[[^\[\]]+\]:{_WHITE}+\S+(?:{_WHITE}+\"[^\"]*\")?{_WHITE}*$")
_PREFIX = re.compile(
    rf"{_WHITE}*(?:(?P<quote>>)|(?P<bullet>{_BULLET}){_WHITE}+(?P<task>\[[ xX]\]{_WHITE}+)?"
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
_PAUSING = {"p", "s", "br", "li", "tr", "div", "h1", "h2", "h3", "h4", "h5", "h6", "speak", "hr"}
_SILENT = {  # formatting: the words inside are spoken as they are
    "a", "abbr", "b", "blockquote", "body", "cite", "code", "del", "em", "font", "html", "i",
    "ins", "kbd", "mark", "ol", "pre", "q", "samp", "small", "span", "strong", "sup", "table",
    "tbody", "td", "th", "thead", "u", "ul", "var", "sub",
}  # fmt: skip
SSML = {
    "audio", "desc", "emphasis", "lang", "lexicon", "lookup", "metadata", "meta", "phoneme",
    "prosody", "say-as", "token", "voice", "w", "amazon:effect", "mstts:express-as", "break",
}  # fmt: skip
_INDEX = re.compile(r"(?<=[\w)\]])\[\s*(-?\d+|[A-Za-z]|-?\d*:-?\d*|\"\w+\"|'\w+')\s*\]")
_CITATION = re.compile(rf"{_WHITE}*\[\^?[\d,;\s\u2013-]*\]|{_WHITE}*\[\^[^\[\]]*\]")
_EMPHASIS = re.compile(
    r"(?<![\w*])\*{1,3}(?=[^\s*])|(?<=[^\s*])\*{1,3}(?![\w*])|(?<=[^\W\d])\*{2,3}(?=[^\W\d])"
    r"|(?<![\w_])_{1,3}(?=[^\s_])|(?<=[^\s_])_{1,3}(?![\w_])|~~|==(?=\w)|(?<=\w)=="
)
_ELLIPSIS = re.compile(rf"(?P<before>[.!?,;:]?){_WHITE}*(?:…+|\.(?:{_WHITE}?\.){{2,}}){_WHITE}*")
_I = re.compile(r"I(?:'|’|\b)(?!\.)")


def blocks(text: str) -> list[str]:
    """Cuts text into the stretches that a pause ends: paragraphs, items, headings, short lines.

    The line breaks inside a block are soft and have become spaces. Nothing else is changed.
    """
    found: list[list[str]] = []
    is_open = False
    for line in LINE_BREAK.split(text):
        bare = line.strip(WHITE_SPACE)
        if not bare:
            is_open = False
        elif is_open and not breaks(found[-1][-1], line):
            found[-1].append(bare)
        else:
            found.append([bare])
        if bare:
            is_open = not _SINGLE.match(line)
    return [" ".join(lines) for lines in found]


def breaks(line: str, following: str) -> bool:
    """Whether a pause belongs between two lines; not where a sentence merely wraps."""
    line = line.rstrip(WHITE_SPACE)
    start = following.strip(WHITE_SPACE)
    if not start or _BLOCK.match(following) or _SINGLE.match(line):
        return True
    if len(line) >= _WRAPPED or _OPEN_END.search(line):
        return False
    return (
        start[0].isupper() or start[0].isdigit() or (not start[0].isalnum() and start[0] not in "(")
    )


def is_undecided(line: str) -> bool:
    """Whether a line that is still growing may yet begin a block."""
    return _UNDECIDED.match(line) is not None


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
    if name in _PAUSING:
        return "\n"
    if name in _SILENT:
        return ""
    if name in SSML:
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
    if not rest or rest[0] in "\"”'’)]»":
        return before or "."
    if rest[0] in ".,;:!?":
        return before
    goes_on = rest[0].islower() or rest[0].isdigit() or _I.match(rest)
    return (before or ("," if goes_on else ".")) + " "
