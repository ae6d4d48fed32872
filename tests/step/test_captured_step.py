"""CapturedStep: one graph without breaks or host syncs, captured in order, and the same codes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from rt_drama3 import graph_step
from rt_drama3.checkpoint.config_files import parse_model_config
from rt_drama3.checkpoint.tiny_config import tiny_config
from rt_drama3.config import ModelConfig, SamplingConfig
from rt_drama3.errors import DeviceError
from rt_drama3.graph_step import CapturedStep, FrameStep, StepTensors, compile_step, frame_step
from rt_drama3.model import SpeechModel, kernels, moe
from rt_drama3.model.kernels import registry
from rt_drama3_bench.local.gpu_checks import lockstep
from rt_drama3_bench.local.random_model import random_model

GREEDY = SamplingConfig(temperature=0, head_temperature=0)
SAMPLED = SamplingConfig()
CONTEXT = 64


def config_of(**settings: Any) -> ModelConfig:
    """Two layers of each kind in the tower: tracing takes a second for every few layers."""
    text = {f"text_config.{key}": value for key, value in settings.items()}
    audio = {"num_codebooks": 3, "shared_enrichment_layers": 2}
    tower = {f"audio_decoder_config.{key}": value for key, value in audio.items()}
    return parse_model_config(tiny_config({**text, **tower}, 200)[0])


CONFIGS = {
    "many experts": config_of(num_hidden_layers=2, layer_types=["linear_attention"] * 2),
    "few experts": config_of(num_experts=4, num_hidden_layers=1, layer_types=["full_attention"]),
}


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest) -> SpeechModel:
    return random_model(CONFIGS[request.param], "cpu", torch.float32, fp8=False)


def prepared(model: SpeechModel, slots: int = 2) -> FrameStep:
    """A step with a prompt in every slot, the even ones greedy."""
    step = FrameStep(model, slots, CONTEXT, 32, lengths=(32,))
    fill(step)
    return step


def fill(step: FrameStep) -> None:
    config = step.model.config
    generator = torch.Generator().manual_seed(1)
    for slot in range(step.slots):
        step.state.scrub(slot)
        shape = (5 + slot, 1 + config.num_codebooks)
        rows = torch.randint(config.tower.codebook_size, shape, generator=generator)
        step.model.prefill(rows.to(step.model.device), step.state, slot)
        step.configure(slot, SAMPLED if slot % 2 else GREEDY, seed=slot)


def frames(step: FrameStep, count: int, streams: int = 2) -> Tensor:
    """Codes ``[count, streams, num_codebooks]``."""
    made = []
    for _ in range(count):
        step.run(streams, step.length_for(40))
        assert step.output.finite[:streams].all()
        made.append(step.output.codes[:streams].clone())
    return torch.stack(made).cpu()


def test_the_step_is_one_graph(model: SpeechModel) -> None:
    wanted = frames(prepared(model), 6)
    step = prepared(model)
    step.use(CapturedStep(step, (1, 2), (CONTEXT,), capture=False, unit=compile_step("eager")))
    found = frames(step, 6)
    assert len(found.unique()) > 4
    assert torch.equal(found, wanted)


@pytest.mark.slow
def test_the_step_survives_functionalisation(model: SpeechModel) -> None:
    wanted = frames(prepared(model), 6)
    step = prepared(model)
    step.use(CapturedStep(step, (2,), (CONTEXT,), capture=False, unit=compile_step("aot_eager")))
    assert torch.equal(frames(step, 6), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_guided_stream_next_to_a_plain_one_is_the_same_in_one_graph(
    model: SpeechModel, backend: str
) -> None:
    steps = [prepared(model, 3) for _ in range(2)]
    unit = compile_step(backend)
    steps[1].use(CapturedStep(steps[1], (3,), (CONTEXT,), unit=unit, capture=False))
    for step in steps:
        step.configure(1, SAMPLED, seed=3, guidance=2.0)
    wanted, found = (frames(step, 6, 3) for step in steps)
    assert torch.equal(wanted[:, 1], wanted[:, 2])
    assert torch.equal(found, wanted)


def test_compilation_refuses_a_graph_break(
    model: SpeechModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = prepared(model)
    embed = SpeechModel.embed_rows

    def peeking(self: SpeechModel, main: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        return embed(self, main if main.sum() > 0 else main.clone(), codes)

    monkeypatch.setattr(SpeechModel, "embed_rows", peeking)
    torch._dynamo.reset()  # it keeps what other tests compiled
    with pytest.raises(DeviceError, match=r'could not be compiled .*step_mode = "eager"'):
        CapturedStep(step, (2,), (CONTEXT,), capture=False, unit=compile_step("eager"))


@pytest.mark.parametrize("triton", [False, True], ids=["pytorch", "kernels"])
def test_the_step_never_syncs_with_the_host(triton: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values do not exist under FakeTensorMode: code that reads one fails."""
    monkeypatch.setattr(kernels, "usable", lambda x: triton)
    monkeypatch.setitem(registry._KERNELS, ("fp8", "cpu"), kernels.FP8_EXPERTS)
    monkeypatch.setattr(moe, "on_host", lambda x: False)
    config = config_of()
    rows = torch.zeros(20, 1 + config.num_codebooks, dtype=torch.int64)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
        model = SpeechModel(config, "cpu", torch.bfloat16, fp8=True)
        step = FrameStep(model, 4, CONTEXT, 8)
        for size in (1, 2, 4):
            frame_step(model, step.tensors(0, size, 32))
        if triton:
            model.prefill(rows, step.state, 0)
        else:  # the experts of a prompt are grouped by the host: the check can fail
            with pytest.raises(DataDependentOutputException):
                model.prefill(rows, step.state, 0)


