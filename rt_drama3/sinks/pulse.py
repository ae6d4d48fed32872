"""One playback stream of PulseAudio (or PipeWire's replacement for it), through libpulse itself.

Why not the alternatives: PortAudio reaches the server through ALSA's plugin, which needs another
package, selects its sink by an environment variable of the whole process and loses the last 30 ms
at a stop; ``pacat`` is a process behind a pipe of 64 KiB, so nothing can be stopped or measured;
and libpulse's simple API cannot take back what it was given. Here, audio that the server has not
played yet is overwritten by its own fade, so a stop is quick although the buffer is large, and
samples arrive bit-exact if rate and channels agree.

libpulse's main loop runs in one of our threads and is polled instead of calling back, so no C code
calls into the interpreter.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import threading
import time
from collections.abc import Callable
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
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rt_drama3.errors import SinkError
from rt_drama3.sinks.player import Player

# From pulse/def.h, pulse/sample.h.
_CONTEXT_READY, _CONTEXT_FAILED = 4, 5
_STREAM_READY, _STREAM_FAILED = 2, 3
_NO_AUTOSPAWN = 1
_INTERPOLATE_TIMING, _AUTO_TIMING, _DONT_MOVE, _ADJUST_LATENCY = 2, 8, 0x200, 0x2000
_S16LE = 3
_RUNNING = 0
_SEEK_RELATIVE, _SEEK_ABSOLUTE = 0, 1
_ERROR_ACCESS, _ERROR_NO_ENTITY, _ERROR_REFUSED = 1, 5, 6
_ERROR_AUTH_KEY = 7
_UNSET = 0xFFFF_FFFF

_MARGIN_MS = 5.0  # for the fade to reach the server before it reads further
_MAX_BLOCK_MS = 50.0  # that a sink reads at a time
_POLL_MICROSECONDS = 50_000  # the loop wakes up whenever the server requests samples
_CONNECT_SECONDS = 10.0
_TIMING_SECONDS = 0.02  # timeout of a request for the server's positions


class _SampleSpec(ctypes.Structure):
    _fields_ = (("format", c_int), ("rate", c_uint32), ("channels", c_uint8))


class _BufferAttr(ctypes.Structure):
    _fields_ = (
        *(("maxlength", c_uint32), ("tlength", c_uint32), ("prebuf", c_uint32)),
        *(("minreq", c_uint32), ("fragsize", c_uint32)),
    )


class _TimingInfo(ctypes.Structure):
    """The leading fields of ``pa_timing_info``; only ever read through a pointer."""

    _fields_ = (
        *(("seconds", ctypes.c_long), ("microseconds", ctypes.c_long), ("synchronized", c_int)),
        *(("sink_usec", c_uint64), ("source_usec", c_uint64), ("transport_usec", c_uint64)),
        *(("playing", c_int), ("write_corrupt", c_int), ("write_index", c_int64)),
        *(("read_corrupt", c_int), ("read_index", c_int64), ("sink_block_usec", c_uint64)),
    )


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    name = ctypes.util.find_library("pulse") or "libpulse.so.0"
    try:
        pulse = ctypes.CDLL(name)
    except OSError as error:
        raise SinkError(
            "The virtual microphone needs libpulse, which cannot be loaded: install it (Debian: "
            "apt-get install libpulse0 pulseaudio-utils)."
        ) from error
    pointers = "mainloop_new mainloop_get_api context_new stream_new stream_update_timing_info"
    for function in pointers.split():
        getattr(pulse, f"pa_{function}").restype = c_void_p
    pulse.pa_stream_get_timing_info.restype = POINTER(_TimingInfo)
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
        "stream_new": (c_void_p, c_char_p, POINTER(_SampleSpec), c_void_p),
        "stream_connect_playback": (
            *(c_void_p, c_char_p, POINTER(_BufferAttr), c_int, c_void_p, c_void_p),
        ),
        "stream_get_state": (c_void_p,),
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


@dataclass(frozen=True)
class PulseTarget:
    """Where to play.

    Attributes:
        sink: the server's name of the sink.
        rate: rate in Hz; the sink's own, so that the server does not resample.
        buffer_ms: requested size of the server's buffer. A larger one survives a busier machine and
            adds as much latency.
    """

    sink: str
    rate: int
    buffer_ms: float = 60.0


class PulseStream:
    """Plays what a player renders until it is closed or fails.

    Args:
        target: where to play.
        player: rendered from in this stream's thread.
        failed: called once, in that thread, when the server or its sink goes away.

    Raises:
        SinkError: libpulse, the server or the sink is missing, or access is denied.
    """

    def __init__(
        self, target: PulseTarget, player: Player, failed: Callable[[SinkError], None]
    ) -> None:
        self.target = target
        self.latency_ms: float | None = None
        self.underflows = 0  # times that the server ran out of samples
        self._pulse = _library()
        self._player = player
        self._failed = failed
        self._closing = False
        self._frame = 2 * player.channels
        # The last second rendered, by position: what a fade is made of.
        self._history = np.zeros((target.rate + 1, player.channels), np.int16)
        self._written = 0  # frames written to the server, which counts positions in bytes
        self._stop_seen = False
        self._underflow = -1
        self._loop = self._pulse.pa_mainloop_new()
        self._context = self._pulse.pa_context_new(
            self._pulse.pa_mainloop_get_api(self._loop), b"rt-drama3"
        )
        self._stream: int | None = None
        try:
            self._connect()
        except SinkError:
            self._free()
            raise
        self._thread = threading.Thread(target=self._run, name=f"pulse {target.sink}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the stream and its thread; what the server still holds is dropped."""
        self._closing = True
        if self._thread.is_alive():
            self._pulse.pa_mainloop_wakeup(self._loop)
            self._thread.join()
        self._free()

    def wake(self) -> None:
        """Wakes the thread, so that it handles a requested stop immediately."""
        if self._loop:
            self._pulse.pa_mainloop_wakeup(self._loop)

    # --- connecting ---

    def _connect(self) -> None:
        pulse = self._pulse
        if pulse.pa_context_connect(self._context, None, _NO_AUTOSPAWN, None) < 0:
            raise self._error("cannot be reached")
        self._until(lambda: pulse.pa_context_get_state(self._context) == _CONTEXT_READY)
        spec = _SampleSpec(_S16LE, self.target.rate, self._player.channels)
        stream = pulse.pa_stream_new(self._context, b"speech", ctypes.byref(spec), None)
        if not stream:
            raise self._error("does not support this rate")
        self._stream = stream
        length = int(self.target.rate * self.target.buffer_ms / 1e3) * self._frame
        # Playback starts, and resumes after an underflow, with a quarter of the buffer; without
        # this threshold the server would skip late samples instead of playing them late.
        attributes = _BufferAttr(
            _UNSET, length, length // 4 // self._frame * self._frame, _UNSET, _UNSET
        )
        flags = _INTERPOLATE_TIMING | _AUTO_TIMING | _DONT_MOVE | _ADJUST_LATENCY
        name = self.target.sink.encode()
        if pulse.pa_stream_connect_playback(
            stream, name, ctypes.byref(attributes), flags, None, None
        ):
            raise self._error("rejected the stream")
        self._until(lambda: pulse.pa_stream_get_state(stream) == _STREAM_READY)

    def _until(self, ready: Callable[[], bool]) -> None:
        limit = time.monotonic() + _CONNECT_SECONDS
        while not ready():
            if not self._iterate() or not self._healthy():
                raise self._error("cannot be used")
            if time.monotonic() > limit:
                raise SinkError(
                    f"The sound server did not respond for {_CONNECT_SECONDS:g} s; restart it."
                )

    def _error(self, what: str) -> SinkError:
        code = self._pulse.pa_context_errno(self._context)
        reason = self._pulse.pa_strerror(code).decode("utf-8", errors="replace")
        if code == _ERROR_NO_ENTITY:
            return SinkError(
                f"The sound server has no sink {self.target.sink!r}; create it with rt-drama3 mic "
                "create."
            )
        if code == _ERROR_REFUSED:
            return SinkError(
                "No sound server responds: start PulseAudio (pulseaudio --start) or PipeWire with "
                "pipewire-pulse, or set PULSE_SERVER."
            )
        if code in (_ERROR_ACCESS, _ERROR_AUTH_KEY):
            return SinkError(
                f"The sound server denies access ({reason}): run as the user that owns it, or set "
                "PULSE_COOKIE."
            )
        return SinkError(f"The sound server {what}: {reason}.")

    def _free(self) -> None:
        pulse = self._pulse
        if self._stream:
            pulse.pa_stream_disconnect(self._stream)
            pulse.pa_stream_unref(self._stream)
        if self._context:
            pulse.pa_context_disconnect(self._context)
            pulse.pa_context_unref(self._context)
        if self._loop:
            pulse.pa_mainloop_free(self._loop)
        self._stream = self._context = self._loop = None

    # --- the thread ---

    def _run(self) -> None:
        while not self._closing:
            if not self._iterate() or not self._healthy():
                break
            if self._player.stopping and not self._stop_seen:
                self._fade_out()
            self._stop_seen = self._player.stopping
            self._feed()
            self._measure()
        if not self._closing:
            self._failed(self._error("exited, or removed the virtual microphone"))

    def _iterate(self) -> bool:
        pulse = self._pulse
        return bool(
            pulse.pa_mainloop_prepare(self._loop, _POLL_MICROSECONDS) >= 0
            and pulse.pa_mainloop_poll(self._loop) >= 0
            and pulse.pa_mainloop_dispatch(self._loop) >= 0
        )

    def _healthy(self) -> bool:
        pulse = self._pulse
        if pulse.pa_context_get_state(self._context) >= _CONTEXT_FAILED:
            return False
        return not self._stream or pulse.pa_stream_get_state(self._stream) < _STREAM_FAILED

    def _feed(self) -> None:
        """Writes what the server requests: the take, or silence."""
        size = self._pulse.pa_stream_writable_size(self._stream)
        if size > 1 << 31:  # (size_t) -1: the stream has failed
            return
        wanted = size // self._frame
        while wanted > 0 and not self._closing:
            block = np.empty((min(wanted, self.target.rate // 100), self._player.channels), "<i2")
            self._player.render(block)
            self._remember(block)
            self._write(block, 0, _SEEK_RELATIVE)
            self._written += len(block)
            wanted -= len(block)

    def _write(self, block: NDArray[np.int16], offset: int, seek: int) -> None:
        # Without a function to free it, libpulse copies the block.
        self._pulse.pa_stream_write(
            self._stream, block.ctypes.data, block.nbytes, None, offset * self._frame, seek
        )

    def _remember(self, block: NDArray[np.int16]) -> None:
        indices = np.arange(self._written, self._written + len(block)) % len(self._history)
        self._history[indices] = block

    def _measure(self) -> None:
        latency, negative = c_uint64(), c_int()
        if not self._pulse.pa_stream_get_latency(
            self._stream, ctypes.byref(latency), ctypes.byref(negative)
        ):
            self.latency_ms = 0.0 if negative.value else latency.value / 1e3
        underflow = self._pulse.pa_stream_get_underflow_index(self._stream)
        if underflow != self._underflow:
            self._underflow = underflow
            self.underflows += 1

    def _update_timing(self) -> None:
        """Requests the server's positions; automatic updates may be a second old."""
        pulse = self._pulse
        operation = pulse.pa_stream_update_timing_info(self._stream, None, None)
        if not operation:
            return
        limit = time.monotonic() + _TIMING_SECONDS
        while pulse.pa_operation_get_state(operation) == _RUNNING and time.monotonic() < limit:
            if not self._iterate() or not self._healthy():
                break
        pulse.pa_operation_unref(operation)

    def _fade_out(self) -> None:
        """Writes a fade, then silence, over what the server has but has not played."""
        self._update_timing()
        info = self._pulse.pa_stream_get_timing_info(self._stream)
        fade = self._player.requested_fade
        if not info or info.contents.read_corrupt:
            return  # the player fades what comes next instead
        # Meanwhile the server has continued to read, in whole blocks.
        stamp = info.contents.seconds + info.contents.microseconds / 1e6
        age_ms = max(0.0, 1e3 * (time.time() - stamp))
        block_ms = min(info.contents.sink_block_usec / 1e3, _MAX_BLOCK_MS)
        ahead = (age_ms + block_ms + _MARGIN_MS) * self.target.rate / 1e3
        begin = info.contents.read_index // self._frame + round(ahead)
        held = self._written - begin
        if held < fade or held > len(self._history):
            return
        indices = np.arange(begin, self._written) % len(self._history)
        block = self._history[indices]
        ramp = np.zeros(held, np.float32)
        ramp[:fade] = 1 - np.arange(1, fade + 1, dtype=np.float32) / np.float32(max(1, fade))
        faded = np.rint(block * ramp[:, None]).astype("<i2")
        self._write(np.ascontiguousarray(faded), begin, _SEEK_ABSOLUTE)
        self._history[indices] = faded
        self._player.drop()
