"""EngineCore: many streams on one model, turn by turn, without threads of its own.

A turn admits streams to slots (``admission``), reads one prefill chunk where the listeners have
enough audio buffered (``prefill``), and makes one frame for all speaking streams. Prompts are built
(``prompts``) and frames decoded (``delivery``) on executors that are handed in.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace

import numpy as np

from rt_drama3.codec_stream import CodecWorker
from rt_drama3.engine.admission import Admission, counts
from rt_drama3.engine.compiled import CompiledForms
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.delivery import Delivery
from rt_drama3.engine.opening import check_numbers, open_stream
from rt_drama3.engine.prefill import Prefiller
from rt_drama3.engine.prefill_order import PrefillOrder
from rt_drama3.engine.prompts import PromptPreparer
from rt_drama3.engine.scheduling import Costs
from rt_drama3.engine.slots import SlotTable
from rt_drama3.engine.speech import Speech, SpeechRequest
from rt_drama3.engine.step_runner import FrameResult, StepRunner
from rt_drama3.engine.stream import Codes, Phase, Stream
from rt_drama3.engine.voice_cache import VoiceCache
from rt_drama3.errors import DeviceError, Overloaded, RequestError, RtDrama3Error
from rt_drama3.graph_step import FrameStep
from rt_drama3.loading import LoadedModel
from rt_drama3.scenes.inputs import check_guidance, read_references

log = logging.getLogger(__name__)

RESUME = 0.8  # of lead_limit: a paused stream continues below this


class EngineCore:
    """See the module docstring.

    ``open``, ``push``, ``flush``, ``finish`` and ``cancel`` may be called by any thread; everything
    else belongs to the thread that calls ``turn``.

    Args:
        loaded: the checkpoint.
        config: settings.
        step: on the checkpoint's model, see ``make_step``.
        preparing, encoding: run what builds prompts, see ``PromptPreparer``.
        worker: decodes.
        clock: seconds, never going back.

    Attributes:
        costs: measured durations.
        voices: system blocks that were read already.
        forms: of step and decoder.
        runner: the step.
        slots: the holders of its slots.
        admission, prefiller: decide on streams, and read their prompts.
        streams: every open stream by its client's handle; changed under a lock.
        woken: set when there may be work.
        closed: no more streams may be opened.
        failure: the error that ended it for good, if one did.

    Raises:
        ConfigError: the settings do not fit the model or the machine.
        DeviceError: the step cannot run as configured.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        step: FrameStep,
        preparing: Executor,
        encoding: Executor,
        worker: CodecWorker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.costs = Costs()
        self.voices = VoiceCache(config.voice_cache_mb << 20)
        self.forms = CompiledForms(step, loaded.codec, config)
        self.runner = StepRunner(step, config, self.costs, clock)
        self.slots = SlotTable(step, config.slots, self.runner.context)
        self.streams: dict[Speech, Stream] = {}
        self.woken = threading.Event()
        self.closed = False
        self.failure: DeviceError | None = None
        self._loaded, self._config, self._clock = loaded, config, clock
        self._frame_seconds = 1 / loaded.codec.config.frame_rate
        self._lock = threading.RLock()
        self.admission = Admission(
            self.slots, self.runner, self.costs, config, self._frame_seconds, clock
        )
        self.prefiller = Prefiller(
            self.runner, self.voices, loaded.config.semantic_start, loaded.device, clock
        )
        self._prefill_order = PrefillOrder(self.slots, self.prefiller, self.costs, config, clock)
        self._prompts = PromptPreparer(loaded, self.runner.context, preparing, encoding)
        self._delivery = Delivery(
            loaded.codec, config, self.costs, self.slots, self.runner, worker, clock
        )

    # Any thread.

    def open(self, request: SpeechRequest, keep: object = None) -> Speech:
        """Opens a stream and returns immediately.

        Args:
            request: text and settings.
            keep: an object that must live as long as the stream.

        Raises:
            RequestError: the request cannot be spoken.
            Overloaded: at capacity, or the engine was closed.
            DeviceError: the engine failed.
        """
        check_numbers(request)
        request = self.normalize_guidance(request)
        request = replace(request, references=read_references(request.references))
        self._check_open(request)  # before memory is taken for it
        if request.guidance and self._config.slots < 2:
            raise RequestError(
                "guidance needs a second row in the batch, but this engine has one; set "
                "guidance_rows = 1 (or max_streams = 2), or leave guidance out."
            )
        clock, wake = self._clock, self.woken.set
        stream = open_stream(self._loaded, request, self, keep, self.forms.decode, clock(), wake)
        with self._lock:
            self._check_open(request)
            if not request.waits_for_text:
                self.admission.open(stream)
            self.streams[stream.speech] = stream
        self.woken.set()
        return stream.speech

    def normalize_guidance(self, request: SpeechRequest) -> SpeechRequest:
        """Removes guidance, with a warning, if the checkpoint was trained on no directions.

        Raises:
            RequestError: guidance is not a number within its limits.
        """
        if not check_guidance(request.guidance) or self._loaded.prompts.reads_directions:
            return request
        log.warning("this checkpoint was trained on no directions; guidance is ignored")
        return replace(request, guidance=None)

    def push(self, speech: Speech, text: str) -> None:
        """See ``Speech.push_text``."""
        stream = self.streams.get(speech)
        if stream is None:
            raise RequestError("this stream has ended; open a new one.")
        speakable = isinstance(text, str) and stream.text.can_be_spoken_with(text)
        if speakable and not (stream.text.final or stream.cancelled):
            with self._lock:
                self.admission.claim(stream, self.open_streams())
        stream.text.push(text, self._clock())
        self.woken.set()

    def flush(self, speech: Speech) -> None:
        """See ``Speech.flush``."""
        if (stream := self.streams.get(speech)) is not None:
            with self._lock:
                self.admission.begin_turn(stream)
            stream.text.flush()
            self.woken.set()

    def finish(self, speech: Speech) -> None:
        """See ``Speech.finish``."""
        if (stream := self.streams.get(speech)) is not None:
            with self._lock:
                self.admission.begin_turn(stream)
            stream.text.finish()
            self.woken.set()

    def cancel(self, speech: Speech) -> None:
        """See ``Speech.cancel``."""
        if (stream := self.streams.get(speech)) is not None:
            stream.cancel()

    def consumed(self) -> None:
        """A listener took audio: a paused stream may continue."""
        self.woken.set()

    def open_streams(self) -> list[Stream]:
        """The streams that have not ended."""
        with self._lock:
            return list(self.streams.values())

    def new_failure(self) -> DeviceError | None:
        """``failure`` as a new exception, to raise.

        One that is raised again and again would keep the frames of every caller alive.
        """
        return None if self.failure is None else DeviceError(str(self.failure))

    # The thread that calls ``turn``.

    def warm_up(self) -> None:
        """Runs everything once and measures it."""
        self.runner.warm_up()
        self._delivery.measure(self._loaded.codec, self.forms.decode)

    def take_faster_forms(self) -> None:
        """Takes over forms of step and decoder that were compiled meanwhile."""
        if self.forms.update(self.idle):
            self.warm_up()

    @property
    def idle(self) -> bool:
        """Whether no take is in progress, nor one whose next text may be about to come."""
        now = self._clock()
        begun = any(stream.frames and counts(stream, now) for stream in self.open_streams())
        return not begun and not self.slots.taken and self.runner.idle

    def turn(self) -> bool:
        """Does one round of work; false when there was none."""
        streams = self.open_streams()
        for stream in streams:
            self._speak_standing(stream)
            self._update(stream)
        for stream in self.admission.admit([s for s in streams if s.phase is Phase.WAITING]):
            stream.phase = Phase.PREFILL
            self.prefiller.begin(stream)
        worked = self.prefill()
        return self._make_frames() or worked

    def end(self, error: Exception | None = None) -> None:
        """Ends every stream and takes no more: the engine was closed, or failed with an error."""
        if error is None:
            end = DeviceError("the engine was closed.")
        else:
            end = self.failure = DeviceError(f"the engine failed: {error}; restart it.")
        with self._lock:
            self.closed = True
            left = list(self.streams.values())
        for stream in left:  # their slots stay as they are: a device that failed cannot free them
            self._report_end(stream, None if stream.cancelled else end)

    def _check_open(self, request: SpeechRequest) -> None:
        if (failure := self.new_failure()) is not None:
            raise failure
        if self.closed:
            raise Overloaded("the engine is shutting down; use another one.")
        if request.waits_for_text:
            self.admission.check_waiting_for_text(self.open_streams())
        else:
            self.admission.check(self.open_streams(), new=True)

    def _update(self, stream: Stream) -> None:
        """Cancels, starts the next segment, pauses and times out."""
        if stream.cancelled or stream.failure is not None:
            self._end(stream, None if stream.cancelled else stream.failure)
        elif stream.phase is Phase.IDLE:
            self._start_segment(stream)
        elif stream.phase is Phase.SPEAKING:
            self._pace(stream)
        prompt = stream.scene.prepared
        if stream.phase is Phase.PREPARING and prompt is not None and prompt is not stream.prompt:
            stream.prompt, stream.first = prompt, None
            stream.segments.append((prompt.text, stream.frames))
            stream.phase = Phase.WAITING

    def text_pause(self) -> float:
        """Seconds until text that can stand alone is spoken; infinite if there is none."""
        return min(map(self._pause_left, self.open_streams()), default=math.inf)

    def _pause_left(self, stream: Stream) -> float:
        if not (self._config.text_pause_ms and stream.text.stands):
            return math.inf
        return stream.text.pushed + self._config.text_pause_ms / 1000 - self._clock()

    def _speak_standing(self, stream: Stream) -> None:
        if self._pause_left(stream) <= 0:
            with self._lock:
                self.admission.begin_turn(stream)
            with stream.isolated():
                stream.text.speak_standing()

    def _start_segment(self, stream: Stream) -> None:
        # `final` first: text that was pushed before it was set is then seen by `empty`.
        final, empty = stream.text.final, stream.text.empty
        limit = stream.request.max_frames
        if final and empty:
            self._end(stream)
        elif limit is not None and stream.frames + stream.silent_segments >= limit:
            stream.complete = False
            self._end(stream)
        elif not empty:
            stream.busy = True
            if self._scene_is_known(stream):
                stream.phase = Phase.PREPARING
                self._prompts.prepare(stream, here=not self.slots.in_phase(Phase.SPEAKING))
        elif stream.text.take_flushed() or stream.busy:
            stream.busy = False
            self._delivery.report_idle(stream)

    def _scene_is_known(self, stream: Stream) -> bool:
        """Whether the earlier takes are known; opens a stream for one that is text alone."""
        first = stream.first
        if first is None or first.phase is Phase.DONE:
            return True
        if first.speech not in self.streams:
            with self._lock:
                self.admission.open_inner(first, stream)
                self.streams[first.speech] = first
            self.woken.set()
        return False

    def _pace(self, stream: Stream) -> None:
        """Pauses a stream whose listener does not take its audio, ends it after the timeout."""
        now, config = self._clock(), self._config
        unread, limit = stream.unread_seconds(), config.lead_limit
        if stream.paused_since is None:
            if unread > limit:
                stream.paused_since, stream.paused_at = now, unread
                self.runner.step.activate(stream.slot.index, False)
        elif unread <= RESUME * limit:
            stream.paused_since = None
            self.runner.step.activate(stream.slot.index, True)
        elif unread < stream.paused_at:
            stream.paused_since, stream.paused_at = now, unread
        elif now - stream.paused_since > config.lead_timeout and not stream.request.patient:
            self._end(
                stream,
                RequestError(
                    f"the listener took no audio for {config.lead_timeout:g} s (lead_timeout) "
                    f"while {unread:.1f} s were waiting; the stream was ended."
                ),
            )

    def prefill(self) -> bool:
        """Reads a prefill chunk, if every listener has enough audio buffered."""
        chunk = self._prefill_order.next()
        if chunk is None:
            return False
        stream = chunk.stream
        with stream.isolated():
            if chunk.ahead:
                self.prefiller.read_ahead(stream)
            elif self.prefiller.read_chunk(stream):
                self._start_speaking(stream)
        return True

    def _start_speaking(self, stream: Stream) -> None:
        stream.epoch += 1
        stream.phase = Phase.SPEAKING
        self.admission.speaks(stream)
        guidance = stream.guidance if stream.width > 1 else None
        slot, frames = stream.slot.index, stream.frames
        self.runner.step.configure(slot, stream.sampling, stream.seed, frames, guidance)

    def _make_frames(self) -> bool:
        """Makes one frame for every speaking stream that is not paused."""
        speaking: list[Stream] = []
        for stream in self.slots.in_phase(Phase.SPEAKING):
            if stream.cancelled:  # since the turn began, which may have read a chunk meanwhile
                self._end(stream)
            elif stream.paused_since is None:
                speaking.append(stream)
                stream.steps += 1
        # On CUDA a stream that has reached its end makes one frame more, which is dropped.
        context = self.runner.context
        entries = [(s, s.epoch, s.slot.index, min(s.cached_rows, context)) for s in speaking]
        results = self.runner.frame(entries)
        for result in results:
            stream = result.stream
            if stream.phase is Phase.SPEAKING and stream.epoch == result.epoch:
                with stream.isolated():
                    self._take_frame(stream, result)
        return bool(speaking or results)

    def _take_frame(self, stream: Stream, result: FrameResult) -> None:
        assert stream.prompt is not None
        stream.durations.frames += result.seconds
        if not result.finite:
            self.slots.scrub(stream)
            self.voices.drop(stream.prompt.voice_key)
            raise DeviceError(
                f"the model produced NaN or infinite values at frame {stream.frames}; "
                "try dtype float32, and check the checkpoint with `rt-drama3 model info`."
            )
        if stream.cancelled:
            return
        if result.main == self._loaded.config.eos:
            # Semantic code 0 right before eos decodes to a click: the held frame is dropped.
            self._finish_segment(stream, ended=True)
            return
        if stream.held is not None:
            held, stream.held = stream.held, None
            self._add_frame(stream, *held)
        if result.codes[0] == 0:
            stream.held = (result.codes, result.sampled)
        else:
            self._add_frame(stream, result.codes, result.sampled)
        if len(stream.codes) + (stream.held is not None) >= stream.prompt.cap:
            if stream.held is not None:
                self._add_frame(stream, *stream.held)
            self._finish_segment(stream, ended=False)

    def _add_frame(self, stream: Stream, codes: Codes, sampled: float) -> None:
        stream.codes.append(codes)
        stream.frames += 1
        self._delivery.add(stream, codes, sampled)

    def _finish_segment(self, stream: Stream, ended: bool) -> None:
        """Closes the present segment; the next one, if any, is prepared at the next turn."""
        stream.held = stream.paused_since = None
        stream.steps = 0
        stream.complete &= ended
        self._delivery.decode_rest(stream)
        if stream.codes:
            stream.spoken.append((stream.segments[-1][0], np.stack(stream.codes, 1)))
            stream.codes = []
        else:
            stream.silent_segments += 1
        now = self._clock()
        with self._lock:  # text may come just now
            self.admission.want(stream, now + stream.playout.unheard(now))
        if stream.text.empty:
            self.slots.free(stream)
        else:  # a stream that speaks does not queue again for its next segment
            self.runner.step.release(stream.slot.index)
        stream.phase = Phase.IDLE

    def _end(self, stream: Stream, error: RtDrama3Error | None = None) -> None:
        """Frees the slots of a stream and ends it after its last samples."""
        if stream.phase is Phase.DONE:
            return
        # First what the device may refuse: the stream is then among those that ``end`` ends.
        if stream.phase is Phase.PREFILL:
            self.slots.scrub(stream)  # its numbers were not checked yet
        self.slots.free(stream)
        self.prefiller.drop(stream)
        self._report_end(stream, error)

    def _report_end(self, stream: Stream, error: RtDrama3Error | None) -> None:
        stream.phase = Phase.DONE
        with self._lock:
            self.streams.pop(stream.speech, None)
        if stream.first is not None:
            stream.first.cancel()
        config = self._loaded.codec.config
        summary = stream.summary(self._loaded.config.num_codebooks, config.sample_rate)
        self._delivery.finish(stream, summary, error)
