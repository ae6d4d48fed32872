"""PrefillOrder: whose prompt is read next, and whether the listeners have enough audio for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.prefill import Prefiller
from rt_drama3.engine.scheduling import Costs, may_prefill
from rt_drama3.engine.slots import SlotTable
from rt_drama3.engine.stream import Phase, Stream

# Seconds after which a chunk is read whatever it costs. Where listeners have too little buffered
# for so long, the machine is overloaded, and a new stream would wait for the end of the others.
PATIENCE = 1.0


class NextChunk(NamedTuple):
    """The prefill chunk to read.

    Attributes:
        stream: whose prompt it belongs to.
        ahead: it is of the next segment's prompt, while the stream speaks the present one.
    """

    stream: Stream
    ahead: bool


class PrefillOrder:
    """See the module docstring; used by the device thread alone.

    Args:
        slots: the streams that hold slots.
        prefiller: knows what can be read ahead.
        costs: measured durations.
        config: settings.
        clock: seconds.
    """

    def __init__(
        self,
        slots: SlotTable,
        prefiller: Prefiller,
        costs: Costs,
        config: EngineConfig,
        clock: Callable[[], float],
    ) -> None:
        self._slots, self._prefiller, self._costs = slots, prefiller, costs
        self._config, self._clock = config, clock
        self._last_read = 0.0

    def next(self) -> NextChunk | None:
        """The chunk to read now; None if there is none, or a listener would run dry meanwhile.

        Streams that already play come first, of those the one that runs dry first; then the one
        that waits longest. If none waits, the next prompt of a speaking stream is read ahead.
        """
        now = self._clock()
        reading = self._slots.in_phase(Phase.PREFILL)
        speaking = self._slots.in_phase(Phase.SPEAKING)
        ahead = None
        if not reading:
            ahead = self._prefiller.behind([s for s in speaking if not s.text.empty])
            if ahead is None:
                return None
        started = min((s.prefill.started for s in reading), default=now)
        patient = now - max(self._last_read, started) < PATIENCE
        if patient and not self._covered(speaking, now, ahead is not None):
            return None
        self._last_read = now
        if ahead is not None:
            return NextChunk(ahead, True)

        def urgency(stream: Stream) -> tuple[bool, float]:
            if stream.turn.fresh:
                return True, stream.prefill.started
            return False, stream.playout.buffered(now)

        return NextChunk(min(reading, key=urgency), False)

    def _covered(self, speaking: list[Stream], now: float, ahead: bool) -> bool:
        """Whether what is buffered lasts until the audio after the chunk."""
        playing = [s for s in speaking if s.paused_since is None]
        rows = sum(s.width for s in playing)
        step = self._costs.step_seconds(rows) if rows else 0.0
        decode = self._costs.decode_seconds(1)
        if ahead and not self._config.codec_async:
            decode *= len(playing)  # it is not urgent: its audio may come last
        buffered = [s.playout.buffered(now) for s in playing]
        return may_prefill(buffered, self._costs.chunk.or_else(0.0), step, decode)
