"""Where sentences and lines end, in whole text and in text that is still arriving.

Everything is decided by the text alone. What more text could change is not yet an end, and an end
once found stays one, so the cuts of streamed text do not depend on how its tokens arrive.
"""
# ruff: noqa: RUF001 - punctuation of many scripts is the subject here

from __future__ import annotations

import re
from collections import Counter


def _words(words: str) -> frozenset[str]:
    return frozenset(words.split())


# The Unicode property White_Space. str.isspace also accepts the control characters U+001C..U+001F.
WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
LINE_BREAK = re.compile("\r\n|[\n\r\v\f\x85\u2028\u2029]")

# Every alternative stops at the next bracket of its kind, which keeps the scan linear.
MARKUP = re.compile(
    r"<\|[^|<>]*\|>"  # special token
    r"|\[[^\[\]]*\]"  # cue
    rf"|<(?P<slash>/?)(?P<name>[A-Za-z][\w-]*+)(?:[{WHITE_SPACE}][^<>]*|/)?>"  # tag
    r"|<!--[^<>]*-->"  # comment
)

# In scripts with spaces, a mark counts only before a space, a cue or a tag. That keeps 3.14, 1,000,
# 10:30, example.com and me@example.com whole.
_CLOSING = "\"'“”‘’«»)\\]」』】）》〉*_~`"
CLOSERS = rf"(?:[{_CLOSING}]|</[A-Za-z][\w-]*+>)*+"
THEN_SPACE = rf"(?=[{WHITE_SPACE}\[<])"
_MARKS = ".!?…؟۔።։"
_SENTENCE_END = re.compile(
    rf"(?<![{_MARKS}])(?P<mark>[{_MARKS}]++){CLOSERS}{THEN_SPACE}|[。！？．｡।॥]++{CLOSERS}"
)
_STANDING_END = re.compile(
    rf"(?:[{_MARKS}:]|[。！？．｡।॥：]){CLOSERS}[{WHITE_SPACE}]*$|\n[{WHITE_SPACE}]*$"
)
_UNFINISHED_CLOSER = re.compile(r"<(?:/(?:[A-Za-z][\w-]*)?)?\Z")
_NEXT_WORD = re.compile(
    rf"{CLOSERS}[{WHITE_SPACE}]+[\"'“‘«„(*_~`]*(?P<word>[^\W\d_]+(?:['’]\w+)?|\d)(?P<complete>.)?",
    re.DOTALL,
)

# Words whose period does not end a sentence; some only before a number ("No. 5") or unless the next
# word begins one ("etc.", "Inc.", initials, "9 a.m.").
_TITLE = re.compile(
    r"mrs?|ms|mme|dr|prof|rev|hon|gen|col|maj|capt|cmdr|adm|lt|sgt|sen|gov|st|mt|ft|sra?|vs|cf|ca|approx|dept|est"
    r"|univ|jan|feb|aug|sept?|oct|nov|dec|bzw|evtl|ggf|hr|str|uds?|viz|p\.ej|e\.g|i\.e",
    re.IGNORECASE,
)
_BEFORE_NUMBER = re.compile(r"(?:nos?|nr|figs?|vol|pp?|eq|sec|art|chap|ext)", re.IGNORECASE)
_BEFORE_SMALL = re.compile(r"etc|al|inc|ltd|corp|co|bros|jr|ave|blvd", re.IGNORECASE)
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_i]", re.IGNORECASE)
_HALF_DAY = re.compile(r"[ap]\.m", re.IGNORECASE)
_STARTERS = _words(
    "a after all an and are as at because before but can did do does each even every few for "
    "from had has have he her here his how however i if in is it it's its just let let's many "
    "maybe my next no not now of on once one or our perhaps please she since so some still "
    "that that's the their then there there's these they they're this those though thus to "
    "too was we we'll we're well were what when where which while who why will with yes yet "
    "you you're your"
)
_AFTER_HALF_DAY = _words(
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday Eastern Central Mountain "
    "Pacific EST EDT CST CDT MST MDT PST PDT GMT UTC CET CEST BST"
)
_LONGEST_ABBREVIATION = 16
_OPENING = "\"'“‘«„([*_~`"

