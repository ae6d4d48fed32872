"""The wire protocols as sans-I/O state machines: bytes in, events out, and the reverse.

No sockets, no tasks, no torch: every limit and every bad input is handled here, and tested here. A
server owns the sockets and streams; it feeds each message to a session (``NativeSession`` on
``/v1/stream``, ``FishLiveSession`` on ``/v1/tts/live``), acts on the events, reports the streams to
``Utterance``, and sends ``data_to_send``. docs/protocol.md is the reference for clients.
"""

from rt_drama3.protocol.events import Cancel, Event, Finish, Flush, Mute, Start, Text
from rt_drama3.protocol.fish_live import FishLiveSession, FishUtterance
from rt_drama3.protocol.formats import FORMATS, Output, split_audio
from rt_drama3.protocol.http_bodies import (
    audio_headers,
    error_headers,
    fish_error,
    openai_error,
    parse_fish_tts,
    parse_openai_speech,
    sse_delta,
    sse_done,
    sse_error,
    take_of,
)
from rt_drama3.protocol.limits import ModelFacts, ProtocolLimits
from rt_drama3.protocol.listening import ListenOptions, ListenSession, ListenStream, stop_message
from rt_drama3.protocol.native import NativeSession
from rt_drama3.protocol.native_messages import VERSION, NativeUtterance
from rt_drama3.protocol.order import Directing, Reference, Sampling, SpeechOrder, as_speaker
from rt_drama3.protocol.refusals import KINDS, Kind, Refused, as_refused
from rt_drama3.protocol.schema import load_schema
from rt_drama3.protocol.session import Session, new_request_id
from rt_drama3.protocol.utterance import Outcome, Padding, Sent, StampsLike, State, Utterance

__all__ = [
    "FORMATS",
    "KINDS",
    "VERSION",
    "Cancel",
    "Directing",
    "Event",
    "Finish",
    "FishLiveSession",
    "FishUtterance",
    "Flush",
    "Kind",
    "ListenOptions",
    "ListenSession",
    "ListenStream",
    "ModelFacts",
    "Mute",
    "NativeSession",
    "NativeUtterance",
    "Outcome",
    "Output",
    "Padding",
    "ProtocolLimits",
    "Reference",
    "Refused",
    "Sampling",
    "Sent",
    "Session",
    "SpeechOrder",
    "StampsLike",
    "Start",
    "State",
    "Text",
    "Utterance",
    "as_refused",
    "as_speaker",
    "audio_headers",
    "error_headers",
    "fish_error",
    "load_schema",
    "new_request_id",
    "openai_error",
    "parse_fish_tts",
    "parse_openai_speech",
    "split_audio",
    "sse_delta",
    "sse_done",
    "sse_error",
    "stop_message",
    "take_of",
]
