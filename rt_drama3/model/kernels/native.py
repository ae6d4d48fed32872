"""A CPU's products with weights as they are stored: C++ that is compiled once for each machine.

Rows of x become int8, with a scale for each 32 columns; so a product differs from that of the
dequantised weights by about 0.5 % of its norm (of FP8, by float32 rounding alone). A row's values
do not depend on the other rows. ``Weight.plain_product`` is what the kernels are compared with, and
what runs where there is no g++ or clang++; it also serves prompts, where its matrix product wins.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import logging
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rt_drama3.model.kernels.registry import Kernel, register
from rt_drama3.system.checksums import DamagedFileError, verify
from rt_drama3.system.compiling import compile_library
from rt_drama3.system.machine import processor_name
from rt_drama3.system.paths import cache_dir

if TYPE_CHECKING:
    from rt_drama3.model.weights import Weight

log = logging.getLogger(__name__)

# In the order of FORMS in products.cpp.
BLOCK_FORMATS = ("q8_0", "q4_0", "q4_k", "q5_k", "q6_k", "q3_k", "q2_k", "iq4_xs")
FEW_ROWS = 16  # more are multiplied with dequantised tiles
_SOURCE = Path(__file__).with_name("products.cpp")


@functools.cache
def load() -> bool:
    """Makes the kernels available; compiles them first if this machine never did (seconds).

    Returns:
        Whether they are; where not, the log says why.
    """
    try:
        library = _opened(library_path())
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        log.warning("weights cannot stay as they are stored on this CPU: %s", reason)
        return False
    for number, name in enumerate(BLOCK_FORMATS):
        call = functools.partial(library.rt_product, number)
        register(name, "cpu", Kernel(functools.partial(_product, call)))
    register("fp8", "cpu", Kernel(functools.partial(_product, library.rt_product_e4m3)))
    return True


def library_path() -> Path:
    """Where the library is, or will be."""
    facts = [_SOURCE.read_text(encoding="utf-8"), _options(), processor_name(), sys.platform]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]
    return cache_dir() / "kernels" / f"products-{key}{'.dll' if sys.platform == 'win32' else '.so'}"


def _options() -> list[str]:
    arm = platform.machine().lower() in ("arm64", "aarch64")
    return ["-O3", "-std=c++17", "-mcpu=native" if arm else "-march=native", "-pthread"]


def _opened(path: Path) -> ctypes.CDLL:
    try:
        verify(path)
    except (DamagedFileError, FileNotFoundError):
        compile_library(_SOURCE, path, _options())
    return ctypes.CDLL(str(path))


def _product(call: Callable[..., object], x: Tensor, weight: Weight, index: int | None) -> Tensor:
    """Calls a function of the library, during which other threads of Python run."""
    if x.shape[0] > FEW_ROWS:
        return weight.plain_product(x, index)
    rows, columns = weight.shape[-2:]
    planes = [plane if index is None else plane[index] for plane in weight.planes()]
    assert all(plane.is_contiguous() for plane in planes)
    inputs, out = x.float().contiguous(), torch.empty(x.shape[0], rows)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (inputs, *planes, out)]
    call(*pointers, x.shape[0], rows, columns, torch.get_num_threads())
    return out.to(x.dtype)
