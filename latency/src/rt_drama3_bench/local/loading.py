"""Scenario ``loading``: the memory and the time that loading a checkpoint needs.

Makes a random checkpoint of 4.6 GB (four layers of the official size, FP8 experts) and loads it in
a process of its own. The peak is compared with what stays resident; the time with that of reading
the files' bytes once and of filling as much new memory as the model has. Linux only: it reads
``/proc``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from rt_drama3.checkpoint import Checkpoint, load_model, make_tiny
from rt_drama3.checkpoint.filling import CHUNK_BYTES
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


def plain_copy(files: Sequence[Path], nbytes: int) -> tuple[float, float]:
    """Seconds, and CPU seconds, of reading files and filling new memory, on one thread."""
    started, busy = time.monotonic(), time.process_time()
    buffer = bytearray(CHUNK_BYTES)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    source = torch.frombuffer(buffer, dtype=torch.uint8)
    for part in torch.empty(nbytes, dtype=torch.uint8).split(len(source)):
        part.copy_(source[: len(part)])
    return time.monotonic() - started, time.process_time() - busy


def measure(folder: Path, keep_fp8: bool) -> dict[str, float]:
    """Loads the checkpoint; figures in gigabytes, and seconds."""
    torch.set_num_threads(1)
    before, peak = memory(), 0

    def watch(_: int, __: int) -> None:
        nonlocal peak
        peak = max(peak, memory()["RssAnon"])

    started, busy = time.monotonic(), time.process_time()
    checkpoint = Checkpoint(folder)
    model = load_model(
        checkpoint,
        checkpoint.config,
        torch.device("cpu"),
        torch.bfloat16,
        watch,
        keep=keep_fp8,
    )
    seconds, cpu = time.monotonic() - started, time.process_time() - busy
    resident = sum(p.nbytes for p in model.parameters())
    figures = {
        "resident": resident / 1e9,
        "one layer": sum(p.nbytes for p in model.backbone.layers[0].parameters()) / 1e9,
        "anonymous peak beyond resident": (peak - before["RssAnon"] - resident) / 1e9,
        "peak beyond resident": (memory()["VmHWM"] - before["VmHWM"] - resident) / 1e9,
    }
    del model
    files = sorted(folder.glob("*.safetensors"))
    copied, copying = plain_copy(files, resident)
    return figures | {
        "files": sum(f.stat().st_size for f in files) / 1e9,
        "seconds to load": seconds,
        "CPU seconds to load": cpu,
        "seconds to read and copy": copied,
        "CPU seconds to read and copy": copying,
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
        name if "seconds" in name else f"{name}, GB": value for name, value in figures.items()
    }
    beyond, layer = figures["peak beyond resident"], figures["one layer"]
    result.judge("peak beyond the resident model, GB", beyond, layer)
    ratio = figures["seconds to load"] / figures["seconds to read and copy"]
    result.judge("time to load over reading and copying", ratio, 1.5)
