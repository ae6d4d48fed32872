"""LiveKit Agents plugin for rt-drama3 speech servers.

session = AgentSession(tts=rtdrama3.TTS("http://127.0.0.1:8035"), ...)
"""

import logging

from livekit.agents import Plugin
from livekit.plugins.rtdrama3.tts import TTS, ChunkedStream, SynthesizeStream
from livekit.plugins.rtdrama3.version import __version__

__all__ = ["TTS", "ChunkedStream", "SynthesizeStream", "__version__"]


class RtDrama3Plugin(Plugin):
    """The plugin's entry in LiveKit's command line."""

    def __init__(self) -> None:
        super().__init__(__name__, __version__, __package__ or "", logging.getLogger(__name__))


Plugin.register_plugin(RtDrama3Plugin())
