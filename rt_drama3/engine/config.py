"""EngineConfig: how many streams, how much memory, how far ahead.

It comes from a TOML file, the environment or keyword arguments; every value is checked here. No
torch in this file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rt_drama3.errors import ConfigError

STEP_MODES = ("auto", "eager", "compile", "cudagraph")
ENVIRONMENT_PREFIX = "RT_DRAMA3_"
_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list of whole numbers",
}


@dataclass(frozen=True)
class EngineConfig:
    """Settings of an engine.

    Attributes:
        max_streams: streams that speak at the same time; more wait in the queue.
        max_queue: requests that may wait; more are refused with ``Overloaded``.
        max_silent: streams that may be open besides while there is no text for them.
        context: rows (prompt and frames) that one piece of text may take.
        batch_sizes: batch sizes that the step is compiled or captured for; empty means powers of
            two up to ``max_streams`` (guided streams count twice).
        attention_lengths: cache lengths that attention is captured for, besides ``context``.
        step_mode: "auto" takes the fastest that works; "eager" is the reference; "compile" is the
            ahead-of-time step on a CPU and torch.compile on CUDA; "cudagraph" adds capture (CUDA).
        prefill_block: prompt rows read per pass between frames of running streams; 0 picks 128 on
            a CPU and 256 on CUDA.
        codec_batch_frames: ceiling of the codec's groups, which grow from 1 by doubling.
        codec_async: decode beside the next step instead of after it.
        lead_limit: seconds of audio that a listener may leave untaken before its stream pauses.
        lead_timeout: seconds that it may stay paused before it is ended.
        guidance_rows: slots reserved for the second rows of guided streams.
        voice_cache_mb: memory for prefilled voices, in MiB.
        admit_load: share of realtime that running streams may use before new ones must wait.
    """

    max_streams: int = 4
    max_queue: int = 16
    max_silent: int = 64
    context: int = 4096
    batch_sizes: tuple[int, ...] = ()
    attention_lengths: tuple[int, ...] = (256, 512, 1024, 2048)
    step_mode: str = "auto"
    prefill_block: int = 0
    codec_batch_frames: int = 4
    codec_async: bool = True
    lead_limit: float = 10.0
    lead_timeout: float = 30.0
    guidance_rows: int = 0
    voice_cache_mb: int = 256
    admit_load: float = 0.85
    origin: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Checks every value; a dataclass made in code is held to the same limits as a file."""
        for setting in fields(self):
            if setting.name != "origin":
                value = getattr(self, setting.name)
                value = _convert(setting.name, value, setting.default, "EngineConfig")
                object.__setattr__(self, setting.name, value)
        for name, low, high in (
            ("max_streams", 1, 256),
            ("max_queue", 0, 100_000),
            ("max_silent", 0, 100_000),
            ("context", 64, 1_048_576),
            ("prefill_block", 0, 16_384),
            ("codec_batch_frames", 1, 64),
            ("lead_limit", 0.2, 3600),
            ("lead_timeout", 0.1, 86_400),
            ("guidance_rows", 0, 256),
            ("voice_cache_mb", 0, 1_048_576),
            ("admit_load", 0.05, 1.0),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} is {value!r}; it must lie in {low}..{high}.")
        if self.step_mode not in STEP_MODES:
            raise ConfigError(
                f"step_mode is {self.step_mode!r}; it must be one of {', '.join(STEP_MODES)}."
            )
        for name in ("batch_sizes", "attention_lengths"):
            sizes = getattr(self, name)
            if list(sizes) != sorted(set(sizes)) or any(n < 1 for n in sizes):
                raise ConfigError(
                    f"{name} is {list(sizes)}; ascending positive numbers are needed."
                )
        if self.batch_sizes and self.batch_sizes[0] != 1:
            raise ConfigError(f"batch_sizes are {list(self.batch_sizes)}; they must begin at 1.")
        if self.batch_sizes and self.batch_sizes[-1] < self.slots:
            raise ConfigError(
                f"batch_sizes end at {self.batch_sizes[-1]}, but {self.slots} slots "
                "(max_streams + guidance_rows) can be active; add that size."
            )

    @property
    def slots(self) -> int:
        """Rows of the step's batch."""
        return self.max_streams + self.guidance_rows

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes in force."""
        if self.batch_sizes:
            return self.batch_sizes
        powers = []
        size = 1
        while size < self.slots:
            powers.append(size)
            size *= 2
        return (*powers, self.slots)


def read_engine_config(
    path: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    **overrides: Any,
) -> EngineConfig:
    """Engine settings from a TOML file, then ``RT_DRAMA3_<NAME>`` variables, then keywords.

    Args:
        path: a TOML file whose ``[engine]`` table (or top level) holds settings.
        environment: None is the process's.
        overrides: settings that win; None values are left out.

    Raises:
        ConfigError: the file cannot be read, a name is unknown, or a value does not fit.
    """
    known = {f.name: f for f in fields(EngineConfig) if f.name != "origin"}
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}

    def put(name: str, value: Any, source: str) -> None:
        if name not in known:
            raise ConfigError(
                f"{source}: {name!r} is no engine setting; known: {', '.join(known)}."
            )
        values[name] = _convert(name, value, known[name].default, source)
        origin[name] = source

    if path is not None:
        for name, value in _read_table(Path(path)).items():
            put(name, value, str(path))
    for name in known:
        text = (os.environ if environment is None else environment).get(
            ENVIRONMENT_PREFIX + name.upper()
        )
        if text is not None:
            put(name, text, ENVIRONMENT_PREFIX + name.upper())
    for name, value in overrides.items():
        if value is not None:
            put(name, value, "argument")
    return replace(EngineConfig(), **values, origin=origin)


def _read_table(path: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    table = data.get("engine", data)
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: engine must be a table.")
    return table


def _convert(name: str, value: Any, default: Any, source: str) -> Any:
    """A value as the type of its default; text comes from the environment."""
    try:
        if isinstance(default, bool):
            if isinstance(value, str):
                return {"1": True, "true": True, "0": False, "false": False}[value.strip().lower()]
            if isinstance(value, bool):
                return value
            raise ValueError
        if isinstance(default, tuple):
            parts = value.replace(",", " ").split() if isinstance(value, str) else value
            return tuple(_integer(part) for part in parts)
        if isinstance(default, int):
            return _integer(value)
        if isinstance(default, float):
            if isinstance(value, bool):
                raise ValueError
            return float(value)
        if isinstance(value, str):
            return value
        raise ValueError
    except (ValueError, TypeError, KeyError) as error:
        wanted = _KINDS[type(default)]
        raise ConfigError(f"{source}: {name} is {value!r}; {wanted} is needed.") from error


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    return int(value)
