"""Where the server's segments are in the text as it was written."""

from __future__ import annotations

import re


def find_segment(text: str, written: str) -> re.Match[str] | None:
    """Finds a segment; None where the server speaks something else.

    The server has one space where the text had a run of white space with a line break in it.

    Args:
        text: of the segment.
        written: what was written and is not heard yet.
    """
    return re.search(r"\s+".join(map(re.escape, text.split())), written)
