"""Engine: many streams on one model, scheduled so that nobody stutters who need not.

This is what programs call. The work is done by its ``DeviceLoop`` (``engine_loop``), the decisions
are in ``scheduling``, and what a client holds of a stream is in ``speech``.
"""

from __future__ import annotations

import logging
import time
import weakref
from dataclasses import replace

import numpy as np

from rt_drama3.codec_stream import CodecStream
from rt_drama3.config import resolve_sampling
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.guidance import Direction
from rt_drama3.engine.loop import DeviceLoop
from rt_drama3.engine.quota import PAUSE_SECONDS
from rt_drama3.engine.scheduling import Costs
from rt_drama3.engine.speech import Speech, SpeechRequest
from rt_drama3.engine.stream import EngineStream, Phase
from rt_drama3.engine.voice_cache import VoiceCache
from rt_drama3.errors import DeviceError, RequestError
from rt_drama3.loading import LoadedModel
from rt_drama3.scenes.inputs import check_guidance, read_previous_takes, read_references

log = logging.getLogger(__name__)


class Engine:
    """Speaks many requests at once on one model.

    ``close`` ends it, and so does dropping the last reference to it and to its streams. It belongs
    to the process that made it: after ``os.fork`` the child's calls raise ``DeviceError``.

    Args:
        loaded: the checkpoint.
        config: settings.

    Raises:
        ConfigError: the settings do not fit the model or the machine.
        DeviceError: the step cannot be made to run as configured.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig()
        self.costs = Costs()
        self.voices = VoiceCache(self.config.voice_cache_mb << 20)
        self._codec, self._sampling = loaded.codec, loaded.sampling
        self._reads_directions = loaded.prompts.reads_directions
        self._segments = loaded.segments
        self._steering = loaded.steering
        self._loop = DeviceLoop(loaded, self.config, self.costs, self.voices)
        # Who forgets to close it gets threads and memory back; at exit the loop ends by itself. The
        # finalizer must not hold the loop: closed while somebody spoke, it still holds the engine.
        weakref.finalize(self, _let_go, weakref.ref(self._loop)).atexit = False

    # Thread-safe.

    def open(self, request: SpeechRequest) -> Speech:
        """Starts a stream and returns at once.

        Raises:
            RequestError: the request cannot be spoken.
            Overloaded: too many streams are open already, or the engine was closed.
            DeviceError: the engine failed, or belongs to the parent of this process.
        """
        _check_shapes(request)
        request = self.normalize_guidance(request)
        request = replace(request, references=read_references(request.references))
        sampling = resolve_sampling(
            self._sampling,
            request.temperature,
            request.head_temperature,
            request.top_p,
            request.top_k,
            request.repetition_aware,
        )
        self._loop.check_open(request)  # before memory is taken for it
        guidance = check_guidance(request.guidance)
        if guidance and self.config.slots < 2:
            raise RequestError(
                "guidance needs a second row in the batch, but this engine has one; set "
                "guidance_rows = 1 (or max_streams = 2), or leave guidance out."
            )
        push = self._steering.combine(request.steering)
        codec = CodecStream(self._codec, self._loop.maker.decode)
        now, wake = time.monotonic(), self._loop.wake.set

        def stream_of(request: SpeechRequest, inner: bool) -> EngineStream:
            direction = Direction(guidance, push, inner=inner)
            speech = Speech(self, request)
            stream = EngineStream.open(speech, sampling, codec, now, wake, direction)
            stream.text.reads_directions = self._reads_directions
            stream.text.longest = self._segments.longest
            stream.remembers = self._segments.remembered
            if request.final:
                stream.text.set_whole(request.text)
            else:
                stream.text.push(request.text)
            takes = read_previous_takes(request.previous_takes)
            alone = [n for n, take in enumerate(takes) if take.codes is take.audio is None]
            direction.takes = takes[alone[-1] + 1 :] if alone else takes
            if alone:  # a text is spoken first, which needs the takes before it
                first = replace(
                    request,
                    text=takes[alone[-1]].text,
                    final=True,
                    previous_takes=takes[: alone[-1]],
                    seed=stream.seed,
                    max_frames=None,
                    audio=False,
                )
                direction.first = stream_of(first, inner=True)
            return stream

        stream = stream_of(request, inner=False)
        self._loop.add(stream)
        return stream.speech

    def normalize_guidance(self, request: SpeechRequest) -> SpeechRequest:
        """The request without the guidance that this checkpoint makes nothing of, and a notice.

        Raises:
            RequestError: guidance is no number within bounds.
        """
        if self._reads_directions or not check_guidance(request.guidance):
            return request
        log.warning("this checkpoint was taught no directions; guidance changes nothing")
        return replace(request, guidance=None)

    def push_text(self, speech: Speech, text: str) -> None:
        """See ``Speech.push_text``."""
        self._loop.check_process()
        stream = self._loop.streams.get(speech)
        if stream is None:
            raise RequestError("this stream has ended; open a new one.")
        asks = isinstance(text, str) and bool(text.strip())
        if asks and not (stream.text.final or stream.cancelled):
            self._loop.claim_place(stream)
        stream.text.push(text)
        self._loop.wake.set()

    def flush(self, speech: Speech) -> None:
        """See ``Speech.flush``."""
        stream = self._loop.streams.get(speech)
        if stream is not None:
            self._loop.begin_turn(stream)
            stream.text.flush()
            self._loop.wake.set()

    def finish(self, speech: Speech) -> None:
        """See ``Speech.finish``."""
        stream = self._loop.streams.get(speech)
        if stream is not None:
            self._loop.begin_turn(stream)
            stream.text.finish()
            self._loop.wake.set()

    def cancel(self, speech: Speech) -> None:
        """See ``Speech.cancel``."""
        stream = self._loop.streams.get(speech)
        if stream is not None:
            stream.cancelled = True
            self._loop.wake.set()

    def resting(self, speech: Speech) -> bool:
        """See ``Speech.resting``."""
        stream = self._loop.streams.get(speech)
        return stream is not None and stream.resting

    def silent(self, speech: Speech) -> bool:
        """Whether all of a stream was taken, and no text came for longer than answers pause.

        It may still be heard, and so have its place: what was taken needs the engine no more.
        """
        stream = self._loop.streams.get(speech)
        if stream is None or not stream.resting or stream.text.begun() or speech.unread_seconds:
            return False
        rested = max(stream.accepted, stream.rested)  # the first text of a new one may be coming
        return time.monotonic() - rested >= PAUSE_SECONDS

    def consumed(self) -> None:
        """A listener took audio: a paused stream may go on."""
        self._loop.wake.set()

    @property
    def step_mode(self) -> str:
        """How the step runs now: eager, compile or cudagraph."""
        return self._loop.maker.mode

    @property
    def failure(self) -> DeviceError | None:
        """What ended it for good, to raise; None while it works, and when it was closed."""
        return self._loop.new_failure()

    def streams(self) -> dict[str, int]:
        """How many streams stand in each phase."""
        self._loop.check_process()
        phases = [stream.phase for stream in self._loop.open_streams()]
        return {phase.name.lower(): phases.count(phase) for phase in Phase}

    def wait_until_warm(self, timeout: float | None = None) -> bool:
        """Waits until the first step has run; false on timeout or when the engine failed."""
        self._loop.check_process()
        return self._loop.warm.wait(timeout) and self._loop.failure is None

    def close(self) -> None:
        """Cancels what runs and ends every thread; calling it again does nothing."""
        self._loop.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _let_go(loop: weakref.ref[DeviceLoop]) -> None:
    running = loop()
    if running is not None:
        running.let_go()


def _check_shapes(request: SpeechRequest) -> None:
    for number, entry in enumerate(request.history, 1):
        if not isinstance(entry, tuple | list) or len(entry) != 2:
            raise RequestError(
                f"entry {number} of history is a {type(entry).__name__}; "
                "a pair (text, codes) is needed."
            )
    for name, least in (("seed", None), ("max_frames", 1)):
        value = getattr(request, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise RequestError(f"{name} is {value!r}; it must be a whole number.")
        if least is not None and value < least:
            raise RequestError(f"{name} is {value}; it must be at least {least}.")
