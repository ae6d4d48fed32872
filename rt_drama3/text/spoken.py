"""The words of a text, for checkpoints to which directions and speaker tags mean nothing.

They would read such markup aloud, so their prompts go without it. No torch in this file.
"""

from __future__ import annotations

import re

from rt_drama3.text.cutting import WHITE_SPACE
from rt_drama3.text.directions import undirected
from rt_drama3.text.rules import SPEAKER_TAG

_AROUND_TAG = re.compile(f"[{WHITE_SPACE}]*{SPEAKER_TAG.pattern}[{WHITE_SPACE}]*")


def spoken_words(text: str) -> str:
    """The text without directions (``[brackets]``, paired tags) and without speaker tags.

    Words and punctuation stay as they are. A line break is left where a speaker's turn began.
    Nothing is left of a text that is only a direction.
    """
    lines = _AROUND_TAG.split(undirected(text))[::2]  # between them are the tags' numbers
    return "\n".join(line for line in lines if line)
