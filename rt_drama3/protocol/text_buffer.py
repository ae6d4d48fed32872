"""TextBuffer: text as a language model streams it, checked and counted before the engine sees it.

Deltas may end anywhere, even inside ``<|speaker:1|>``. An incomplete special token is held back
until more text, a flush or the end completes it, so that every error is about the message that
caused it.
"""

from __future__ import annotations

import re

from rt_drama3.errors import RequestError
from rt_drama3.protocol.limits import ProtocolLimits
from rt_drama3.protocol.refusals import Refused
from rt_drama3.text.rules import check_part

_UNFINISHED = re.compile(r"<(?:\|[^<>]{0,32})?\Z")


class TextBuffer:
    """Checks and counts the text of one utterance.

    Args:
        limits: for one message and for all waiting text.

    Attributes:
        pending: characters that were passed on and not yet reported as spoken.
        unflushed: whether anything but white space arrived since the last flush.
    """

    def __init__(self, limits: ProtocolLimits) -> None:
        self._limits = limits
        self._held = ""
        self.pending = 0
        self.unflushed = False

    def push(self, text: str) -> str:
        """Takes a delta and returns the text to pass on now, perhaps none.

        Raises:
            Refused: ``backlog_full``, or ``bad_text``; the delta is dropped, together with what was
                held back if that begins what cannot be spoken.
        """
        limit = self._limits.pending_characters
        if self.pending + len(self._held) + len(text) > limit:
            raise Refused(
                "backlog_full",
                f"{self.pending} characters wait to be spoken and {len(text)} more came; the limit "
                f"is {limit} (pending_characters).",
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
        """Returns the text held back, to pass on before a flush.

        Raises:
            Refused: ``bad_text``; it is dropped.
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
