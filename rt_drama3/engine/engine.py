"""Engine: many streams on one model, scheduled to avoid avoidable underruns.

This is the handle for programs. The work is done by its ``EngineCore`` on a ``DeviceThread``, the
decisions are in ``scheduling``, and what a client holds of a stream is in ``speech``.
"""

from __future__ import annotations

import weakref

from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.core import EngineCore
from rt_drama3.engine.speech import Speech, SpeechRequest
from rt_drama3.engine.stream import Phase
from rt_drama3.engine.thread import DeviceThread
from rt_drama3.errors import DeviceError
from rt_drama3.loading import LoadedModel


class Engine:
    """Speaks many requests concurrently on one model.

    ``close`` ends it, and so does dropping the last reference to it and to its streams. It belongs
    to the process that made it: after ``os.fork`` the child's calls raise ``DeviceError``.

    Args:
        loaded: the checkpoint.
        config: settings.

    Raises:
        ConfigError: the settings do not fit the model or the machine.
        DeviceError: the step cannot run as configured.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig()
        self._thread = DeviceThread(loaded, self.config)
        # If it is never closed, the finalizer frees its threads and memory; at exit the thread ends
        # by itself. The finalizer must not hold the thread: closed while streams were open, it
        # still holds the engine.
        weakref.finalize(self, _abandon, weakref.ref(self._thread)).atexit = False

    @property
    def core(self) -> EngineCore:
        """The engine without its thread."""
        return self._thread.core

    # Thread-safe.

    def open(self, request: SpeechRequest) -> Speech:
        """Opens a stream and returns immediately.

        Raises:
            RequestError: the request cannot be spoken.
            Overloaded: at capacity, or the engine was closed.
            DeviceError: the engine failed, or belongs to the parent of this process.
        """
        self._thread.check_process()
        return self.core.open(request, keep=self)

    def normalize_guidance(self, request: SpeechRequest) -> SpeechRequest:
        """See ``EngineCore.normalize_guidance``."""
        return self.core.normalize_guidance(request)

    @property
    def step_mode(self) -> str:
        """How the step runs now: eager, compile or cudagraph."""
        return self.core.forms.mode

    @property
    def failure(self) -> DeviceError | None:
        """The error that ended it, to raise; None while it works, and when it was closed."""
        return self.core.new_failure()

    def streams(self) -> dict[str, int]:
        """The number of streams in each phase."""
        self._thread.check_process()
        phases = [stream.phase for stream in self.core.open_streams()]
        return {phase.name.lower(): phases.count(phase) for phase in Phase}

    def wait_until_warm(self, timeout: float | None = None) -> bool:
        """Waits until the first step has run; false on timeout or when the engine failed."""
        self._thread.check_process()
        return self._thread.warm.wait(timeout) and self.core.failure is None

    def close(self) -> None:
        """Cancels what runs and ends every thread; calling it again does nothing."""
        self._thread.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _abandon(thread: weakref.ref[DeviceThread]) -> None:
    running = thread()
    if running is not None:
        running.abandon()
