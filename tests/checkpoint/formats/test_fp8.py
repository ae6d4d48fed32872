"""FP8 with a scale for each 128x128 block, against a restatement, element by element."""

from __future__ import annotations

import pytest
import torch

from rt_drama3.checkpoint.formats.fp8 import quantize_fp8
from rt_drama3.model.weights import dequantize
from tests.checkpoint.formats.blocks import random_rows, rmse


@pytest.mark.parametrize("shape", [(128, 256), (130, 100), (3, 5)])
def test_what_we_write(shape: tuple[int, int]) -> None:
    x = random_rows("gauss", *shape) * 0.02
    matrix, scales = quantize_fp8(x)
    assert scales.shape == (-(-shape[0] // 128), -(-shape[1] // 128))
    codes, factors = matrix.float().tolist(), scales.tolist()
    expected = torch.tensor(
        [
            [codes[i][j] * factors[i // 128][j // 128] for j in range(shape[1])]
            for i in range(shape[0])
        ]
    )
    ours = dequantize(matrix, scales, torch.float32)
    assert torch.allclose(ours, expected, rtol=2e-7, atol=0)
    assert rmse(x, ours) <= 0.03 * 0.02  # e4m3 rounds to 4 bits


def test_the_largest_weight_is_kept() -> None:
    x = random_rows("t4", 128, 128)
    matrix, scales = quantize_fp8(x)
    assert matrix.float().abs().max() == 448
    assert scales.item() == pytest.approx(x.abs().max().item() / 448)


def test_zeros_and_other_dtypes() -> None:
    matrix, scales = quantize_fp8(torch.zeros(4, 4, dtype=torch.bfloat16))
    assert (dequantize(matrix, scales, torch.float32) == 0).all()
    with pytest.raises(ValueError, match="infinities or NaN"):
        quantize_fp8(torch.full((4, 4), torch.inf))
