"""Outputs of sound: speaker, virtual microphone, files and pipes. They know nothing of models.

``Sink`` is the contract. ``make_sink`` turns what a user writes into one, ``Tee`` feeds several,
``Mixer`` lets several streams share one, ``AsyncSink`` is for event loops. PortAudio and libpulse
are loaded when a device is opened, not before.
"""

from rt_drama3.errors import PipeClosed
from rt_drama3.sinks.async_sink import AsyncSink
from rt_drama3.sinks.choose import make_sink
from rt_drama3.sinks.files import EncodedSink, WavSink
from rt_drama3.sinks.microphone import MicSink, microphone
from rt_drama3.sinks.mix_input import MixInput
from rt_drama3.sinks.mixer import Mixer
from rt_drama3.sinks.pcm_format import PcmFormat
from rt_drama3.sinks.sink import Sink, SinkStats
from rt_drama3.sinks.speaker import SpeakerSink
from rt_drama3.sinks.tee import Tee
from rt_drama3.sinks.wav_repair import WavRepair, repair_wav

__all__ = [
    "AsyncSink",
    "EncodedSink",
    "MicSink",
    "MixInput",
    "Mixer",
    "PcmFormat",
    "PipeClosed",
    "Sink",
    "SinkStats",
    "SpeakerSink",
    "Tee",
    "WavRepair",
    "WavSink",
    "make_sink",
    "microphone",
    "repair_wav",
]
