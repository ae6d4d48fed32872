"""Everything about a CUDA device in one command: ``rt-drama3 bench gpu --json gpu.json``.

Checks that the kernels and the forms of the step agree, then measures full-size models with random
weights against the memory's bandwidth. It takes less than eight minutes; what does not fit is left
out and named. Exit code 1: a check failed. Exit code 2: there is no CUDA device.

    rt-drama3 bench gpu --layers 8 --batch 1 --batch 8    # a quick look
    rt-drama3 bench gpu --dry-run                         # every line, tiny, on a CPU
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rt_drama3_bench.calibration import calibrate, judge
from rt_drama3_bench.environment import environment, nvidia_smi
from rt_drama3_bench.local.device_run import DeviceRun
from rt_drama3_bench.local.gpu_checks import check_company, check_kernels, check_parity
from rt_drama3_bench.local.gpu_engine import measure_engine
from rt_drama3_bench.local.gpu_speed import (
    measure_ceilings,
    measure_codec,
    measure_kernels,
    measure_prefill,
    measure_products,
    measure_step,
    step_of,
)
from rt_drama3_bench.local.random_model import random_model
from rt_drama3_bench.local.sizes import official, tiny


def run(
    bench: DeviceRun,
    layers: int,
    batches: list[int],
    say: Callable[[str], None],
    save: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """All sections; those after the time limit are left out.

    Args:
        bench: where, and for how long.
        layers: backbone layers of the full-size model.
        batches: batch sizes.
        say: receives progress lines.
        save: receives the report after every section, in case the machine is lost.
    """
    report: dict[str, Any] = {"environment": environment() | _more_environment(bench)}
    before = calibrate()

    def section(name: str, needed: float, work: Callable[[], Any]) -> Any:
        if not bench.time_for(name, needed):
            return None
        started = time.monotonic()
        try:
            found = work()
            bench.synchronize()
        except Exception as error:  # noqa: BLE001 - the other sections still run
            found = {"error": traceback.format_exc(), "passed": False}
            say(f"{name}: {error}")
        report[name] = found
        save(report)
        say(f"{name} ({time.monotonic() - started:.0f} s): {_short(found)}")
        return found

    config = tiny() if bench.dry else official(layers)
    bandwidth = section("bandwidth", 0, lambda: measure_ceilings(bench)).get("copy", 1e12)
    section("kernels agree", 20, lambda: check_kernels(bench))
    section("company", 40, lambda: check_company(bench))
    section("parity", 60, lambda: check_parity(bench))
    model = random_model(config, bench.device, torch.bfloat16, fp8=True)
    report["weights"] = sum(p.nbytes for p in model.parameters())
    section("kernel speed", 10, lambda: measure_kernels(bench, model))
    section("prefill", 20, lambda: measure_prefill(bench, model))
    section("codec", 20, lambda: measure_codec(bench))
    section("products", 15, lambda: measure_products(bench, config))
    step = step_of(bench, model, max(batches))
    first, *rest = sorted(batches)
    for streams in (first, *rest[-1:], *rest[:-1]):  # the extremes first

        def measure(streams: int = streams) -> dict[str, Any]:
            return measure_step(bench, step, streams, streams == first, bandwidth)

        section(f"step of {streams}", 100, measure)
    section("engine", 90, lambda: measure_engine(bench))
    report["noise"] = asdict(judge(before, calibrate()))
    if not bench.dry:
        report["peak_memory"] = torch.cuda.max_memory_allocated(bench.device)
    report["left_out"] = bench.notes
    report["seconds"] = time.monotonic() - bench.started
    return report


def _more_environment(bench: DeviceRun) -> dict[str, Any]:
    facts: dict[str, Any] = {"triton": None, "driver": None}
    if importlib.util.find_spec("triton"):
        import triton

        facts["triton"] = triton.__version__
    if not bench.dry:
        found = nvidia_smi("driver_version")
        facts["driver"] = found[0] if found else None
        facts["free_and_total_memory"] = torch.cuda.mem_get_info(bench.device)
    return facts


def _short(found: Any) -> str:
    text = json.dumps(found, default=str)
    return text if len(text) < 1500 else text[:1500] + " ..."


def measure(to: Path | None, layers: int, batches: list[int], seconds: float, dry_run: bool) -> int:
    """Runs everything and writes the report.

    Args:
        to: the JSON file; None writes none.
        layers, batches: see ``run``.
        seconds: time limit; sections that would exceed it are left out.
        dry_run: tiny sizes on the CPU: every line runs, figures mean nothing.

    Returns:
        The exit code: 0, 1 when a check failed, 2 without a CUDA device.
    """
    if not dry_run and not torch.cuda.is_available():
        sys.stderr.write(
            "bench gpu: this torch sees no CUDA device. Install a CUDA build of torch and its "
            "driver, or use --dry-run to run every line on the CPU.\n"
        )
        return 2
    device = torch.device("cpu" if dry_run else "cuda")

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def save(report: dict[str, Any]) -> None:
        if to is not None:
            to.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")

    bench = DeviceRun(device, seconds)
    report = run(bench, layers, batches, say, save)
    failed = [name for name, part in report.items() if _failed(part)]
    report["failed"] = failed
    save(report)
    say(f"failed: {', '.join(failed) or 'nothing'}; left out: {report['left_out'] or 'nothing'}")
    return 1 if failed else 0


def _failed(part: Any) -> bool:
    return isinstance(part, dict) and part.get("passed") is False
