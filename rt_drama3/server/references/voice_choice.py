"""choose_voices: which stored voices an order means, in every dialect.

Clients that come from a cloud carry the ids of its voices, and some send one unasked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rt_drama3.protocol import Refused
from rt_drama3.protocol.order import is_stock_voice
from rt_drama3.server.references.voice_files import Voice


class ChosenVoice(NamedTuple):
    """A stored voice that an order names.

    Attributes:
        speaker: its place in the order.
        voice: the stored one.
    """

    speaker: int
    voice: Voice


def choose_voices(
    names: Sequence[str],
    stored: Callable[[str], Voice | None],
    aliases: Mapping[str, str],
    default_for_unknown: bool,
) -> tuple[list[ChosenVoice], list[str]]:
    """Looks up the voices of an order; one that is left out is spoken by the default voice.

    Args:
        names: of the order; voice n speaks as speaker n.
        stored: the stored voice of a name.
        aliases: our names for those of clients; an empty one is the default voice.
        default_for_unknown: the default voice speaks for a name that is not stored.

    Returns:
        The voices, and a notice for every name that is not stored.

    Raises:
        Refused: ``unknown_voice``.
    """
    chosen, notices = [], []
    for speaker, name in enumerate(names):
        ours = aliases.get(name, name)
        stock = is_stock_voice(ours)
        voice = stored(ours) or (stored(ours.lower()) if stock else None)
        if voice is not None:
            chosen.append(ChosenVoice(speaker, voice))
        elif ours and not (stock and len(names) == 1):
            what = f"voice {name!r}"
            if ours != name:
                what += f" (an alias of {ours!r})"
            if not default_for_unknown:
                raise Refused("unknown_voice", f"{what} is not stored here.")
            notices.append(f"{what} is not stored here: the default voice speaks.")
    return chosen, notices
