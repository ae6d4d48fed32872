"""SlotTable: which stream holds which slots of the step (device thread).

A guided stream holds two side by side, in whatever phase it is, once it has needed them: it does
not queue again in the middle of its text.
"""

from __future__ import annotations

from collections.abc import Iterator

from rt_drama3.engine.slot_plan import first_slots, plan_pair, plan_single
from rt_drama3.engine.step_runner import FrameMaker
from rt_drama3.engine.stream import EngineStream, Phase


class SlotTable:
    """See the module docstring.

    Args:
        maker: whose slots these are.
        count: slots that streams may hold.
    """

    def __init__(self, maker: FrameMaker, count: int) -> None:
        self._maker = maker
        self._holders: list[EngineStream | None] = [None] * count

    def __iter__(self) -> Iterator[EngineStream | None]:
        """Who holds each slot."""
        return iter(self._holders)

    @property
    def taken(self) -> int:
        """Slots that are held."""
        return sum(holder is not None for holder in self._holders)

    def holders(self) -> list[EngineStream]:
        """The streams that hold slots, each once."""
        return first_slots(self._holders)

    def in_phase(self, phase: Phase) -> list[EngineStream]:
        """Those of them that stand in a phase."""
        return [stream for stream in self.holders() if stream.phase is phase]

    def suits(self, stream: EngineStream) -> bool:
        """Whether what a stream holds, if anything, is enough for its present piece."""
        direction = stream.direction
        return stream.slot < 0 or direction.pair or direction.width == 1

    def place(self, stream: EngineStream) -> bool:
        """Gives a stream the slots that its piece needs; false when they are not free."""
        guided = stream.direction.width > 1
        plan = (plan_pair if guided else plan_single)(self._holders)
        if plan is None:
            return False
        if plan.move is not None:
            self._relocate(*plan.move)
        stream.slot, stream.direction.pair = plan.slot, guided
        for slot in self._slots(stream):
            self._holders[slot] = stream
        return True

    def free(self, stream: EngineStream) -> None:
        """Takes a stream's slots back, if it has any."""
        if stream.slot >= 0:
            self._maker.release(stream.slot)
            for slot in self._slots(stream):
                self._holders[slot] = None
            stream.slot, stream.direction.pair = -1, False

    def scrub(self, stream: EngineStream) -> None:
        """Clears a stream's slots, whose numbers may have gone bad."""
        for slot in self._slots(stream):
            self._maker.scrub(slot)

    def _slots(self, stream: EngineStream) -> range:
        return range(stream.slot, stream.slot + 1 + stream.direction.pair)

    def _relocate(self, source: int, target: int) -> None:
        stream = self._holders[source]
        assert stream is not None
        rows = stream.position if stream.phase is Phase.SPEAKING else stream.read
        self._maker.relocate(source, target, min(rows, self._maker.context))
        self._holders[source], self._holders[target] = None, stream
        stream.slot = target
