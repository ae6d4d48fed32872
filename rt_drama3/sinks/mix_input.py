"""One input stream of a mixer."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from threading import Condition
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rt_drama3.audio.stream_resample import StreamResampler
from rt_drama3.errors import SinkError
from rt_drama3.sinks.pcm_format import Pcm, PcmFormat, with_channels
from rt_drama3.sinks.sink import FADE_MS, Sink

_Samples = NDArray[np.float32]


class Host(Protocol):
    """The mixer, as its inputs see it.

    Attributes:
        sink: where the sound goes.
    """

    sink: Sink

    @property
    def changed(self) -> Condition:
        """Guards the state of the inputs."""

    def enter(self, entry: MixInput) -> None:
        """Adds an input that has samples."""

    def leave(self, entry: MixInput) -> bool:
        """Removes an input; True if the sink holds only its samples, and must be stopped."""

    def plays_with_others(self, entry: MixInput) -> bool:
        """True if an input is being played and others are mixed with it."""


class MixInput:
    """One utterance: some writes, then ``finish`` or ``stop``. Created by ``Mixer.add``.

    Used by one writer at a time, from threads or from an event loop: calls with the suffix
    ``_async`` never block a loop. After a stop, its own or the mixer's, further writes are dropped
    immediately, so a producer needs no special case for it.
    """

    def __init__(self, mixer: Host, format: PcmFormat, rate: int, capacity: int) -> None:
        self._mixer = mixer
        self._format = format
        self._resampler = StreamResampler(format.rate, rate)
        self._rate = rate
        self._capacity = capacity
        self._chunks: deque[_Samples] = deque()
        self.held = 0  # samples waiting to be mixed
        self.started = False
        self._finished = False
        self._stopped = False
        self._played = False
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    @property
    def stopped(self) -> bool:
        """True once it was stopped, by its owner or by stopping the mixer."""
        return self._stopped

    def write(self, pcm: Pcm) -> None:
        """Writes samples; blocks until all of them are taken.

        Raises:
            RequestError: the samples do not match the format.
            SinkError: the input was finished.
        """
        rest = self._converted(pcm)
        with self._mixer.changed:
            while (rest := self._accept(rest)).size:
                self._mixer.changed.wait()

    async def write_async(self, pcm: Pcm) -> None:
        """Like ``write``, on an event loop."""
        rest = self._converted(pcm)
        while True:
            with self._mixer.changed:
                rest = self._accept(rest)
                if not rest.size:
                    return
                waiter = self._waiter()
            await waiter

    def finish(self) -> None:
        """Ends the utterance; what was written will be played. Does not block."""
        if self._finished or self._stopped:
            return
        tail = self._resampler.flush()
        with self._mixer.changed:
            self._finished = True
            if not self._stopped:
                self._hold(tail)
                self._mixer.enter(self)

    def drain(self) -> None:
        """Ends the utterance and waits until it has left the sink's buffer, or is stopped."""
        self.finish()
        with self._mixer.changed:
            while not self._played:
                self._mixer.changed.wait()

    async def drain_async(self) -> None:
        """Like ``drain``, on an event loop."""
        self.finish()
        while True:
            with self._mixer.changed:
                if self._played:
                    return
                waiter = self._waiter()
            await waiter

    def stop(self, fade_ms: float = FADE_MS) -> None:
        """Silences this input and drops what is buffered. Blocks for the fade only if it is alone.

        While other inputs are playing, what the sink holds already (``ahead_ms``) is still played,
        followed by the fade.
        """
        with self._mixer.changed:
            if self._stopped or self._played:
                return
            if self.held and self._mixer.plays_with_others(self):
                self._fade_out(round(self._rate * fade_ms / 1e3))
                return
            alone = self._mixer.leave(self)
        if alone:
            self._mixer.sink.stop(fade_ms)

    # --- called by the mixer, which holds the lock ---

    @property
    def ended(self) -> bool:
        """True if it is finished and everything was taken."""
        return self._finished and not self.held

    def take(self, count: int) -> _Samples:
        """Returns up to ``count`` samples and wakes a writer that waits for room."""
        self.started = True
        taken, missing = [], min(count, self.held)
        self.held -= missing
        while missing:
            chunk = self._chunks.popleft()
            if chunk.size > missing:
                self._chunks.appendleft(chunk[missing:])
                chunk = chunk[:missing]
            taken.append(chunk)
            missing -= chunk.size
        self._wake()
        return np.concatenate(taken) if taken else np.zeros(0, np.float32)

    def abandon(self) -> None:
        """Drops what is held and everything written later."""
        self._stopped = self._played = True
        self._chunks.clear()
        self.held = 0
        self._wake()

    def abandon_rest(self) -> None:
        """Drops what is held and written later, but still waits until the rest was played."""
        self._stopped = self._finished = True
        self._chunks.clear()
        self.held = 0
        self._wake()

    def mark_played(self) -> None:
        """Marks the last sample as having left the sink's buffer."""
        self._played = True
        self._wake()

    # --- inside ---

    def _converted(self, pcm: Pcm) -> _Samples:
        frames = self._format.frames(pcm)
        if self._stopped:
            return np.zeros(0, np.float32)
        if self._finished:
            raise SinkError("This input is finished; add another one for the next utterance.")
        return self._resampler.push(np.ascontiguousarray(with_channels(frames, 1)[:, 0]))

    def _accept(self, samples: _Samples) -> _Samples:
        """Buffers what there is room for and returns the rest."""
        if self._stopped:
            return samples[:0]
        count = min(samples.size, self._capacity - self.held)
        if count > 0:
            self._hold(samples[:count])
            self._mixer.enter(self)
        return samples[:0] if self._stopped else samples[max(0, count) :]

    def _hold(self, samples: _Samples) -> None:
        if samples.size:
            self._chunks.append(samples.copy())  # the caller may reuse its array
            self.held += samples.size

    def _fade_out(self, count: int) -> None:
        """Fades out over the next ``count`` samples and drops the rest."""
        tail = self.take(count)
        self.abandon_rest()
        self._hold(tail * np.linspace(1, 0, tail.size, dtype=np.float32))

    def _waiter(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.append((loop, future))
        return future

    def _wake(self) -> None:
        self._mixer.changed.notify_all()
        waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            with contextlib.suppress(RuntimeError):  # the loop was closed, and its waiters with it
                loop.call_soon_threadsafe(_set, future)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
