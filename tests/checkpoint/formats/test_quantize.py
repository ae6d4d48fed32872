"""Blocks that we write: ggml reads them as we do, and they are at least as close as its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rt_drama3.checkpoint.formats import FORMATS, Format, dequantize, quantize
from rt_drama3.checkpoint.formats.bits import CHUNK
from rt_drama3.checkpoint.formats.ggml_iq import iq3_values
from rt_drama3.checkpoint.formats.ggml_iq_write import _iq3_nearest
from tests.checkpoint.formats.blocks import HALVES, SCALED, random_rows, rmse

pytest.importorskip("libggml", reason="libggml-python is installed on Linux x86-64 alone")
from tests.oracles import ggml

WITH_IMPORTANCE = [format for format in SCALED if format.name != "nvfp4"]
named = pytest.mark.parametrize("format", SCALED, ids=lambda format: format.name)

# What ggml's files have without importance (256 x 2048 weights of standard deviation 1).
REFERENCE = {
    "q8_0": {"gauss": 0.00536, "laplace": 0.00672, "t4": 0.00748},
    "q6_k": {"gauss": 0.01776, "laplace": 0.02168, "t4": 0.02289},
    "q5_k": {"gauss": 0.03614, "laplace": 0.04293, "t4": 0.04380},
    "q4_k": {"gauss": 0.07143, "laplace": 0.08480, "t4": 0.08627},
    "iq4_xs": {"gauss": 0.07679, "laplace": 0.08862, "t4": 0.09421},
    "q4_0": {"gauss": 0.08599, "laplace": 0.10667, "t4": 0.11496},
    "q3_k": {"gauss": 0.15100, "laplace": 0.17657, "t4": 0.18165},
    "iq3_xxs": {"gauss": 0.21358, "laplace": 0.24712, "t4": 0.25917},
    "q2_k": {"gauss": 0.29709, "laplace": 0.34545, "t4": 0.33987},
}
MARGIN = 1.02


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def read_by_ggml(data: Tensor, format: Format) -> Tensor:
    """What ggml reads; it must be what we read, bit for bit."""
    columns = data.shape[1] // format.block_bytes * format.elements
    theirs = ggml.dequantize(data, format.name, columns)
    assert torch.equal(dequantize(data, format).view(torch.int32), theirs.view(torch.int32))
    return theirs


def some_importance(columns: int, seed: int = 3) -> Tensor:
    """Columns whose importance differs by orders of magnitude, some being 0."""
    generator = torch.Generator().manual_seed(seed)
    return (
        (2 * torch.randn(columns, generator=generator))
        .exp()
        .where(torch.rand(columns, generator=generator) > 0.02, 0)
    )


@named
@pytest.mark.parametrize("kind", ["gauss", "laplace", "t4"])
def test_error_without_importance(format: Format, kind: str) -> None:
    x = random_rows(kind)
    ours = rmse(x, read_by_ggml(quantize(x, format), format))
    theirs = ggml.dequantize(ggml.quantize(x, format.ggml_id), format.name, x.shape[1])
    assert ours <= MARGIN * rmse(x, theirs)
    if format.name in REFERENCE:
        assert ours <= MARGIN * REFERENCE[format.name][kind]


@pytest.mark.parametrize("format", WITH_IMPORTANCE, ids=lambda format: format.name)
@pytest.mark.parametrize("kind", ["gauss", "laplace", "t4"])
@pytest.mark.parametrize("alike", [True, False])
def test_error_with_importance(format: Format, kind: str, alike: bool) -> None:
    x = random_rows(kind, 64, 2048)
    importance = torch.full((2048,), 0.3) if alike else some_importance(2048)
    ours = read_by_ggml(quantize(x, format, importance), format)
    blocks = ggml.quantize(x, format.ggml_id, importance)
    theirs = ggml.dequantize(blocks, format.name, x.shape[1])
    assert rmse(x, ours, importance) <= MARGIN * rmse(x, theirs, importance)


@named
def test_importance_lowers_the_error_that_counts(format: Format) -> None:
    x, importance = random_rows("gauss", 16, 1024), some_importance(1024)
    plain = dequantize(quantize(x, format), format)
    weighted = dequantize(quantize(x, format, importance), format)
    if format.name == "q8_0":
        assert torch.equal(plain, weighted)
    else:
        assert rmse(x, weighted, importance) < rmse(x, plain, importance)


@named
def test_importance_of_nothing_counts_all_alike(format: Format) -> None:
    x = random_rows("gauss", 2, 512)
    alike = quantize(x, format, torch.ones(512))
    assert torch.equal(quantize(x, format, torch.zeros(512)), alike)


@pytest.mark.parametrize("outlier", [1e6, 3e38])
def test_an_outlier_does_not_hide_the_importance_of_the_others(outlier: float) -> None:
    x, importance = random_rows("gauss", 8, 1024), some_importance(1024)
    format = FORMATS["q4_k"]
    plain = quantize(x, format, importance)
    importance[1000] = outlier
    assert torch.equal(quantize(x, format, importance)[:, :432], plain[:, :432])


@named
@pytest.mark.parametrize("size", [1e-30, 1e-6, 1e-3, 1e3, 5e4])
def test_weights_of_any_size(format: Format, size: float) -> None:
    """Where scales become subnormal the error grows; nothing becomes infinite or of wrong sign."""
    x = random_rows("gauss", 4, 512) * size
    if format.name == "nvfp4" and size > 1e3:
        x *= 0.01  # its scales end at 448
    y = read_by_ggml(quantize(x, format), format)
    assert y.isfinite().all()
    assert rmse(x, y) <= 1.0001 * rmse(x, torch.zeros_like(x))
    if 1e-3 <= size <= 1e3 and format.name != "nvfp4":
        relative = rmse(x, y) / size
        assert relative <= 1.1 * rmse(x / size, dequantize(quantize(x / size, format), format))


@named
def test_unusual_blocks(format: Format) -> None:
    ramp = torch.linspace(-1, 1, 256)
    rows = {
        "zero": torch.zeros(256),
        "negative zero": torch.full((256,), -0.0),
        "constant": torch.full((256,), 0.7),
        "negative constant": torch.full((256,), -0.7),
        "positive": ramp + 1.5,
        "negative": ramp - 1.5,
        "one outlier": ramp.clone().index_fill_(0, torch.tensor([77]), -100.0),
        "one weight": torch.zeros(256).index_fill_(0, torch.tensor([99]), 1.0),
        "half zero": torch.cat((torch.zeros(128), ramp[128:])),
        "two values": torch.tensor([-1.0, 1.0]).repeat(128),
    }
    x = torch.stack(list(rows.values()))
    y = read_by_ggml(quantize(x, format), format)
    theirs = ggml.dequantize(ggml.quantize(x, format.ggml_id), format.name, 256)
    assert (y[:2] == 0).all()
    for name, row, ours, reference in zip(rows, x, y, theirs, strict=True):
        assert rmse(row, ours) <= 1.05 * rmse(row, reference) + 1e-4 * row.abs().max(), name


@named
def test_rows_do_not_depend_on_their_chunk(format: Format) -> None:
    x = random_rows("gauss", 3 * CHUNK // 2048 // 2, 2048)
    whole = quantize(x, format)
    assert torch.equal(quantize(x[-5:], format), whole[-5:])
    assert whole.shape == (x.shape[0], format.row_bytes(2048))


@named
def test_more_dims_and_other_dtypes(format: Format) -> None:
    x = random_rows("gauss", 6, 512).bfloat16().view(2, 3, 512)
    data = quantize(x, format)
    assert data.shape == (2, 3, format.row_bytes(512))
    assert torch.equal(data.view(6, -1), quantize(x.float().view(6, 512), format))
    spread = x.transpose(0, 1)
    assert torch.equal(quantize(spread, format), data.transpose(0, 1))


@named
def test_weights_that_cannot_be_stored(format: Format) -> None:
    x = random_rows("gauss", 2, 256)
    for bad in (torch.inf, -torch.inf, torch.nan):
        x[1, 7] = bad
        with pytest.raises(ValueError, match="infinities or NaN"):
            quantize(x, format)
    if HALVES[format.name]:
        with pytest.raises(ValueError, match="half-precision numbers end at 65504"):
            quantize(torch.linspace(-1e9, 1e9, 512).view(2, 256), format)


def test_importance_that_does_not_fit() -> None:
    x = random_rows("gauss", 2, 256)
    with pytest.raises(ValueError, match=r"shape \[255\], but the rows have 256 columns"):
        quantize(x, FORMATS["q4_k"], torch.ones(255))
    for bad in (-1.0, torch.nan, torch.inf):
        with pytest.raises(ValueError, match="finite and not negative"):
            quantize(x, FORMATS["q4_k"], torch.full((256,), bad))


def test_columns_that_do_not_fill_their_blocks() -> None:
    with pytest.raises(ValueError, match="q6_k stores blocks of 256 weights, and 384 columns"):
        quantize(random_rows("gauss", 2, 384), FORMATS["q6_k"])


def test_plain_numbers() -> None:
    x = random_rows("gauss", 4, 33)
    for name, dtype in (("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)):
        format = FORMATS[name]
        data = quantize(x, format)
        assert torch.equal(data, x.to(dtype).view(torch.uint8))
        assert torch.equal(dequantize(data, format, dtype), x.to(dtype))
    with pytest.raises(ValueError, match="half-precision numbers end at 65504"):
        quantize(torch.tensor([[1e5]]), FORMATS["f16"])
    assert quantize(torch.tensor([[torch.inf]]), FORMATS["f16"]).tolist() == [[0, 0x7C]]


def test_q8_0_is_what_ggml_writes() -> None:
    x = random_rows("laplace", 64, 2048)
    assert torch.equal(quantize(x, FORMATS["q8_0"]), ggml.quantize(x, 8))


@pytest.mark.parametrize("counts", [None, torch.rand(3000, 4, generator=generator(5)) + 0.01])
def test_iq3_xxs_takes_the_nearest_entries(counts: Tensor | None) -> None:
    y = torch.rand(3000, 4, generator=generator(6)) * 17 - 0.5
    index = _iq3_nearest(y, counts).long()
    grid = iq3_values(y.device) / 4
    errors = (y[:, None].double() - grid).square()
    errors = (errors if counts is None else errors * counts[:, None]).sum(2)
    chosen = errors.gather(1, index[:, None])[:, 0]
    assert (chosen <= errors.amin(1) * (1 + 2**-14) + 1e-3).all()


@pytest.mark.gpu
@named
def test_what_cuda_writes_is_as_close(format: Format) -> None:
    x = random_rows("gauss", 8, 1024)
    ours = dequantize(quantize(x.cuda(), format).cpu(), format)
    assert rmse(x, ours) <= 1.001 * rmse(x, dequantize(quantize(x, format), format))
