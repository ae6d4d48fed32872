"""check_clips: whether the references of an order can be used, before a stream waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rt_drama3.audio import read_audio
from rt_drama3.errors import RequestError
from rt_drama3.prompt import check_codes
from rt_drama3.protocol import Reference, Refused, SpeechOrder

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3

Samples = npt.NDArray[np.float32]


def check_clips(order: SpeechOrder, drama: Drama3, max_seconds: float) -> None:
    """Reads every clip once, so that a bad one is told at once and by its place in the request.

    The engine reads them again when their turn comes: samples of many clips would be far larger to
    keep than their files. Also done for a model that follows none, so that a client that works
    with it works with others. Takes up to some tenths of a second; not for the event loop.

    Args:
        order: its URLs were fetched.
        drama: whose codes they would be.
        max_seconds: of one clip.

    Raises:
        Refused: ``bad_reference``.
    """
    for what, clips in (
        ("references", order.references),
        ("history", order.history),
        ("previous_takes", order.directing.previous_takes),
    ):
        for number, clip in enumerate(clips):
            name = f"{what}[{number}]"
            if clip.codes is None:
                if clip.audio is None:
                    continue  # a take that is text alone
                read_clip(clip, name, max_seconds)
                continue
            try:
                check_codes(clip.codes, drama.config, name)
            except RequestError as error:
                raise Refused("bad_reference", str(error)) from error


def read_clip(clip: Reference, name: str, max_seconds: float) -> tuple[Samples, int]:
    """Samples of a clip's audio and their rate.

    Args:
        clip: with audio.
        name: for messages.
        max_seconds: that it may last.

    Raises:
        Refused: ``bad_reference``.
    """
    assert clip.audio is not None
    try:
        return read_audio(clip.audio, max_seconds=max_seconds)
    except RequestError as error:
        raise Refused("bad_reference", f"{name}: {error}") from error
