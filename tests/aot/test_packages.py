"""Compiled packages: the same codes as eager, built in the background, taken over when idle."""

from __future__ import annotations

import dataclasses
import errno
import os
import pickle
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import filelock
import numpy as np
import pytest
import torch
from torch._inductor import config as inductor

from rt_drama3.aot import builder as building
from rt_drama3.aot import failures, packages
from rt_drama3.aot.builder import PackageBuilder
from rt_drama3.aot.codec import CompiledCodec, build_codec, codec_package
from rt_drama3.aot.step import CompiledStep, build_step, step_package
from rt_drama3.checkpoint import load_codec, load_model, make_tiny, read_config
from rt_drama3.codec import Codec
from rt_drama3.config import SamplingConfig
from rt_drama3.engine.compiled import CompiledForms
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.step_runner import make_step
from rt_drama3.errors import ConfigError
from rt_drama3.graph_step import FrameStep
from rt_drama3.model import SpeechModel
from rt_drama3.system import checksums
from rt_drama3.system.compiling import compiler
from tests.small import needs_compiler

FRAMES = 200
SETTINGS = {"greedy": SamplingConfig(0, 0), "sampled": SamplingConfig(0.9, 0.8, top_k=40)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[SpeechModel, Codec]:
    """As small as the topology goes: compiling is most of the time here."""
    folder = tmp_path_factory.mktemp("packages") / "tiny"
    settings = {
        "audio_decoder_config.num_codebooks": 2,
        "audio_decoder_config.shared_enrichment_layers": 1,
        "text_config.num_hidden_layers": 2,
        "text_config.layer_types": ["linear_attention", "full_attention"],
        "codec.post.n_layer": 1,
        "codec.up": [4],
        "codec.rates": [32, 16],
    }
    make_tiny(folder, seed=3, settings=settings)
    cpu = torch.device("cpu")
    model = load_model(folder, read_config(folder), cpu, torch.float32)
    return model, load_codec(folder, cpu, torch.float32)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(cache))


@pytest.fixture(scope="module", autouse=True)
def _quick_wrapper() -> Iterator[None]:
    """The code between the kernels is compiled without optimisation, which saves a third."""
    with inductor.patch({"aot_inductor.compile_wrapper_opt_level": "O0"}):
        yield


@pytest.fixture(scope="module", autouse=True)
def _runner(cache: Path) -> None:
    """Packages are loaded through the runner, as they are once a build has finished."""
    if compiler() is not None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RT_DRAMA3_CACHE", str(cache))
            packages.build_runner()


