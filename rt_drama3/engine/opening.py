"""Opening a stream: checks the numbers of its request and puts its parts together."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rt_drama3.codec_stream import CodecStream, Decode
from rt_drama3.config import resolve_sampling
from rt_drama3.engine.playout import Playout
from rt_drama3.engine.speech import Speech, SpeechOwner, SpeechRequest
from rt_drama3.engine.stream import Scene, Stream
from rt_drama3.engine.text_intake import TextIntake
from rt_drama3.errors import RequestError
from rt_drama3.loading import LoadedModel
from rt_drama3.scenes.inputs import check_guidance, read_previous_takes


def open_stream(
    loaded: LoadedModel,
    request: SpeechRequest,
    owner: SpeechOwner,
    keep: object,
    decode: Decode,
    now: float,
    wake: Callable[[], None],
    inner: bool = False,
) -> Stream:
    """A stream; where an earlier take is text alone, with a stream of its own that speaks it.

    Args:
        loaded: the checkpoint.
        request: text and settings.
        owner, keep: see ``Speech``.
        decode: decodes frames.
        now: when the request was accepted.
        wake: wakes the device thread.
        inner: it is such a stream.

    Raises:
        RequestError: the text or a setting cannot be used.
    """
    prompts = loaded.prompts
    normalizes = check_normalize(request.normalize, prompts.normalizes)
    text = TextIntake(
        prompts.reads_directions, loaded.segments.longest, normalizes, prompts.directions_sound
    )
    if request.final:
        text.set_whole(request.text)
    else:
        text.push(request.text, now)
    takes = read_previous_takes(request.previous_takes)
    alone = [n for n, take in enumerate(takes) if take.codes is take.audio is None]
    codec = CodecStream(loaded.codec, decode)
    stream = Stream(
        speech=Speech(owner, request, keep),
        sampling=resolve_sampling(
            loaded.sampling,
            request.temperature,
            request.head_temperature,
            request.top_p,
            request.top_k,
            request.repetition_aware,
        ),
        seed=secrets.randbits(32) if request.seed is None else int(request.seed),
        accepted=now,
        text=text,
        playout=Playout(codec, 1 / loaded.codec.config.frame_rate, request.audio),
        wake=wake,
        guidance=check_guidance(request.guidance),
        vectors=loaded.steering.combine(request.steering),
        remembers=loaded.segments.remembered,
        inner=inner,
        scene=Scene(takes[alone[-1] + 1 :] if alone else takes),
    )
    if alone:  # it needs the takes before it
        first = replace(
            request,
            text=takes[alone[-1]].text,
            final=True,
            previous_takes=takes[: alone[-1]],
            seed=stream.seed,
            max_frames=None,
            audio=False,
        )
        stream.first = open_stream(loaded, first, owner, keep, decode, now, wake, inner=True)
    return stream


def check_normalize(wanted: str, default: bool) -> bool:
    """Whether a request's text is normalised.

    Args:
        wanted: of the request.
        default: what "auto" means for the checkpoint.

    Raises:
        RequestError: it is neither "auto", "on" nor "off".
    """
    if wanted not in ("auto", "on", "off"):
        raise RequestError(f"normalize is {wanted!r}; use auto, on or off.")
    return default if wanted == "auto" else wanted == "on"


def check_numbers(request: SpeechRequest) -> None:
    """Checks the shape of the history and the whole numbers of a request.

    Raises:
        RequestError: one of them cannot be used.
    """
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
