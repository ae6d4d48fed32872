"""Checks of the Triton kernels against plain PyTorch, for CPU (interpreted) and CUDA alike.

``python -m tests.model.kernel_cases`` runs them all with ``TRITON_INTERPRET=1``, which must be set
before Triton is imported and would spoil the kernels of the process for a GPU; it prints a JSON
object of case -> error or null. The interpreter computes bfloat16 wrongly, so there everything is
float32.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from rt_drama3.checkpoint.config_files import parse_model_config
from rt_drama3.checkpoint.tiny_config import tiny_config
from rt_drama3.config import ModelConfig, SamplingConfig
from rt_drama3.graph_step import CapturedStep, FrameStep, compile_step
from rt_drama3.model import SpeechModel, kernels
from rt_drama3.model.kernels import registry
from rt_drama3.model.moe import swiglu
from rt_drama3.model.weights import FP8_BLOCK, dequantize
from rt_drama3_bench.local.random_model import random_model

Experts = tuple[Tensor, Tensor | None, Tensor, Tensor | None]
CASES: dict[str, Callable[[torch.device, torch.dtype], None]] = {}


def case(check: Callable[[torch.device, torch.dtype], None]) -> None:
    CASES[check.__name__] = check


def random_experts(
    experts: int, dim: int, ffn: int, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> Experts:
    """Weights in ``dtype``; ``torch.float8_e4m3fn`` brings factors."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    gate_up, down = normal(experts, 2 * ffn, dim), normal(experts, dim, ffn)
    if dtype != torch.float8_e4m3fn:
        # As large as they would be after dequantisation.
        return (
            (gate_up * dim**-0.5).to(device, dtype),
            None,
            (down * ffn**-0.5).to(device, dtype),
            None,
        )
    blocks = dim // FP8_BLOCK, ffn // FP8_BLOCK
    gate_scale = (torch.rand(experts, 2 * blocks[1], blocks[0], generator=generator) + 0.5) / 100
    down_scale = (torch.rand(experts, blocks[0], blocks[1], generator=generator) + 0.5) / 100
    return (
        (gate_up * 100 * dim**-0.5).to(dtype).to(device),
        gate_scale.to(device),
        (down * 100 * ffn**-0.5).to(dtype).to(device),
        down_scale.to(device),
    )


