"""Audio files, encoders and resampling. Independent of models and streams; imports no torch.

Samples are mono float32 in [-1, 1] everywhere in the package; integers and channels exist only at
its edges, in this module.
"""

from rt_drama3.audio.files import AudioSource, read_audio
from rt_drama3.audio.pcm import float_to_s16le, s16le_to_float
from rt_drama3.audio.resample import resample
from rt_drama3.audio.stream_encode import FORMATS, StreamEncoder
from rt_drama3.audio.stream_resample import StreamResampler
from rt_drama3.audio.wav import write_wav

__all__ = [
    "FORMATS",
    "AudioSource",
    "StreamEncoder",
    "StreamResampler",
    "float_to_s16le",
    "read_audio",
    "resample",
    "s16le_to_float",
    "write_wav",
]
