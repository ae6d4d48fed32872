"""The error of this package. Each message says what is wrong, with which value, and what to do."""

from __future__ import annotations

import importlib.util


class BenchError(Exception):
    """A measurement cannot be made as asked: a bad argument, file, server or missing package."""


def require_rt_drama3(what: str) -> None:
    """Checks that rt_drama3 is installed, without importing it.

    Args:
        what: needs it; the beginning of the message.

    Raises:
        BenchError: it is not installed.
    """
    if importlib.util.find_spec("rt_drama3") is None:
        raise BenchError(
            f"{what} needs rt-drama3 itself: pip install 'rt-drama3-bench[engine]', or "
            "pip install -e . in a clone."
        )