# Lines.
_WHITE = f"[{WHITE_SPACE}]"
BULLET = r"[-*+\u2022\u2023\u25e6\u25aa\u2043]"
_BLOCK = re.compile(  # lines that always begin a block of their own
    rf"{_WHITE}*(?:{BULLET}{_WHITE}|\d{{1,3}}[.)]{_WHITE}|[A-Za-z]\){_WHITE}|\#{{1,6}}{_WHITE}|>|\|"
    r"|```|~~~"
    rf"|<\|speaker|(?:[-*_=]{_WHITE}*){{3,}}$)"
)
_SINGLE = re.compile(  # lines that are a block by themselves
    rf"{_WHITE}*(?:\#{{1,6}}{_WHITE}|\||```|~~~|(?:[-*_=]{_WHITE}*){{3,}}$)"
)
_UNDECIDED = re.compile(  # the beginning of a line that may yet begin a block
    rf"{_WHITE}*(?:{BULLET}{{1,2}}|\d{{1,3}}[.)]?|\#{{1,6}}|[`~\"'“‘(_\[]{{1,3}}|<\|?\w*)?{_WHITE}*$"
)
_OPEN_END = re.compile(  # a line that the next one continues, whatever that begins with
    r"(?:[,(\u2013\u2014/&-]|\b(?:a|about|an|and|as|at|because|but|by|for|from|if|in|is|of|on|or"
    r"|than|that|the|to|was|were|when|which|with))$"
)
_WRAPPED = 50  # characters; longer lines were probably wrapped by an editor

# Tags that normalisation reads one by one, so that a cut between two of them does no harm.
PAUSES = _words("p s br li tr div h1 h2 h3 h4 h5 h6 speak hr")
FORMATTING = _words(
    "a abbr b blockquote body cite code del em font html i ins kbd mark ol pre q samp small "
    "span strong sup table tbody td th thead u ul var"
)
SSML = _words(
    "audio break desc emphasis lang lexicon lookup metadata meta phoneme prosody token voice w"
)
_VOID = _words("area base br col embed hr img input link meta source track wbr")
_LOOSE = PAUSES | FORMATTING | SSML


def _is_closed(tag: re.Match[str]) -> bool:
    """Whether a tag has no other that closes it, as ``<break/>`` and HTML's ``<img src=a>``."""
    return tag[0].endswith("/>") or (tag["name"] or "").lower() in _VOID


def closing_tags(markup: list[re.Match[str]]) -> dict[int, re.Match[str]]:
    """Maps the position of each matched opening tag to its closing tag."""
    closing: dict[int, re.Match[str]] = {}
    opened: list[re.Match[str]] = []
    waiting: Counter[str] = Counter()  # the names in ``opened``
    for found in markup:
        name = found["name"]
        if _is_closed(found):
            continue
        if name and not found["slash"]:
            opened.append(found)
            waiting[name] += 1
        elif name and waiting[name]:
            while opened[-1]["name"] != name:  # an unmatched tag in between: plain text
                waiting[opened.pop()["name"]] -= 1
            waiting[name] -= 1
            closing[opened.pop().start()] = found
    return closing


def sentence_ends(text: str, start: int, last: int) -> list[int]:
    """Positions of sentence ends in ``(start, last]``."""
    return [
        found.end()
        for found in _SENTENCE_END.finditer(text, start, last + 1)
        if found.end() <= last and _ends_sentence(text, found)
    ]


def complete_ends(text: str, *, normalized: bool = False) -> list[int]:
    """Positions behind the complete sentences and lines of a growing text, ascending.

    A sentence is complete once white space follows its end, because "3." may still become "3.14";
    behind an abbreviation once the next word is there. A line is complete once the next one is seen
    not to continue it. Text inside an open bracket or an open pair of tags is never complete.

    Args:
        text: of one or more turns, as far as it has arrived.
        normalized: the text will be normalised, which reads the tags of HTML and SSML one by one.
    """
    ends = {
        end
        for end in sentence_ends(text, 0, len(text) - 1)
        if not _UNFINISHED_CLOSER.match(text, end)  # it may yet belong to the sentence
    }
    ends.update(_line_ends(text))
    if not ends:
        return []
    markup = _markup(text, normalized)
    limit = _open_markup(text, markup)
    inside = [found.span() for found in markup]
    inside += [(start, close.end()) for start, close in closing_tags(markup).items()]
    return [
        end
        for end in sorted(ends)
        if end <= limit and not any(start < end < stop for start, stop in inside)
    ]


def can_stand_alone(text: str, *, normalized: bool = False) -> bool:
    """Whether a growing text can be spoken if no more of it comes for a while.

    It ends with a sentence mark, a colon or a line, and not with an abbreviation, a list number, or
    inside a bracket or a pair of tags.
    """
    if not any(map(str.isalnum, text)) or not _STANDING_END.search(text):
        return False
    markup = _markup(text, normalized)
    if _open_markup(text, markup) < len(text):
        return False
    bare = text.rstrip(WHITE_SPACE + _CLOSING.replace("\\", ""))
    if not bare.endswith("."):
        return True
    word = _word_before(bare, len(bare) - 1)
    if word.isdigit():
        return text != bare and not _is_list_number(bare, len(bare) - 1, word)
    return not _TITLE.fullmatch(word)


def blocks(text: str) -> list[str]:
    """Splits text into the stretches that a pause ends: paragraphs, items, headings, short lines.

    The line breaks inside a block are soft and become spaces. Nothing else is changed.
    """
    found: list[list[str]] = []
    is_open = False
    for line in LINE_BREAK.split(text):
        bare = line.strip(WHITE_SPACE)
        if not bare:
            is_open = False
        elif is_open and not _breaks(found[-1][-1], line):
            found[-1].append(bare)
        else:
            found.append([bare])
        if bare:
            is_open = not _SINGLE.match(line)
    return [" ".join(lines) for lines in found]


