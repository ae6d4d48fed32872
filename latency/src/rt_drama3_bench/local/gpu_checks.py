"""Correctness on the device: kernels against plain PyTorch, forms of the step against another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rt_drama3.config import ModelConfig
from rt_drama3.graph_step import CapturedStep, FrameStep, compile_step
from rt_drama3.model import SpeechModel, kernels
from rt_drama3.model.moe import MoE, swiglu
from rt_drama3.model.ops import taken
from rt_drama3_bench.local.device_run import GREEDY, SAMPLED, DeviceRun, random_rows, speak
from rt_drama3_bench.local.random_model import random_model
from rt_drama3_bench.local.sizes import middle, official, tiny

FRAMES = 200
_SIZES = {"tiny": tiny(), "middle": middle()}
_NAMES = {
    (0, 1): "compiled against eager",
    (0, 2): "captured against eager",
    (1, 2): "captured against compiled",
}
# A draw may fall close enough to the border between two codes for the last bit to decide.
MOST_DIFFERENT = 2


def check_kernels(bench: DeviceRun) -> dict[str, Any]:
    """Relative errors of the kernels against float32 arithmetic on the same numbers."""
    if bench.dry and not kernels.usable(torch.empty(0, device=bench.device)):
        return {"skipped": "the kernels need a CUDA device"}
    errors = {}
    config = tiny() if bench.dry else official(1)
    for kind, fp8 in (("fp8", True), ("bf16", False)):
        model = random_model(config, bench.device, torch.bfloat16, fp8)
        moe = model.backbone.layers[0].moe
        assert isinstance(moe, MoE)
        for rows in (1, 3, 8, 64, 512):
            errors[f"experts {kind}, {rows} rows"] = _experts_error(moe, rows)
        del model, moe
    for length in (1, 64, 1000, 4000):
        errors[f"attention over {length} rows"] = _attention_error(bench, config, length)
    return {"relative_errors": errors, "passed": all(e < 1e-2 for e in errors.values())}


def _experts_error(moe: MoE, rows: int) -> float:
    device = moe.router.device
    generator = torch.Generator(device).manual_seed(rows)
    x = torch.randn(rows, moe.router.shape[1], device=device, generator=generator).bfloat16()
    chosen, weights, _ = moe.route(x)
    found = moe.products(x, chosen.int(), weights)
    wanted = torch.zeros(found.shape, device=device)
    for expert in chosen.unique().tolist():
        row, slot = (chosen == expert).nonzero(as_tuple=True)
        gate_up, down = (
            taken(stack, torch.tensor(expert, device=device), torch.float32).float()
            for stack in (moe.gate_up, moe.down)
        )
        hidden = swiglu(F.linear(x[row].float(), gate_up))
        wanted[row, slot] = F.linear(hidden, down) * weights[row, slot, None]
    return _error(found, wanted)


def _attention_error(bench: DeviceRun, config: ModelConfig, length: int) -> float:
    back, generator = config.backbone, torch.Generator(bench.device).manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=bench.device, generator=generator).bfloat16()

    q = normal(3, back.heads, back.head_dim)
    keys, values = (normal(3, back.kv_heads, 4096, back.head_dim) for _ in range(2))
    position = torch.full((3,), length - 1, device=bench.device)
    found = kernels.attend(q, keys, values, position, 4096)
    wanted = F.scaled_dot_product_attention(
        q.float()[:, :, None],
        keys[:, :, :length].float(),
        values[:, :, :length].float(),
        enable_gqa=True,
    )
    return _error(found, wanted[:, :, 0])


def _error(found: Tensor, wanted: Tensor) -> float:
    return float((found.float() - wanted).norm() / wanted.norm())


def lockstep(steps: Sequence[FrameStep], frames: int) -> dict[tuple[int, int], list[int]]:
    """Frames in which steps over the same prompts draw different codes, for every pair of steps.

    After a difference all copy the first one's state, so that every frame is compared by itself.
    """
    pairs = [(i, j) for j in range(len(steps)) for i in range(j)]
    different: dict[tuple[int, int], list[int]] = {pair: [] for pair in pairs}
    for frame in range(frames):
        for step in steps:
            step.run(step.slots, step.lengths[-1])
        codes = [step.output.codes for step in steps]
        unequal = [(i, j) for i, j in pairs if not torch.equal(codes[i], codes[j])]
        for pair in unequal:
            different[pair].append(frame)
        for step in steps[1:] if unequal else ():
            for source, target in zip(steps[0].state.tensors(), step.state.tensors(), strict=True):
                target.copy_(source)
    return different


def check_parity(bench: DeviceRun) -> dict[str, Any]:
    """Compares eager, compiled and captured steps.

    In float32 compiled and eager codes must agree; captured and compiled ones always.
    """
    results: dict[str, Any] = {}
    passed = True
    for name, config in {"tiny": tiny()}.items() if bench.dry else _SIZES.items():
        for dtype in (torch.float32,) if bench.dry else (torch.float32, torch.bfloat16):
            label = f"{name}, {str(dtype).removeprefix('torch.')}"
            if not bench.time_for(f"parity of {label}", 60):
                continue
            model = random_model(config, bench.device, dtype, fp8=True)
            for kind, found in _parity(bench, model).items():
                results[f"{label}, {kind}"] = {_NAMES[pair]: f for pair, f in found.items()}
                compiled, captured = found[0, 1], found.get((1, 2), [])
                passed &= not captured
                passed &= dtype != torch.float32 or len(compiled) <= MOST_DIFFERENT
    return {"frames": _frames(bench), "different_frames": results, "passed": passed}


def _frames(bench: DeviceRun) -> int:
    return 4 if bench.dry else FRAMES


def _parity(bench: DeviceRun, model: SpeechModel) -> dict[str, dict[tuple[int, int], list[int]]]:
    unit = compile_step("eager" if bench.dry else "inductor")
    steps = [FrameStep(model, 2, 512, 1024) for _ in range(2 if bench.dry else 3)]
    for step, capture in zip(steps[1:], (False, True), strict=False):
        step.use(CapturedStep(step, (2,), step.lengths[-1:], unit=unit, capture=capture))
    found = {}
    for kind, sampling in (("greedy", GREEDY), ("sampled", SAMPLED)):
        for step in steps:
            speak(step, rows=20, sampling=sampling)
        found[kind] = lockstep(steps, _frames(bench))
    return found


def check_company(bench: DeviceRun) -> dict[str, Any]:
    """Whether a stream's codes stay the same bit for bit next to other streams."""
    config = tiny() if bench.dry else middle()
    model = random_model(config, bench.device, torch.bfloat16, fp8=True)
    takes = []
    for others in (False, True):
        step = FrameStep(model, 4, 512, 1024)
        if not bench.dry:
            step.use(CapturedStep(step, (4,), step.lengths[-1:]))
        for slot in range(4):
            if slot == 1 or others:
                prompt = random_rows(config, 20 + slot, seed=slot).to(bench.device)
                model.prefill(prompt, step.state, slot)
                step.configure(slot, SAMPLED, seed=slot)
        codes = []
        for _ in range(_frames(bench)):
            step.run(4, step.lengths[-1])
            codes.append(step.output.codes[1].clone())
        takes.append(torch.stack(codes))
    same = torch.equal(*takes)
    return {"same": same, "passed": same}
