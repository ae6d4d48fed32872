"""EngineConfig: the settings of an engine, from a TOML file, the environment or keywords.

No torch in this file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rt_drama3.errors import ConfigError
from rt_drama3.system.settings import check_settings, read_settings, read_toml, setting

STEP_MODES = ("auto", "eager", "compile", "cudagraph")
ENVIRONMENT_PREFIX = "RT_DRAMA3_"


@dataclass(frozen=True)
class EngineConfig:
    """Settings of an engine.

    Attributes:
        max_streams: streams that are spoken concurrently; further requests are queued.
        max_queue: length of the queue; further requests are refused with ``Overloaded``.
        max_silent: open streams without text, on top of the other two.
        context: rows (prompt and frames) of one segment of text.
        batch_sizes: batch sizes to compile or capture the step for; empty means powers of two up
            to ``max_streams`` (streams with guidance count twice).
        attention_lengths: cache lengths to capture attention for, in addition to ``context``.
        step_mode: "auto" takes the fastest that works; "eager" is the reference; "compile" is the
            ahead-of-time step on a CPU and torch.compile on CUDA; "cudagraph" adds capture (CUDA).
        prefill_block: prompt rows per prefill chunk, between frames of running streams; 0 picks
            128 on a CPU and 256 on CUDA.
        codec_batch_frames: maximum size of a decode batch, which grows from 1 by doubling.
        codec_batch_min: minimum size of a decode batch, except for the last one of a segment; equal
            to ``codec_batch_frames``, batches have a fixed size.
        codec_async: decode concurrently with the next step instead of after it.
        lead_limit: seconds of undelivered audio at which a stream pauses.
        lead_timeout: seconds that a stream may stay paused before it is ended.
        guidance_rows: slots reserved for the unconditional rows of streams with guidance.
        voice_cache_mb: memory for prefilled voices, in MiB.
        text_pause_ms: milliseconds without new text after which text is spoken that can stand
            alone but may be continued ("at 9 a.m. "); 0 waits for more text or a flush.
        admit_load: share of realtime that running streams may use before new ones must wait.
        origin: source of each setting that is not a default.
    """

    max_streams: int = setting(4, 1, 256)
    max_queue: int = setting(16, 0, 100_000)
    max_silent: int = setting(64, 0, 100_000)
    context: int = setting(4096, 64, 1_048_576)
    batch_sizes: tuple[int, ...] = ()
    attention_lengths: tuple[int, ...] = (256, 512, 1024, 2048)
    step_mode: str = setting("auto", choices=STEP_MODES)
    prefill_block: int = setting(0, 0, 16_384)
    codec_batch_frames: int = setting(4, 1, 64)
    codec_batch_min: int = setting(1, 1, 64)
    codec_async: bool = True
    lead_limit: float = setting(10.0, 0.2, 3600)
    lead_timeout: float = setting(30.0, 0.1, 86_400)
    guidance_rows: int = setting(0, 0, 256)
    voice_cache_mb: int = setting(256, 0, 1_048_576)
    text_pause_ms: int = setting(250, 0, 60_000)
    admit_load: float = setting(0.85, 0.05, 1.0)
    origin: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Checks every value; a dataclass made in code has the same limits as a file."""
        check_settings(self)
        if self.codec_batch_min > self.codec_batch_frames:
            raise ConfigError(
                f"codec_batch_min is {self.codec_batch_min}, above codec_batch_frames "
                f"({self.codec_batch_frames}); lower it, or raise codec_batch_frames."
            )
        for name in ("batch_sizes", "attention_lengths"):
            sizes = getattr(self, name)
            if list(sizes) != sorted(set(sizes)) or any(n < 1 for n in sizes):
                raise ConfigError(f"{name} is {list(sizes)}; use ascending positive numbers.")
        if self.batch_sizes and self.batch_sizes[0] != 1:
            raise ConfigError(f"batch_sizes are {list(self.batch_sizes)}; they must start at 1.")
        if self.batch_sizes and self.batch_sizes[-1] < self.slots:
            raise ConfigError(
                f"batch_sizes end at {self.batch_sizes[-1]}, but {self.slots} slots "
                "(max_streams + guidance_rows) can be active; add that size."
            )

    @property
    def slots(self) -> int:
        """Number of rows in the batch of a step."""
        return self.max_streams + self.guidance_rows

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes, also where none are set."""
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
        path: a TOML file with settings in its ``[engine]`` table or, without one, at the top level;
            the server's tables are ignored.
        environment: None is the process's.
        overrides: settings that win; None and empty lists are left out.

    Raises:
        ConfigError: the file cannot be read, a name is unknown, or a value cannot be used.
    """
    tables = read_toml(path)
    top = {name: value for name, value in tables.items() if name not in ("server", "limits")}
    values, origin = read_settings(
        EngineConfig, tables.get("engine", top), path, ENVIRONMENT_PREFIX, environment, overrides
    )
    return EngineConfig(**values, origin=origin)
