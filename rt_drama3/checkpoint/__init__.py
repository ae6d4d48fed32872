"""Checkpoint files to modules: every published layout, found, checked and loaded by tensors."""

from rt_drama3.checkpoint.files import read_codec_config, read_voice_config
from rt_drama3.checkpoint.info import CheckpointInfo, inspect
from rt_drama3.checkpoint.inventory import TensorSpec, inventory
from rt_drama3.checkpoint.load import load_codec, load_model, read_config
from rt_drama3.checkpoint.opened import Checkpoint
from rt_drama3.checkpoint.slots import list_tensors
from rt_drama3.checkpoint.source import open_checkpoint, resolve
from rt_drama3.checkpoint.tiny import make_tiny
from rt_drama3.checkpoint.tokenizer import load_tokenizer

__all__ = [
    "Checkpoint",
    "CheckpointInfo",
    "TensorSpec",
    "inspect",
    "inventory",
    "list_tensors",
    "load_codec",
    "load_model",
    "load_tokenizer",
    "make_tiny",
    "open_checkpoint",
    "read_codec_config",
    "read_config",
    "read_voice_config",
    "resolve",
]
