"""LocalSink: plays clients' streams through a speaker or microphone of the server's machine.

A device plays in realtime while speech is generated faster, and no client may wait for it. So
unplayed audio is kept here, up to a limit; a stream that would exceed it is faded out there and the
rest of it dropped, with a line in the log. All methods belong to one event loop, and none of them
waits for the device.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
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
# Audio ahead in the device. In a mix, a cancel cannot take it back; in a queue, it can.
AHEAD_MS = {"mix": 40.0, "queue": 80.0}
START_SECONDS = 0.12  # buffered before an utterance starts: its first frames come one by one
RATE = 44_100  # of the mixer: the codec's, which avoids a second conversion
Samples = npt.NDArray[np.float32]


@dataclass(eq=False)
class _Utterance:
    """An utterance that was not played to its end yet."""

    rate: int
    waiting: deque[Samples] = field(default_factory=deque)
    ended: bool = False
    cut: bool = False  # the rest of it is dropped
    received: float = 0.0  # seconds
    more: asyncio.Event = field(default_factory=asyncio.Event)
    entry: MixInput | None = None


class LocalSink:
    """A sink that every client's channel plays into.

    Args:
        sink: opened and closed by this object.
        mode: ``mix``: clients play concurrently. ``queue``: one utterance after the other.
        seconds: of audio that may wait to be played, for all clients together.
        on_cut: called when an utterance is cut because that limit is reached.
    """

    def __init__(
        self, sink: Sink, mode: MixMode, seconds: float, on_cut: Callable[[], None] | None = None
    ) -> None:
        self.name = sink.name
        self.seconds = seconds
        self.waiting = 0.0  # seconds to be played
        self.on_cut = on_cut
        self._broken = False
        self._mixer = Mixer(sink, mode, rate=RATE, ahead_ms=AHEAD_MS[mode], failed=self._failed)
        self._stopper = ThreadPoolExecutor(1, thread_name_prefix="rt-drama3-mute")
        self._channels: set[SinkChannel] = set()  # those with something to play
        self._quiet = asyncio.Event()
        self._quiet.set()

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
        """Whether anything plays or waits to be played."""
        return bool(self._channels)

    async def play_out(self, seconds: float) -> None:
        """Waits until everything was played, or for ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet.wait()

    async def stop(self) -> None:
        """Fades out; the rest of running utterances is dropped."""
        for channel in list(self._channels):
            channel.drop()
        await asyncio.get_running_loop().run_in_executor(self._stopper, self._mixer.stop, FADE_MS)

    # For channels.

    def began(self, channel: SinkChannel) -> None:
        """A channel has something to play."""
        self._channels.add(channel)
        self._quiet.clear()

    def finished(self, channel: SinkChannel) -> None:
        """A channel has nothing left."""
        self._channels.discard(channel)
        if not self._channels:
            self._quiet.set()

    def entry(self, rate: int) -> MixInput:
        """Returns a mixer input for one utterance.

        Raises:
            SinkError: the mixer is closed.
        """
        return self._mixer.add(PcmFormat(rate, encoding="f32le"))

    def silence(self, entry: MixInput) -> None:
        """Fades one utterance out; a thread waits for the device."""
        with contextlib.suppress(RuntimeError):  # the sink was closed
            self._stopper.submit(entry.stop, FADE_MS)

    def works(self) -> None:
        """Something was written: logs that the device works again, if it failed before."""
        if self._broken and self._mixer.error is None:
            self._broken = False
            log.info("local sink plays again", extra={"fields": {"sink": self.name}})

    def _failed(self, error: SinkError) -> None:
        self._broken = True  # the mixer has logged the error


class SinkChannel:
    """One client's utterances, played one after the other in either mode.

    Args:
        sink: plays them.
    """

    def __init__(self, sink: LocalSink) -> None:
        self._sink = sink
        self._utterances: deque[_Utterance] = deque()
        self._player: asyncio.Task[None] | None = None

    def begin(self, rate: int) -> None:
        """Starts an utterance; the previous one has ended."""
        self._utterances.append(_Utterance(rate))
        self._sink.began(self)
        if self._player is None or self._player.done():
            self._player = asyncio.create_task(self._play())

    def push(self, pcm: Samples) -> None:
        """Adds samples of the current utterance."""
        if not self._utterances:
            return  # it was dropped
        utterance, seconds = self._utterances[-1], len(pcm) / self._utterances[-1].rate
        if utterance.ended or utterance.cut:
            return
        if self._sink.waiting + seconds > self._sink.seconds:
            utterance.cut = True
            pcm = _faded(pcm, utterance.rate)
            seconds = len(pcm) / utterance.rate
            log.warning(
                "local sink too far behind",
                extra={"fields": {"sink": self._sink.name, "seconds": round(self._sink.waiting)}},
            )
            if self._sink.on_cut is not None:
                self._sink.on_cut()
        utterance.waiting.append(pcm)
        utterance.received += seconds
        self._sink.waiting += seconds
        utterance.more.set()

    def end(self) -> None:
        """The current utterance is complete."""
        if self._utterances:
            self._utterances[-1].ended = True
            self._utterances[-1].more.set()

    def cancel(self) -> None:
        """Fades what plays of this client, and drops the rest."""
        entries = [utterance.entry for utterance in self._utterances if utterance.entry is not None]
        self.drop()
        for entry in entries:
            self._sink.silence(entry)

    def drop(self) -> None:
        """Drops all that waits, without fading what plays."""
        for utterance in self._utterances:
            while utterance.waiting:
                self._took(utterance, utterance.waiting.popleft())
        self._utterances.clear()
        if self._player is not None:
            self._player.cancel()
            self._player = None
        self._sink.finished(self)

    async def _play(self) -> None:
        try:
            while self._utterances:
                await self._play_one(self._utterances[0])
                self._utterances.popleft()
        except RtDrama3Error as error:
            log.warning("local sink: %s", error)
            self.drop()
        else:
            self._sink.finished(self)

    async def _play_one(self, utterance: _Utterance) -> None:
        entry = utterance.entry = self._sink.entry(utterance.rate)
        while utterance.received < START_SECONDS and not (utterance.ended or utterance.cut):
            utterance.more.clear()
            await utterance.more.wait()
        while True:
            while utterance.waiting:
                pcm = utterance.waiting.popleft()
                try:
                    await entry.write_async(pcm)
                finally:
                    self._took(utterance, pcm)
                self._sink.works()
            if utterance.ended or utterance.cut:
                break
            utterance.more.clear()
            await utterance.more.wait()
        await entry.drain_async()

    def _took(self, utterance: _Utterance, pcm: Samples) -> None:
        self._sink.waiting = max(0.0, self._sink.waiting - len(pcm) / utterance.rate)


def _faded(pcm: Samples, rate: int) -> Samples:
    """The first samples, fading out."""
    length = min(len(pcm), round(FADE_MS * rate / 1e3))
    return pcm[:length] * np.linspace(1, 0, length, dtype=np.float32)
