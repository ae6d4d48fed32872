"""Settings as frozen dataclasses: read from TOML, the environment and arguments, then checked.

The annotation of a field is the type of its setting, and ``setting`` adds constraints. Fields of
other types (a nested dataclass, a mapping) are not settings.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import Field, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from rt_drama3.errors import ConfigError
from rt_drama3.system.text_io import decode_utf8

_WANTED: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    tuple[int, ...]: "a list of whole numbers",
    tuple[str, ...]: "a list of strings",
    tuple[tuple[str, str], ...]: "a table of strings",
}
_TRUTH = {"1": True, "true": True, "0": False, "false": False}


def setting(
    default: Any,
    low: float | None = None,
    high: float | None = None,
    *,
    choices: Collection[str] = (),
    secret: bool = False,
) -> Any:
    """A dataclass field with constraints.

    Args:
        default: its value when nothing sets it.
        low, high: inclusive bounds of a number, or of each number in a list.
        choices: the only values allowed, as strings.
        secret: keep its value out of ``repr`` and error messages.
    """
    bounds = None if low is None or high is None else (low, high)
    return field(default=default, repr=not secret, metadata={"bounds": bounds, "choices": choices})


def read_toml(path: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Returns the tables of a TOML file; none without a file.

    Raises:
        ConfigError: the file cannot be read or is not valid TOML.
    """
    if path is None:
        return {}
    try:
        text = decode_utf8(Path(path).read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} {error}.") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path.") from error
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def read_settings(
    kind: type,
    table: object,
    path: str | os.PathLike[str] | None,
    prefix: str,
    environment: Mapping[str, str] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Collects the settings of a dataclass: from a file, the environment, then arguments.

    Args:
        kind: the dataclass.
        table: TOML table with its settings.
        path: file that the table comes from.
        prefix: of its environment variables, ``PREFIX<NAME>``; others are ignored.
        environment: None is the process's.
        arguments: settings that win; None and empty lists are left out.

    Returns:
        The values that are set, and the source of each.

    Raises:
        ConfigError: a name is unknown, or a value has the wrong type or is out of bounds.
    """
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {kind.__name__} settings must be a table, not {table!r}.")
    known = _settings(kind)
    there = os.environ if environment is None else environment
    variables = {name: prefix + name.upper() for name in known}
    given = [(name, value, str(path)) for name, value in table.items()]
    given += [(name, there[text], text) for name, text in variables.items() if text in there]
    given += [
        (name, value, "argument")
        for name, value in (arguments or {}).items()
        if value is not None and value != []
    ]
    values: dict[str, Any] = {}
    for name, value, source in given:
        if name not in known:
            raise ConfigError(f"{source}: unknown setting {name!r}; use one of {', '.join(known)}.")
        values[name] = _checked(*known[name], value, source)
    return values, {name: source for name, _, source in given}


def check_settings(instance: Any) -> None:
    """Converts and checks the settings of a dataclass in place, as its ``__post_init__``.

    Raises:
        ConfigError: a value has the wrong type or is out of bounds.
    """
    kind = type(instance)
    for name, (entry, wanted) in _settings(kind).items():
        value = _checked(entry, wanted, getattr(instance, name), kind.__name__)
        object.__setattr__(instance, name, value)


def _settings(kind: type) -> dict[str, tuple[Field[Any], Any]]:
    hints = get_type_hints(kind)
    return {f.name: (f, hints[f.name]) for f in fields(kind) if hints[f.name] in _WANTED}


def _checked(entry: Field[Any], kind: Any, value: Any, source: str) -> Any:
    shown = f"{source}: {entry.name} is {repr(value) if entry.repr else 'not usable'}"
    try:
        result = _convert(kind, value)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ConfigError(f"{shown}; {_WANTED[kind]} is needed.") from error
    bounds, choices = entry.metadata.get("bounds"), entry.metadata.get("choices")
    if bounds is not None:
        low, high = bounds
        for number in result if isinstance(result, tuple) else (result,):
            if not low <= number <= high:
                raise ConfigError(f"{shown}; it must be in {low}..{high}.")
    if choices and result not in choices:
        raise ConfigError(f"{shown}; it must be one of {', '.join(choices)}.")
    return result


def _convert(kind: Any, value: Any) -> Any:
    """A value as its type; environment variables are text."""
    if isinstance(value, str):
        value = value.strip()
    if kind is bool:
        return _TRUTH[value.lower()] if isinstance(value, str) else _only(bool, value)
    if kind is str:
        return _only(str, value)
    if kind is int:
        return _whole(value)
    if kind is float:
        return float(value) if not isinstance(value, bool) else _only(float, value)
    if kind == tuple[tuple[str, str], ...]:
        return tuple((_only(str, name), _only(str, entry)) for name, entry in _pairs(value))
    parts = value.replace(",", " ").split() if isinstance(value, str) else value
    if kind == tuple[int, ...]:
        return tuple(_whole(part) for part in parts)
    return tuple(_only(str, part) for part in parts)


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    """The entries of a table; in an environment variable, ``name=value, name=value``."""
    if isinstance(value, str):
        parts = [part.partition("=") for part in value.split(",") if part.strip()]
        if not all(sign for _, sign, _ in parts):
            raise ValueError
        return [(name.strip(), entry.strip()) for name, _, entry in parts]
    return value.items() if isinstance(value, Mapping) else value


def _only(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise TypeError
    return int(value)
