"""GGUF files: their headers, what they hold, and writing them."""

from rt_drama3.checkpoint.gguf.contents import GgufScan, read_embedded, scan_gguf
from rt_drama3.checkpoint.gguf.writer import Planned, Writer, embedded_files, logical_names

__all__ = [
    "GgufScan",
    "Planned",
    "Writer",
    "embedded_files",
    "logical_names",
    "read_embedded",
    "scan_gguf",
]
