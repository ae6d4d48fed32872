"""read_clips: checks the references of an order before a stream waits for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rt_drama3.audio import read_audio
from rt_drama3.errors import RequestError
from rt_drama3.protocol import Reference, Refused, SpeechOrder
from rt_drama3.text.prompt import check_codes

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3

Samples = npt.NDArray[np.float32]

KEPT_BYTES = 16 << 20  # of samples, for each order: as large as a message can be


def read_clips(order: SpeechOrder, drama: Drama3, max_seconds: float) -> SpeechOrder:
    """Decodes every clip, so that a bad one is reported immediately, by its place in the request.

    Also done for a model that ignores references, so that clients that work with it work with
    others. Takes up to some tenths of a second; not for the event loop.

    Args:
        order: its URLs were fetched.
        drama: the model.
        max_seconds: limit of one clip.

    Returns:
        The order with samples in place of files, so that the engine need not decode them again.
        Beyond ``KEPT_BYTES`` it has to: otherwise waiting streams would take far more memory than
        their files.

    Raises:
        Refused: ``bad_reference``.
    """
    room = KEPT_BYTES

    def read(clips: tuple[Reference, ...], what: str) -> tuple[Reference, ...]:
        nonlocal room
        found = list(clips)
        for number, clip in enumerate(clips):
            name = f"{what}[{number}]"
            if clip.codes is not None:
                _check_codes(clip.codes, drama, name)
            elif clip.audio is not None:  # otherwise it is a take with only text
                samples, rate = read_clip(clip, name, max_seconds)
                if samples.nbytes <= room:
                    room -= samples.nbytes
                    found[number] = replace(clip, audio=None, samples=(samples, rate))
        return tuple(found)

    references = read(order.references, "references")
    history = read(order.history, "history")
    takes = read(order.directing.previous_takes, "previous_takes")
    directing = replace(order.directing, previous_takes=takes)
    return replace(order, references=references, history=history, directing=directing)


def _check_codes(codes: npt.NDArray[np.int64], drama: Drama3, name: str) -> None:
    try:
        check_codes(codes, drama.config, name)
    except RequestError as error:
        raise Refused("bad_reference", str(error)) from error


def read_clip(clip: Reference, name: str, max_seconds: float) -> tuple[Samples, int]:
    """Decodes a clip; returns its samples and their rate.

    Args:
        clip: with audio.
        name: for messages.
        max_seconds: limit of its duration.

    Raises:
        Refused: ``bad_reference``.
    """
    assert clip.audio is not None
    try:
        return read_audio(clip.audio, max_seconds=max_seconds)
    except RequestError as error:
        raise Refused("bad_reference", f"{name}: {error}") from error
