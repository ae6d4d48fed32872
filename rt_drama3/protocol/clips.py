"""Audio of a reference as clients send it: bytes, base64, or a URL that the server may fetch."""

from __future__ import annotations

import binascii
import re

from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.limits import ProtocolLimits
from rt_drama3.protocol.order import Reference, checked_audio
from rt_drama3.protocol.refusals import Refused, show

LONGEST_URL = 2_048
BASE64_PART = 1 << 16  # characters decoded in one call
_SCHEME = re.compile(r"[A-Za-z][\w+.-]{0,15}://")
_URL = re.compile(r"(?i:https?)://[!-~]+")
_DATA_URL = re.compile(r"data:[\w/+.;=-]*;base64,")


def read_clip(
    entry: Fields, text: str, limits: ProtocolLimits, *, base64_too: bool = True
) -> Reference:
    """A reference with audio: ``audio`` of an entry.

    Args:
        entry: the reference.
        text: what is said in it.
        limits: for its size.
        base64_too: whether text is decoded as base64, for JSON.

    Raises:
        Refused: ``bad_reference``.
    """
    audio = entry.value("audio")
    if isinstance(audio, str) and _SCHEME.match(audio):
        return Reference(text, url=checked_url(audio, entry.path("audio")))
    if isinstance(audio, str | memoryview) and base64_too:
        audio = from_base64(audio, entry.path("audio"))
    if not isinstance(audio, bytes):
        how = "(in JSON, base64)" if base64_too else "(bin), or vq_codes,"
        wanted = f"the bytes of an audio file {how} are needed"
        raise entry.refuse("audio", wanted, "bad_reference")
    return Reference(text, audio=checked_audio(audio, limits, entry.path("audio")))


def checked_url(url: str, what: str = "the clip's URL") -> str:
    """Checks the form of a clip's URL; the server decides whether it fetches it.

    Raises:
        Refused: ``bad_reference``.
    """
    if len(url) > LONGEST_URL or not _URL.fullmatch(url):
        raise Refused(
            "bad_reference",
            f"{what} is {show(url)}; http:// or https:// and {LONGEST_URL} or fewer "
            "printable ASCII characters are needed.",
        )
    return url


def from_base64(audio: str | memoryview, what: str = "the audio of a reference") -> bytes:
    """Decodes base64 or a data URL, part by part, so that other threads get their turn.

    Line breaks and spaces are ignored: many tools break lines after 76 characters.

    Args:
        audio: as ``wire.parse_json`` gives it.
        what: its name in messages.

    Raises:
        Refused: ``bad_reference``.
    """
    beginning = audio if isinstance(audio, str) else bytes(audio[:128]).decode("ascii", "replace")
    prefix = _DATA_URL.match(beginning)
    start = prefix.end() if prefix else 0
    parts, rest, padded = [], b"", False
    try:
        for place in range(start, len(audio), BASE64_PART):
            piece = audio[place : place + BASE64_PART]
            part = piece.encode("ascii") if isinstance(piece, str) else bytes(piece)
            part = rest + part.translate(None, b" \t\r\n")
            if part and padded:
                raise ValueError("padding before the end")
            last = place + BASE64_PART >= len(audio)
            end = len(part) if last else len(part) // 4 * 4
            part, rest = part[:end], part[end:]
            padded = padded or b"=" in part
            parts.append(binascii.a2b_base64(part, strict_mode=True))
    except ValueError:  # binascii.Error and UnicodeEncodeError are
        raise Refused("bad_reference", f"{what} is not valid base64.") from None
    return b"".join(parts)
