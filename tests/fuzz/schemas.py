"""Messages and bodies by the published schemas: what they allow, now and then something else."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from rt_drama3.protocol import load_schema
from tests.fuzz.mutations import ODD
from tests.fuzz.targets import sounds

WORDS = ("Hello there. ", "And so", " on, and on; ", "", "...", "<|speaker:1|> ", "[soft] ", "😀")
TEXT = st.sampled_from(WORDS) | st.text(max_size=12)
RIGHT = 12  # right values to a wrong one


def strategy(node: dict[str, Any], whole: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a part of a schema."""
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[1]
        if name == "bin":
            return st.sampled_from([bytes(40), bytes(6), *sounds()]) | st.binary(max_size=60)
        return strategy(whole["$defs"][name], whole)
    if "const" in node:
        return st.just(node["const"])
    if "enum" in node:
        return st.sampled_from(node["enum"])
    if "anyOf" in node:
        return st.one_of([strategy(part, whole) for part in node["anyOf"]])
    if "type" not in node:  # any value
        return st.sampled_from(ODD) | TEXT
    kinds = node["type"] if isinstance(node["type"], list) else [node["type"]]
    return st.one_of([_of_kind(kind, node, whole) for kind in kinds])


def _of_kind(kind: str, node: dict[str, Any], whole: dict[str, Any]) -> st.SearchStrategy[Any]:
    if kind == "object":
        fields = {
            name: st.one_of([strategy(part, whole)] * RIGHT + [st.sampled_from(ODD)])
            for name, part in node["properties"].items()
        }
        needed = {name: fields.pop(name) for name in node["required"]}
        return st.fixed_dictionaries(needed, optional=fields)
    if kind == "array":
        return st.lists(strategy(node["items"], whole), max_size=3)
    if kind == "integer":
        return st.integers(node.get("minimum", -(10**6)), node.get("maximum", 10**6))
    if kind == "number":
        low = node.get("minimum", node.get("exclusiveMinimum", -100))
        return st.floats(low, node.get("maximum", 100), exclude_min="exclusiveMinimum" in node)
    return {"string": TEXT, "boolean": st.booleans(), "null": st.none()}[kind]


def conversations(dialect: str) -> st.SearchStrategy[list[Any]]:
    """Messages of a client in any order, mostly with a start at the beginning."""
    whole = load_schema(dialect)
    parts = {
        name: strategy(part, whole)
        for name, part in whole["$defs"].items()
        if name.startswith("client_")
    }
    start, any_of_them = parts["client_start"], st.one_of(list(parts.values()))
    return st.tuples(start | any_of_them, st.lists(any_of_them, max_size=9)).map(
        lambda found: [found[0], *found[1]]
    )


def bodies(name: str) -> st.SearchStrategy[Any]:
    """Bodies of an HTTP route."""
    whole = load_schema("http")
    return strategy(whole["$defs"][name], whole)


def drawn(strategy: st.SearchStrategy[Any], count: int, number: int) -> list[Any]:
    """That many values, the same for the same number."""
    found: list[Any] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found
