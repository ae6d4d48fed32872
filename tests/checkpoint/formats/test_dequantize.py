"""Blocks as ggml reads them, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rt_drama3.checkpoint.formats import FORMATS, Format, by_ggml_id, dequantize
from rt_drama3.checkpoint.formats.bits import CHUNK
from tests.checkpoint.formats.blocks import SCALED, random_blocks

pytest.importorskip("libggml", reason="libggml-python is installed on Linux x86-64 alone")
from tests.oracles import ggml

named = pytest.mark.parametrize("format", SCALED, ids=lambda format: format.name)

HALF = torch.finfo(torch.float16)
SCALES = {
    "ordinary": torch.randn(200, generator=torch.Generator().manual_seed(1)) * 0.01,
    "zero": torch.tensor([0.0]),
    "negative zero": torch.tensor([-0.0]),
    "subnormal": torch.arange(-1023, 1024) * HALF.smallest_normal / 1024,
    "largest": torch.tensor([HALF.max, -HALF.max]),
    "any": torch.arange(65536, dtype=torch.int32).short().view(torch.float16).float(),
}
SCALES["any"] = SCALES["any"][SCALES["any"].isfinite()]


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int32)


def assert_as_ggml_reads(format: Format, data: Tensor) -> None:
    columns = data.shape[1] // format.block_bytes * format.elements
    ours, theirs = dequantize(data, format), ggml.dequantize(data, format.name, columns)
    different = bits(ours) != bits(theirs)
    assert not different.any(), (different.sum(), ours[different][:4], theirs[different][:4])


@named
def test_sizes(format: Format) -> None:
    assert by_ggml_id(format.ggml_id) is format
    assert ggml.block_elements(format.ggml_id) == format.elements
    assert ggml.row_bytes(format.ggml_id, 1024) == format.row_bytes(1024)


@named
@pytest.mark.parametrize("scales", SCALES)
def test_random_blocks(format: Format, scales: str) -> None:
    data = random_blocks(format, 1024, SCALES[scales])
    assert_as_ggml_reads(format, data.view(128, -1))


@named
def test_every_byte_at_every_place(format: Format) -> None:
    """A block in which one byte takes all its values while the others are fixed."""
    base = random_blocks(format, 1, SCALES["ordinary"], seed=2)
    data = base.repeat(format.block_bytes * 256, 1).view(format.block_bytes, 256, -1)
    for place in range(format.block_bytes):
        data[place, :, place] = torch.arange(256)
    finite = dequantize(data, format).isfinite().all(-1)
    assert_as_ggml_reads(format, data[finite])


@named
def test_more_rows_than_a_chunk(format: Format) -> None:
    data = random_blocks(format, CHUNK // format.elements * 2 + 24, SCALES["ordinary"])
    assert_as_ggml_reads(format, data.view(8, -1))


@named
def test_result_in_another_dtype_is_rounded_once(format: Format) -> None:
    data = random_blocks(format, 64, SCALES["ordinary"]).view(2, 4, -1)
    whole = dequantize(data, format)
    assert whole.shape == (2, 4, 8 * format.elements)
    assert torch.equal(dequantize(data, format, torch.bfloat16), whole.bfloat16())


@named
def test_bytes_at_an_odd_address(format: Format) -> None:
    data = random_blocks(format, 8, SCALES["ordinary"])
    shifted = torch.empty(data.numel() + 1, dtype=torch.uint8)[1:].view(data.shape).copy_(data)
    assert torch.equal(dequantize(shifted, format), dequantize(data, format))


def test_plain_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    data = torch.randint(0, 256, (16, 4096), dtype=torch.uint8, generator=generator)
    halves, singles = data.numpy().view("<f2"), data.numpy().view("<f4")
    tops = data.numpy().view("<u2").astype("<u4") << 16
    for name, values in (("f16", halves), ("f32", singles), ("bf16", tops.view("<f4"))):
        ours = dequantize(data, FORMATS[name])
        theirs = torch.from_numpy(values.astype("<f4"))
        number = ~theirs.isnan()
        assert torch.equal(ours.isnan(), ~number)
        assert torch.equal(bits(ours[number]), bits(theirs[number]))


def test_ids() -> None:
    assert len({format.ggml_id for format in FORMATS.values()}) == len(FORMATS)
    assert by_ggml_id(12) is FORMATS["q4_k"]
    assert by_ggml_id(16) is None  # iq2_xxs


def test_rows_that_do_not_fill_their_blocks() -> None:
    with pytest.raises(ValueError, match="q4_k stores blocks of 256 weights, and 1000 columns"):
        FORMATS["q4_k"].row_bytes(1000)
    with pytest.raises(ValueError, match="q4_k stores blocks of 144 bytes, and rows of 145"):
        dequantize(torch.zeros(2, 145, dtype=torch.uint8), FORMATS["q4_k"])


def test_no_rows() -> None:
    for format in FORMATS.values():
        assert (
            dequantize(torch.zeros(0, format.block_bytes, dtype=torch.uint8), format).numel() == 0
        )


@pytest.mark.gpu
@named
def test_cuda_equals_the_cpu(format: Format) -> None:
    data = random_blocks(format, 512, SCALES["ordinary"]).view(8, -1)
    assert torch.equal(dequantize(data.cuda(), format).cpu(), dequantize(data, format))