def test_construction_advances_no_stream(model: SpeechModel) -> None:
    wanted = frames(prepared(model), 8)
    step = prepared(model)
    first = frames(step, 4)
    step.use(CapturedStep(step, (2,), (CONTEXT,), capture=False, unit=compile_step("eager")))
    assert torch.equal(torch.cat((first, frames(step, 4))), wanted)


@pytest.mark.slow
def test_more_variants_are_compiled_than_dynamo_allows_by_default() -> None:
    """And they run in any thread, although dynamo's settings belong to one."""
    model = random_model(CONFIGS["few experts"], "cpu", torch.float32, fp8=False)
    step = FrameStep(model, 3, CONTEXT, 32, lengths=(48, 56))
    step.use(CapturedStep(step, (1, 2, 3), capture=False, unit=compile_step("eager")))
    fill(step)
    wanted = FrameStep(model, 3, CONTEXT, 32)
    fill(wanted)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(frames, step, 3, 3).result()
    assert torch.equal(found, frames(wanted, 3, 3))


class FakeCuda:
    """The part of ``torch.cuda`` that CapturedStep uses; a graph replays the unit it saw."""

    def __init__(self) -> None:
        self.calls: list[StepTensors] = []
        self.captures: list[tuple[int, int]] = []
        self.pools: set[object] = set()
        self.fail = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fake = self

        class Stream:
            def __init__(self, device: torch.device) -> None:
                assert device.type == "cuda"

            def wait_stream(self, other: object) -> None:
                assert other is not self

        class Graph:
            def replay(self) -> None:
                frame_step(self.model, self.tensors)

            model: SpeechModel
            tensors: StepTensors

        @contextmanager
        def stream(_: Stream) -> Iterator[None]:
            yield

        @contextmanager
        def graph(
            target: Graph, *, pool: object, stream: Stream, capture_error_mode: str
        ) -> Iterator[None]:
            assert capture_error_mode == "thread_local"
            before = len(fake.calls)
            assert before >= graph_step.WARM_UPS
            if fake.fail:
                raise RuntimeError("operation not permitted\nwhen stream is capturing")
            yield
            assert len(fake.calls) == before + 1
            target.tensors = fake.calls[-1]
            target.model = fake.model
            fake.captures.append((target.tensors.state.slots, len(target.tensors.column)))
            fake.pools.add(pool)

        def unit(model: SpeechModel, tensors: StepTensors) -> None:
            fake.calls.append(tensors)
            fake.model = model
            frame_step(model, tensors)

        cuda = graph_step.torch.cuda
        monkeypatch.setattr(cuda, "Stream", Stream)
        monkeypatch.setattr(cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(cuda, "graph", graph)
        monkeypatch.setattr(cuda, "stream", stream)
        monkeypatch.setattr(cuda, "current_stream", Stream)
        monkeypatch.setattr(cuda, "graph_pool_handle", object)
        monkeypatch.setattr(graph_step, "compile_step", lambda: unit)

    model: SpeechModel


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    fake.install(monkeypatch)
    return fake


def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpeechModel, "device", torch.device("cuda"))


