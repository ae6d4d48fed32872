"""GGUF files that we read and write, next to ggml and to the gguf package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rt_drama3.checkpoint.formats import FORMATS, quantize
from rt_drama3.checkpoint.gguf import (
    Planned,
    Writer,
    embedded_files,
    logical_names,
    read_embedded,
    scan_gguf,
)
from rt_drama3.checkpoint.tensors import TensorReader

LONG = "model_weights/model.language_model.layers.39.mlp.experts.gate_proj.weight"
VALUES: dict[str, Any] = {
    "general.architecture": "audiocpp",
    "a.bool": True,
    "an.int": 7,
    "a.large.int": 1 << 40,
    "a.negative.int": -3,
    "a.float": 0.25,
    "some.floats": np.array([1.5, -2.5], dtype=np.float64),
    "some.bytes": np.arange(300_000, dtype=np.uint32).astype(np.uint8),
    "some.strings": ["", "é", "x" * 1000],
    "no.strings": [],
}


def tensors() -> dict[str, tuple[tuple[int, ...], str, Tensor]]:
    """Name -> logical shape, type and data of some tensors."""
    normal = torch.randn(3, 4, 256, generator=torch.Generator().manual_seed(0))
    stored = {
        "scalar": ((), "F32", torch.tensor(3.0)),
        "vector": ((256,), "F16", normal[0, 0].half()),
        "conv": ((128, 1, 4), "BF16", normal[0, :2].reshape(128, 1, 4).bfloat16()),
        "five": ((2, 1, 3, 2, 256), "F32", normal.reshape(2, 1, 3, 2, 256)),
        "ids": ((5,), "I32", torch.arange(5, dtype=torch.int32)),
    }
    for name in ("q8_0", "q4_0"):
        data = quantize(normal, FORMATS[name])
        stored[f"{LONG}.{name}"] = ((3, 4, 256), name.upper(), data)
    return stored


def write(path: Path, *, alignment: int = 32, **more: Any) -> Path:
    stored = tensors()
    names, values = logical_names(list(stored), [shape for shape, _, _ in stored.values()])
    planned = [
        Planned(name, shape, dtype)
        for name, (shape, dtype, _) in zip(names, stored.values(), strict=True)
    ]
    with Writer(path, VALUES | values | more, planned, alignment) as writer:
        for _, _, data in stored.values():
            half = data.reshape(-1)[: data.numel() // 2]
            writer.write(half)
            writer.write(data.reshape(-1)[half.numel() :])
    return path


@pytest.mark.parametrize("alignment", [32, 8, 4096])
def test_what_is_written_is_read(tmp_path: Path, alignment: int) -> None:
    found = scan_gguf(write(tmp_path / "some.gguf", alignment=alignment))
    assert found.problems == []
    assert found.architecture == "audiocpp"
    stored = tensors()
    assert list(found.entries) == list(stored)
    with TensorReader(tmp_path) as reader:
        for name, (shape, dtype, data) in stored.items():
            entry = found.entries[name]
            assert (entry.shape, entry.dtype, entry.shard) == (shape, dtype, "some.gguf")
            assert entry.start % alignment == 0
            read = reader.read(entry)
            assert torch.equal(read.flatten(), data.reshape(-1).view(torch.uint8))
    header = found.header
    assert header is not None
    assert header.string("general.architecture") == "audiocpp"
    assert header.integer("an.int") == 7
    assert header.integer("a.large.int") == 1 << 40
    assert header.integer("a.negative.int") == -3
    assert header.integer("absent") is header.string("absent") is header.strings("absent") is None
    assert header.strings("some.strings") == VALUES["some.strings"]
    assert header.strings("no.strings") == []
    floats, many = header.numbers("some.floats"), header.numbers("some.bytes")
    assert floats is not None
    assert floats.tolist() == [1.5, -2.5]
    assert many is not None
    assert np.array_equal(many, VALUES["some.bytes"])


def test_rows_of_a_stack(tmp_path: Path) -> None:
    """Rows count over all dims but the last."""
    found = scan_gguf(write(tmp_path / "some.gguf"))
    name = f"{LONG}.q8_0"
    data = tensors()[name][2].flatten(0, 1)
    with TensorReader(tmp_path) as reader:
        assert torch.equal(reader.read(found.entries[name], slice(5, 9)), data[5:9])


def test_nothing_is_left_of_a_file_that_was_not_completed(tmp_path: Path) -> None:
    plan = [Planned("a", (4,), "F32")]
    with (
        pytest.raises(ValueError, match="a was not written whole"),
        Writer(tmp_path / "x", {}, plan),
    ):
        pass
    with pytest.raises(OSError, match="full"), Writer(tmp_path / "x", {}, plan):
        raise OSError("full")
    with pytest.raises(ValueError, match="16 bytes, but 20"), Writer(tmp_path / "x", {}, plan) as w:
        w.write(bytes(20))
    with (
        pytest.raises(ValueError, match="too long"),
        Writer(tmp_path / "x", {}, [Planned("n" * 64, (4,), "F32")]),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_embedded_files(tmp_path: Path) -> None:
    files = {"config.json": b"{}", "LICENSE": b"", "sub/tokenizer.json": bytes(100_000)}
    found = scan_gguf(write(tmp_path / "data.gguf", **embedded_files(files)))
    strings = {
        "audiocpp.embedded_files.names": list(files),
        "audiocpp.embedded_files.contents": [data.decode() for data in files.values()],
    }
    other = scan_gguf(write(tmp_path / "contents.gguf", **strings))
    for scan in (found, other):
        assert scan.problems == []
        assert {name: read_embedded(scan, name) for name in scan.embedded} == files


def test_ggml_opens_what_we_write(tmp_path: Path) -> None:
    pytest.importorskip("libggml", reason="libggml-python has no build for this machine")
    from tests.oracles import ggml

    path = write(tmp_path / "some.gguf", alignment=64)
    found = scan_gguf(path)
    assert found.header is not None
    theirs = ggml.gguf_tensors(path)
    assert theirs == [
        (info.name, info.type_id, entry.start)
        for info, entry in zip(found.header.tensors, found.entries.values(), strict=True)
    ]


def test_the_gguf_package_reads_what_we_write(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(write(tmp_path / "some.gguf"))
    for tensor, (shape, dtype, data) in zip(reader.tensors, tensors().values(), strict=True):
        assert tensor.tensor_type.name == dtype
        assert int(tensor.n_elements) == torch.Size(shape).numel()
        assert tensor.data.tobytes() == data.reshape(-1).view(torch.uint8).numpy().tobytes()
    assert reader.get_field("an.int").contents() == 7
    assert reader.get_field("a.float").contents() == 0.25
    assert reader.get_field("some.strings").contents() == VALUES["some.strings"]


def test_what_the_gguf_package_writes_is_read(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "theirs.gguf", "audiocpp")
    writer.add_uint32("an.int", 7)
    writer.add_array("some.strings", ["a", "b"])
    values = np.arange(512, dtype=np.float32).reshape(2, 256)
    writer.add_tensor("plain", values)
    blocks = quantize(torch.from_numpy(values), FORMATS["q8_0"]).numpy()
    writer.add_tensor("blocks", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = scan_gguf(tmp_path / "theirs.gguf")
    assert found.problems == []
    assert found.header is not None
    assert found.header.strings("some.strings") == ["a", "b"]
    with TensorReader(tmp_path) as reader:
        plain, stored = (reader.read(found.entries[name]) for name in ("plain", "blocks"))
    assert np.array_equal(plain.view(torch.float32).numpy(), values)
    assert np.array_equal(stored.numpy(), blocks)
    assert found.entries["blocks"].shape == (2, 256)
