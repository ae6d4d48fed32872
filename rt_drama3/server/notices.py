"""Notices about text that is normalised: what of it is not spoken."""

from __future__ import annotations

import re

from rt_drama3.text.directions import Tokenizer
from rt_drama3.text.normalize import has_markup, normalize

CHECKED = 2000  # characters of a text that are checked
MAX_BRACKETS = 3
MAX_NOTICE = 160  # characters
_BRACKETS = re.compile(r"\[[^\[\]]*\w[^\[\]]*\]")


def normalization_notices(text: str, tokenizer: Tokenizer) -> list[str]:
    """What normalisation leaves out, and brackets that the tokenizer has no tokens for."""
    if not has_markup(text):
        return []
    said, notices = normalize(text[:CHECKED])
    brackets = list(dict.fromkeys(_BRACKETS.findall(said)))[:MAX_BRACKETS]
    unknown = [found for found in brackets if not tokenizer.encode(found).ids]
    notices += tuple(f"{found} is not spoken: this model does not know it." for found in unknown)
    return [_for_header(notice) for notice in notices]


def _for_header(notice: str) -> str:
    """A notice that quotes text, in the characters that an HTTP header may have."""
    words = " ".join(notice.split()).encode("ascii", "backslashreplace").decode()
    return words if len(words) <= MAX_NOTICE else words[: MAX_NOTICE - 3] + "..."