def test_variants_are_captured_largest_first_in_one_pool(
    model: SpeechModel, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = frames(prepared(model, slots=4), 6, streams=3)
    step = prepared(model, slots=4)
    on_cuda(monkeypatch)
    captured = CapturedStep(step, (1, 2, 4), step.lengths)
    assert cuda.captures == [(n, rows) for n in (4, 2, 1) for rows in (CONTEXT, 32)]
    assert len(cuda.pools) == 1
    assert step.state.active.all()
    step.use(captured)
    before = len(cuda.calls)
    assert torch.equal(frames(step, 6, streams=3), wanted)
    assert len(cuda.calls) == before  # replays only


def test_one_length_is_enough_for_kernels_that_stop_at_the_position(
    model: SpeechModel, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = prepared(model)
    on_cuda(monkeypatch)
    CapturedStep(step, (2,))
    assert cuda.captures == [(2, CONTEXT), (2, 32)]
    cuda.captures.clear()
    monkeypatch.setattr(kernels, "usable", lambda x: x is step.state.hidden)
    CapturedStep(step, (2,))
    assert cuda.captures == [(2, CONTEXT)]


def test_a_failed_capture_names_the_setting_and_leaves_the_streams(
    model: SpeechModel, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = frames(prepared(model), 4)
    step = prepared(model)
    on_cuda(monkeypatch)
    cuda.fail = True
    message = (
        r"2 slots and 64 rows could not be captured as a CUDA graph "
        r'\(RuntimeError: operation not permitted\); use step_mode = "compile" or "eager"'
    )
    with pytest.raises(DeviceError, match=message):
        CapturedStep(step, (1, 2), (CONTEXT,))
    assert torch.equal(frames(step, 4), wanted)


def test_capture_needs_cuda(model: SpeechModel) -> None:
    with pytest.raises(DeviceError, match='on cpu; use step_mode = "eager"'):
        CapturedStep(prepared(model), (1, 2))


@pytest.mark.gpu
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("capture", [False, True])
def test_all_forms_give_the_same_codes_on_a_gpu(fp8: bool, compile: bool, capture: bool) -> None:
    model = random_model(config_of(), "cuda", torch.float32, fp8)
    steps = [FrameStep(model, 2, 256, 200, lengths=(128,)) for _ in range(2)]
    unit = compile_step() if compile else frame_step
    steps[1].use(CapturedStep(steps[1], (1, 2), unit=unit, capture=capture))
    for step in steps:
        fill(step)
    # A draw may fall so close to a border that the last bit of a product decides.
    assert len(lockstep(steps, 200)[0, 1]) <= 2


@pytest.mark.gpu
def test_guidance_gives_the_same_codes_in_all_forms_on_a_gpu() -> None:
    model = random_model(config_of(), "cuda", torch.float32, fp8=False)
    steps = [FrameStep(model, 3, 256, 200, lengths=(128,)) for _ in range(3)]
    for step, capture in zip(steps[1:], (False, True), strict=True):
        step.use(CapturedStep(step, (1, 2, 3), capture=capture))
    for step in steps:
        fill(step)
        step.configure(1, SAMPLED, seed=3, guidance=2.0)
    different = lockstep(steps, 200)
    assert not different[1, 2]
    assert len(different[0, 1]) <= 2


@pytest.mark.gpu
def test_other_streams_do_not_change_a_stream_on_a_gpu() -> None:
    """At one batch size a stream's bits are its own, in bfloat16 too."""
    model = random_model(config_of(), "cuda", torch.bfloat16, fp8=True)

    def take(streams: tuple[int, ...]) -> Tensor:
        step = FrameStep(model, 4, 256, 100)
        step.use(CapturedStep(step, (4,)))
        fill(step)
        for slot in range(4):
            if slot not in streams:
                step.release(slot)
                step.state.scrub(slot)
        codes = []
        for _ in range(100):
            step.run(4, 256)
            codes.append(step.output.codes[1].clone())
        return torch.stack(codes).cpu()

    assert torch.equal(take((1,)), take((0, 1, 2, 3)))
