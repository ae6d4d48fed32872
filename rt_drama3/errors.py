"""The errors a user of rt_drama3 can meet.

Every message says what was wrong, with which value, and what to do about it. A caller can catch
``RtDrama3Error`` for all of them; anything else that escapes the package is a bug.
"""

from __future__ import annotations


class RtDrama3Error(Exception):
    """Base of every error that rt_drama3 raises on purpose."""


class ConfigError(RtDrama3Error):
    """A setting (file, environment, argument) has a value that cannot work."""


class CheckpointError(RtDrama3Error):
    """A checkpoint is missing, incomplete, damaged, or of a kind that is not supported."""


class RequestError(RtDrama3Error):
    """A request cannot be served as asked: bad text, audio, codes or sampling settings."""


class Overloaded(RtDrama3Error):  # noqa: N818 - the name is the condition, as in the protocol
    """More work was asked for than can stay realtime; retry later or elsewhere."""


class DeviceError(RtDrama3Error):
    """The compute device is missing, out of memory, or failed."""


class SinkError(RtDrama3Error):
    """An audio output (speaker, virtual microphone, file, pipe) cannot be opened or written."""


class PipeClosed(SinkError):  # noqa: N818 - the name is the condition
    """The reader of a pipe has gone away: usually a player that was closed."""
