"""Client of an rt-drama3 speech server: speech while the text is still being written.

with Client("http://127.0.0.1:8035") as client:
    for chunk in client.speak("Hello there."):
        play(chunk)
"""

from rt_drama3_client.address import Settings
from rt_drama3_client.client import AsyncClient
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
    Pong,
    Queued,
    Ready,
    Segment,
    Sent,
    Take,
)
from rt_drama3_client.options import Options
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
    "AudioChunk",
    "BadRequest",
    "BadServerMessage",
    "Cancelled",
    "Client",
    "ClientClosed",
    "ClientError",
    "ConnectFailed",
    "ConnectionLost",
    "Done",
    "Event",
    "IdleTooLong",
    "Options",
    "Overloaded",
    "Playback",
    "Pong",
    "Queued",
    "Ready",
    "Received",
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
    "Unavailable",
    "UnknownVoice",
    "UsageError",
    "Voice",
]
