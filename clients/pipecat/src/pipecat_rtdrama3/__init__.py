"""Pipecat service for rt-drama3 speech servers.

tts = RtDrama3TTSService("http://127.0.0.1:8035")
"""

from pipecat_rtdrama3.service import RtDrama3TTSService
from pipecat_rtdrama3.settings import RtDrama3TTSSettings

__version__ = "0.1.0"
__all__ = ["RtDrama3TTSService", "RtDrama3TTSSettings", "__version__"]
