"""Converts clips, turns and takes from the forms that callers use to message fields."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from rt_drama3_client.errors import UsageError
from rt_drama3_client.messages import Take

# The bytes of an audio file, a path to one, or the URL of one if the server fetches URLs.
Audio: TypeAlias = bytes | os.PathLike[str] | str
Clip: TypeAlias = tuple[str, Audio] | Mapping[str, Any]
MAX_BYTES = 64 << 20  # of a file; servers accept less
_PAIR = "use [(text, audio)], with the bytes of an audio file or a Path to one"


def as_clips(clips: Sequence[Clip]) -> list[dict[str, Any]]:
    """Converts the clips of a voice.

    Raises:
        UsageError: there are none, or one cannot be sent.
    """
    found = [_reference(clip, f"clips[{n}]") for n, clip in enumerate(_each(clips, "clips"))]
    if not found:
        raise UsageError(f"clips is empty; {_PAIR}.")
    return found


def as_lists(options: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Converts ``references``, ``history`` and ``previous_takes``, if given.

    Raises:
        UsageError: an entry has an unknown form, or its file cannot be read.
    """
    forms = {"references": _reference, "history": _turn, "previous_takes": _previous_take}
    return {
        name: [form(one, f"{name}[{n}]") for n, one in enumerate(_each(options[name], name))]
        for name, form in forms.items()
        if options.get(name) is not None
    }


def _each(given: object, name: str) -> Sequence[object]:
    if not isinstance(given, Sequence) or isinstance(given, str | bytes | bytearray):
        raise UsageError(f"{name} is a {type(given).__name__}; a list is required.")
    return given


def _reference(one: object, what: str) -> dict[str, Any]:
    if isinstance(one, tuple | list) and len(one) == 2 and isinstance(one[0], str):
        return {"text": one[0], "audio": _audio(one[1], what)}
    if isinstance(one, Take):
        return {"text": one.text, "vq_codes": one.vq_codes}
    return _map(one, what, _PAIR)


def _turn(one: object, what: str) -> dict[str, Any]:
    if isinstance(one, Take):
        return {"text": one.text, "vq_codes": one.vq_codes}
    return _map(one, what, "use a Take, or a map with text and vq_codes")


def _previous_take(one: object, what: str) -> dict[str, Any]:
    if isinstance(one, Take):
        return one.as_field()
    return _map(one, what, "use a Take, or a map with text and codes or audio")


def _map(one: object, what: str, wanted: str) -> dict[str, Any]:
    if not isinstance(one, Mapping):
        raise UsageError(f"{what} is {one!r:.60}; {wanted}.")
    fields = dict(one)
    if fields.get("audio") is not None:
        fields["audio"] = _audio(fields["audio"], what)
    return fields


def _audio(audio: object, what: str) -> bytes | str:
    """Returns the bytes of a file, or a URL for the server."""
    if isinstance(audio, bytes | bytearray | memoryview):
        return bytes(audio)
    if isinstance(audio, os.PathLike):
        return _read(audio, what)
    if isinstance(audio, str) and audio.lower().startswith(("http://", "https://")):
        return audio
    if isinstance(audio, str) and audio.startswith("data:"):
        head, _, data = audio.partition(",")
        try:
            if head.endswith(";base64"):
                return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            pass
        raise UsageError(f"the audio of {what} is a data: URL without valid base64.")
    raise UsageError(
        f"the audio of {what} is {audio!r:.60}; pass the bytes of an audio file, a Path to one, "
        "or an http:// or https:// URL."
    )


def _read(path: os.PathLike[str], what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            audio = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the audio of {what} cannot be read: {error}.") from error
    if len(audio) > MAX_BYTES:
        raise UsageError(
            f"the audio of {what} exceeds {MAX_BYTES >> 20} MiB; send a clip of speech."
        )
    return audio
