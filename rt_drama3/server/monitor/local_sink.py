"""LocalSink: what clients' streams speak, through a speaker or microphone of the server's machine.

A device plays in realtime while speech is made faster, and no client may wait for it. So what has
not been played is kept here, up to a bound; a stream that would exceed it is faded out there and
its rest left out, with a line in the log. All methods are for one event loop, and none of them
waits for the device.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rt_drama3.errors import RtDrama3Error, SinkError
from rt_drama3.sinks import Mixer, MixInput, PcmFormat, Sink
from rt_drama3.sinks.mixer import MixMode

log = logging.getLogger("rt_drama3.server")

FADE_MS = 20.0  # of speech that is cut off
# Sound that the device holds. In a mix it is what a cancel cannot take back; in a queue it can.
AHEAD_MS = {"mix": 40.0, "queue": 80.0}
LEAD_SECONDS = 0.12  # collected before an utterance starts: its first frames come one by one
RATE = 44_100  # of the mixer: the codec's, so that nothing is converted twice
Samples = npt.NDArray[np.float32]


@dataclass(eq=False)
class _Piece:
    """One utterance that has not been played to its end."""

    rate: int
    waiting: deque[Samples] = field(default_factory=deque)
    ended: bool = False
    cut: bool = False  # nothing more of it is taken
    came: float = 0.0  # seconds so far
    more: asyncio.Event = field(default_factory=asyncio.Event)
    entry: MixInput | None = None


class LocalSink:
    """A sink that every client's lane plays into.

    Args:
        sink: opened and closed by this object.
        mode: ``mix``: clients sound at the same time. ``queue``: one utterance after the other.
        seconds: of sound that may wait to be played, of all clients together.
        on_cut: called when an utterance is cut for want of room.
    """

    def __init__(
        self, sink: Sink, mode: MixMode, seconds: float, on_cut: Callable[[], None] | None = None
    ) -> None:
        self.name = sink.name
        self.seconds = seconds
        self.waiting = 0.0  # seconds that wait here
        self.on_cut = on_cut
        self._broken = False
        self._mixer = Mixer(sink, mode, rate=RATE, ahead_ms=AHEAD_MS[mode], failed=self._failed)
        self._stopper = ThreadPoolExecutor(1, thread_name_prefix="rt-drama3-hush")
        self._lanes: set[SinkLane] = set()  # those that have something to play

    def open(self) -> None:
        """Opens the device; not on an event loop.

        Raises:
            SinkError: it cannot be opened.
        """
        self._mixer.open()
        log.info("local sink open", extra={"fields": {"sink": self.name, "mode": self._mixer.mode}})

    def close(self) -> None:
        """Closes the device; not on an event loop."""
        self._stopper.shutdown(wait=True)
        with contextlib.suppress(SinkError):
            self._mixer.close()

    @property
    def playing(self) -> bool:
        """Whether anything sounds or waits to."""
        return bool(self._lanes)

    async def play_out(self, seconds: float) -> None:
        """Waits until nothing sounds any more, or so long."""
        deadline = time.monotonic() + seconds
        while self._lanes and time.monotonic() < deadline:  # noqa: ASYNC110 - a set has no event
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Is quiet now, with a fade; what running utterances still say is not heard."""
        for lane in list(self._lanes):
            lane.drop()
        await asyncio.get_running_loop().run_in_executor(self._stopper, self._mixer.stop, FADE_MS)

    # For lanes.

    def began(self, lane: SinkLane) -> None:
        """A lane has something to play."""
        self._lanes.add(lane)

    def finished(self, lane: SinkLane) -> None:
        """A lane has nothing left."""
        self._lanes.discard(lane)

    def entry(self, rate: int) -> MixInput:
        """An input for one utterance.

        Raises:
            SinkError: the mixer is closed.
        """
        return self._mixer.add(PcmFormat(rate, encoding="f32le"))

    def silence(self, entry: MixInput) -> None:
        """Fades one utterance out; the wait for the device is a thread's."""
        with contextlib.suppress(RuntimeError):  # closed: everything was
            self._stopper.submit(entry.stop, FADE_MS)

    def works(self) -> None:
        """Something was written: tells when the device is back."""
        if self._broken and self._mixer.error is None:
            self._broken = False
            log.info("local sink plays again", extra={"fields": {"sink": self.name}})

    def _failed(self, error: SinkError) -> None:
        self._broken = True  # the mixer has written the error into the log


