"""ggml's own quantisation and reader of files, in the prebuilt library of libggml-python.

Nothing here reads or writes a block: rows go in as float32 and come out as bytes, or the other way.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_bool, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path

import libggml
import numpy as np
import torch
from torch import Tensor

# Names as ggml spells them in its function names.
_SPELLED = {name: name[:-1] + "K" for name in ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")}


@cache
def library() -> ctypes.CDLL:
    """libggml-base with the signatures that are used here."""
    path = Path(libggml.__file__).parent / "lib64" / "libggml-base.so.0"
    lib = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    lib.ggml_quantize_init.argtypes = [c_int]
    lib.ggml_quantize_init.restype = None
    lib.ggml_quantize_chunk.argtypes = [
        c_int, POINTER(c_float), c_void_p, c_int64, c_int64, c_int64, POINTER(c_float),
    ]  # fmt: skip
    lib.ggml_quantize_chunk.restype = c_size_t
    lib.ggml_quantize_requires_imatrix.argtypes = [c_int]
    lib.ggml_quantize_requires_imatrix.restype = c_bool
    lib.ggml_row_size.argtypes = [c_int, c_int64]
    lib.ggml_row_size.restype = c_size_t
    lib.ggml_blck_size.argtypes = [c_int]
    lib.ggml_blck_size.restype = c_int64
    return lib


def row_bytes(ggml_id: int, columns: int) -> int:
    return int(library().ggml_row_size(ggml_id, columns))


def block_elements(ggml_id: int) -> int:
    return int(library().ggml_blck_size(ggml_id))


def dequantize(data: Tensor, name: str, columns: int) -> Tensor:
    """uint8 ``[rows, row_bytes]`` of the format ``name`` -> float32 ``[rows, columns]``."""
    function = getattr(library(), f"dequantize_row_{_SPELLED.get(name, name)}")
    function.argtypes = [c_void_p, POINTER(c_float), c_int64]
    function.restype = None
    blocks = np.ascontiguousarray(data.numpy())
    out = np.empty((data.shape[0], columns), np.float32)
    function(blocks.ctypes.data, _floats(out), out.size)
    return torch.from_numpy(out)


def quantize(rows: Tensor, ggml_id: int, importance: Tensor | None = None) -> Tensor:
    """float32 ``[rows, columns]`` -> uint8 ``[rows, row_bytes]``."""
    lib = library()
    lib.ggml_quantize_init(ggml_id)
    assert not lib.ggml_quantize_requires_imatrix(ggml_id)
    source = np.ascontiguousarray(rows.numpy(), np.float32)
    out = np.empty((rows.shape[0], row_bytes(ggml_id, rows.shape[1])), np.uint8)
    weights = None
    if importance is not None:
        weights = _floats(np.ascontiguousarray(importance.numpy(), np.float32))
    written = lib.ggml_quantize_chunk(
        ggml_id, _floats(source), out.ctypes.data, 0, *rows.shape, weights
    )
    assert written == out.nbytes
    return torch.from_numpy(out)


class _GgufParameters(ctypes.Structure):
    _fields_ = (("no_alloc", c_bool), ("ctx", c_void_p))


def gguf_tensors(path: Path) -> list[tuple[str, int, int]]:
    """Name, type and place of every tensor of a GGUF file; fails where ggml refuses the file."""
    lib = library()
    lib.gguf_init_from_file.argtypes = [ctypes.c_char_p, _GgufParameters]
    lib.gguf_init_from_file.restype = c_void_p
    lib.gguf_get_tensor_name.restype = ctypes.c_char_p
    for name in ("n_tensors", "data_offset", "tensor_offset"):
        getattr(lib, f"gguf_get_{name}").restype = c_int64
    context = lib.gguf_init_from_file(str(path).encode(), _GgufParameters(True, None))
    assert context, f"ggml refuses {path}"
    handle = c_void_p(context)
    start = lib.gguf_get_data_offset(handle)
    found = [
        (
            lib.gguf_get_tensor_name(handle, c_int64(i)).decode(),
            lib.gguf_get_tensor_type(handle, c_int64(i)),
            start + lib.gguf_get_tensor_offset(handle, c_int64(i)),
        )
        for i in range(lib.gguf_get_n_tensors(handle))
    ]
    lib.gguf_free(handle)
    return found


def _floats(array: np.ndarray) -> ctypes._Pointer[c_float]:  # type: ignore[type-arg]
    return array.ctypes.data_as(POINTER(c_float))
