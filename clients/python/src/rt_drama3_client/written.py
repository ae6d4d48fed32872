"""Finds the server's segments in the original text."""

from __future__ import annotations

import re


def find_segment(text: str, written: str) -> re.Match[str] | None:
    """Finds a segment; None if the text does not contain it.

    The server replaces a run of white space that contains a line break by one space.

    Args:
        text: text of the segment.
        written: the original text that has not been heard yet.
    """
    return re.search(r"\s+".join(map(re.escape, text.split())), written)
