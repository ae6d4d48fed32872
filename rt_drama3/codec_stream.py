"""CodecStream: decodes the frames of one stream to PCM, in batches, while the next step runs.

The codec is causal and stateful, so any batching gives the same PCM; batches trade the cost of a
call against the wait of their first frame. ``CodecWorker`` decodes on its own thread (on CUDA also
on its own CUDA stream), the most urgent batch first, or inline when that is disabled.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rt_drama3.codec import Codec, CodecState

log = logging.getLogger(__name__)


Decode = Callable[[Tensor, CodecState], Tensor]  # see Codec.decode_step


@dataclass(frozen=True)
class DecodeBatch:
    """Consecutive frames that are decoded in one call.

    Attributes:
        codes: int64 ``[num_codebooks, frames]``.
        first_frame: number of the first frame in the stream.
        segment: text segment of the first frame.
        prefilled: time when the prompt of that segment was prefilled.
        sampled: times when the first and the last frame were drawn.
    """

    codes: npt.NDArray[np.int64]
    first_frame: int
    segment: int
    prefilled: float
    sampled: tuple[float, float]

    @property
    def frames(self) -> int:
        return int(self.codes.shape[1])


class CodecStream:
    """Collects the frames of one stream and decodes them in order.

    ``add`` and ``take`` belong to the device thread, ``decode`` to the codec thread.

    Args:
        codec: the codec.
        decode: how to decode; None is ``codec.decode_step``.

    Attributes:
        last_size: frames of the latest batch.
        broken: a decode failed, so the codec's state and all later PCM are undefined.
    """

    def __init__(self, codec: Codec, decode: Decode | None = None) -> None:
        self._codec = codec
        self._decode = decode
        self._state: CodecState | None = None
        self._frames: list[npt.NDArray[np.int64]] = []
        self._segment = 0
        self._prefilled = 0.0
        self._sampled = (0.0, 0.0)
        self._next = 0
        self.last_size = 0
        self.broken = False

    def prepare(self) -> None:
        """Allocates the codec's state if it has none: some megabytes for a large codec.

        A stream that waits for its first text has none.
        """
        if self._state is None:
            self._state = self._codec.new_state(1)

    @property
    def gathered(self) -> int:
        """Frames that wait for their batch to fill."""
        return len(self._frames)

    @property
    def submitted(self) -> int:
        """Frames that were taken in batches."""
        return self._next

    def add(
        self, codes: npt.NDArray[np.int64], segment: int, prefilled: float, sampled: float
    ) -> None:
        """Adds one frame ``[num_codebooks]``; see ``DecodeBatch`` for the other arguments."""
        if not self._frames:
            self._segment, self._prefilled, self._sampled = segment, prefilled, (sampled, sampled)
        self._sampled = (self._sampled[0], sampled)
        self._frames.append(codes)

    def take(self) -> DecodeBatch:
        """Returns the collected frames (at least one) as a batch."""
        batch = DecodeBatch(
            np.stack(self._frames, 1), self._next, self._segment, self._prefilled, self._sampled
        )
        self._frames = []
        self._next += batch.frames
        self.last_size = batch.frames
        return batch

    def decode(self, batch: DecodeBatch) -> npt.NDArray[np.float32]:
        """Returns PCM, float32 ``[frames * frame_samples]``; batches must come in order."""
        self.prepare()
        assert self._state is not None
        self.broken = True
        codes = torch.from_numpy(batch.codes)[None].to(self._codec.device, non_blocking=True)
        decode = self._decode or self._codec.decode_step
        pcm: npt.NDArray[np.float32] = decode(codes, self._state)[0].float().cpu().numpy()
        self.broken = False
        return pcm


Job = Callable[[], None]


class CodecWorker:
    """Runs decode jobs, the most urgent first; equally urgent jobs in order of submission.

    Args:
        device: device of the codec.
        threaded: False runs every job inside ``submit``.
    """

    def __init__(self, device: torch.device, threaded: bool) -> None:
        self._queue: queue.PriorityQueue[tuple[float, int, Job | None]] = queue.PriorityQueue()
        self._count = itertools.count()
        self._cuda = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread: threading.Thread | None = None
        if threaded:
            threads, started = torch.get_num_threads(), threading.Event()
            self._thread = threading.Thread(
                target=self._work, args=(started,), name="rt-drama3-codec", daemon=True
            )
            self._thread.start()
            started.wait()
            torch.set_num_threads(threads)  # see _work

    def submit(self, deadline: float, job: Job) -> None:
        """Runs a job, which must not raise; deadlines of one stream must not decrease."""
        if self._thread is None:
            self._run(job)
        else:
            self._queue.put((deadline, next(self._count), job))

    def close(self) -> None:
        """Finishes all submitted jobs and ends the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put((float("inf"), next(self._count), None))
            thread.join()

    def _work(self, started: threading.Event) -> None:
        # Small decodes are fastest on one compute thread. The count is per thread, but torch also
        # applies the latest one to every thread that reads it or computes for the first time.
        torch.get_num_threads()
        torch.set_num_threads(1)
        started.set()
        while True:
            _, _, job = self._queue.get()
            if job is None:
                return
            self._run(job)
            del job  # it holds a stream, which must not live until the next job

    def _run(self, job: Job) -> None:
        if self._cuda is None:
            job()
        else:
            with torch.cuda.stream(self._cuda):
                job()
