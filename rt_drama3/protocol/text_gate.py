"""TextGate: text as a language model writes it, checked and counted before the engine sees it.

Deltas may end anywhere, also inside ``<|speaker:1|>``. A special token that is not whole yet is
held back until more text, a flush or the end tells what it is, so that every refusal is about the
message that caused it.
"""

from __future__ import annotations

import re

from rt_drama3.errors import RequestError
from rt_drama3.protocol.limits import ProtocolLimits
from rt_drama3.protocol.refusals import Refused
from rt_drama3.text.rules import check_part

_UNFINISHED = re.compile(r"<(?:\|[^<>]{0,32})?\Z")


class TextGate:
    """Checks and counts the text of one utterance.

    Args:
        limits: for one message and for all that waits.

    Attributes:
        pending: characters that were let through and not reported as spoken.
        unflushed: whether anything but white space came since the last flush.
    """

    def __init__(self, limits: ProtocolLimits) -> None:
        self._limits = limits
        self._held = ""
        self.pending = 0
        self.unflushed = False

    def push(self, text: str) -> str:
        """Takes a delta and returns what can pass now, perhaps nothing.

        Raises:
            Refused: ``backlog_full``, or ``bad_text``; the delta is then dropped, with what was
                held back if it is the beginning of what cannot be spoken.
        """
        most = self._limits.pending_characters
        if self.pending + len(self._held) + len(text) > most:
            raise Refused(
                "backlog_full",
                f"{self.pending} characters wait to be spoken and {len(text)} came; at most "
                f"{most} may wait.",
            )
        delta, held = text, self._held
        text, self._held = held + delta, ""
        unfinished = _UNFINISHED.search(text)
        try:
            passed = self._pass(text[: unfinished.start()] if unfinished else text)
        except Refused:
            self._held = "" if _can_be_spoken(delta) else held
            raise
        if unfinished:
            self._held = unfinished[0]
            self.unflushed = True
        return passed

    def flush(self) -> str:
        """Returns what is left to pass before a flush.

        Raises:
            Refused: ``bad_text``; it is then dropped.
        """
        held, self._held = self._held, ""
        passed = self._pass(held)
        self.unflushed = False
        return passed

    def _pass(self, text: str) -> str:
        try:
            check_part(text)
        except RequestError as error:
            raise Refused("bad_text", str(error)) from None
        self.unflushed = self.unflushed or bool(text.strip())
        self.pending += len(text)
        return text


def _can_be_spoken(text: str) -> bool:
    try:
        check_part(text)
    except RequestError:
        return False
    return True
