"""PackageBuilder: finds the compiled packages that a model needs, or has them built.

The build is a process of its own at low priority, which may outlive the one that started it; one
builds at a time, the small sizes first, so that a single stream profits soonest. What failed is
not tried again for a day (``package_notes``), and a package that does not load is built anew once.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import torch

from rt_drama3.aot import notes as package_notes
from rt_drama3.aot import packages
from rt_drama3.aot.codec import build_codec, codec_package
from rt_drama3.aot.step import build_step, step_package
from rt_drama3.codec import Codec
from rt_drama3.config import (
    BackboneConfig,
    CodecConfig,
    ModelConfig,
    TowerConfig,
    WindowTransformerConfig,
)
from rt_drama3.errors import ConfigError
from rt_drama3.model import SpeechModel

LARGEST_MODEL = 1_000_000_000  # parameters; beyond, a CPU is not realtime and a build not worth it
POLL = 2.0  # seconds between looks at a build in another process


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that the packages of one model and codec depend on.

    Attributes:
        model, dtype: of the step; dtype as torch names it, such as "float32".
        codec, codec_dtype: of the codec.
        batch_sizes: of the step, ascending.
        group_sizes: of the codec, ascending.
    """

    model: ModelConfig
    dtype: str
    codec: CodecConfig
    codec_dtype: str
    batch_sizes: tuple[int, ...]
    group_sizes: tuple[int, ...]

    def step_path(self, streams: int) -> Path:
        """Where the step for so many streams is kept."""
        return step_package(self.model, getattr(torch, self.dtype), streams)

    def codec_path(self, frames: int) -> Path:
        """Where decoding in groups of so many frames is kept."""
        return codec_package(self.codec, getattr(torch, self.codec_dtype), frames)

    def jobs(self) -> Iterator[tuple[Path, Callable[[Path], None]]]:
        """Each package and what builds it, in the order that helps soonest."""
        dtype, codec_dtype = getattr(torch, self.dtype), getattr(torch, self.codec_dtype)

        def step(streams: int) -> Callable[[Path], None]:
            return lambda path: build_step(self.model, dtype, streams, path)

        def codec(frames: int) -> Callable[[Path], None]:
            return lambda path: build_codec(self.codec, codec_dtype, frames, path)

        first = self.batch_sizes[:1]
        for streams in first:
            yield self.step_path(streams), step(streams)
        for frames in self.group_sizes:
            yield self.codec_path(frames), codec(frames)
        for streams in self.batch_sizes[len(first) :]:
            yield self.step_path(streams), step(streams)

    def to_json(self) -> str:
        """For the build's process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """The inverse of ``to_json``."""

        def tuples(values: dict[str, Any]) -> dict[str, Any]:
            return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}

        values = tuples(json.loads(text))
        model = values["model"]
        model["backbone"] = BackboneConfig(**tuples(model["backbone"]))
        model["tower"] = TowerConfig(**tuples(model["tower"]))
        codec = tuples(values["codec"])
        for key in ("post", "pre", "encoder_transformer"):
            if codec[key] is not None:
                codec[key] = WindowTransformerConfig(**codec[key])
        values["model"], values["codec"] = ModelConfig(**model), CodecConfig(**codec)
        return cls(**values)


class PackageBuilder:
    """See the module docstring.

    Args:
        model, codec: the checkpoint.
        batch_sizes: of the step, ascending.
        group_sizes: of the codec, ascending.

    Attributes:
        obstacle: why there will be no packages, or None.
    """

    def __init__(
        self,
        model: SpeechModel,
        codec: Codec,
        batch_sizes: Sequence[int],
        group_sizes: Sequence[int],
    ) -> None:
        self.recipe = Recipe(
            model.config,
            str(model.dtype).removeprefix("torch."),
            codec.config,
            str(codec.decoder.dtype).removeprefix("torch."),
            tuple(batch_sizes),
            tuple(group_sizes),
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._log = packages.folder() / "build.log"
        self.obstacle: str | None = None
        if sum(p.numel() for p in model.parameters()) > LARGEST_MODEL:
            self.obstacle = "the model is too large for a realtime step on a CPU"
        elif model.dtype != torch.float32:
            # Fused operations keep what separate ones round: codes would not be the eager ones.
            self.obstacle = f"the model is in {model.dtype}; the compiled step is for float32"
        elif not self.ready() and packages.compiler() is None:
            self.obstacle = "there is no C++ compiler; install g++ or clang for a faster step"

    def steps(self) -> tuple[int, ...]:
        """Batch sizes whose package is there."""
        return tuple(n for n in self.recipe.batch_sizes if self.recipe.step_path(n).exists())

    def codecs(self) -> tuple[int, ...]:
        """Group sizes whose package is there."""
        return tuple(n for n in self.recipe.group_sizes if self.recipe.codec_path(n).exists())

    def ready(self) -> bool:
        """Whether every package is there, and the runner, where it can be had."""
        return _runner_settled() and all(path.exists() for path, _ in self.recipe.jobs())

    def failure(self) -> str | None:
        """What a build died of, or None."""
        for path, _ in self.recipe.jobs():
            failure = package_notes.failure(path)
            if failure is not None and not path.exists():
                return failure
        code = None if self._process is None else self._process.poll()
        if code and not self.ready():
            return f"the build ended with exit code {code} (details: {self._log})"
        return None

    def start(self) -> None:
        """Starts building what is missing in a process of its own, which may outlive this one."""
        if self._process is not None or self.obstacle or self.ready() or self.failure():
            return
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            output = self._log.open("wb")
        except OSError as error:
            self.obstacle = f"the cache folder cannot be written ({error}); set RT_DRAMA3_CACHE"
            return
        with output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, self.recipe.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def rebuild(self, broken: packages.BrokenPackageError) -> bool:
        """Discards a package that does not load, and has it built again if that may help."""
        again = package_notes.discard(broken.path, str(broken))
        if again and not self.building():
            self._process = None
            self.start()
        return again and self.obstacle is None

    def building(self) -> bool:
        """Whether the process started here still works."""
        return self._process is not None and self._process.poll() is None

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the process started here, or another one that was first.

        Raises:
            ConfigError: it did not produce the packages.
        """
        while self._process is not None and not self._process.wait(timeout) and not self.ready():
            time.sleep(POLL)
            self._process = None
            self.start()
        if not self.ready():
            raise ConfigError(
                "the compiled step could not be built: "
                f"{self.obstacle or self.failure() or f'see {self._log}'}; use step mode eager."
            )