class SinkLane:
    """What one client says: its utterances sound one after the other, whatever the mode.

    Args:
        sink: that plays them.
    """

    def __init__(self, sink: LocalSink) -> None:
        self._sink = sink
        self._pieces: deque[_Piece] = deque()
        self._player: asyncio.Task[None] | None = None

    def begin(self, rate: int) -> None:
        """An utterance begins; the one before has ended."""
        self._pieces.append(_Piece(rate))
        self._sink.began(self)
        if self._player is None or self._player.done():
            self._player = asyncio.create_task(self._play())

    def push(self, pcm: Samples) -> None:
        """Its next samples."""
        if not self._pieces:
            return  # dropped meanwhile
        piece, seconds = self._pieces[-1], len(pcm) / self._pieces[-1].rate
        if piece.ended or piece.cut:
            return
        if self._sink.waiting + seconds > self._sink.seconds:
            piece.cut = True
            pcm = _faded(pcm, piece.rate)
            seconds = len(pcm) / piece.rate
            log.warning(
                "local sink too far behind",
                extra={"fields": {"sink": self._sink.name, "seconds": round(self._sink.waiting)}},
            )
            if self._sink.on_cut is not None:
                self._sink.on_cut()
        piece.waiting.append(pcm)
        piece.came += seconds
        self._sink.waiting += seconds
        piece.more.set()

    def end(self) -> None:
        """The utterance is complete."""
        if self._pieces:
            self._pieces[-1].ended = True
            self._pieces[-1].more.set()

    def cancel(self) -> None:
        """Fades what sounds of this client, and drops the rest."""
        entries = [piece.entry for piece in self._pieces if piece.entry is not None]
        self.drop()
        for entry in entries:
            self._sink.silence(entry)

    def drop(self) -> None:
        """Drops all that waits, whoever fades what sounds."""
        for piece in self._pieces:
            while piece.waiting:
                self._took(piece, piece.waiting.popleft())
        self._pieces.clear()
        if self._player is not None:
            self._player.cancel()
            self._player = None
        self._sink.finished(self)

    async def _play(self) -> None:
        try:
            while self._pieces:
                await self._play_one(self._pieces[0])
                self._pieces.popleft()
        except RtDrama3Error as error:
            log.warning("local sink: %s", error)
            self.drop()
        else:
            self._sink.finished(self)

    async def _play_one(self, piece: _Piece) -> None:
        entry = piece.entry = self._sink.entry(piece.rate)
        while piece.came < LEAD_SECONDS and not (piece.ended or piece.cut):
            piece.more.clear()
            await piece.more.wait()
        while True:
            while piece.waiting:
                pcm = piece.waiting.popleft()
                try:
                    await entry.write_async(pcm)
                finally:
                    self._took(piece, pcm)
                self._sink.works()
            if piece.ended or piece.cut:
                break
            piece.more.clear()
            await piece.more.wait()
        await entry.drain_async()

    def _took(self, piece: _Piece, pcm: Samples) -> None:
        self._sink.waiting = max(0.0, self._sink.waiting - len(pcm) / piece.rate)


def _faded(pcm: Samples, rate: int) -> Samples:
    """The beginning of a piece, fading out."""
    length = min(len(pcm), round(FADE_MS * rate / 1e3))
    return pcm[:length] * np.linspace(1, 0, length, dtype=np.float32)
