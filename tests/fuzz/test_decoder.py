"""The fuzz targets themselves: every seed passes, mutants of them too, and atheris runs them."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import targets

HERE = Path(__file__).parent
# What the fuzzer found to break something once, as inputs of ``targets.one_input``.
FOUND: tuple[bytes, ...] = ()


def test_seeds_pass_and_so_does_what_was_found() -> None:
    seeds = targets.seeds()
    assert {data[0] for data in seeds} == set(range(len(targets.TARGETS)))
    for data in (*seeds, *FOUND):
        targets.one_input(data)


def test_steps_are_what_was_written() -> None:
    messages = [b"", b"\xf3", b"x" * 300]
    data = b"\xf2".join(map(targets.step_of, messages))
    assert list(targets.steps(data)) == [b"", 2, b"\xf3", 2, b"x" * 300]


def test_mutants_of_the_seeds_pass() -> None:
    rng, seeds = random.Random(4), targets.seeds()
    for _ in range(1_500):
        data = rng.choice(seeds)
        for _ in range(rng.randrange(1, 4)):
            data = targets.mutated(data, rng)[:4_096]
        targets.one_input(data)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="needs atheris")
def test_a_short_run_of_atheris(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "decoder.py"), "-runs=4000", "-seed=4"]
    command.append("-rss_limit_mb=0")  # the measured peak is inherited from this process
    ran = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3_000:]
    assert "Done 4000 runs" in ran.stderr
