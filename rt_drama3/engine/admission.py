"""Admission: which of the waiting streams get slots now, so that everybody stays realtime.

It belongs to the device thread.
"""

from __future__ import annotations

import time

from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.scheduling import Costs, load_with
from rt_drama3.engine.slots import SlotTable
from rt_drama3.engine.speech import Queued
from rt_drama3.engine.step_runner import FrameMaker
from rt_drama3.engine.stream import EngineStream, Phase


class Admission:
    """See the module docstring.

    Args:
        slots: who holds which.
        maker: the step, which also reads prompts.
        costs: measured durations.
        config: settings.
        frame_seconds: of audio.
    """

    def __init__(
        self,
        slots: SlotTable,
        maker: FrameMaker,
        costs: Costs,
        config: EngineConfig,
        frame_seconds: float,
    ) -> None:
        self._slots, self._maker = slots, maker
        self._costs, self._config = costs, config
        self._frame_seconds = frame_seconds

    def admit(self, waiting: list[EngineStream]) -> None:
        """Lets waiting streams read: those that kept a slot, those that play, then in order."""
        waiting.sort(key=lambda s: (s.slot < 0, s.fresh, s.asked))
        for position, stream in enumerate(waiting):
            if not self._slots.suits(stream):
                self._slots.free(stream)  # this piece is guided, those before it were not
            if stream.slot < 0 and not (self.fits(stream) and self._slots.place(stream)):
                full = len(self._slots.holders()) >= self._config.max_streams or self.fits(stream)
                for later, other in enumerate(waiting[position:]):
                    queued = Queued(later, "max_streams" if full else "load")
                    if queued != other.queued:
                        other.queued = queued
                        other.speech.put(queued)
                return
            if stream.queued is not None:
                stream.queued = None
                stream.speech.admitted()
            stream.phase = Phase.PREFILL
            stream.prefill_started = time.monotonic()

    def fits(self, stream: EngineStream) -> bool:
        """Whether everybody stays realtime with a newcomer."""
        others = self._slots.holders()
        if not others or len(others) >= self._config.max_streams:
            return not others
        if not stream.fresh:
            return True
        rows = self._slots.taken + stream.direction.width
        load = load_with(rows, self._costs, self._frame_seconds, self._config.codec_async)
        block, seconds = self._maker.block, self._costs.block.or_else(0.0)
        for other in (stream, *others):
            load += other.prompt_load(block, seconds, self._frame_seconds)
        return load <= self._config.admit_load
