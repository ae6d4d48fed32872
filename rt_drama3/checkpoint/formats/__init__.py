"""How blocks of quantised weights are laid out, read and written (docs/model.md, 11)."""

from rt_drama3.checkpoint.formats.registry import (
    FORMATS,
    Format,
    by_ggml_id,
    dequantize,
    quantize,
)

__all__ = ["FORMATS", "Format", "by_ggml_id", "dequantize", "quantize"]
