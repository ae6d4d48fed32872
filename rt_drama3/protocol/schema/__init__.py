"""The messages as JSON Schema (2020-12), for clients in other languages and for the tests.

MessagePack has bytes where JSON has none: in the schemas, and in what is validated by them, a bin
is written as ``{"bin": "<base64>"}``.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

NAMES = ("native", "fish_live", "listen", "http")


def load_schema(name: str) -> dict[str, Any]:
    """One of ``NAMES``; ``$defs`` has a schema for each message.

    Raises:
        FileNotFoundError: there is no such schema.
    """
    text = resources.files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
