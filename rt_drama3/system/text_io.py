"""Text in and out of the process, whatever the console, the locale and editors make of it."""

from __future__ import annotations

import codecs
import io
import sys

from rt_drama3.errors import RequestError

_OTHER_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def decode_utf8(data: bytes) -> str:
    """Decodes UTF-8 with or without a byte order mark.

    Raises:
        ValueError: it is not UTF-8; the message continues a sentence about the text.
    """
    if data.startswith(_OTHER_MARKS):
        raise ValueError("is UTF-16, not UTF-8; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 text (byte {error.start}); convert it") from error


def read_stdin() -> bytes:
    """Returns all of standard input.

    Raises:
        RequestError: it is closed.
    """
    if sys.stdin is None:
        raise RequestError("standard input is closed; open it, or give the text as an argument.")
    return sys.stdin.buffer.read()


def check_argument(text: str) -> None:
    """Checks that an argument of the command line could be decoded.

    Raises:
        RequestError: it could not.
    """
    if any("\udc80" <= character <= "\udcff" for character in text):
        encoding = sys.getfilesystemencoding()
        raise RequestError(
            "the text is not valid UTF-8."
            if encoding == "utf-8"
            else f"the locale is not UTF-8 but {encoding}, so the text cannot be read; set "
            "LC_ALL=C.UTF-8 or PYTHONUTF8=1."
        )


def escape_unprintable() -> None:
    """Lets stdout and stderr escape characters that their encoding lacks, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")