def _main() -> None:
    """Builds packages: what ``PackageBuilder`` runs in the background."""
    parser = argparse.ArgumentParser(description="Build compiled packages.")
    parser.add_argument("recipe", help="as JSON")
    recipe = Recipe.from_json(parser.parse_args().recipe)
    if hasattr(os, "nice"):
        os.nice(10)
    # On Linux a session of its own is a scheduling group of its own, which nice does not reach.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("10")
    torch.set_num_threads(1)
    packages.folder().mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(packages.folder() / "build.lock", timeout=0):
            _build_runner()
            for path, build in recipe.jobs():
                if not path.exists():
                    _build(path, build)
    except filelock.Timeout:
        return  # another process is at it


def _build(path: Path, build: Callable[[Path], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        build(path)
    except Exception:
        package_notes.remember_failure(path, traceback.format_exc())
        raise


def _runner_settled() -> bool:
    """Whether the runner is there, or cannot be built: packages can do without it."""
    path = packages.runner_path()
    failed = package_notes.failure(path) is not None
    return path.exists() or failed or packages.compiler() is None


def _build_runner() -> None:
    if _runner_settled():
        return
    try:
        packages.build_runner()
    except (OSError, subprocess.SubprocessError):
        package_notes.remember_failure(packages.runner_path(), traceback.format_exc())


if __name__ == "__main__":
    _main()
