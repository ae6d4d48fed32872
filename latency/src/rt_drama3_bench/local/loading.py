"""Scenario ``loading``: the memory that loading a checkpoint needs.

Makes a random checkpoint of 4.6 GB (four layers of the official size, FP8 experts), loads it in a
process of its own and compares the peak with what stays resident. Linux only: it reads ``/proc``.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from rt_drama3.checkpoint import load_model, make_tiny, read_config
from rt_drama3_bench import worker
from rt_drama3_bench.local.sizes import AUDIO, OFFICIAL, TEXT
from rt_drama3_bench.result import Result

SETTINGS = OFFICIAL | {
    TEXT + "vocab_size": 65_536,
    AUDIO + "num_codebooks": 3,
    AUDIO + "shared_enrichment_layers": 1,
}


def memory() -> dict[str, int]:
    """Bytes of this process: anonymous now, and the highest resident size so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines if line.startswith(("RssAnon", "VmHWM")))
    return {name: int(value.split()[0]) * 1024 for name, value in found.items()}


def measure(folder: Path, keep_fp8: bool) -> dict[str, float]:
    """Loads the checkpoint on one thread; figures in gigabytes, and seconds."""
    torch.set_num_threads(1)
    before, peak = memory(), 0

    def watch(_: int, __: int) -> None:
        nonlocal peak
        peak = max(peak, memory()["RssAnon"])

    started = time.monotonic()
    model = load_model(
        folder, read_config(folder), torch.device("cpu"), torch.bfloat16, watch, keep=keep_fp8
    )
    seconds = time.monotonic() - started
    resident = sum(p.nbytes for p in model.parameters())
    return {
        "files": sum(f.stat().st_size for f in folder.glob("*.safetensors")) / 1e9,
        "resident": resident / 1e9,
        "one layer": sum(p.nbytes for p in model.backbone.layers[0].parameters()) / 1e9,
        "anonymous peak beyond resident": (peak - before["RssAnon"] - resident) / 1e9,
        "peak beyond resident": (memory()["VmHWM"] - before["VmHWM"] - resident) / 1e9,
        "seconds to load": seconds,
    }


def loading(result: Result, folder: Path, expand: bool = False) -> None:
    """Makes the checkpoint where it is missing, and loads it in another process.

    Args:
        result: receives the measurements.
        folder: of the checkpoint; it is kept.
        expand: dequantise the experts at load, as on a CPU; otherwise they stay FP8.
    """
    if not folder.exists() or not any(folder.iterdir()):
        make_tiny(folder, settings=SETTINGS, shards=8, codec="decode")
    figures = worker.run(measure, folder, not expand)
    result.facts |= {
        name if name == "seconds to load" else f"{name}, GB": value
        for name, value in figures.items()
    }
    beyond, layer = figures["peak beyond resident"], figures["one layer"]
    result.judge("peak beyond the resident model, GB", beyond, layer)
