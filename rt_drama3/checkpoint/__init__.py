"""Checkpoint files to modules: the official layout, found, checked and loaded tensor by tensor."""

from rt_drama3.checkpoint.files import read_codec_config, read_voice_config
from rt_drama3.checkpoint.info import CheckpointInfo, inspect
from rt_drama3.checkpoint.inventory import TensorSpec, inventory
from rt_drama3.checkpoint.load import load_codec, load_model, read_config
from rt_drama3.checkpoint.source import resolve
from rt_drama3.checkpoint.tiny import make_tiny
from rt_drama3.checkpoint.tokenizer import load_tokenizer

__all__ = [
    "CheckpointInfo",
    "TensorSpec",
    "inspect",
    "inventory",
    "load_codec",
    "load_model",
    "load_tokenizer",
    "make_tiny",
    "read_codec_config",
    "read_config",
    "read_voice_config",
    "resolve",
]