def _breaks(line: str, following: str) -> bool:
    """Whether a pause belongs between two lines; not where a sentence merely wraps."""
    line = line.rstrip(WHITE_SPACE)
    start = following.strip(WHITE_SPACE)
    if not start or _BLOCK.match(following) or _SINGLE.match(line):
        return True
    if len(line) >= _WRAPPED or _OPEN_END.search(line):
        return False
    first = start.lstrip(_OPENING)[:1] or "."
    return first.isupper() or first.isdigit() or not first.isalnum()


def _line_ends(text: str) -> list[int]:
    """Ends of the lines that the next one does not continue."""
    ends: list[int] = []
    breaks = list(LINE_BREAK.finditer(text))
    for number, found in enumerate(breaks):
        line = text[breaks[number - 1].end() if number else 0 : found.start()].rstrip(WHITE_SPACE)
        if not line.strip(WHITE_SPACE):
            continue
        arrived = number + 1 < len(breaks)
        following = text[found.end() : breaks[number + 1].start() if arrived else len(text)]
        decided = arrived or _SINGLE.match(line) or not _UNDECIDED.match(following)
        if decided and _breaks(line, following):
            ends.append(found.start())
    return ends


def _markup(text: str, normalized: bool) -> list[re.Match[str]]:
    """The markup that must not be cut; normalisation needs no pair of loose tags in one segment."""

    def is_loose(tag: re.Match[str]) -> bool:
        name = tag["name"] or ""
        joined = text[tag.start() - 1 : tag.start()].isalnum()  # as in List<String>
        return bool(name) and (name.lower() in _LOOSE or joined)

    found = MARKUP.finditer(text)
    return [one for one in found if not (normalized and is_loose(one))]


def _open_markup(text: str, markup: list[re.Match[str]]) -> int:
    """Where the first bracket or tag begins that may still be closed, or the length of the text."""
    limit = len(text)
    opened = max(text.rfind("["), text.rfind("<|"))
    if opened >= 0 and not MARKUP.match(text, opened):
        limit = opened
    closing = closing_tags(markup)
    for found in markup:
        opens = found["name"] and not found["slash"] and not _is_closed(found)
        if opens and found.start() not in closing:
            return min(limit, found.start())
    return limit


def _ends_sentence(text: str, found: re.Match[str]) -> bool:
    mark, at = found["mark"], found.start()
    if mark == ".":
        return not abbreviates(text, at)
    if mark and not mark.strip(".…"):  # an ellipsis: only before a new sentence
        word = _NEXT_WORD.match(text, at + len(mark))
        return word is not None and word["word"][0].isupper() and word["word"][:2] not in _I
    return True


_I = ("I", "I'", "I’")


def abbreviates(text: str, period: int) -> bool:
    """Whether this period belongs to an abbreviation or to a list number, or still may."""
    word = _word_before(text, period)
    if not word:
        return False
    if _is_list_number(text, period, word):
        return True
    following = _NEXT_WORD.match(text, period + 1)
    if _BEFORE_NUMBER.fullmatch(word):
        if not text[period + 1 :].strip(WHITE_SPACE):
            return True  # a number may come
        if following is not None and following["word"].isdigit():
            return True
        return len(word) > 2 and word.lower() != "nos" and not _begins(following, {})
    if _HALF_DAY.fullmatch(word):
        return following is None or not (
            following["word"][0].isupper()
            and following["complete"]
            and following["word"] not in _AFTER_HALF_DAY
        )
    if _BEFORE_SMALL.fullmatch(word):
        return following is None or not following["word"][0].isupper()
    if _TITLE.fullmatch(word):
        return True
    return _INITIALS.fullmatch(word) is not None and not _begins(following, _STARTERS)


def _begins(following: re.Match[str] | None, starters: frozenset[str] | dict[str, str]) -> bool:
    """Whether the next word begins a sentence; any capitalised one without a list of them."""
    if following is None or not following["word"][0].isupper() or not following["complete"]:
        return False
    return not starters or following["word"].lower().replace("’", "'") in starters


def _word_before(text: str, period: int) -> str:
    """The word that ends at a period, without opening quotes; empty behind white space."""
    words = text[max(0, period - _LONGEST_ABBREVIATION) : period].split()
    if not words or text[period - 1].isspace():
        return ""
    return words[-1].lstrip(_OPENING)


def _is_list_number(text: str, period: int, word: str) -> bool:
    if len(word) > 2 or not word.isdigit():
        return False
    begin = period - len(word)
    before = text[max(0, begin - 2) : begin].rstrip(WHITE_SPACE)
    return (
        not before or before[-1] in ".!?:;>" + _CLOSING or "\n" in text[max(0, begin - 2) : begin]
    )
