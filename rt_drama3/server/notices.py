"""Notices about text that is normalised: what of it is not spoken."""

from __future__ import annotations

import re

from rt_drama3.text.directions import Tokenizer
from rt_drama3.text.normalize import has_markup, normalize

CHECKED = 2000  # characters of a text that are checked
MAX_BRACKETS = 3
MAX_NOTICE = 160  # characters
UNKNOWN_SCRIPT = "words in a script that this model does not know are left out."
_FOREIGN = re.compile(r"[^\W\d_\0-\u024f]+")  # words without a Latin letter
_BRACKETS = re.compile(r"\[[^\[\]]*\w[^\[\]]*\]")


def normalization_notices(text: str, tokenizer: Tokenizer) -> list[str]:
    """What normalisation leaves out, and brackets and words without tokens."""
    if not (has_markup(text) or _FOREIGN.search(text)):
        return []
    said, notices = normalize(text[:CHECKED])
    words = list(dict.fromkeys(_FOREIGN.findall(_BRACKETS.sub("", said))))[:MAX_BRACKETS]
    if any(not tokenizer.encode(word).ids for word in words):
        notices += (UNKNOWN_SCRIPT,)
    brackets = list(dict.fromkeys(_BRACKETS.findall(said)))[:MAX_BRACKETS]
    unknown = [found for found in brackets if not tokenizer.encode(found).ids]
    notices += tuple(f"{found} is not spoken: this model does not know it." for found in unknown)
    return [_for_header(notice) for notice in notices]


def _for_header(notice: str) -> str:
    """A notice that quotes text, in the characters that an HTTP header may have."""
    words = " ".join(notice.split()).encode("ascii", "backslashreplace").decode()
    return words if len(words) <= MAX_NOTICE else words[: MAX_NOTICE - 3] + "..."
