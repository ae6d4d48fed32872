"""Loading needs the resident model and little more, whatever the size of the files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rt_drama3.checkpoint import make_tiny
from rt_drama3.checkpoint.tiny import CodecKind

# A process of its own: what else this one has allocated and freed would blur the figures. The
# progress callback runs with the tensor in hand still alive.
SCRIPT = """
import sys, torch
from pathlib import Path
from rt_drama3.checkpoint import filling, load_model, make_tiny, read_config

torch.set_num_threads(1)
filling.CHUNK_BYTES = 1 << 20

def anonymous():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024

def resident(model):
    return sum(p.nbytes for p in model.parameters())

small, large = (Path(p) for p in sys.argv[1:3])
keep = sys.argv[3] == "keep"
load_model(small, read_config(small), "cpu", torch.bfloat16)  # what torch itself allocates once
config, before, peak = read_config(large), anonymous(), 0

def watch(done, total):
    global peak
    peak = max(peak, anonymous())

model = load_model(large, config, "cpu", torch.bfloat16, watch, keep=keep)
print(max(peak, anonymous()) - before - resident(model))
print(resident(model))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize(
    ("form", "what"), [("official", "expand"), ("gguf-q8_0", "expand"), ("nvfp4", "keep")]
)
def test_peak_memory_is_the_model_and_a_piece(
    tmp_path: Path, tiny_checkpoint: Path, form: str, what: str
) -> None:
    settings = {
        "text_config.hidden_size": 512,
        "text_config.moe_intermediate_size": 512,
        "text_config.num_experts": 16,
        "text_config.vocab_size": 20_000,
        "audio_decoder_config.vocab_size": 1024,
    }
    codec: CodecKind = "none" if form == "official" else "tiny"
    make_tiny(
        tmp_path / "large", settings=settings, codec=codec, experts="bf16", shards=2, form=form
    )
    files = (tmp_path / "large").iterdir()
    shard = min(p.stat().st_size for p in files if p.suffix in (".safetensors", ".gguf"))
    printed = subprocess.run(
        [sys.executable, "-c", SCRIPT, tiny_checkpoint, tmp_path / "large", what],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    ).stdout
    over, resident = (int(line) for line in printed.split())
    assert resident > (60e6 if what == "keep" else 90e6)
    assert shard > 60e6
    # One layer of this model has 27 MB; reading a shard whole, or a layer in float32, shows here.
    assert over < 27e6
