"""ClipReader: decodes the clips of a request before a stream waits for them.

Decoding has threads of its own, so that requests without clips wait for none. A request decodes one
clip at a time: others with fewer get their turn in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rt_drama3.audio import read_audio
from rt_drama3.errors import RequestError
from rt_drama3.protocol import Reference, Refused, SpeechOrder
from rt_drama3.server.metrics import Metrics
from rt_drama3.server.workers import Workers
from rt_drama3.text.prompt import check_codes

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3

Samples = npt.NDArray[np.float32]
NamedClip = tuple[str, Reference]

KEPT_BYTES = 16 << 20  # of samples, for each request: as large as a message can be
MAX_REQUESTS = 64  # that decode clips or wait for that
DECODE_SECONDS = 10.0  # of a processor, for all clips of a request; a minute of mp3 takes 0.1


class ClipReader:
    """See the module docstring. Use it on one event loop.

    Args:
        workers: threads of the server.
        metrics: of the server.
        max_seconds: limit of one clip.
        clock: seconds of a processor that the calling thread has used.
    """

    def __init__(
        self,
        workers: Workers,
        metrics: Metrics,
        max_seconds: float,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._workers, self._metrics = workers, metrics
        self._max_seconds, self._clock = max_seconds, clock
        self._requests = 0

    async def read_order(self, order: SpeechOrder, drama: Drama3) -> SpeechOrder:
        """Decodes every clip, so that a bad one is reported immediately, by its place.

        Also done for a model that ignores references, so that clients that work with it work with
        others.

        Args:
            order: its URLs were fetched.
            drama: the model.

        Returns:
            The order with samples in place of files, so that the engine need not decode them again.
            Beyond ``KEPT_BYTES`` it has to: otherwise waiting streams would take far more memory
            than their files.

        Raises:
            Refused: ``bad_reference``, or ``overloaded``.
        """
        groups = {
            "references": order.references,
            "history": order.history,
            "previous_takes": order.directing.previous_takes,
        }
        named = [
            (f"{what}[{n}]", clip) for what, some in groups.items() for n, clip in enumerate(some)
        ]
        for name, clip in named:
            if clip.codes is not None:
                _check_codes(clip.codes, drama, name)
        read = iter(await self.read(named))
        references, history, takes = (tuple(next(read) for _ in some) for some in groups.values())
        directing = replace(order.directing, previous_takes=takes)
        return replace(order, references=references, history=history, directing=directing)

    async def read(self, clips: Iterable[NamedClip]) -> list[Reference]:
        """Decodes the clips that have audio; the others are returned as they are.

        Ends with the client: when it is cancelled, the thread stops at its next packet.

        Args:
            clips: with their names for messages.

        Raises:
            Refused: ``bad_reference``, or ``overloaded``.
        """
        found = list(clips)
        if not any(clip.audio is not None for _, clip in found):
            return [clip for _, clip in found]
        if self._requests >= MAX_REQUESTS:
            raise Refused(
                "overloaded",
                f"at capacity: {self._requests} requests wait for their clips to be decoded "
                f"(limit {MAX_REQUESTS}).",
            )
        budget, room, read = _Budget(self._clock), KEPT_BYTES, []
        self._count(1)
        try:
            for name, clip in found:
                if clip.audio is not None:
                    samples, rate = await self._decode(name, clip, budget)
                    if samples.nbytes <= room:
                        room -= samples.nbytes
                        clip = replace(clip, audio=None, samples=(samples, rate))
                read.append(clip)
        finally:
            budget.cancelled = True
            self._count(-1)
        return read

    async def _decode(self, name: str, clip: Reference, budget: _Budget) -> tuple[Samples, int]:
        def decode() -> tuple[Samples, int]:
            with budget:
                return read_clip(clip, name, self._max_seconds, budget.check)

        asked = time.monotonic()
        try:
            return await self._workers.decode(decode)
        finally:
            self._metrics.clip.observe(time.monotonic() - asked)

    def _count(self, change: int) -> None:
        self._requests += change
        self._metrics.clip_requests.set(self._requests)


class _Budget:
    """What the clips of a request may still cost; entered by the thread that decodes one.

    Attributes:
        cancelled: the client does not wait any more.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._used = self._began = 0.0
        self.cancelled = False

    def __enter__(self) -> None:
        self._began = self._clock()

    def __exit__(self, *_: object) -> None:
        self._used += self._clock() - self._began

    def check(self) -> None:
        """Ends decoding that costs too much, or whose client has left."""
        if self.cancelled:
            raise RequestError("the client has left.")
        if self._used + self._clock() - self._began > DECODE_SECONDS:
            raise RequestError(
                f"decoding takes more than {DECODE_SECONDS:g} s of a processor for all clips of "
                "the request; send fewer or shorter clips."
            )


def _check_codes(codes: npt.NDArray[np.int64], drama: Drama3, name: str) -> None:
    try:
        check_codes(codes, drama.config, name)
    except RequestError as error:
        raise Refused("bad_reference", str(error)) from error


def read_clip(
    clip: Reference, name: str, max_seconds: float, check: Callable[[], None] | None = None
) -> tuple[Samples, int]:
    """Decodes a clip; returns its samples and their rate.

    Args:
        clip: with audio, decoded or not.
        name: for messages.
        max_seconds: limit of its duration.
        check: called between two packets, see ``read_audio``.

    Raises:
        Refused: ``bad_reference``.
    """
    if clip.samples is not None:
        return clip.samples
    assert clip.audio is not None
    try:
        return read_audio(clip.audio, max_seconds=max_seconds, check=check)
    except RequestError as error:
        raise Refused("bad_reference", f"{name}: {error}") from error
