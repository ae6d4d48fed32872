"""The codec of Drama 3: codes to 44.1 kHz PCM and back, streaming and exact."""

from rt_drama3.codec.codec import Codec
from rt_drama3.codec.official import (
    codec_inventory,
    has_encode_half,
    load_codec,
    load_codec_state,
    random_codec_state,
)
from rt_drama3.codec.state import CodecState

__all__ = [
    "Codec",
    "CodecState",
    "codec_inventory",
    "has_encode_half",
    "load_codec",
    "load_codec_state",
    "random_codec_state",
]
