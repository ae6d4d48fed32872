"""The codec on a CUDA device: the PCM of the CPU, and a step captured in a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from rt_drama3.codec import Codec, load_codec, random_codec_state
from tests.codec.conftest import TINY
from tests.codec.test_encode import noise
from tests.codec.test_streaming import TOLERANCE, random_codes, stream, worst

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """Convolutions without TF32, which would round float32 inputs to ten bits."""
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = allowed


@pytest.fixture
def on_cuda() -> Codec:
    return load_codec(TINY, random_codec_state(TINY, seed=1), device="cuda")


def test_the_pcm_and_codes_of_the_cpu(tiny: Codec, on_cuda: Codec) -> None:
    codes = random_codes(tiny, 90)
    expected = tiny.decode(codes)
    assert worst(on_cuda.decode(codes).cpu(), expected) < 10 * TOLERANCE
    streamed = stream(on_cuda, codes, [1, 2, 4, 83])
    assert worst(streamed.cpu(), expected) < 10 * TOLERANCE
    samples = noise(5 * tiny.frame_samples)
    same = on_cuda.encode(samples).cpu() == tiny.encode(samples)
    assert same.float().mean() > 0.95


@pytest.mark.parametrize("frames", [1, 4])
def test_a_captured_step(on_cuda: Codec, frames: int) -> None:
    codes = random_codes(on_cuda, 5 * frames).cuda()
    expected = on_cuda.decode(codes)
    state = on_cuda.new_state()
    group = codes[:, :, :frames].clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            on_cuda.decode_step(group, state)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pcm = on_cuda.decode_step(group, state)
    state.reset()
    parts = []
    for part in codes.split(frames, dim=2):
        group.copy_(part)
        graph.replay()
        parts.append(pcm.clone())
    assert worst(torch.cat(parts, dim=1), expected) < TOLERANCE
