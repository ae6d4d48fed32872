"""PackageBuilder: finds the compiled packages that a model needs, or has them built.

The build is a separate low-priority process, which may outlive the one that started it. There is
one per recipe, and the builders of several recipes take turns, package by package; the small sizes
come first, so that a single stream benefits soonest. A failed build is not retried for a day (see
``failures``), unless its surroundings were at fault; a damaged package is rebuilt once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import filelock
import torch

from rt_drama3.aot import failures, packages
from rt_drama3.aot.codec import build_codec, codec_package
from rt_drama3.aot.step import build_step, step_package
from rt_drama3.codec import Codec
from rt_drama3.config import LARGEST_COMPILED, CodecConfig, ModelConfig
from rt_drama3.errors import ConfigError
from rt_drama3.model import SpeechModel
from rt_drama3.model.weights import is_plain, matrices
from rt_drama3.system.checksums import published
from rt_drama3.system.compiling import compiler

POLL = 2.0  # seconds between checks of a build in another process
TURN = 0.2  # seconds between attempts to take the turn from another builder
# Errors of programs that ran out of something, as text: the compiler reports no error number.
_PASSING = (
    "Killed signal",
    *map(os.strerror, (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EROFS, errno.EMFILE)),
)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that the packages of one model and codec depend on.

    Attributes:
        model, dtype: the language model; dtype as torch names it, such as "float32".
        codec, codec_dtype: the codec.
        batch_sizes: streams per step, ascending.
        decode_sizes: frames per decode batch, ascending.
    """

    model: ModelConfig
    dtype: str
    codec: CodecConfig
    codec_dtype: str
    batch_sizes: tuple[int, ...]
    decode_sizes: tuple[int, ...]

    def step_path(self, streams: int) -> Path:
        """Returns the path of the step's package for ``streams`` streams."""
        return step_package(self.model, getattr(torch, self.dtype), streams)

    def codec_path(self, frames: int) -> Path:
        """Returns the path of the decode package for batches of ``frames`` frames."""
        return codec_package(self.codec, getattr(torch, self.codec_dtype), frames)

    def jobs(self) -> Iterator[tuple[Path, Callable[[Path], None]]]:
        """Yields each package and the function that builds it, most useful first."""
        dtype, codec_dtype = getattr(torch, self.dtype), getattr(torch, self.codec_dtype)

        def step(streams: int) -> tuple[Path, Callable[[Path], None]]:
            return self.step_path(streams), partial(build_step, self.model, dtype, streams)

        yield from map(step, self.batch_sizes[:1])
        for frames in self.decode_sizes:
            yield self.codec_path(frames), partial(build_codec, self.codec, codec_dtype, frames)
        yield from map(step, self.batch_sizes[1:])


