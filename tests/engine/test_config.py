"""EngineConfig: file, environment, arguments, and the message of every error."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from rt_drama3.engine.config import STEP_MODES, EngineConfig, read_engine_config
from rt_drama3.errors import ConfigError


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "engine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def read(path: Path | None = None, environment: dict[str, str] | None = None, **more: Any) -> Any:
    return read_engine_config(path, environment or {}, **more)


def test_defaults_apply_when_nothing_is_set() -> None:
    assert read() == EngineConfig()
    assert read().origin == {}


def test_defaults_are_the_documented_ones() -> None:
    config = EngineConfig()
    assert (config.codec_batch_frames, config.codec_async, config.lead_limit) == (4, True, 10.0)
    assert config.step_mode == "auto"


@pytest.mark.parametrize("table", ["[engine]\n", ""])
def test_a_file_sets_every_kind_of_value(tmp_path: Path, table: str) -> None:
    path = written(
        tmp_path,
        table
        + "max_streams = 2\nlead_limit = 3\nadmit_load = 0.5\ncodec_async = false\n"
        + 'step_mode = "eager"\nattention_lengths = [128, 512]\n',
    )
    config = read(path)
    assert config == EngineConfig(
        max_streams=2,
        lead_limit=3.0,
        admit_load=0.5,
        codec_async=False,
        step_mode="eager",
        attention_lengths=(128, 512),
    )
    assert config.origin["max_streams"] == str(path)


def test_other_tables_are_ignored(tmp_path: Path) -> None:
    assert read(written(tmp_path, "[server]\nport = 1\n[engine]\nmax_queue = 3\n")).max_queue == 3


@pytest.mark.parametrize("table", ["[server]\nport = 1\n", "[limits]\nreferences = 2\n"])
def test_a_file_for_the_server_alone_has_no_settings_of_the_engine(
    tmp_path: Path, table: str
) -> None:
    assert read(written(tmp_path, table)) == EngineConfig()
    assert read(written(tmp_path, "max_queue = 3\n" + table)).max_queue == 3


def test_a_misspelt_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'sever'"):
        read(written(tmp_path, "[sever]\nport = 1\n"))


def test_the_environment_wins_over_the_file_and_arguments_over_both(tmp_path: Path) -> None:
    path = written(tmp_path, "max_streams = 2\nmax_queue = 2\ncontext = 222\n")
    environment = {"RT_DRAMA3_MAX_STREAMS": "3", "RT_DRAMA3_MAX_QUEUE": "3", "MAX_STREAMS": "9"}
    config = read(path, environment, max_streams=4, prefill_block=None)
    assert (config.max_streams, config.max_queue, config.context) == (4, 3, 222)
    assert config.origin == {
        "max_streams": "argument",
        "max_queue": "RT_DRAMA3_MAX_QUEUE",
        "context": str(path),
    }


def test_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RT_DRAMA3_LEAD_TIMEOUT", "7.5")
    assert read_engine_config().lead_timeout == 7.5
    assert read_engine_config(environment={}).lead_timeout == EngineConfig().lead_timeout


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("codec_async", "0", False),
        ("codec_async", " TRUE ", True),
        ("batch_sizes", "1, 2,4", (1, 2, 4)),
        ("batch_sizes", "1 4", (1, 4)),
        ("attention_lengths", "", ()),
        ("lead_limit", "2", 2.0),
        ("max_streams", "4", 4),
        ("step_mode", "compile", "compile"),
    ],
)
def test_environment_variables_are_converted(name: str, text: str, value: object) -> None:
    config = read(environment={"RT_DRAMA3_" + name.upper(): text})
    assert getattr(config, name) == value
    assert type(getattr(config, name)) is type(value)


LIMITS = {
    "max_streams": (0, 257),
    "max_queue": (-1, 100_001),
    "max_silent": (-1, 100_001),
    "context": (63, 1_048_577),
    "prefill_block": (-1, 16_385),
    "codec_batch_frames": (0, 65),
    "codec_batch_min": (0, 65),
    "lead_limit": (0.1, 3601.0),
    "lead_timeout": (0.0, 86_401.0),
    "guidance_rows": (-1, 257),
    "voice_cache_mb": (-1, 1_048_577),
    "admit_load": (0.0, 1.01),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, pair in LIMITS.items() for v in pair])
def test_a_value_out_of_range_is_refused_with_its_range(name: str, value: float) -> None:
    message = rf": {name} is {value!r}; it must be in [\d.]+\.\.[\d.]+\.$"
    with pytest.raises(ConfigError, match="^EngineConfig" + message):
        EngineConfig(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="^argument" + message):
        read(**{name: value})


@pytest.mark.parametrize("name", ["lead_limit", "lead_timeout", "admit_load"])
def test_nan_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^RT_DRAMA3_{name.upper()}: {name} is 'nan'"):
        read(environment={"RT_DRAMA3_" + name.upper(): "nan"})


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("max_streams", "four", "a whole number"),
        ("max_streams", 2.5, "a whole number"),
        ("max_streams", True, "a whole number"),
        ("max_streams", "", "a whole number"),
        ("lead_limit", "long", "a number"),
        ("lead_limit", False, "a number"),
        ("codec_async", "yes", "true or false"),
        ("codec_async", 1, "true or false"),
        ("batch_sizes", 4, "a list of whole numbers"),
        ("batch_sizes", "1 x", "a list of whole numbers"),
        ("attention_lengths", [1.5], "a list of whole numbers"),
        ("step_mode", 3, "a string"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(name: str, value: object, wanted: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read(**{name: value})
    assert str(refusal.value) == f"argument: {name} is {value!r}; {wanted} is needed."
    with pytest.raises(ConfigError) as refusal:
        EngineConfig(**{name: value})  # type: ignore[arg-type]
    assert str(refusal.value) == f"EngineConfig: {name} is {value!r}; {wanted} is needed."


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'max_strems'; use one of max_streams"):
        read(written(tmp_path, "max_strems = 2\n"))
    with pytest.raises(ConfigError, match="origin"):
        read(origin={})


def test_unknown_environment_variables_are_ignored() -> None:
    assert read(environment={"RT_DRAMA3_CACHE": "/cache"}) == EngineConfig()


def test_an_unknown_step_mode_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=f"'fast'.*{', '.join(STEP_MODES)}"):
        EngineConfig(step_mode="fast")


@pytest.mark.parametrize("sizes", [(2, 1), (1, 1), (0, 4), (-1,)])
@pytest.mark.parametrize("name", ["batch_sizes", "attention_lengths"])
def test_sizes_must_ascend(name: str, sizes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is \[.*ascending positive numbers"):
        EngineConfig(**{name: sizes})  # type: ignore[arg-type]


def test_batch_sizes_must_cover_the_slots() -> None:
    with pytest.raises(ConfigError, match=r"end at 4, but 6 slots .* add that size"):
        EngineConfig(max_streams=4, guidance_rows=2, batch_sizes=(1, 4))
    assert EngineConfig(max_streams=4, batch_sizes=(1, 4)).sizes == (1, 4)


def test_batch_sizes_must_include_a_single_stream() -> None:
    with pytest.raises(ConfigError, match=r"\[2, 4\]; they must start at 1"):
        EngineConfig(max_streams=4, batch_sizes=(2, 4))


@pytest.mark.parametrize(
    ("streams", "rows", "sizes"),
    [(1, 0, (1,)), (2, 0, (1, 2)), (5, 0, (1, 2, 4, 5)), (4, 4, (1, 2, 4, 8)), (1, 1, (1, 2))],
)
def test_sizes_are_powers_of_two_up_to_the_slots(
    streams: int, rows: int, sizes: tuple[int, ...]
) -> None:
    config = EngineConfig(max_streams=streams, guidance_rows=rows)
    assert config.sizes == sizes
    assert config.slots == streams + rows


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere\.toml: No such file.*check"):
        read(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("text", ["max_streams = \n", "engine = 3\n", "[engine\n"])
def test_a_file_without_a_table_of_settings_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\.toml"):
        read(written(tmp_path, text))


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_bytes(b"max_streams = 1 # \xff")
    with pytest.raises(ConfigError, match=r"engine\.toml is not UTF-8 text"):
        read(path)


def test_the_smallest_decode_batch_is_not_above_the_largest() -> None:
    assert EngineConfig(codec_batch_frames=3, codec_batch_min=3).codec_batch_min == 3
    with pytest.raises(ConfigError, match=r"codec_batch_min is 5, above codec_batch_frames \(4\)"):
        EngineConfig(codec_batch_min=5)


def test_the_page_lists_every_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "engine.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert {field.name for field in dataclasses.fields(EngineConfig)} - {"origin"} <= set(listed)
