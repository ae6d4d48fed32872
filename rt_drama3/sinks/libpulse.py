"""The functions of libpulse that ``pulse`` calls, with their types."""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import lru_cache

from rt_drama3.errors import SinkError


class NoServerError(SinkError):
    """There is no sound server to play through: no library, no server, or no output of it."""


class SampleSpec(ctypes.Structure):
    """``pa_sample_spec``."""

    _fields_ = (("format", c_int), ("rate", c_uint32), ("channels", c_uint8))


class BufferAttr(ctypes.Structure):
    """``pa_buffer_attr``: sizes in bytes."""

    _fields_ = (
        *(("maxlength", c_uint32), ("tlength", c_uint32), ("prebuf", c_uint32)),
        *(("minreq", c_uint32), ("fragsize", c_uint32)),
    )


class TimingInfo(ctypes.Structure):
    """The leading fields of ``pa_timing_info``; only ever read through a pointer."""

    _fields_ = (
        *(("seconds", ctypes.c_long), ("microseconds", ctypes.c_long), ("synchronized", c_int)),
        *(("sink_usec", c_uint64), ("source_usec", c_uint64), ("transport_usec", c_uint64)),
        *(("playing", c_int), ("write_corrupt", c_int), ("write_index", c_int64)),
        *(("read_corrupt", c_int), ("read_index", c_int64), ("sink_block_usec", c_uint64)),
    )


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Loads libpulse.

    Raises:
        NoServerError: it is not installed.
    """
    try:
        pulse = ctypes.CDLL("libpulse.so.0")
    except OSError as error:
        raise NoServerError(
            "The sound server's library libpulse cannot be loaded: install it (Debian: apt-get "
            "install libpulse0 pulseaudio-utils)."
        ) from error
    pointers = (
        "mainloop_new mainloop_get_api context_new stream_new stream_set_buffer_attr "
        "stream_update_timing_info"
    )
    for function in pointers.split():
        getattr(pulse, f"pa_{function}").restype = c_void_p
    pulse.pa_stream_get_timing_info.restype = POINTER(TimingInfo)
    pulse.pa_stream_get_sample_spec.restype = POINTER(SampleSpec)
    pulse.pa_strerror.restype = c_char_p
    pulse.pa_stream_writable_size.restype = c_size_t
    pulse.pa_stream_get_underflow_index.restype = c_int64
    arguments: dict[str, tuple[object, ...]] = {
        "mainloop_get_api": (c_void_p,),
        "mainloop_prepare": (c_void_p, c_int),
        "mainloop_poll": (c_void_p,),
        "mainloop_dispatch": (c_void_p,),
        "mainloop_wakeup": (c_void_p,),
        "mainloop_free": (c_void_p,),
        "context_new": (c_void_p, c_char_p),
        "context_connect": (c_void_p, c_char_p, c_int, c_void_p),
        "context_get_state": (c_void_p,),
        "context_errno": (c_void_p,),
        "context_disconnect": (c_void_p,),
        "context_unref": (c_void_p,),
        "stream_new": (c_void_p, c_char_p, POINTER(SampleSpec), c_void_p),
        "stream_connect_playback": (
            *(c_void_p, c_char_p, POINTER(BufferAttr), c_int, c_void_p, c_void_p),
        ),
        "stream_get_state": (c_void_p,),
        "stream_get_sample_spec": (c_void_p,),
        "stream_set_buffer_attr": (c_void_p, POINTER(BufferAttr), c_void_p, c_void_p),
        "stream_get_timing_info": (c_void_p,),
        "stream_get_latency": (c_void_p, POINTER(c_uint64), POINTER(c_int)),
        "stream_get_underflow_index": (c_void_p,),
        "stream_writable_size": (c_void_p,),
        "stream_write": (c_void_p, c_void_p, c_size_t, c_void_p, c_int64, c_int),
        "stream_update_timing_info": (c_void_p, c_void_p, c_void_p),
        "operation_get_state": (c_void_p,),
        "operation_unref": (c_void_p,),
        "stream_disconnect": (c_void_p,),
        "stream_unref": (c_void_p,),
    }
    for function, types in arguments.items():
        getattr(pulse, f"pa_{function}").argtypes = types
    return pulse
