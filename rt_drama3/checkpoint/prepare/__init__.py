"""Our own packages: a checkpoint of any form, quantised into one GGUF file (docs/prepare.md)."""

from rt_drama3.checkpoint.prepare.errors import ErrorOfGroup, ErrorOfTensor, Report
from rt_drama3.checkpoint.prepare.importance import read_importance, write_importance
from rt_drama3.checkpoint.prepare.package import prepare
from rt_drama3.checkpoint.prepare.recipe import TYPES, Recipe

__all__ = [
    "TYPES",
    "ErrorOfGroup",
    "ErrorOfTensor",
    "Recipe",
    "Report",
    "prepare",
    "read_importance",
    "write_importance",
]
