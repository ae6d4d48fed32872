"""Audio outputs: speaker, virtual microphone, files and pipes. Nothing here depends on a model.

``Sink`` is the interface. ``make_sink`` parses a user's choice into one, ``Tee`` feeds several,
``Mixer`` lets several streams share one, and ``AsyncSink`` wraps one for an event loop. PortAudio
and libpulse are loaded when a device is opened, not before.
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
