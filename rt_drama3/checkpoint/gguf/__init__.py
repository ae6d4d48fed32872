"""GGUF files: their headers, what they hold, and writing them."""

from rt_drama3.checkpoint.gguf.contents import GgufScan, read_embedded, scan_gguf
from rt_drama3.checkpoint.gguf.writer import (
    Planned,
    Writer,
    embedded_files,
    embedded_texts,
    logical_names,
    part_of,
)

__all__ = [
    "GgufScan",
    "Planned",
    "Writer",
    "embedded_files",
    "embedded_texts",
    "logical_names",
    "part_of",
    "read_embedded",
    "scan_gguf",
]
