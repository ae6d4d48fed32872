"""The settings reader, on a dataclass with every type of setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rt_drama3.errors import ConfigError
from rt_drama3.system.settings import check_settings, read_settings, read_toml, setting


@dataclass(frozen=True)
class Example:
    """One setting of each type, and a field that is not a setting."""

    flag: bool = False
    count: int = setting(1, 0, 10)
    share: float = setting(0.5, 0, 1)
    mode: str = setting("a", choices=("a", "b"))
    ports: tuple[int, ...] = setting((80,), 1, 99)
    names: tuple[str, ...] = ()
    keys: tuple[str, ...] = setting((), secret=True)
    origin: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_settings(self)


def read(table: Any = None, environment: Any = None, **arguments: Any) -> Any:
    return read_settings(Example, table or {}, "x.toml", "X_", environment or {}, arguments)


def test_arguments_override_the_environment_and_that_the_file() -> None:
    table = {"count": 2, "share": 1, "mode": "b"}
    environment = {"X_COUNT": "3", "X_SHARE": "0.25", "Y_COUNT": "9", "X_OTHER": "9"}
    values, origin = read(table, environment, count=4.0, names=None, ports=[])
    assert values == {"count": 4, "share": 0.25, "mode": "b"}
    assert origin == {"count": "argument", "share": "X_SHARE", "mode": "x.toml"}
    assert type(values["count"]) is int


def test_lists_may_be_separated_by_commas_or_spaces() -> None:
    values, _ = read(environment={"X_PORTS": " 80, 81 82", "X_NAMES": "a b", "X_FLAG": "True"})
    assert values == {"ports": (80, 81, 82), "names": ("a", "b"), "flag": True}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"count": 11}, r"^argument: count is 11; it must be in 0\.\.10\.$"),
        ({"count": True}, "count is True; a whole number is needed"),
        ({"ports": [80, 100]}, r"ports is \[80, 100\]; it must be in 1\.\.99"),
        ({"names": [1]}, "a list of strings is needed"),
        ({"mode": "c"}, "mode is 'c'; it must be one of a, b"),
        ({"flag": "maybe"}, "true or false is needed"),
        ({"origin": {}}, "unknown setting 'origin'; use one of flag, count"),
    ],
)
def test_invalid_values_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**setting)


def test_secrets_are_neither_in_errors_nor_in_repr() -> None:
    with pytest.raises(ConfigError, match="keys is not usable") as refusal:
        read(keys=["word", 7])
    assert "word" not in str(refusal.value)
    assert "word" not in repr(Example(keys=("word",)))


def test_a_dataclass_made_in_code_is_converted_and_checked() -> None:
    assert Example(ports=[1, "2"]).ports == (1, 2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^Example: share is 2"):
        Example(share=2)


def test_no_file_has_no_tables(tmp_path: Path) -> None:
    assert read_toml(None) == {}
    with pytest.raises(ConfigError, match="cannot read"):
        read_toml(tmp_path)


@pytest.mark.parametrize("text", ["x = " + "[" * 100_000, "x = " + "9" * 10_000, "x = ", "\ud800"])
def test_a_file_that_is_not_toml_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError, match=r"bad\.toml is not"):
        read_toml(file)
