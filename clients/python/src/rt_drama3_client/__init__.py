"""Client for an rt-drama3 speech server: streams speech while the text is still being written.

with Client("http://127.0.0.1:8035") as client:
    for chunk in client.speak("Hello there."):
        play(chunk)
"""

from rt_drama3_client.address import Settings
from rt_drama3_client.client import AsyncClient
from rt_drama3_client.clips import Audio, Clip
from rt_drama3_client.early import EarlyStart
from rt_drama3_client.errors import (
    AccessDenied,
    BadRequest,
    BadServerMessage,
    ClientClosed,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    IdleTooLong,
    Overloaded,
    Received,
    ServerError,
    ServerFailed,
    ServerSilent,
    SpeechCancelled,
    TooSlow,
    Unavailable,
    UnknownVoice,
    UsageError,
)
from rt_drama3_client.messages import (
    AudioChunk,
    Cancelled,
    Done,
    Event,
    Notice,
    Pong,
    Queued,
    Ready,
    Segment,
    Sent,
    Take,
)
from rt_drama3_client.options import Options, PreviousTake, Reference, Turn, VoiceOptions
from rt_drama3_client.routes import Voice
from rt_drama3_client.sources import FLUSH
from rt_drama3_client.speech import AsyncSpeech
from rt_drama3_client.sync import Client, Speech
from rt_drama3_client.timings import Playback, Timings

__version__ = "0.1.0"
__all__ = [
    "FLUSH",
    "AccessDenied",
    "AsyncClient",
    "AsyncSpeech",
    "Audio",
    "AudioChunk",
    "BadRequest",
    "BadServerMessage",
    "Cancelled",
    "Client",
    "ClientClosed",
    "ClientError",
    "Clip",
    "ConnectFailed",
    "ConnectionLost",
    "Done",
    "EarlyStart",
    "Event",
    "IdleTooLong",
    "Notice",
    "Options",
    "Overloaded",
    "Playback",
    "Pong",
    "PreviousTake",
    "Queued",
    "Ready",
    "Received",
    "Reference",
    "Segment",
    "Sent",
    "ServerError",
    "ServerFailed",
    "ServerSilent",
    "Settings",
    "Speech",
    "SpeechCancelled",
    "Take",
    "Timings",
    "TooSlow",
    "Turn",
    "Unavailable",
    "UnknownVoice",
    "UsageError",
    "Voice",
    "VoiceOptions",
]
