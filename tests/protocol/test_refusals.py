"""Errors: every kind complete, and messages that any log or encoder can take."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rt_drama3.protocol import KINDS, NativeSession, Refused, as_refused, load_schema
from rt_drama3.protocol.refusals import clean, show
from tests.protocol.tools import FACTS, Client, Clock


@pytest.mark.parametrize("schema", ["native", "fish_live", "http"])
def test_the_schemas_know_every_code(schema: str) -> None:
    definitions = load_schema(schema)["$defs"]
    name = {"native": "server_error", "fish_live": "server_error", "http": "fish_error"}[schema]
    assert definitions[name]["properties"]["code"]["enum"] == list(KINDS)


def test_every_kind_has_numbers_that_clients_understand() -> None:
    for code, kind in KINDS.items():
        assert kind.remedy.endswith("."), code
        assert 400 <= kind.http < 600
        assert kind.close in (1001, 1008, 1009, 1011, 1013) or 4400 <= kind.close < 4600
        assert not kind.retriable or kind.http in (408, 429, 503)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("x" * 1_000_000, "'" + "x" * 60 + "'..."),
        (b"ab", "b'ab'"),
        ("\ud800\n", r"'\ud800\n'"),
        (True, "True"),
        (None, "None"),
        (1.5, "1.5"),
        (float("nan"), "nan"),
        (-(2**70), "a huge number"),
        ([1] * 9, "a list of 9"),
        ({"a": 1}, "a map of 1"),
        (object(), "a object"),
    ],
)
def test_values_are_shown_short(value: object, shown: str) -> None:
    assert show(value) == shown


def test_messages_are_one_line_of_bounded_length() -> None:
    assert clean("a\nb\x00c\ud800") == "a b c?"
    assert len(clean("x" * 1_000)) == 500
    error = Refused("bad_field", "\ud800" * 600)
    assert len(error.message) == 500
    assert as_refused(error) is error


def test_every_utterance_has_a_name_of_its_own() -> None:
    client = Client(NativeSession(FACTS), "native", Clock())
    names = set()
    for _ in range(50):
        client.send({"type": "start"})
        names.add(client.utterance.id)
    assert len(names) == 50
    assert all(len(name) == 16 for name in names)


def test_the_protocol_needs_no_torch_and_no_sockets() -> None:
    """Clients and small tools import it; it must stay cheap and pure."""
    heavy = ["torch", "av", "starlette", "uvicorn", "websockets", "rt_drama3.engine.engine"]
    code = f"import sys, rt_drama3.protocol; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout.strip() == "[]"
