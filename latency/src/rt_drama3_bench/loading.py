"""Memory that loading a checkpoint needs: ``python -m rt_drama3_bench.loading FOLDER``.

Makes a random checkpoint of 4.6 GB in FOLDER (four layers of the official size, FP8 experts), loads
it in a process of its own and compares the peak with what stays resident. Linux only: it reads
``/proc``. Delete FOLDER afterwards.

    python -m rt_drama3_bench.loading /tmp/big           # experts stay FP8
    python -m rt_drama3_bench.loading /tmp/big --expand  # experts dequantised at load, as on a CPU
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch

from rt_drama3.checkpoint import load_model, make_tiny, read_config
from rt_drama3_bench.environment import environment

TEXT, AUDIO = "text_config.", "audio_decoder_config."
SETTINGS = {
    TEXT + "hidden_size": 2048,
    TEXT + "num_attention_heads": 16,
    TEXT + "head_dim": 256,
    TEXT + "num_experts": 256,
    TEXT + "num_experts_per_tok": 8,
    TEXT + "moe_intermediate_size": 512,
    TEXT + "shared_expert_intermediate_size": 512,
    TEXT + "linear_num_key_heads": 16,
    TEXT + "linear_num_value_heads": 32,
    TEXT + "linear_key_head_dim": 128,
    TEXT + "linear_value_head_dim": 128,
    TEXT + "vocab_size": 65_536,
    AUDIO + "vocab_size": 4096,
    AUDIO + "intermediate_size": 6144,
    AUDIO + "num_codebooks": 3,
    AUDIO + "shared_enrichment_layers": 1,
}


def memory() -> dict[str, int]:
    """Bytes of this process: anonymous now, and the highest resident size so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines if line.startswith(("RssAnon", "VmHWM")))
    return {name: int(value.split()[0]) * 1024 for name, value in found.items()}


def measure(folder: Path, keep_fp8: bool) -> dict[str, float]:
    """Loads the checkpoint; figures in bytes and seconds."""
    torch.set_num_threads(1)
    before, peak = memory(), 0

    def watch(_: int, __: int) -> None:
        nonlocal peak
        peak = max(peak, memory()["RssAnon"])

    started = time.monotonic()
    model = load_model(
        folder, read_config(folder), torch.device("cpu"), torch.bfloat16, watch, fp8=keep_fp8
    )
    seconds = time.monotonic() - started
    resident = sum(p.nbytes for p in model.parameters())
    layer = sum(p.nbytes for p in model.backbone.layers[0].parameters())
    return {
        "files": sum(f.stat().st_size for f in folder.glob("*.safetensors")),
        "resident": resident,
        "layer": layer,
        "beyond_resident_anonymous": peak - before["RssAnon"] - resident,
        "beyond_resident_peak": memory()["VmHWM"] - before["VmHWM"] - resident,
        "seconds": seconds,
    }


def main() -> int:
    """Makes, loads, reports."""
    parser = argparse.ArgumentParser(description="Memory that loading a checkpoint needs.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--expand", action="store_true", help="dequantise the experts")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inner:
        sys.stdout.write(json.dumps(measure(options.folder, not options.expand)))
        return 0
    if not options.folder.exists() or not any(options.folder.iterdir()):
        make_tiny(options.folder, settings=SETTINGS, shards=8, codec="decode")
    command = [sys.executable, "-m", "rt_drama3_bench.loading", str(options.folder), "--inner"]
    command += ["--expand"] if options.expand else []
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures = json.loads(printed)
    for name, value in figures.items():
        text = f"{value:.1f} s" if name == "seconds" else f"{value / 1e9:.3f} GB"
        sys.stdout.write(f"{name:28} {text}\n")
    if options.json:
        options.json.write_text(json.dumps({"environment": environment(), **figures}, indent=1))
    return 0 if figures["beyond_resident_peak"] <= figures["layer"] else 1


if __name__ == "__main__":
    sys.exit(main())
