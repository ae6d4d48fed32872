"""The exceptions that rt_drama3 raises.

Every message states what is wrong, the value, and what to do about it. ``RtDrama3Error`` is the
base class of them all; any other exception that escapes the package is a bug.
"""

from __future__ import annotations


class RtDrama3Error(Exception):
    """Base class of all errors that rt_drama3 raises."""


class ConfigError(RtDrama3Error):
    """A setting (file, environment, argument) has an invalid value."""


class CheckpointError(RtDrama3Error):
    """A checkpoint is missing, incomplete, damaged, or not supported."""


class RequestError(RtDrama3Error):
    """A request is invalid: its text, audio, codes or sampling settings."""


class Overloaded(RtDrama3Error):  # noqa: N818 - the name is the condition, as in the protocol
    """The engine is at capacity; retry later or on another node."""


class DeviceError(RtDrama3Error):
    """The compute device is missing, out of memory, or has failed."""


class SinkError(RtDrama3Error):
    """An audio output (speaker, virtual microphone, file, pipe) cannot be opened or written."""


class PipeClosed(SinkError):  # noqa: N818 - the name is the condition
    """The reader of a pipe has closed it, for example a player that was stopped."""
