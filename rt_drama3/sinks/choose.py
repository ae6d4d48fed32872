"""Parses the description of a sink: ``speaker:USB``, ``mic``, ``-``, ``take.flac``."""

from __future__ import annotations

import os
import re

from rt_drama3.audio.stream_encode import FORMATS, format_of
from rt_drama3.errors import RequestError
from rt_drama3.sinks.files import EncodedSink, WavSink
from rt_drama3.sinks.microphone import microphone
from rt_drama3.sinks.sink import Sink
from rt_drama3.sinks.speaker import SpeakerSink

_FALLBACK = ",default"
_FORMATS = {**{name: name for name in FORMATS}, "raw": "pcm", "ogg": "opus"}
# A prefix that is not part of a path: not a drive (C:), a folder or a time.
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_+-]+")


def make_sink(spec: str, *, fallback: bool = False) -> Sink:
    """Creates the sink that a user asks for; nothing is opened yet.

    Args:
        spec: one of ``speaker``, ``speaker:DEVICE`` (index, name or part of a name; the suffix
            ``,default`` enables ``fallback``), ``mic``, ``mic:NAME``, ``-`` (wav to standard
            output), a path whose extension names the format, ``FORMAT:PATH`` and ``FORMAT:-`` with
            ``raw``, ``ogg`` or a name in ``audio.FORMATS``.
        fallback: see ``SpeakerSink``.

    Raises:
        RequestError: the description is not valid.
        SinkError: this system has no loopback device to use as a microphone.
    """
    kind, colon, rest = spec.partition(":")
    if kind == "speaker":
        device = rest.removesuffix(_FALLBACK)
        return SpeakerSink(device or None, fallback=fallback or device != rest)
    if kind == "mic":
        return microphone(rest or None)
    if colon and kind in _FORMATS:
        if not rest:
            raise RequestError(f"{spec!r} has no file name; use {kind}:PATH or {kind}:-.")
        return _file(rest, _FORMATS[kind])
    if colon and _WORD.fullmatch(kind):
        a_file = "" if rest in ("", "-") else f" For a file of this name use ./{spec}."
        raise RequestError(
            f"{spec!r} starts with {kind!r}, which is neither speaker, mic nor a format; formats "
            f"are {', '.join(_FORMATS)}.{a_file}"
        )
    if kind in _FORMATS and not os.path.isdir(kind):
        raise RequestError(f"{spec!r} has no file name; use {kind}:PATH, {kind}:- or take.{kind}.")
    if spec == "-":
        return WavSink("-")
    if not spec:
        raise RequestError("The sink is empty; use speaker, mic, - or a path.")
    if os.path.isdir(spec):
        raise RequestError(f"{spec!r} is a directory; name a file in it.")
    return _file(spec, format_of(spec))


def _file(path: str, format: str) -> Sink:
    return WavSink(path) if format == "wav" else EncodedSink(path, format)