class PackageBuilder:
    """See the module docstring.

    Args:
        model, codec: the checkpoint.
        batch_sizes: streams per step, ascending.
        decode_sizes: frames per decode batch, ascending.

    Attributes:
        obstacle: why no packages can be built, or None.
    """

    def __init__(
        self,
        model: SpeechModel,
        codec: Codec,
        batch_sizes: Sequence[int],
        decode_sizes: Sequence[int],
    ) -> None:
        self.recipe = Recipe(
            model.config,
            str(model.dtype).removeprefix("torch."),
            codec.config,
            str(codec.decoder.dtype).removeprefix("torch."),
            tuple(batch_sizes),
            tuple(decode_sizes),
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._log = failures.folder() / "build.log"
        self.obstacle: str | None = None
        if sum(p.numel() for p in model.parameters()) > LARGEST_COMPILED:
            self.obstacle = "the model is too large for a realtime step on a CPU"
        elif not all(is_plain(matrix) for _, matrix in matrices(model)):
            self.obstacle = "matrices stay as they are stored; the compiled step is for plain ones"
        elif model.dtype != torch.float32:
            # Fused operations keep what separate ones round: codes would differ from eager mode.
            self.obstacle = f"the model is in {model.dtype}; the compiled step is for float32"
        else:
            self._find_compiler()

    def _find_compiler(self) -> None:
        if not self.ready() and compiler() is None:
            self.obstacle = "no C++ compiler was found; install g++ or clang for a faster step"

    def steps(self) -> tuple[int, ...]:
        """Batch sizes of the step whose package exists."""
        return tuple(n for n in self.recipe.batch_sizes if published(self.recipe.step_path(n)))

    def codecs(self) -> tuple[int, ...]:
        """Decode batch sizes whose package exists."""
        return tuple(n for n in self.recipe.decode_sizes if published(self.recipe.codec_path(n)))

    def ready(self) -> bool:
        """Whether every package exists, and the runner, where it can be built."""
        return _runner_settled() and all(published(path) for path, _ in self.recipe.jobs())

    def failure(self) -> str | None:
        """Why the build failed, or None."""
        for path, _ in self.recipe.jobs():
            failure = failures.failure(path)
            if failure is not None and not published(path):
                return failure
        code = None if self._process is None else self._process.poll()
        if code and not self.ready():
            return f"the build ended with exit code {code} (details: {self._log})"
        return None

    def start(self) -> None:
        """Starts building what is missing in a separate process, which may outlive this one."""
        if self._process is not None or self.obstacle or self.ready() or self.failure():
            return
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            output = self._log.open("wb")
        except OSError as error:
            self.obstacle = f"the cache folder is not writable ({error}); set RT_DRAMA3_CACHE"
            return
        with output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, pickle.dumps(self.recipe).hex()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def rebuild(self, error: packages.PackageLoadError) -> bool:
        """Discards a damaged package, and rebuilds it if that may help.

        One that is intact is kept: it may load another time.
        """
        if not error.damaged or not failures.discard(error.path, str(error)):
            return False
        self._find_compiler()
        if not self.building():
            self._process = None
            self.start()
        return self.obstacle is None

    def building(self) -> bool:
        """Whether the process started here is still running."""
        return self._process is not None and self._process.poll() is None

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the process started here, or for another one that is already building.

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
    """Builds packages; ``PackageBuilder`` runs this in the background."""
    recipe: Recipe = pickle.loads(bytes.fromhex(sys.argv[1]))  # from ``PackageBuilder.start``
    if hasattr(os, "nice"):
        os.nice(10)
    # On Linux a new session is a scheduling group of its own, which nice does not affect.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("10")
    torch.set_num_threads(1)
    failures.folder().mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(filelock.Timeout):  # another process builds this recipe
        build_all(recipe)


def build_all(recipe: Recipe) -> None:
    """Builds what is missing, in turns with the builders of other recipes.

    Raises:
        filelock.Timeout: another process is building this recipe.
    """
    jobs = list(recipe.jobs())
    key = hashlib.sha256("\n".join(str(path) for path, _ in jobs).encode()).hexdigest()[:20]
    with filelock.FileLock(failures.folder() / f"build-{key}.lock", timeout=0):
        with _turn():
            _build_runner()
        for path, build in jobs:
            if published(path):
                continue
            with _turn():
                if not published(path):  # another recipe may need it, too
                    _build(path, build)


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """Holds the lock under which one process at a time compiles; then lets others have it."""
    with filelock.FileLock(failures.folder() / "build.lock", poll_interval=TURN):
        yield
    time.sleep(2 * TURN)


def _build(path: Path, build: Callable[[Path], None]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        build(path)
    except Exception as error:
        if not _passes(error):
            failures.record(path, traceback.format_exc())
        raise


def _passes(error: BaseException | None) -> bool:
    """Whether a build failed for want of memory or room: it may work the next time."""
    while error is not None:
        text = f"{error} {getattr(error, 'stderr', '')}"
        if isinstance(error, MemoryError) or any(cause in text for cause in _PASSING):
            return True
        error = error.__cause__ or error.__context__
    return False


def _runner_settled() -> bool:
    """Whether the runner exists or cannot be built: packages work without it."""
    path = packages.runner_path()
    failed = failures.failure(path) is not None
    return published(path) or failed or compiler() is None


def _build_runner() -> None:
    if _runner_settled():
        return
    try:
        packages.build_runner()
    except (OSError, subprocess.SubprocessError) as error:
        if _passes(error):
            raise
        failures.record(packages.runner_path(), traceback.format_exc())


if __name__ == "__main__":
    _main()
