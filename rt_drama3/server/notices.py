"""What only the server can tell a client of its request: what of it this model cannot follow."""

from __future__ import annotations

import unicodedata

from rt_drama3.text.directions import Tokenizer, spoken_words

FIXED_VOICE = "this model has one fixed voice: voices and references are accepted, not followed."
NO_DIRECTIONS = "this model was taught no directions: guidance is accepted, and changes nothing."
UNREADABLE = "this model does not know the script of the text: most of its letters are left out."
LOOKED_AT = 60  # characters of a text; a normalizer may have thousands of rules
LATIN = "\u024f"  # and what is below it


def is_unreadable(text: str, tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer drops most letters of a text, having no tokens for them.

    Text in Latin letters is not looked at. Tokenizers that fall back to bytes, as those of large
    models, know every script.
    """
    normalizer = getattr(tokenizer, "normalizer", None)
    shown = spoken_words(text[: 10 * LOOKED_AT])[:LOOKED_AT]
    letters = _letters(shown)
    if normalizer is None or 2 * sum(char > LATIN for char in letters) <= len(letters):
        return False
    return 2 * len(_letters(normalizer.normalize_str(shown))) < len(letters)


def _letters(text: str) -> str:
    """Letters and digits of every script; signs of private use stand for some, or for sounds."""
    found = ((char, unicodedata.category(char)) for char in text)
    return "".join(char for char, kind in found if kind[0] in "LMN" or kind == "Co")
