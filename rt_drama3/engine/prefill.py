"""PromptReader: the prompts of streams into their slots, one block at a time (device thread).

The system block with the references is read once for a voice and restored for the next stream. Of a
stream that goes on after the present piece, the next prompt is mostly known while it speaks: its
beginning, and the codes as they are made. That much is read ahead in a spare slot, so that at the
join of two pieces little is left to read. Blocks have the same borders whenever they are read: the
take does not depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from rt_drama3.engine.step_runner import FrameMaker
from rt_drama3.engine.stream import EngineStream, ReadAhead
from rt_drama3.engine.voice_cache import VoiceCache


class PromptReader:
    """See the module docstring.

    Args:
        maker: whose slots are read into.
        voices: system blocks that were read already.
        semantic_start: main token of semantic code 0.
        device: of the model.
    """

    def __init__(
        self, maker: FrameMaker, voices: VoiceCache, semantic_start: int, device: torch.device
    ) -> None:
        self._maker, self._voices = maker, voices
        self._semantic_start, self._device = semantic_start, device
        self._holder: EngineStream | None = None  # whose rows are in the spare slot

    def read_block(self, stream: EngineStream) -> bool:
        """Reads the next block of a stream's prompt into its slot; true when that was the last."""
        assert stream.rows is not None
        started = time.monotonic()
        if stream.read == 0:
            stream.read = self._take_ahead(stream)
        if stream.read == 0:
            snapshot = self._voices.get(stream.voice_key)
            stream.read = self._maker.begin(stream.slot, snapshot)
        if stream.read < stream.system_rows:
            rows = stream.rows[stream.read : stream.system_rows]
            stream.read += self._maker.read_block(stream.slot, rows, stream.read)
            if stream.read == stream.system_rows:
                self._voices.put(stream.voice_key, self._maker.snapshot(stream.slot, stream.read))
        elif stream.read < len(stream.rows):
            fork = stream.direction.fork
            rows = stream.rows[stream.read : fork if stream.read < fork else None]
            watch = stream.direction.watch()
            stream.read += self._maker.read_block(stream.slot, rows, stream.read, watch)
            if stream.read == fork:
                self._fork(stream)
        else:
            self._read_twin(stream)
        ended = time.monotonic()
        stream.durations.prefill += ended - started
        if stream.read < len(stream.rows) or stream.direction.twin_unread:
            return False
        # The longer prompt of a guided stream counts: it tells how much of the cache is in use.
        stream.position = max(stream.read, stream.direction.twin_read)
        stream.prefilled = ended
        return True

    def _fork(self, stream: EngineStream) -> None:
        """Gives the undirected twin what both prompts begin with."""
        self._maker.move(stream.slot, stream.slot + 1, stream.read)
        stream.direction.twin_read = stream.read

    def _read_twin(self, stream: EngineStream) -> None:
        direction = stream.direction
        assert direction.twin is not None
        rows, watch = direction.twin[direction.twin_read :], direction.watch(twin=True)
        read = self._maker.read_block(stream.slot + 1, rows, direction.twin_read, watch)
        direction.twin_read += read

    # Ahead.

    def behind(self, streams: Sequence[EngineStream]) -> EngineStream | None:
        """Of streams that speak and have more text, the one to read ahead for, if any.

        Who has the spare slot keeps it while there is a block to read; then who has most to read.
        """
        left = {stream: self._unread(stream) for stream in streams}
        ready = [stream for stream, rows in left.items() if rows > 0]
        if self._holder in ready:
            return self._holder
        return max(ready, key=left.__getitem__, default=None)

    def read_ahead(self, stream: EngineStream) -> None:
        """Reads one block of the next prompt of a stream that is still speaking."""
        started = time.monotonic()
        ahead = self._hold(stream)
        if ahead.read == 0:
            snapshot = self._voices.get(stream.voice_key)
            restored = self._maker.begin(self._maker.spare, snapshot)
            if restored:
                ahead.note(self._rows(stream, 0, restored))
        if self._unread(stream):
            border = stream.system_rows if ahead.read < stream.system_rows else stream.known_rows
            rows = self._rows(stream, ahead.read, min(border, ahead.read + self._maker.block))
            self._maker.read_block(self._maker.spare, rows, ahead.read)
            ahead.note(rows)
        stream.durations.prefill += time.monotonic() - started

    def drop(self, stream: EngineStream) -> None:
        """Forgets what was read ahead for a stream."""
        stream.ahead = None
        if self._holder is stream:
            self._holder = None
            self._maker.scrub(self._maker.spare)  # perhaps its numbers went bad

    def _unread(self, stream: EngineStream) -> int:
        """Rows that may be read ahead now: a whole block, or to the end of the system block."""
        read = 0 if stream.ahead is None else stream.ahead.read
        if stream.known_rows + stream.cap >= self._maker.context:
            return 0  # its past may not fit into the next prompt
        rows = stream.known_rows - read
        return rows if read < stream.system_rows or rows >= self._maker.block else 0

    def _rows(self, stream: EngineStream, start: int, end: int) -> torch.Tensor:
        rows = stream.next_rows(start, end, self._semantic_start)
        return torch.from_numpy(rows).to(self._device)

    def _hold(self, stream: EngineStream) -> ReadAhead:
        """Brings what was read ahead for a stream into the spare slot."""
        holder, spare = self._holder, self._maker.spare
        if stream.ahead is None:
            stream.ahead = ReadAhead()
        if holder is not stream:
            if holder is not None and holder.ahead is not None:
                holder.ahead.snapshot = self._maker.snapshot(spare, holder.ahead.read)
            self._holder = stream
            if stream.ahead.snapshot is not None:
                self._maker.restore(spare, stream.ahead.snapshot)
                stream.ahead.snapshot = None
        return stream.ahead

    def _take_ahead(self, stream: EngineStream) -> int:
        """Puts what was read ahead into the stream's slot, if it fits; returns its rows."""
        ahead, stream.ahead = stream.ahead, None
        held = self._holder is stream
        if held:
            self._holder = None
        if ahead is None or not ahead.read:
            return 0
        assert stream.rows is not None
        if not torch.equal(torch.cat(ahead.blocks), stream.rows[: ahead.read]):
            return 0  # an earlier piece had to give way
        if held:
            self._maker.move(self._maker.spare, stream.slot, ahead.read)
        elif ahead.snapshot is not None:
            self._maker.restore(stream.slot, ahead.snapshot)
        return ahead.read