def reference(x: Tensor, chosen: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    """``[N, top, dim]`` in float64, row by row and expert by expert."""
    gate_up, gate_up_scale, down, down_scale = experts
    out = torch.empty(*chosen.shape, down.shape[1], dtype=torch.float64)
    for row, ids in enumerate(chosen.tolist()):
        for slot, e in enumerate(ids):
            up = dequantize(
                gate_up[e], None if gate_up_scale is None else gate_up_scale[e], torch.float32
            )
            back = dequantize(down[e], None if down_scale is None else down_scale[e], torch.float32)
            hidden = swiglu(up.double() @ x[row].double())
            out[row, slot] = (back.double() @ hidden).cpu() * weights[row, slot].double().cpu()
    return out


def random_routing(
    rows: int, experts: int, top: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    order = torch.rand(rows, experts, generator=generator).argsort(-1)[:, :top]
    weights = torch.rand(rows, top, generator=generator)
    return order.int().to(device), (weights / weights.sum(-1, keepdim=True)).to(device)


def assert_near(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    """Relative error of the whole: rounding of the operands' dtype, nothing more."""
    assert found.isfinite().all()
    error = (found.double().cpu() - wanted).norm() / wanted.norm()
    limit = 2e-6 if dtype == torch.float32 else 6e-3
    assert error < limit, f"relative error {error:.2e}"


def check_experts(
    device: torch.device,
    dtype: torch.dtype,
    rows: int,
    kind: torch.dtype,
    dim: int = 256,
    ffn: int = 128,
    experts: int = 5,
    top: int = 2,
    many: bool = False,
) -> None:
    from rt_drama3.model.kernels import moe_launch

    weights = random_experts(experts, dim, ffn, device, kind)
    x = torch.randn(rows, dim, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    chosen, share = random_routing(rows, experts, top, device)
    run = partial(moe_launch.experts, few=not many)
    found = run(x, chosen, share, *weights)
    assert_near(found, reference(x, chosen, share, weights), dtype)
    # A row alone, and among rows full of other numbers, gives the same bits.
    if not many:
        alone = run(x[1:2], chosen[1:2], share[1:2], *weights)
        assert torch.equal(alone[0], found[1])
    noisy = x.clone()
    noisy[0] = float("nan")
    assert torch.equal(run(noisy, chosen, share, *weights)[1:], found[1:])


@case
def few_rows_fp8(device: torch.device, dtype: torch.dtype) -> None:
    check_experts(device, dtype, 3, torch.float8_e4m3fn)


@case
def few_rows_fp8_blocks(device: torch.device, dtype: torch.dtype) -> None:
    check_experts(device, dtype, 2, torch.float8_e4m3fn, dim=384, ffn=256, experts=3, top=1)


@case
def few_rows_plain(device: torch.device, dtype: torch.dtype) -> None:
    check_experts(device, dtype, 2, dtype, dim=192, ffn=96)


@case
def few_rows_odd_sizes(device: torch.device, dtype: torch.dtype) -> None:
    check_experts(device, dtype, 2, dtype, dim=72, ffn=28, experts=7, top=3)


@case
def many_rows_fp8(device: torch.device, dtype: torch.dtype) -> None:
    check_experts(device, dtype, 20, torch.float8_e4m3fn, dim=128, many=True)


@case
def many_rows_fp8_blocks(device: torch.device, dtype: torch.dtype) -> None:
    check_experts(
        device, dtype, 9, torch.float8_e4m3fn, dim=256, ffn=256, experts=3, top=1, many=True
    )


@case
def many_rows_plain(device: torch.device, dtype: torch.dtype) -> None:
    check_experts(device, dtype, 40, dtype, dim=96, ffn=48, experts=4, many=True)


@case
def many_rows_odd_sizes(device: torch.device, dtype: torch.dtype) -> None:
    check_experts(device, dtype, 18, dtype, dim=72, ffn=28, experts=6, top=3, many=True)


@case
def experts_that_no_row_chose(device: torch.device, dtype: torch.dtype) -> None:
    from rt_drama3.model.kernels import moe_launch

    weights = random_experts(6, 32, 16, device, dtype)
    x = torch.randn(17, 32, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    chosen = torch.tensor([[4, 1]] * 17, dtype=torch.int32, device=device)
    share = torch.full((17, 2), 0.5, device=device)
    found = moe_launch.experts(x, chosen, share, *weights, few=False)
    assert_near(found, reference(x, chosen, share, weights), dtype)


@case
def collecting_in_several_passes(device: torch.device, dtype: torch.dtype) -> None:
    from rt_drama3.model.kernels import moe

    chosen, _ = random_routing(25, 6, 2, device)
    members = torch.full((6, 25), -1, dtype=torch.int32, device=device)
    counts = torch.empty(6, dtype=torch.int32, device=device)
    moe.collect_kernel[(6,)](chosen, members, counts, 50, 25, BLOCK=16)
    for expert in range(6):
        wanted = (chosen.flatten() == expert).nonzero().flatten()
        assert counts[expert] == len(wanted)
        assert torch.equal(members[expert, : len(wanted)].long(), wanted)


@case
def fp8_without_hardware(device: torch.device, dtype: torch.dtype) -> None:
    from rt_drama3.model.kernels import moe_launch

    # Every finite code, read as bytes: what devices before FP8 do.
    codes = torch.arange(256, dtype=torch.uint8)
    codes[[0x7F, 0xFF]] = 0  # NaN
    gate_up = codes.repeat(2, 256, 1)[:, :, :128].contiguous()
    gate_up[:, :, ::2] += 128
    gate_up[gate_up == 0xFF] = 0
    down = codes.repeat(2, 128, 1)[:, :, :128].contiguous()
    gate_scale, down_scale = torch.full((2, 2, 1), 1e-3), torch.full((2, 1, 1), 1e-3)
    kind = torch.float8_e4m3fn
    weights: Experts = (gate_up.view(kind), gate_scale, down.view(kind), down_scale)
    weights = tuple(w if w is None else w.to(device) for w in weights)  # type: ignore[assignment]
    x = torch.randn(2, 128, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    chosen, share = random_routing(2, 2, 1, device)
    kept, moe_launch._reads_fp8 = moe_launch._reads_fp8, lambda _: False
    try:
        found = moe_launch.experts(x, chosen, share, *weights, few=True)
        many = moe_launch.experts(x, chosen, share, *weights, few=False)
    finally:
        moe_launch._reads_fp8 = kept
    assert_near(found, reference(x, chosen, share, weights), dtype)
    assert_near(many, reference(x, chosen, share, weights), dtype)


@case
def routing(device: torch.device, dtype: torch.dtype) -> None:
    from rt_drama3.model.kernels import moe_launch

    logits = torch.randn(6, 41, generator=torch.Generator().manual_seed(3)).to(device, dtype)
    logits[1, 5] = logits[1, 9] = logits[1, 7] = 9.0  # equal: the lower number wins
    chosen, weights, shared = moe_launch.route(logits, 3)
    wanted, ids = torch.softmax(logits[:, :-1].float(), -1).topk(3, -1)
    assert chosen.dtype == torch.int32
    assert chosen[1].tolist() == [5, 7, 9]
    rest = [0, 2, 3, 4, 5]
    assert torch.equal(chosen[rest].long(), ids[rest])
    torch.testing.assert_close(weights, wanted / wanted.sum(-1, keepdim=True))
    torch.testing.assert_close(shared, torch.sigmoid(logits[:, -1:].float()))


@case
def routing_of_bad_numbers(device: torch.device, dtype: torch.dtype) -> None:
    from rt_drama3.model.kernels import moe_launch

    logits = torch.zeros(4, 11, device=device, dtype=dtype)
    logits[0] = float("nan")
    logits[1, :9] = float("nan")
    logits[2, :] = float("-inf")
    logits[3, 2] = float("inf")
    chosen, _, _ = moe_launch.route(logits, 4)
    for ids in chosen.tolist():
        assert len(set(ids)) == 4
        assert all(0 <= i < 10 for i in ids)
    assert chosen[1, 0] == 9
    assert chosen[3, 0] == 2


def check_attention(
    device: torch.device,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    size: int,
    context: int,
    positions: list[int],
) -> None:
    from rt_drama3.model.kernels import attention

    generator = torch.Generator().manual_seed(4)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    streams = len(positions)
    q = normal(streams, heads, size)
    keys, values = (normal(streams, kv_heads, context, size) for _ in range(2))
    position = torch.tensor(positions, device=device)
    for stream, last in enumerate(positions):  # what was never written must not matter
        keys[stream, :, last + 1 :] = float("nan")
        values[stream, :, last + 1 :] = float("nan")
    found = attention.attend(q, keys, values, position, context)
    for stream, last in enumerate(positions):
        if last < 0:
            assert not found[stream].any()
            continue
        wanted = F.scaled_dot_product_attention(
            q[stream].double()[:, None],
            keys[stream, :, : last + 1].double(),
            values[stream, :, : last + 1].double(),
            enable_gqa=True,
        )
        assert_near(found[stream], wanted[:, 0].cpu(), dtype)
    # Neither a shorter attention length nor the company changes a bit.
    shorter = attention.attend(q, keys, values, position, max(positions) + 1)
    assert torch.equal(shorter, found)
    alone = attention.attend(q[1:2], keys[1:2], values[1:2], position[1:2], context)
    assert torch.equal(alone[0], found[1])


@case
def attention(device: torch.device, dtype: torch.dtype) -> None:
    check_attention(device, dtype, 4, 2, 32, 90, [40, 63, 0])


@case
def attention_at_the_edge(device: torch.device, dtype: torch.dtype) -> None:
    check_attention(device, dtype, 2, 1, 24, 80, [79, 15, -1])


@case
def attention_over_many_pieces(device: torch.device, dtype: torch.dtype) -> None:
    check_attention(device, dtype, 3, 3, 16, 700, [690, 300])


def frames(model: SpeechModel, config: ModelConfig, runner: str | None, count: int) -> Tensor:
    """Codes ``[count, 2, num_codebooks]`` of two streams, sampled, through ``runner``."""
    step = FrameStep(model, 2, 32, count)
    generator = torch.Generator().manual_seed(5)
    for slot, rows in enumerate((2, 17)):  # the second prompt takes the kernels for many rows
        codes = torch.full((rows, 1 + config.num_codebooks), slot)
        codes[:, 0] = torch.randint(config.backbone.vocab_size, (rows,), generator=generator)
        model.prefill(codes.to(model.device), step.state, slot)
        step.configure(slot, SamplingConfig(), seed=slot)
    if runner is not None:
        step.use(CapturedStep(step, (2,), unit=compile_step(runner), capture=False))
    made = []
    with torch.inference_mode():
        for _ in range(count):
            step.run(2, 32)
            assert step.output.finite[:2].all()
            made.append(step.output.codes[:2].clone())
    return torch.stack(made).cpu()


@case
def whole_step(device: torch.device, dtype: torch.dtype) -> None:
    if dtype != torch.float32:
        return  # rounding would change draws
    settings = {
        "text_config.num_hidden_layers": 2,
        "text_config.layer_types": ["linear_attention", "full_attention"],
        "audio_decoder_config.shared_enrichment_layers": 1,
        "audio_decoder_config.num_codebooks": 3,
    }
    raw, _ = tiny_config(settings, 200)
    config = parse_model_config(raw)
    model = random_model(config, device, dtype, fp8=True)
    usable = kernels.usable
    registry.register("fp8", "cpu", kernels.FP8_EXPERTS)
    try:
        kernels.usable = lambda x: False
        wanted = frames(model, config, None, 2)
        kernels.usable = lambda x: True
        found = frames(model, config, None, 2)
        compiled = frames(model, config, "aot_eager", 2)
    finally:
        kernels.usable = usable
    assert len(wanted.unique()) > 6
    assert torch.equal(found, wanted)
    assert torch.equal(compiled, wanted)


def main() -> None:
    """Runs every case interpreted."""
    assert os.environ.get("TRITON_INTERPRET") == "1"
    torch.set_num_threads(1)
    results: dict[str, str | None] = {}
    for name, check in CASES.items():
        try:
            check(torch.device("cpu"), torch.float32)
            results[name] = None
        except Exception:  # noqa: BLE001 - every failure is a result
            results[name] = traceback.format_exc()
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main()