def publish(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name("made")
    made.write_bytes(content)
    checksums.publish(made, path)


def built(model: SpeechModel, streams: int) -> None:
    path = step_package(model.config, model.dtype, streams)
    if not path.exists():
        build_step(model.config, model.dtype, streams, path)


def published_elsewhere(
    model: SpeechModel, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> tuple[Path, bytes]:
    """A cache of its own that holds the package for one stream: its path and content."""
    built(model, 1)
    whole = step_package(model.config, model.dtype, 1).read_bytes()
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(cache))
    path = step_package(model.config, model.dtype, 1)
    publish(path, whole)
    return path, whole


def start(step: FrameStep, slot: int, seed: int, sampling: SamplingConfig) -> None:
    rows = torch.zeros(10 + 7 * seed, 1 + step.model.config.num_codebooks, dtype=torch.int64)
    rows[:, 0] = torch.randint(0, 50, (len(rows),), generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        step.state.reset(slot)
        step.model.prefill(rows, step.state, slot)
    step.configure(slot, sampling, seed)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("sampling", SETTINGS.values(), ids=SETTINGS)
def test_compiled_codes_equal_eager_ones(
    checkpoint: tuple[SpeechModel, Codec], sampling: SamplingConfig
) -> None:
    model, _ = checkpoint
    built(model, 1)
    eager, compiled = (FrameStep(model, 1, 512, FRAMES) for _ in range(2))
    compiled.use(CompiledStep(compiled, (1,)))
    for step in (eager, compiled):
        start(step, 0, 1, sampling)
    for frame in range(FRAMES):
        for step in (eager, compiled):
            step.run(1, step.length_for(20 + frame))
        assert torch.equal(eager.output.codes, compiled.output.codes), f"frame {frame}"
        assert torch.equal(eager.output.main, compiled.output.main)


@needs_compiler
@pytest.mark.slow
def test_a_stream_is_the_same_to_the_bit_in_any_batch(
    checkpoint: tuple[SpeechModel, Codec],
) -> None:
    """Meanwhile others start, pause and end; packages are added; lengths change."""
    model, _ = checkpoint
    built(model, 1)
    built(model, 2)
    sampling = SETTINGS["sampled"]
    alone, crowd = FrameStep(model, 1, 512, FRAMES), FrameStep(model, 3, 512, FRAMES)
    alone.use(CompiledStep(alone, (1,)))
    runner = CompiledStep(crowd, (1,))
    crowd.use(runner)
    start(alone, 0, 2, sampling)
    start(crowd, 0, 2, sampling)
    for frame in range(60):
        if frame == 10:
            start(crowd, 1, 3, sampling)
        if frame == 20:
            runner.add(2)
            start(crowd, 2, 4, sampling)
        if frame == 35:
            crowd.activate(1, False)
        if frame == 50:
            crowd.release(1)
        alone.run(1, 256)
        crowd.run(3, 512 if frame % 2 else 256)
        assert torch.equal(alone.state.hidden[0], crowd.state.hidden[0]), f"frame {frame}"
        assert torch.equal(alone.output.codes[0], crowd.output.codes[0])


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("sampling", SETTINGS.values(), ids=SETTINGS)
def test_compiled_guidance_gives_the_codes_of_eager_guidance(
    checkpoint: tuple[SpeechModel, Codec], sampling: SamplingConfig
) -> None:
    model, _ = checkpoint
    built(model, 2)
    eager, compiled = (FrameStep(model, 2, 512, FRAMES) for _ in range(2))
    runner = CompiledStep(compiled, (2,))
    compiled.use(runner)
    for step in (eager, compiled):
        start(step, 1, 1, sampling)
        start(step, 0, 2, sampling)
        step.configure(0, sampling, 2, guidance=1.5)
    for frame in range(FRAMES):
        for step in (eager, compiled):
            step.run(2, step.length_for(30 + frame))
        assert torch.equal(eager.output.codes, compiled.output.codes), f"frame {frame}"
        assert torch.equal(eager.output.main, compiled.output.main)
    assert not runner._eager_pairs


def test_a_cfg_pair_is_never_split(checkpoint: tuple[SpeechModel, Codec]) -> None:
    model, _ = checkpoint
    step = FrameStep(model, 4, 256, 16)
    step.configure(0, SETTINGS["sampled"], 1)
    step.configure(1, SETTINGS["sampled"], 1, guidance=2.0)
    runner = CompiledStep(step, ())
    runner._packages = {1: list, 2: list}  # type: ignore[assignment]
    assert list(runner._batches(3)) == [(0, 1), (1, 2)]


def test_a_cfg_pair_without_a_package_of_two_runs_eagerly_to_its_end(
    checkpoint: tuple[SpeechModel, Codec],
) -> None:
    model, _ = checkpoint
    step = FrameStep(model, 6, 256, 16)
    for slot, guidance in ((0, None), (1, 2.0), (3, None), (4, 2.0)):
        step.configure(slot, SETTINGS["sampled"], 1, guidance=guidance)
    runner = CompiledStep(step, ())
    runner._packages = {1: list}  # type: ignore[assignment]
    assert list(runner._batches(6)) == [(0, 1), (1, 2), (3, 1), (4, 2)]
    assert runner._eager_pairs == {1, 4}
    runner._packages = {1: list, 2: list, 4: list}  # type: ignore[assignment]
    assert list(runner._batches(6)) == [
        (0, 1),
        (1, 2),
        (3, 1),
        (4, 2),
    ]  # unchanged in mid-take
    step.release(4)
    step.configure(4, SETTINGS["sampled"], 1, guidance=2.0)
    step.release(1)
    assert list(runner._batches(6)) == [(0, 4), (4, 2)]
    assert runner._eager_pairs == {4}  # its slot was taken over between two frames


@torch.inference_mode()
def test_an_eager_pair_next_to_compiled_streams_makes_the_codes_it_makes_alone(
    checkpoint: tuple[SpeechModel, Codec],
) -> None:
    model, _ = checkpoint
    crowd, alone = FrameStep(model, 3, 256, 16), FrameStep(model, 2, 256, 16)
    start(crowd, 0, 3, SETTINGS["sampled"])
    for step, slot in ((crowd, 1), (alone, 0)):
        start(step, slot + 1, 1, SETTINGS["sampled"])
        start(step, slot, 2, SETTINGS["sampled"])
        step.configure(slot, SETTINGS["sampled"], 5, guidance=2.0)
    runner = CompiledStep(crowd, ())
    runner._packages = {1: lambda inputs: None}  # type: ignore[dict-item]
    crowd.use(runner)
    for _ in range(6):
        crowd.run(3, 256)
        alone.run(2, 256)
        assert torch.equal(crowd.output.codes[1:], alone.output.codes)


@needs_compiler
@pytest.mark.slow
def test_a_build_runs_in_the_background(checkpoint: tuple[SpeechModel, Codec]) -> None:
    """Its package is the one that the tests of the decoder use."""
    builder = PackageBuilder(*checkpoint, (), (1,))  # one package is enough
    builder.recipe.codec_path(1).unlink(missing_ok=True)
    assert not builder.ready()
    builder.start()
    assert builder.building()
    builder.wait(600)
    assert builder.ready()
    assert builder.codecs() == (1,)


@needs_compiler
@pytest.mark.slow
def test_compiled_decode_equals_eager(checkpoint: tuple[SpeechModel, Codec]) -> None:
    model, codec = checkpoint
    path = codec_package(codec.config, codec.decoder.dtype, 1)
    if not path.exists():
        build_codec(codec.config, codec.decoder.dtype, 1, path)
    compiled = CompiledCodec(codec, (1,))
    size = codec.config.residual_codebook_size
    codes = torch.randint(0, size, (1, model.config.num_codebooks, 12))
    with torch.inference_mode():
        whole = codec.decode(codes)
        state = codec.new_state(1)
        parts = [compiled.decode_step(codes[:, :, i : i + 1], state) for i in range(8)]
        parts.append(compiled.decode_step(codes[:, :, 8:], state))  # a size without a package
    assert (torch.cat(parts, 1) - whole).abs().max() <= 1e-5


def test_a_batch_without_a_package_is_decoded_in_parts(
    checkpoint: tuple[SpeechModel, Codec],
) -> None:
    _, codec = checkpoint
    compiled, sizes = CompiledCodec(codec, ()), []

    def package(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        sizes.append(inputs[-1].shape[2])
        return [inputs[-1][:, 0]]

    compiled._packages = {size: package for size in (1, 2, 4)}  # type: ignore[misc]
    codes = torch.arange(11).expand(1, codec.config.num_codebooks, 11)
    pcm = compiled.decode_step(codes, codec.new_state(1))
    assert sizes == [4, 4, 2, 1]
    assert torch.equal(pcm[0], torch.arange(11))


@needs_compiler
@pytest.mark.slow
def test_packages_are_taken_over_when_idle(
    checkpoint: tuple[SpeechModel, Codec], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, codec = checkpoint
    built(model, 1)
    path = codec_package(codec.config, codec.decoder.dtype, 1)
    if not path.exists():
        build_codec(codec.config, codec.decoder.dtype, 1, path)
    here = failures.folder()
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(tmp_path))
    monkeypatch.setattr(PackageBuilder, "start", lambda _: None)
    config = EngineConfig(
        max_streams=1, context=256, codec_batch_frames=1, step_mode="auto", prefill_block=16
    )
    forms = CompiledForms(make_step(model, config), codec, config)
    assert forms.mode == "eager"
    assert not forms.update(idle=True)  # nothing is built yet
    shutil.copytree(here, failures.folder())
    assert not forms.update(idle=False)
    assert forms.mode == "eager"
    assert forms.update(idle=True)
    assert forms.mode == "compile"


@needs_compiler
@pytest.mark.slow
def test_a_truncated_package_is_reported_and_rebuilt(
    checkpoint: tuple[SpeechModel, Codec],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, _ = checkpoint
    path, whole = published_elsewhere(model, monkeypatch, tmp_path)
    path.write_bytes(whole[: len(whole) // 2])
    started = []
    monkeypatch.setattr(PackageBuilder, "start", lambda self: started.append(path.exists()))
    config = EngineConfig(max_streams=1, context=256, codec_batch_frames=1, prefill_block=16)
    forms = CompiledForms(make_step(checkpoint[0], config), checkpoint[1], config)
    assert forms.mode == "eager"
    assert f"{path} does not load" in caplog.text
    assert not path.exists()
    assert started[0] is False  # the build begins once the damaged file is gone
    publish(path, whole)
    assert forms.update(idle=True)
    assert forms.mode == "compile"


@needs_compiler
@pytest.mark.slow
def test_a_package_with_flipped_bytes_is_not_opened(
    checkpoint: tuple[SpeechModel, Codec], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, _ = checkpoint
    path, whole = published_elsewhere(model, monkeypatch, tmp_path)
    path.write_bytes(whole[:5_000] + bytes(byte ^ 255 for byte in whole[5_000:]))
    with pytest.raises(packages.PackageLoadError, match="do not match its checksum") as caught:
        packages.load_package(path)
    assert caught.value.damaged


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("size", [3_000, 5_000, 60_000])
def test_a_runner_that_was_cut_short_is_not_opened(
    cache: Path, size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The loader of the system would end the process with a bus error."""
    whole = packages.runner_path().read_bytes()
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(tmp_path))
    publish(packages.runner_path(), whole)
    packages.runner_path().write_bytes(whole[:size])
    assert not packages._load_runner.__wrapped__()
    assert not packages.runner_path().exists()


@needs_compiler
@pytest.mark.slow
def test_a_healthy_package_outlives_an_unusable_temporary_folder(
    checkpoint: tuple[SpeechModel, Codec],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, codec = checkpoint
    path, whole = published_elsewhere(model, monkeypatch, tmp_path)
    monkeypatch.setattr(PackageBuilder, "start", lambda _: None)
    monkeypatch.setenv("TMPDIR", "/nonexistent")
    config = EngineConfig(max_streams=1, context=256, codec_batch_frames=1, prefill_block=16)
    assert CompiledForms(make_step(model, config), codec, config).mode == "eager"
    assert f"continuing in eager mode: {path} does not load" in caplog.text
    assert path.read_bytes() == whole
    assert not failures.records()
    monkeypatch.delenv("TMPDIR")
    assert CompiledForms(make_step(model, config), codec, config).mode == "compile"


def test_builders_of_several_recipes_take_turns(
    checkpoint: tuple[SpeechModel, Codec], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(tmp_path))
    monkeypatch.setattr(building, "_build_runner", lambda: None)
    monkeypatch.setattr(building, "TURN", 0.01)
    one = PackageBuilder(*checkpoint, (1, 2, 4), ()).recipe
    other = PackageBuilder(*checkpoint, (), (1, 2, 4)).recipe
    order: list[str] = []
    begun = threading.Event()

    def build(path: Path, _: object) -> None:
        order.append(path.name)
        begun.set()
        while len(order) == 1 and not threads[1].is_alive():
            time.sleep(0.001)
        publish(path, b"")

    monkeypatch.setattr(building, "_build", build)
    threads = [threading.Thread(target=building.build_all, args=(r,)) for r in (one, other)]
    threads[0].start()
    assert begun.wait(30)
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert len(order) == 6
    assert {name.split("-")[0] for name in order[:4]} == {"step", "codec"}


def test_one_builder_per_recipe_is_enough(
    checkpoint: tuple[SpeechModel, Codec], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(tmp_path))
    monkeypatch.setattr(building, "_build_runner", lambda: None)
    monkeypatch.setattr(building, "TURN", 0.01)
    recipe = PackageBuilder(*checkpoint, (1,), ()).recipe

    def build(path: Path, _: object) -> None:
        with pytest.raises(filelock.Timeout):
            building.build_all(recipe)
        publish(path, b"")

    monkeypatch.setattr(building, "_build", build)
    building.build_all(recipe)
    assert checksums.published(recipe.step_path(1))


@pytest.mark.parametrize(
    ("error", "recorded"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), False),
        (MemoryError(), False),
        (RuntimeError("C++ compile error: cannot write x.o: No space left on device"), False),
        (RuntimeError("C++ compile error: expected ';'"), True),
    ],
)
def test_a_build_that_had_no_room_is_not_recorded_as_failed(
    error: Exception, recorded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(tmp_path))
    path = failures.folder() / "key" / "step-1.pt2"

    def fail(_: Path) -> None:
        raise RuntimeError("compiling failed") from error

    with pytest.raises(RuntimeError):
        building._build(path, fail)
    assert bool(failures.records()) is recorded


def test_paths_depend_on_everything(checkpoint: tuple[SpeechModel, Codec]) -> None:
    model, codec = checkpoint
    config = model.config
    wider = dataclasses.replace(config, eos=config.eos + 1)
    paths = {
        step_package(config, torch.float32, 1),
        step_package(config, torch.float32, 2),
        step_package(config, torch.bfloat16, 1),
        step_package(wider, torch.float32, 1),
        codec_package(codec.config, torch.float32, 1),
        packages.package_path("step-1", {}, ("graph_step.py",)),
        packages.package_path("step-1", {}, ("graph_step.py", "config.py")),
    }
    assert len(paths) == 7
    assert step_package(config, torch.float32, 1) in paths


def test_the_package_of_a_single_stream_is_built_first(
    checkpoint: tuple[SpeechModel, Codec],
) -> None:
    recipe = PackageBuilder(*checkpoint, (1, 2), (1, 2, 4)).recipe
    first, *others, last = [path for path, _ in recipe.jobs()]
    assert (first, last) == (recipe.step_path(1), recipe.step_path(2))
    assert others == [recipe.codec_path(frames) for frames in (1, 2, 4)]
    assert pickle.loads(pickle.dumps(recipe)) == recipe  # as the process that builds gets it


def test_without_a_compiler_there_is_an_obstacle(
    checkpoint: tuple[SpeechModel, Codec], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    builder = PackageBuilder(*checkpoint, (1,), (1,))
    assert builder.obstacle is not None
    builder.start()
    assert not builder.building()
    with pytest.raises(ConfigError, match=r"C\+\+ compiler.*step mode eager"):
        builder.wait()


def test_a_failure_is_recorded(
    checkpoint: tuple[SpeechModel, Codec], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(tmp_path))
    builder = PackageBuilder(*checkpoint, (1,), (1,))
    if builder.obstacle:
        pytest.skip("needs a C++ compiler")
    path = builder.recipe.step_path(1)
    path.parent.mkdir(parents=True)
    failures.record(path, "Traceback\n  ...\nRuntimeError: no room\n")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("tried again"))
    builder.start()
    with pytest.raises(ConfigError, match="no room"):
        builder.wait()


def test_a_missing_runner_is_built_although_the_packages_are_there(
    checkpoint: tuple[SpeechModel, Codec], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As after an update that changed the runner alone; one that cannot be built is skipped."""
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(tmp_path))
    builder = PackageBuilder(*checkpoint, (1,), (1,))
    if compiler() is None:
        pytest.skip("needs a C++ compiler")
    for path, _ in builder.recipe.jobs():
        publish(path, b"")
    assert not builder.ready()
    failures.record(packages.runner_path(), "RuntimeError: no room")
    assert builder.ready()
    packages.runner_path().with_suffix(".failed").unlink()
    packages.runner_path().touch()
    assert not builder.ready()  # it has no checksum, and could be anything
    publish(packages.runner_path(), b"")
    assert builder.ready()


def test_results_are_not_silently_zero(checkpoint: tuple[SpeechModel, Codec]) -> None:
    """Equal codes would prove nothing if all of them were the same."""
    model, _ = checkpoint
    step = FrameStep(model, 1, 256, 64)
    start(step, 0, 1, SETTINGS["sampled"])
    seen = []
    for frame in range(30):
        step.run(1, step.length_for(30 + frame))
        seen.append(step.output.codes[0].numpy().copy())
    assert len(np.unique(np.stack(seen), axis=0)) > 10
