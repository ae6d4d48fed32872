"""Prefiller: reads the prompts of streams into their slots, one chunk at a time (device thread).

The system block with the references is read once for a voice and restored for the next stream.
While a stream speaks a segment, most of its next prompt is known: the beginning, and the codes as
they are made. That much is read ahead in a spare slot, so that little is left to read between two
segments. Chunks have the same borders whenever they are read: the take does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from rt_drama3.engine.step_runner import StepRunner
from rt_drama3.engine.stream import ReadAhead, Stream
from rt_drama3.engine.voice_cache import VoiceCache


class Prefiller:
    """See the module docstring.

    Args:
        runner: reads chunks.
        voices: system blocks that were read already.
        semantic_start: main token of semantic code 0.
        device: of the model.
        clock: seconds.
    """

    def __init__(
        self,
        runner: StepRunner,
        voices: VoiceCache,
        semantic_start: int,
        device: torch.device,
        clock: Callable[[], float],
    ) -> None:
        self._runner, self._voices, self._clock = runner, voices, clock
        self._state = runner.step.state
        self._semantic_start, self._device = semantic_start, device
        self._holder: Stream | None = None  # whose rows are in the spare slot

    def begin(self, stream: Stream) -> None:
        """Starts with the prompt of a stream that got its slot."""
        prefill = stream.prefill
        prefill.read = prefill.unconditional_read = 0
        prefill.started = self._clock()

    def read_chunk(self, stream: Stream) -> bool:
        """Reads the next chunk of a stream's prompt into its slot; true when that was the last."""
        prompt, prefill, slot = stream.prompt, stream.prefill, stream.slot.index
        assert prompt is not None
        started = self._clock()
        if prefill.read == 0:
            prefill.read = self.take_ahead(stream)
        if prefill.read == 0:
            prefill.read = self._runner.begin(slot, self._voices.get(prompt.voice_key))
        if prefill.read < prompt.system_rows:
            rows = prompt.rows[prefill.read : prompt.system_rows]
            prefill.read += self._runner.prefill(slot, rows, prefill.read)
            if prefill.read == prompt.system_rows:
                self._voices.put(prompt.voice_key, self._state.snapshot(slot, prefill.read))
        elif prefill.read < len(prompt.rows):
            end = prompt.common if prefill.read < prompt.common else None
            rows = prompt.rows[prefill.read : end]
            prefill.read += self._runner.prefill(slot, rows, prefill.read, stream.hook())
            if prefill.read == prompt.common:
                self._state.move(slot, slot + 1, prefill.read)
                prefill.unconditional_read = prefill.read
        else:
            self._read_unconditional(stream)
        ended = self._clock()
        stream.durations.prefill += ended - started
        unconditional = 0 if prompt.unconditional is None else len(prompt.unconditional)
        if prefill.read < len(prompt.rows) or prefill.unconditional_read < unconditional:
            return False
        prefill.finished = ended
        return True

    def _read_unconditional(self, stream: Stream) -> None:
        prompt, prefill = stream.prompt, stream.prefill
        assert prompt is not None
        assert prompt.unconditional is not None
        done = prefill.unconditional_read
        rows, hook = prompt.unconditional[done:], stream.hook(unconditional=True)
        prefill.unconditional_read += self._runner.prefill(stream.slot.index + 1, rows, done, hook)

    # Reading ahead.

    def behind(self, streams: Sequence[Stream]) -> Stream | None:
        """Of streams that speak and have more text, the one to read ahead for, if any.

        The holder of the spare slot keeps it while there is a chunk to read; then the stream with
        most to read gets it.
        """
        left = {stream: self._unread(stream) for stream in streams}
        ready = [stream for stream, rows in left.items() if rows > 0]
        if self._holder in ready:
            return self._holder
        return max(ready, key=left.__getitem__, default=None)

    def read_ahead(self, stream: Stream) -> None:
        """Reads one chunk of the next prompt of a stream that is still speaking."""
        assert stream.prompt is not None
        started, spare = self._clock(), self._runner.spare
        ahead = self._hold(stream)
        if ahead.read == 0:
            restored = self._runner.begin(spare, self._voices.get(stream.prompt.voice_key))
            if restored:
                ahead.note(self._rows(stream, 0, restored))
        if self._unread(stream):
            border = stream.system_rows if ahead.read < stream.system_rows else stream.known_rows
            rows = self._rows(stream, ahead.read, min(border, ahead.read + self._runner.chunk))
            self._runner.prefill(spare, rows, ahead.read)
            ahead.note(rows)
        stream.durations.prefill += self._clock() - started

    def drop(self, stream: Stream) -> None:
        """Forgets what was read ahead for a stream."""
        stream.prefill.ahead = None
        if self._holder is stream:
            self._holder = None
            self._state.scrub(self._runner.spare)  # it may hold NaN

    def _unread(self, stream: Stream) -> int:
        """Rows that may be read ahead now: a whole chunk, or to the end of the system block."""
        ahead, prompt = stream.prefill.ahead, stream.prompt
        if prompt is None or stream.known_rows + prompt.cap >= self._runner.context:
            return 0  # its past may not fit into the next prompt
        read = 0 if ahead is None else ahead.read
        rows = stream.known_rows - read
        return rows if read < stream.system_rows or rows >= self._runner.chunk else 0

    def _rows(self, stream: Stream, start: int, end: int) -> torch.Tensor:
        rows = stream.next_rows(start, end, self._semantic_start)
        return torch.from_numpy(rows).to(self._device)

    def _hold(self, stream: Stream) -> ReadAhead:
        """Brings what was read ahead for a stream into the spare slot."""
        holder, spare = self._holder, self._runner.spare
        ahead = stream.prefill.ahead
        if ahead is None:
            ahead = stream.prefill.ahead = ReadAhead()
        if holder is not stream:
            if holder is not None and holder.prefill.ahead is not None:
                read = holder.prefill.ahead.read
                holder.prefill.ahead.snapshot = self._state.snapshot(spare, read)
            self._holder = stream
            if ahead.snapshot is not None:
                self._state.restore(spare, ahead.snapshot)
                ahead.snapshot = None
        return ahead

    def take_ahead(self, stream: Stream) -> int:
        """Puts what was read ahead into the stream's slot, if it fits; returns its rows."""
        ahead, stream.prefill.ahead = stream.prefill.ahead, None
        held = self._holder is stream
        if held:
            self._holder = None
        if ahead is None or not ahead.read:
            return 0
        assert stream.prompt is not None
        if not torch.equal(torch.cat(ahead.chunks), stream.prompt.rows[: ahead.read]):
            return 0  # an earlier segment had to give way
        if held:
            self._state.move(self._runner.spare, stream.slot.index, ahead.read)
        elif ahead.snapshot is not None:
            self._state.restore(stream.slot.index, ahead.snapshot)
        return ahead.read
