"""DeviceLoop: the thread that owns the model, and what it does turn by turn.

It admits streams to slots (``engine_admission``), reads prompts block by block where the listeners'
leads allow (``prompt_reader``), and makes one frame for all speaking streams at a time. Beside it
prompts are built (``engine_prompts``) and frames decoded (``engine_delivery``). It holds nothing of
its ``Engine``: an engine that nobody holds any more ends its loop.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref

import numpy as np
import torch

from rt_drama3.engine.admission import Admission
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.delivery import Delivery
from rt_drama3.engine.prefill import PromptReader
from rt_drama3.engine.prompts import PromptDesk
from rt_drama3.engine.quota import check_place, check_silent, has_place
from rt_drama3.engine.scheduling import Costs, may_prefill
from rt_drama3.engine.slots import SlotTable
from rt_drama3.engine.speech import Speech, SpeechRequest, check_process
from rt_drama3.engine.step_runner import FrameMaker, FrameResult
from rt_drama3.engine.stream import Codes, EngineStream, Phase
from rt_drama3.engine.voice_cache import VoiceCache
from rt_drama3.errors import DeviceError, Overloaded, RequestError, RtDrama3Error
from rt_drama3.loading import LoadedModel
from rt_drama3.system.threads import compute_threads, use_device, use_threads

log = logging.getLogger(__name__)

_running: weakref.WeakSet[DeviceLoop] = weakref.WeakSet()

RESUME = 0.8  # of the lead limit: a paused stream goes on below this
# Seconds after which a prompt block is read whatever it costs. Listeners that stay without the lead
# for a block so long hear an overloaded machine already; the newcomer would wait for their end.
PATIENCE = 1.0
IDLE_WAIT = 0.5  # seconds between looks at timeouts and background builds while nothing happens


class DeviceLoop:
    """See the module docstring. Fields belong to its thread; the methods say who may call them.

    Args:
        loaded: the checkpoint.
        config: settings.
        costs: where measured durations go.
        voices: system blocks that were read already.

    Attributes:
        maker: the step.
        streams: every open stream by its client's handle; changed under a lock.
        slots: who holds which.
        warm: the first step has run, or never will (see ``failure``).
        failure: what the thread died of.

    Raises:
        ConfigError: the settings do not fit the model or the machine.
        DeviceError: the step cannot be made to run as configured.
    """

    def __init__(
        self, loaded: LoadedModel, config: EngineConfig, costs: Costs, voices: VoiceCache
    ) -> None:
        self.maker = FrameMaker(loaded.model, loaded.codec, config, costs)
        self.streams: dict[Speech, EngineStream] = {}
        self.slots = SlotTable(self.maker, config.slots)
        self.warm = threading.Event()
        self.failure: DeviceError | None = None
        self.wake = threading.Event()
        self._config, self._costs, self._voices = config, costs, voices
        self._model, self._codec = loaded.config, loaded.codec.config
        self._frame_seconds = 1 / loaded.codec.config.frame_rate
        self._admission = Admission(self.slots, self.maker, costs, config, self._frame_seconds)
        self._threads, self._device = loaded.threads, loaded.device
        self._lock = threading.RLock()
        self._closing = False
        self._last_read = 0.0
        self._pid = os.getpid()
        self._reader = PromptReader(self.maker, voices, self._model.semantic_start, self._device)
        with compute_threads(None):
            self._desk = PromptDesk(loaded, self.maker.context)
            self._delivery = Delivery(
                loaded.codec,
                config,
                costs,
                speaking=lambda: self.slots.in_phase(Phase.SPEAKING),
                step_seconds=lambda: costs.step_seconds(self.maker.last_batch),
            )
            self._begun = threading.Event()
            self._thread = threading.Thread(target=self._main, name="rt-drama3-engine", daemon=True)
            self._thread.start()
            self._begun.wait()
        _running.add(self)

    # Any thread.

    def check_process(self) -> None:
        """Refuses in a process that was forked from the one that the threads are in.

        Raises:
            DeviceError: this is such a process.
        """
        check_process(self._pid)

    def check_open(self, request: SpeechRequest) -> None:
        """Refuses when one more stream, for this request, would be too many.

        Raises:
            Overloaded: too many streams are open already, or the loop was closed.
            DeviceError: the loop failed.
        """
        self.check_process()
        if (failure := self.new_failure()) is not None:
            raise failure
        if self._closing:
            raise Overloaded("the engine is shutting down; use another one.")
        now = time.monotonic()
        if request.silent:
            check_silent(self.open_streams(), self._config, now)
        else:
            check_place(self.open_streams(), self._config, now, new=True)

    def add(self, stream: EngineStream) -> None:
        """Takes a new stream in; raises as ``check_open`` does."""
        with self._lock:
            self.check_open(stream.request)
            if not stream.request.silent:
                stream.wanted = stream.asked = time.monotonic()
            self.streams[stream.speech] = stream
        self.wake.set()

    def claim_place(self, stream: EngineStream) -> None:
        """Begins the next turn of a silent stream: text for it is at hand.

        Raises:
            Overloaded: too many speak or wait to already.
        """
        with self._lock:
            now = time.monotonic()
            if not has_place(stream, now):
                check_place(self.open_streams(), self._config, now)
            self.begin_turn(stream)
            stream.wanted = max(stream.wanted, now)

    def begin_turn(self, stream: EngineStream) -> None:
        """As ``claim_place`` for text that was taken already, and so is refused no more."""
        with self._lock:
            now = time.monotonic()
            if not has_place(stream, now):
                stream.asked, stream.fresh = now, True

    def open_streams(self) -> list[EngineStream]:
        """The streams that have not ended."""
        with self._lock:
            return list(self.streams.values())

    def close(self) -> None:
        """Cancels what runs and ends every thread; calling it again does nothing."""
        if os.getpid() != self._pid:
            return  # they are not in this process
        self._closing = True
        self.wake.set()
        self._thread.join()
        self._desk.close()

    def let_go(self) -> None:
        """Ends as ``close`` does, but soon. For finalizers: takes no lock, waits for nothing."""
        self._closing = True

    # The device thread.

    def _main(self) -> None:
        use_threads(self._threads)
        self._begun.set()
        self._run()
        self._desk.close(wait=False)
        self._delivery.close()

    def new_failure(self) -> DeviceError | None:
        """``failure`` as an exception of the caller's own, to raise.

        One that is raised again and again keeps the frames of all who raised it alive.
        """
        return None if self.failure is None else DeviceError(str(self.failure))

    def _run(self) -> None:
        try:
            use_device(self._device)
            with torch.inference_mode():
                self.maker.warm_up()
                self.warm.set()
                looked = 0.0
                while not self._closing:
                    if not self._turn():
                        self.wake.wait(IDLE_WAIT)
                    self.wake.clear()
                    if time.monotonic() - looked > IDLE_WAIT:
                        if self.maker.look_for_faster_step(self._idle()):
                            self.maker.warm_up()
                        looked = time.monotonic()
        except Exception as error:
            log.error("the engine failed", exc_info=error)
            end = self.failure = DeviceError(f"the engine failed: {error}; restart it.")
        else:
            end = DeviceError("the engine was closed.")
        with self._lock:
            self._closing = True
            left = list(self.streams.values())
        for stream in left:  # their slots stay as they are: a device that failed cannot free them
            self._tell_end(stream, None if stream.cancelled else end)
        self.warm.set()

    def _turn(self) -> bool:
        """One round of work; false when there was none."""
        streams = self.open_streams()
        now = time.monotonic()
        for stream in streams:
            self._look_after(stream, now)
        self._admission.admit([s for s in streams if s.phase is Phase.WAITING])
        worked = self._read_prompt()
        return self._make_frames() or worked

    def _idle(self) -> bool:
        """Whether no take is under way, also none whose next text may be on its way."""
        now = time.monotonic()
        begun = any(stream.frames and has_place(stream, now) for stream in self.open_streams())
        return not begun and not any(self.slots) and self.maker.idle

    def _look_after(self, stream: EngineStream, now: float) -> None:
        """Cancels, starts the next piece, pauses and times out."""
        if stream.cancelled or stream.failure is not None:
            self._end(stream, None if stream.cancelled else stream.failure)
        elif stream.phase is Phase.IDLE:
            # `final` first: a piece pushed before it was set is then seen by `empty`.
            final, empty = stream.text.final, stream.text.empty()
            limit = stream.request.max_frames
            if final and empty:
                self._end(stream)
            elif limit is not None and stream.frames >= limit:
                stream.complete = False
                self._end(stream)
            elif not empty:
                stream.busy = True
                if self._scene_is_set(stream):
                    self._desk.prepare(stream, alone=not self.slots.in_phase(Phase.SPEAKING))
            elif stream.text.take_flushed() or stream.busy:
                stream.busy = False
                self._delivery.idle(stream)
        elif stream.phase is Phase.SPEAKING:
            self._pace(stream, now)

    def _scene_is_set(self, stream: EngineStream) -> bool:
        """Whether the earlier takes are known; has one spoken that came as text alone."""
        first = stream.direction.first
        if first is None:
            return True
        if first.phase is Phase.DONE:
            stream.voice = first.voice
            stream.attempt(lambda stream: stream.direction.adopt())
            return stream.failure is None
        if first.speech not in self.streams:
            first.asked = stream.asked
            with self._lock:
                self.streams[first.speech] = first
            self.wake.set()
        return False

    def _pace(self, stream: EngineStream, now: float) -> None:
        """Pauses a stream whose listener does not take its audio, ends it after the timeout."""
        untaken, limit = stream.untaken(self._frame_seconds), self._config.lead_limit
        if stream.paused_since is None:
            if untaken > limit:
                stream.paused_since, stream.paused_at = now, untaken
                self.maker.activate(stream.slot, False)
        elif untaken <= RESUME * limit:
            stream.paused_since = None
            self.maker.activate(stream.slot, True)
        elif untaken < stream.paused_at:
            stream.paused_since, stream.paused_at = now, untaken
        elif now - stream.paused_since > self._config.lead_timeout:
            self._end(
                stream,
                RequestError(
                    f"the listener took no audio for {self._config.lead_timeout:g} s "
                    f"(lead_timeout) while {untaken:.1f} s were waiting; the stream was ended."
                ),
            )

    def _read_prompt(self) -> bool:
        """Reads a prompt block, as far as others allow it.

        Who already plays goes first, and of those who runs dry first; then who waits longest. When
        nobody waits, the next prompt of somebody who speaks is read ahead.
        """
        now = time.monotonic()
        reading = self.slots.in_phase(Phase.PREFILL)
        talking = self.slots.in_phase(Phase.SPEAKING)
        ahead = None
        if not reading:
            ahead = self._reader.behind([s for s in talking if not s.text.empty()])
            if ahead is None:
                return False
        speaking = [s for s in talking if s.paused_since is None]
        leads = [s.lead(now, self._frame_seconds) for s in speaking]
        rows = sum(s.direction.width for s in speaking)
        step = self._costs.step_seconds(rows) if rows else 0.0
        decode = self._costs.decode_seconds(1)
        if ahead is not None and not self._config.codec_async:
            decode *= len(speaking)  # it is not urgent: one's audio may come behind everybody's
        begun = min((s.prefill_started for s in reading), default=now)
        patient = now - max(self._last_read, begun) < PATIENCE
        if not may_prefill(leads, self._costs.block.or_else(0.0), step, decode) and patient:
            return False
        self._last_read = now

        def urgency(stream: EngineStream) -> tuple[bool, float]:
            if stream.fresh:
                return True, stream.prefill_started
            return False, stream.lead(now, self._frame_seconds)

        if ahead is not None:
            ahead.attempt(self._reader.read_ahead)
        else:
            min(reading, key=urgency).attempt(self._read_block)
        return True

    def _read_block(self, stream: EngineStream) -> None:
        if self._reader.read_block(stream):
            stream.epoch += 1
            stream.phase, stream.fresh = Phase.SPEAKING, False
            guidance = None if stream.direction.twin is None else stream.direction.guidance
            self.maker.start(stream.slot, stream.sampling, stream.seed, stream.frames, guidance)

    def _make_frames(self) -> bool:
        """One frame for every speaking stream that is not paused."""
        speaking = [s for s in self.slots.in_phase(Phase.SPEAKING) if s.paused_since is None]
        if speaking:
            for stream in speaking:
                stream.position += 1
        # On CUDA a stream that has reached its end makes one frame more, which is dropped.
        context = self.maker.context
        entries = [(s, s.epoch, s.slot, min(s.position, context)) for s in speaking]
        results = self.maker.frame(entries)
        for result in results:
            if result.stream.phase is Phase.SPEAKING and result.stream.epoch == result.epoch:
                self._guard_frame(result)
        return bool(speaking or results)

    def _guard_frame(self, result: FrameResult) -> None:
        result.stream.attempt(lambda stream: self._take_frame(stream, result))

    def _take_frame(self, stream: EngineStream, result: FrameResult) -> None:
        stream.durations.frames += result.seconds
        if not result.finite:
            self.slots.scrub(stream)
            self._voices.drop(stream.voice_key)
            raise DeviceError(
                f"the model produced NaN or infinite values at frame {stream.frames}; "
                "try dtype float32, and check the checkpoint with `rt-drama3 model info`."
            )
        if stream.cancelled:
            return
        if result.main == self._model.eos:
            # Semantic code 0 right before eos decodes to a click: the held frame is dropped.
            self._finish_piece(stream, ended=True)
            return
        if stream.held is not None:
            codes, sampled = stream.held
            stream.held = None
            self._add_frame(stream, codes, sampled)
        if result.codes[0] == 0:
            stream.held = (result.codes, result.sampled)
        else:
            self._add_frame(stream, result.codes, result.sampled)
        if len(stream.piece_frames) + (stream.held is not None) >= stream.cap:
            if stream.held is not None:
                self._add_frame(stream, *stream.held)
            self._finish_piece(stream, ended=False)

    def _add_frame(self, stream: EngineStream, codes: Codes, sampled: float) -> None:
        stream.piece_frames.append(codes)
        stream.frames += 1
        self._delivery.frame(stream, codes, sampled)

    def _finish_piece(self, stream: EngineStream, ended: bool) -> None:
        """Closes the present piece; the next one, if any, is prepared at the next turn."""
        stream.held = stream.paused_since = None
        stream.complete &= ended
        self._delivery.flush(stream)
        if stream.piece_frames:
            text = stream.segments[-1][0]
            stream.spoken.append((text, np.stack(stream.piece_frames, 1)))
            stream.piece_frames = []
        now = time.monotonic()
        with self._lock:  # text may come just now
            heard = now + stream.unheard(now, self._frame_seconds)
            stream.wanted = max(stream.wanted, heard)
            stream.rested = now
        if stream.text.empty():
            self.slots.free(stream)
        else:  # who speaks does not queue again for its next piece
            self.maker.release(stream.slot)
        stream.phase = Phase.IDLE

    def _end(self, stream: EngineStream, error: RtDrama3Error | None = None) -> None:
        """Ends a stream: its slot is free now, its end is told after its last samples."""
        if stream.phase is Phase.DONE:
            return
        # First what the device may refuse: then the stream is among those that are told of it.
        if stream.phase is Phase.PREFILL and stream.slot >= 0:
            self.slots.scrub(stream)  # nobody has looked at its numbers yet
        self.slots.free(stream)
        self._reader.drop(stream)
        self._tell_end(stream, error)

    def _tell_end(self, stream: EngineStream, error: RtDrama3Error | None) -> None:
        stream.phase = Phase.DONE
        with self._lock:
            self.streams.pop(stream.speech, None)
        if stream.direction.first is not None:
            stream.direction.first.cancelled = True
            self.wake.set()
        summary = stream.summary(self._model.num_codebooks, self._codec.sample_rate)
        self._delivery.finish(stream, summary, error)


def _end_all() -> None:
    """Threads that are inside torch when the interpreter goes down would abort the process."""
    for loop in list(_running):
        loop.close()


atexit.register(_end_all)
