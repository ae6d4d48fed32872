"""Engine: many streams on one model, scheduled so that nobody stutters who need not.

One device thread owns the model: it admits streams to slots, reads prompts block by block where the
listeners' leads allow, and makes one frame for all speaking streams at a time. Prompts are built
and references encoded on a preparing thread, frames decoded on the codec's (``codec_stream``). The
decisions are in ``scheduling``; what a client holds is in ``speech``.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import torch

from rt_drama3.codec_stream import CodecStream, CodecWorker, FrameGroup
from rt_drama3.config import resolve_sampling
from rt_drama3.engine_config import EngineConfig
from rt_drama3.engine_stream import Codes, EngineStream, Phase
from rt_drama3.errors import DeviceError, Overloaded, RequestError, RtDrama3Error
from rt_drama3.frame_maker import FrameMaker, FrameResult
from rt_drama3.prompt import Prompt
from rt_drama3.scheduling import Costs, Estimate, group_size, load_with, may_prefill
from rt_drama3.speech import AudioChunk, Speech, SpeechRequest, Stamps
from rt_drama3.text import frame_cap
from rt_drama3.voice_cache import VoiceCache, voice_key

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3

log = logging.getLogger(__name__)

MAX_PROMPT_ROWS = 8192
RESUME = 0.8  # of the lead limit: a paused stream goes on below this
IDLE_WAIT = 0.5  # seconds between looks at timeouts and background builds while nothing happens


class Engine:
    """Speaks many requests at once on one model.

    Args:
        drama: the loaded checkpoint.
        config: settings.

    Raises:
        ConfigError: the settings do not fit the model or the machine.
        DeviceError: the step cannot be made to run as configured.
    """

    def __init__(self, drama: Drama3, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig()
        self._drama = drama
        self._codec = drama.codec
        self._frame_seconds = 1 / drama.codec.config.frame_rate
        self.costs = Costs()
        self._maker = FrameMaker(drama.model, drama.codec, self.config, self.costs)
        self.voices = VoiceCache(self.config.voice_cache_mb << 20)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._streams: dict[Speech, EngineStream] = {}
        self._slots: list[EngineStream | None] = [None] * self.config.slots
        self._closing = False
        self._failure: DeviceError | None = None
        self._worker = CodecWorker(drama.model.device, self.config.codec_async)
        # References take seconds to encode; the next piece of a running stream does not wait.
        self._preparing = ThreadPoolExecutor(1, thread_name_prefix="rt-drama3-prepare")
        self._preparing.submit(int)  # starts its thread now, not under a request
        self._encoding = ThreadPoolExecutor(1, thread_name_prefix="rt-drama3-encode")
        self._thread = threading.Thread(target=self._run, name="rt-drama3-engine", daemon=True)
        self._warm = threading.Event()
        # Threads that are inside torch when the interpreter goes down would abort the process.
        self._at_exit = weakref.finalize(self, _close_quietly, weakref.ref(self))
        self._thread.start()

    # Public; thread-safe.

    def open(self, request: SpeechRequest) -> Speech:
        """Starts a stream and returns at once.

        Raises:
            RequestError: the request cannot be spoken.
            Overloaded: too many streams wait already, or the engine was closed.
            DeviceError: the engine failed.
        """
        _check_shapes(request)
        sampling = resolve_sampling(
            self._drama.sampling,
            request.temperature,
            request.head_temperature,
            request.top_p,
            request.top_k,
            request.repetition_aware,
        )
        speech = Speech(self, request)
        stream = EngineStream.open(
            speech, sampling, CodecStream(self._codec, self._maker.decode), time.monotonic()
        )
        if request.final:
            stream.text.set_whole(request.text)
        else:
            stream.text.push(request.text)
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._closing:
                raise Overloaded("the engine is shutting down; use another one.")
            limit = self.config.max_streams + self.config.max_queue
            alive = sum(not other.cancelled for other in self._streams.values())
            if alive >= limit:
                raise Overloaded(
                    f"{alive} streams are open and at most {limit} may be "
                    "(max_streams + max_queue); retry later."
                )
            self._streams[speech] = stream
        self._wake.set()
        return speech

    def push_text(self, speech: Speech, text: str) -> None:
        """See ``Speech.push_text``."""
        stream = self._streams.get(speech)
        if stream is None:
            raise RequestError("this stream has ended; open a new one.")
        stream.text.push(text)
        self._wake.set()

    def flush(self, speech: Speech) -> None:
        """See ``Speech.flush``."""
        stream = self._streams.get(speech)
        if stream is not None:
            stream.text.flush()
            self._wake.set()

    def finish(self, speech: Speech) -> None:
        """See ``Speech.finish``."""
        stream = self._streams.get(speech)
        if stream is not None:
            stream.text.finish()
            self._wake.set()

    def cancel(self, speech: Speech) -> None:
        """See ``Speech.cancel``."""
        stream = self._streams.get(speech)
        if stream is not None:
            stream.cancelled = True
            self._wake.set()

    def consumed(self) -> None:
        """A listener took audio: a paused stream may go on."""
        self._wake.set()

    @property
    def step_mode(self) -> str:
        """How the step runs now: eager, compile or cudagraph."""
        return self._maker.mode

    def streams(self) -> dict[str, int]:
        """How many streams stand in each phase."""
        with self._lock:
            phases = [stream.phase for stream in self._streams.values()]
        return {phase.name.lower(): phases.count(phase) for phase in Phase}

    def wait_until_warm(self, timeout: float | None = None) -> bool:
        """Waits until the first step has run; false on timeout or when the engine failed."""
        return self._warm.wait(timeout) and self._failure is None

    def close(self) -> None:
        """Cancels what runs and ends every thread; calling it again does nothing."""
        self._at_exit.detach()
        with self._lock:
            self._closing = True
        self._wake.set()
        self._thread.join()
        for pool in (self._preparing, self._encoding):
            pool.shutdown(wait=True, cancel_futures=True)
        self._worker.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The device thread.

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                self._maker.warm_up()
                self._warm.set()
                looked = 0.0
                while not self._closing:
                    if not self._turn():
                        self._wake.wait(IDLE_WAIT)
                    self._wake.clear()
                    if time.monotonic() - looked > IDLE_WAIT:
                        if self._maker.look_for_faster_step(self._idle()):
                            self._maker.warm_up()
                        looked = time.monotonic()
        except Exception as error:
            log.error("the engine failed", exc_info=error)
            end = self._failure = DeviceError(f"the engine failed: {error}; restart it.")
        else:
            end = DeviceError("the engine was closed.")
        with self._lock:
            self._closing = True
            left = list(self._streams.values())
        for stream in left:
            stream.slot = -1  # a device that failed cannot even free it
            self._end(stream, None if stream.cancelled else end)
        self._warm.set()

    def _turn(self) -> bool:
        """One round of work; false when there was none."""
        with self._lock:
            streams = list(self._streams.values())
        now = time.monotonic()
        for stream in streams:
            self._look_after(stream, now)
        self._admit([s for s in streams if s.phase is Phase.WAITING])
        worked = self._read_prompt()
        return self._make_frames() or worked

    def _idle(self) -> bool:
        """Whether no take is under way, also none that waits for text."""
        with self._lock:
            begun = any(stream.frames for stream in self._streams.values())
        return not begun and not any(self._slots) and self._maker.idle

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
                stream.phase = Phase.PREPARING
                slow = stream.voice is None and stream.request.references
                if not slow and not self._in_phase(Phase.SPEAKING):
                    self._guard(stream, self._prepare)  # nobody waits, so save the hand-over
                else:
                    pool = self._encoding if slow else self._preparing
                    pool.submit(self._guard, stream, self._prepare)
        elif stream.phase is Phase.SPEAKING:
            self._pace(stream, now)

    def _pace(self, stream: EngineStream, now: float) -> None:
        """Pauses a stream whose listener does not take its audio, ends it after the timeout."""
        untaken, limit = stream.untaken(self._frame_seconds), self.config.lead_limit
        if stream.paused_since is None:
            if untaken > limit:
                stream.paused_since, stream.paused_at = now, untaken
                self._maker.activate(stream.slot, False)
        elif untaken <= RESUME * limit:
            stream.paused_since = None
            self._maker.activate(stream.slot, True)
        elif untaken < stream.paused_at:
            stream.paused_since, stream.paused_at = now, untaken
        elif now - stream.paused_since > self.config.lead_timeout:
            self._end(
                stream,
                RequestError(
                    f"the listener took no audio for {self.config.lead_timeout:g} s "
                    f"(lead_timeout) while {untaken:.1f} s were waiting; the stream was ended."
                ),
            )

    def _guard(self, stream: EngineStream, work: Callable[[EngineStream], None]) -> None:
        """Runs a stream's work so that its failure ends that stream alone."""
        failure: RtDrama3Error
        try:
            work(stream)
        except RtDrama3Error as error:
            failure = error
        except Exception as error:
            log.error("a stream failed", exc_info=error)
            failure = DeviceError(
                f"the stream failed: {error}; the log has the details. Others go on."
            )
        else:
            return
        stream.failure = stream.failure or failure  # the first tells most
        self._wake.set()

    def _prepare(self, stream: EngineStream) -> None:
        """Builds the prompt of the next piece (preparing or encoding thread)."""
        if stream.cancelled:
            return
        if stream.voice is None:
            stream.voice = self._drama.voice(stream.request.references)
        piece = stream.text.next_piece()
        assert piece is not None
        stream.speech.count(stream.text.count)
        cap = frame_cap(piece, self._codec.config.frame_rate)
        prompt = self._prompt(stream, piece, cap)
        stream.segments.append((piece, stream.frames))
        stream.speech.begin(piece, stream.frames)
        stream.voice_key = voice_key(prompt.rows[: prompt.system_rows])
        stream.rows = torch.from_numpy(prompt.rows).to(self._drama.model.device)
        stream.system_rows, stream.read = prompt.system_rows, 0
        stream.cap = min(cap, self._maker.context - len(prompt.rows))
        if stream.request.max_frames is not None:
            stream.cap = min(stream.cap, stream.request.max_frames - stream.frames)
        stream.phase = Phase.WAITING if stream.phase is Phase.PREPARING else stream.phase
        self._wake.set()

    def _prompt(self, stream: EngineStream, piece: str, frames: int) -> Prompt:
        """The prompt of a piece; of the stream's own past only what leaves room for its frames."""
        assert stream.voice is not None
        build, past = self._drama.prompts.build, stream.past()
        longest = min(MAX_PROMPT_ROWS, self._maker.context - 1)
        while past:
            prompt = build(piece, stream.voice, [*stream.request.history, *past])
            if len(prompt.rows) <= min(longest, self._maker.context - frames):
                return prompt
            del past[0]
        return build(piece, stream.voice, stream.request.history, max_rows=longest)

    def _admit(self, waiting: list[EngineStream]) -> None:
        """Lets waiting streams read: those that kept a slot, those that play, then in order."""
        waiting.sort(key=lambda s: (s.slot < 0, s.playing_since is None))
        for position, stream in enumerate(waiting):
            if stream.slot < 0:
                if not self._fits(stream):
                    for later, other in enumerate(waiting[position:]):
                        other.speech.place(later)
                    return
                stream.slot = self._slots.index(None)
                self._slots[stream.slot] = stream
            stream.speech.place(None)
            stream.phase = Phase.PREFILL
            stream.prefill_started = time.monotonic()

    def _fits(self, stream: EngineStream) -> bool:
        """Whether there is a slot, and everybody stays realtime with a newcomer in it."""
        busy = sum(s is not None for s in self._slots)
        if busy == 0 or busy >= self.config.max_streams or stream.playing_since is not None:
            return busy < self.config.max_streams
        load = load_with(busy + 1, self.costs, self._frame_seconds, self.config.codec_async)
        return load <= self.config.admit_load

    def _in_phase(self, phase: Phase) -> list[EngineStream]:
        return [s for s in self._slots if s is not None and s.phase is phase]

    def _read_prompt(self) -> bool:
        """Reads a prompt block, as far as others allow it.

        Who already plays goes first, and of those who runs dry first; then who waits longest.
        """
        reading = self._in_phase(Phase.PREFILL)
        if not reading:
            return False
        now = time.monotonic()

        def urgency(stream: EngineStream) -> tuple[bool, float]:
            if stream.playing_since is None:
                return True, stream.prefill_started
            return False, stream.lead(now, self._frame_seconds)

        stream = min(reading, key=urgency)
        speaking = [s for s in self._in_phase(Phase.SPEAKING) if s.paused_since is None]
        leads = [s.lead(now, self._frame_seconds) for s in speaking]
        step = self.costs.step_seconds(len(speaking)) if speaking else 0.0
        decode = self.costs.decode_seconds(1)
        if not may_prefill(leads, self.costs.block.or_else(0.0), step, decode):
            return False
        self._guard(stream, self._read_block)
        return True

    def _read_block(self, stream: EngineStream) -> None:
        assert stream.rows is not None
        started = time.monotonic()
        if stream.read == 0:
            snapshot = self.voices.get(stream.voice_key)
            stream.read = self._maker.begin(stream.slot, snapshot)
        if stream.read < stream.system_rows:
            rows = stream.rows[stream.read : stream.system_rows]
            stream.read += self._maker.read_block(stream.slot, rows, stream.read)
            if stream.read == stream.system_rows:
                self.voices.put(stream.voice_key, self._maker.snapshot(stream.slot, stream.read))
        else:
            stream.read += self._maker.read_block(
                stream.slot, stream.rows[stream.read :], stream.read
            )
        ended = time.monotonic()
        stream.durations.prefill += ended - started
        if stream.read == len(stream.rows):
            stream.position, stream.prefilled = stream.read, ended
            stream.epoch += 1
            stream.phase = Phase.SPEAKING
            self._maker.start(stream.slot, stream.sampling, stream.seed, stream.frames)

    def _make_frames(self) -> bool:
        """One frame for every speaking stream that is not paused."""
        speaking = [s for s in self._in_phase(Phase.SPEAKING) if s.paused_since is None]
        if speaking:
            for stream in speaking:
                stream.position += 1
        # On CUDA a stream that has reached its end makes one frame more, which is dropped.
        context = self._maker.context
        entries = [(s, s.epoch, s.slot, min(s.position, context)) for s in speaking]
        results = self._maker.frame(entries)
        for result in results:
            if result.stream.phase is Phase.SPEAKING and result.stream.epoch == result.epoch:
                self._guard_frame(result)
        return bool(speaking or results)

    def _guard_frame(self, result: FrameResult) -> None:
        self._guard(result.stream, lambda stream: self._take_frame(stream, result))

    def _take_frame(self, stream: EngineStream, result: FrameResult) -> None:
        stream.durations.frames += result.seconds
        if not result.finite:
            self._maker.scrub(stream.slot)
            self.voices.drop(stream.voice_key)
            raise DeviceError(
                f"the model produced NaN or infinite values at frame {stream.frames}; "
                "try dtype float32, and check the checkpoint with `rt-drama3 model info`."
            )
        if stream.cancelled:
            return
        if result.main == self._drama.config.eos:
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
        stream.codec.add(codes, len(stream.segments) - 1, stream.prefilled, sampled)
        wanted = group_size(
            stream.lead(time.monotonic(), self._frame_seconds),
            self.config.codec_batch_frames,
            stream.codec.last_size,
            self.costs.step_seconds(self._maker.last_batch),
            self.costs,
        )
        if stream.codec.gathered >= wanted:
            self._decode(stream)

    def _finish_piece(self, stream: EngineStream, ended: bool) -> None:
        """Closes the present piece; the next one, if any, is prepared at the next turn."""
        stream.held = stream.paused_since = None
        stream.complete &= ended
        if stream.codec.gathered:
            self._decode(stream)
        if stream.piece_frames:
            text = stream.segments[-1][0]
            stream.spoken.append((text, np.stack(stream.piece_frames, 1)))
            stream.piece_frames = []
        if stream.text.empty():
            self._free_slot(stream)
        else:  # who speaks does not queue again for its next piece
            self._maker.release(stream.slot)
        stream.phase = Phase.IDLE

    def _decode(self, stream: EngineStream) -> None:
        group = stream.codec.take()
        playing = stream.playing_since
        due = 0.0 if playing is None else playing + group.first_frame * self._frame_seconds
        decoded = threading.Event()

        def job() -> None:
            self._guard(stream, lambda s: self._deliver(s, group))
            decoded.set()

        self._worker.submit(due, job)
        if group.first_frame == 0 and self._may_wait(stream):
            decoded.wait(2 * self.costs.decode_seconds(1))

    def _may_wait(self, stream: EngineStream) -> bool:
        """Whether the next step may wait a moment for the first audio of a stream.

        On a CPU that step would share memory with the decode, and delay it. Others must have the
        lead to wait.
        """
        if self._drama.model.device.type != "cpu":
            return False
        now, frame = time.monotonic(), self._frame_seconds
        others = [s for s in self._in_phase(Phase.SPEAKING) if s is not stream]
        leads = [s.lead(now, frame) for s in others if s.paused_since is None]
        step = self.costs.step_seconds(self._maker.last_batch)
        return may_prefill(leads, self.costs.decode_seconds(1), step, 0.0)

    def _deliver(self, stream: EngineStream, group: FrameGroup) -> None:
        """Decodes a group and hands it over (codec thread)."""
        if stream.cancelled or stream.codec.broken:
            return
        started = time.monotonic()
        pcm = stream.codec.decode(group)
        decoded = time.monotonic()
        stream.durations.codec += decoded - started
        self.costs.decode.setdefault(group.frames, Estimate()).add(decoded - started)
        stamps = Stamps(stream.accepted, group.prefilled, group.sampled, decoded)
        rate = self._codec.config.sample_rate
        chunk = AudioChunk(pcm, group.first_frame, group.frames, rate, group.segment, stamps)
        if stream.speech.deliver(chunk):
            stream.play(group.frames, time.monotonic(), self._frame_seconds)

    def _free_slot(self, stream: EngineStream) -> None:
        if stream.slot >= 0:
            self._maker.release(stream.slot)
            self._slots[stream.slot] = None
            stream.slot = -1

    def _end(self, stream: EngineStream, error: RtDrama3Error | None = None) -> None:
        """Ends a stream: its slot is free now, its end is told after its last samples."""
        if stream.phase is Phase.DONE:
            return
        if stream.phase is Phase.PREFILL and stream.slot >= 0:
            self._maker.scrub(stream.slot)  # nobody has looked at its numbers yet
        stream.phase = Phase.DONE
        with self._lock:
            self._streams.pop(stream.speech, None)
        self._free_slot(stream)
        if stream.codec.gathered and not stream.cancelled:
            self._decode(stream)
        summary = stream.summary(self._drama.config.num_codebooks, self._codec.config.sample_rate)
        due = float("-inf")  # of a cancelled stream nothing is waited for
        if not stream.cancelled:
            playing = stream.playing_since or 0.0
            due = playing + stream.codec.submitted * self._frame_seconds
        self._worker.submit(due, lambda: stream.speech.end(stream.tell(summary), error))


def _close_quietly(engine: weakref.ref[Engine]) -> None:
    alive = engine()
    if alive is not None:
        alive.close()


def _check_shapes(request: SpeechRequest) -> None:
    for name, second in (("references", "audio or codes"), ("history", "codes")):
        for number, entry in enumerate(getattr(request, name), 1):
            if not isinstance(entry, tuple | list) or len(entry) != 2:
                raise RequestError(
                    f"entry {number} of {name} is a {type(entry).__name__}; "
                    f"a pair (text, {second}) is needed."
                )
    for name, least in (("seed", None), ("max_frames", 1)):
        value = getattr(request, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise RequestError(f"{name} is {value!r}; it must be a whole number.")
        if least is not None and value < least:
            raise RequestError(f"{name} is {value}; it must be at least {least}.")
