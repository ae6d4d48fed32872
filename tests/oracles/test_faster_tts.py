"""The whole model against CTranslate2's native engine, through faster-tts: prompts, greedy codes
and audio of the same random checkpoint.

A third implementation, which reads nothing but the official layout with the official codec. It
comes with the extra ``oracle``, and takes two minutes, 6 GB of memory and 4 GB of disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rt_drama3
from rt_drama3.checkpoint import make_tiny
from rt_drama3.drama3 import Drama3
from rt_drama3.engine.config import EngineConfig
from tests.small import GREEDY, solo

ctranslate2 = pytest.importorskip("ctranslate2", reason="needs the extra 'oracle'")
faster_tts = pytest.importorskip("faster_tts", reason="needs the extra 'oracle'")
theirs_prompt = pytest.importorskip("faster_tts.prompt", reason="needs the extra 'oracle'")

pytestmark = pytest.mark.slow

SETTINGS = {
    "audio_decoder_config.num_codebooks": 10,
    "audio_decoder_config.vocab_size": 4096,
    "audio_decoder_config.shared_enrichment_layers": 4,
    "text_config.vocab_size": 4608,
}
TEXTS = (
    "Hello there, how are you?",
    "<|speaker:1|> [softly] Thank you for calling.",
    "Ünïcödé, and 1,024 of them!",
)
FRAMES = 24


@pytest.fixture(scope="module")
def source() -> Iterator[Path]:
    """A random checkpoint with ten codebooks and the official codec; gigabytes, so it goes."""
    with tempfile.TemporaryDirectory() as directory:
        make_tiny(Path(directory, "tiny"), settings=SETTINGS, codec="official")
        yield Path(directory, "tiny")


@pytest.fixture(scope="module")
def ours(source: Path) -> Iterator[Drama3]:
    drama = rt_drama3.load(
        source, device="cpu", dtype="float32", engine=EngineConfig(step_mode="eager", max_streams=1)
    )
    yield drama
    drama.close()


@pytest.fixture(scope="module")
def theirs(source: Path) -> Path:
    """The checkpoint in CTranslate2's layout, experts in FP8 as they are, the rest in float32."""
    target = source.parent / "ct2"
    converter = ctranslate2.converters.TransformersConverter(str(source))
    converter.convert(str(target), quantization="float32")
    return target


@pytest.fixture(scope="module")
def engine(theirs: Path) -> Any:
    return ctranslate2._ext.Drama3(str(theirs), intra_threads=1, compute_type="float32")


def turns(count: int) -> list[tuple[str, np.ndarray]]:
    """Earlier turns: their text and random codes ``[frames, codebooks]``."""
    generator = np.random.default_rng(5)
    return [(f"Turn {i}.", generator.integers(0, 4096, (7, 10))) for i in range(count)]


def test_prompts(source: Path, ours: Drama3) -> None:
    builder = theirs_prompt.Drama3PromptBuilder(source)
    for text in TEXTS:
        for count in range(3):
            history = turns(count)
            rows = builder.prepare(text, history=history).rows
            previous = [(said, codes.T) for said, codes in history]
            assert np.array_equal(rows, ours.prompts.build(text, (), previous).rows)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("count", [0, 2])
def test_greedy_codes_and_audio(ours: Drama3, engine: Any, text: str, count: int) -> None:
    previous = [(said, codes.T) for said, codes in turns(count)]
    rows = ours.prompts.build(text, (), previous).rows
    result = engine.generate(
        np.ascontiguousarray(rows, dtype=np.int32),
        max_frames=FRAMES,
        greedy=True,
        prefill_chunk_size=128,
    )
    codes = [frame[1:] for frame in solo(ours.model, torch.from_numpy(rows), GREEDY, 0, FRAMES)]
    assert np.asarray(result.codes).tolist() == codes
    assert len({tuple(frame) for frame in codes}) > FRAMES / 2  # or agreeing would be no feat
    pcm = ours.codec.decode(torch.tensor(codes).T[None])[0]
    audio = torch.from_numpy(np.asarray(result.audio))
    assert pcm.square().mean().sqrt() > 0.01
    torch.testing.assert_close(pcm.flatten(), audio.flatten(), rtol=0, atol=2e-3)


def test_faster_tts_speaks(ours: Drama3, theirs: Path) -> None:
    model = faster_tts.Model(str(theirs), device="cpu", cpu_threads=1, compute_type="float32")
    seconds = FRAMES * 2048 / 44_100
    result = model.synthesize(TEXTS[0], max_duration_s=seconds, greedy=True)
    rows = torch.from_numpy(ours.prompts.build(TEXTS[0]).rows)
    frames = solo(ours.model, rows, GREEDY, 0, len(result.codes))
    assert len(frames) >= FRAMES - 1
    assert result.codes.tolist() == [frame[1:] for frame in frames]
