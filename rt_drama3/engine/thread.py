"""DeviceThread: runs an ``EngineCore``, and ends with its process, its engine or at exit."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import torch

from rt_drama3.codec_stream import CodecWorker
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.core import EngineCore
from rt_drama3.engine.speech import check_process
from rt_drama3.engine.step_runner import make_step
from rt_drama3.loading import LoadedModel
from rt_drama3.system.threads import compute_threads, use_device, use_threads

log = logging.getLogger(__name__)

IDLE_WAIT = 0.5  # seconds between checks of timeouts and background builds while nothing happens

_running: weakref.WeakSet[DeviceThread] = weakref.WeakSet()


class DeviceThread:
    """Makes an ``EngineCore`` with the threads that it needs, and runs it.

    Args:
        loaded: the checkpoint.
        config: settings.

    Attributes:
        core: what it runs. It does not know the ``Engine``, so that one that is dropped can end it.
        warm: the first step has run, or never will (see ``EngineCore.failure``).

    Raises:
        ConfigError, DeviceError: see ``EngineCore``.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        self.warm = threading.Event()
        self._loaded, self._pid = loaded, os.getpid()
        step = make_step(loaded.model, config)
        with compute_threads(None):
            preparing = ThreadPoolExecutor(1, "rt-drama3-prepare")
            encoding = ThreadPoolExecutor(1, "rt-drama3-encode")
            self._executors = (preparing, encoding)
            self._worker = CodecWorker(loaded.codec.device, config.codec_async)
            try:
                self.core = EngineCore(loaded, config, step, preparing, encoding, self._worker)
                for executor in self._executors:  # now, so that no request waits for its thread
                    executor.submit(use_threads, loaded.threads).result()
            except BaseException:
                self._end_threads()
                raise
            begun = threading.Event()
            self._thread = threading.Thread(
                target=self._main, args=(begun,), name="rt-drama3-engine", daemon=True
            )
            self._thread.start()
            begun.wait()
        _running.add(self)

    def check_process(self) -> None:
        """Refuses in a process that was forked from the one that the threads are in.

        Raises:
            DeviceError: this is such a process.
        """
        check_process(self._pid)

    def close(self) -> None:
        """Cancels what runs and ends every thread; calling it again does nothing."""
        if os.getpid() != self._pid:
            return  # they are not in this process
        self.core.closed = True
        self.core.woken.set()
        self._thread.join()
        for executor in self._executors:
            executor.shutdown(cancel_futures=True)

    def abandon(self) -> None:
        """Ends as ``close`` does, but soon. For finalizers: takes no lock, waits for nothing."""
        self.core.closed = True

    def _main(self, begun: threading.Event) -> None:
        use_threads(self._loaded.threads)
        begun.set()
        try:
            self._run()
        except Exception as error:
            log.error("the engine failed", exc_info=error)
            self.core.end(error)
        else:
            self.core.end()
        self.warm.set()
        self._end_threads()

    def _run(self) -> None:
        core = self.core
        use_device(self._loaded.device)
        with torch.inference_mode():
            core.warm_up()
            self.warm.set()
            checked = 0.0
            while not core.closed:
                if not core.turn():
                    core.woken.wait(min(IDLE_WAIT, max(0.0, core.text_pause())))
                core.woken.clear()
                if time.monotonic() - checked > IDLE_WAIT:
                    core.take_faster_forms()
                    checked = time.monotonic()

    def _end_threads(self) -> None:
        for executor in self._executors:
            executor.shutdown(wait=False, cancel_futures=True)
        self._worker.close()


def _end_all() -> None:
    """Threads that are inside torch when the interpreter goes down would abort the process."""
    for thread in list(_running):
        thread.close()


atexit.register(_end_all)
