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
import os
import threading
import time
from collections.abc import Callable
from ctypes import c_int, c_uint64
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rt_drama3.errors import SinkError
from rt_drama3.sinks.libpulse import BufferAttr, NoServerError, SampleSpec, library
from rt_drama3.sinks.player import Player

# From pulse/def.h, pulse/sample.h.
_CONTEXT_READY, _CONTEXT_FAILED = 4, 5
_STREAM_READY, _STREAM_FAILED = 2, 3
_NO_AUTOSPAWN = 1
_INTERPOLATE_TIMING, _AUTO_TIMING, _FIX_RATE, _DONT_MOVE, _ADJUST_LATENCY = (
    *(2, 8, 0x80, 0x200, 0x2000),
)
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
_MOST_MS = 240.0  # requested of a server that ran dry
_ASKED_RATE = 48_000  # the server replaces it by the rate of its sink


@dataclass(frozen=True)
class PulseTarget:
    """Where to play.

    Attributes:
        sink: the server's name of a virtual microphone's sink. None for its default output, or the
            one that PULSE_SINK names; the user may move such a stream to another output.
        channels: 1 or 2.
        buffer_ms: requested size of the server's buffer. A larger one survives a busier machine and
            adds as much latency. That of the default output doubles when it runs dry, up to 240 ms.
    """

    sink: str | None = None
    channels: int = 1
    buffer_ms: float = 60.0


class PulseStream:
    """Plays what a player renders until it is closed or fails.

    Its rate is the sink's own, since a server that resamples adds latency, and may lose sound where
    another program holds the sink at a low one.

    Args:
        target: where to play.
        failed: called once, in a thread of this stream, when the server or its sink goes away.

    Attributes:
        rate: the sink's rate in Hz.
        latency_ms: as the server estimates it; None until then.
        gaps: times that the server ran out of a take's samples for a microphone; it plays them
            late.
        lost: the same for another output. A server takes back some of what it has rendered for a
            sound card, and after such a gap some samples are lost.

    Raises:
        SinkError: libpulse, the server or the sink is missing, or access is denied.
    """

    def __init__(self, target: PulseTarget, failed: Callable[[SinkError], None]) -> None:
        self.target = target
        self.latency_ms: float | None = None
        self.gaps = 0
        self.lost = 0
        self._pulse = library()
        self.player = Player(1, target.channels)  # until ``start``
        self._failed = failed
        self._closing = False
        self._frame = 2 * target.channels
        self._buffer_ms = target.buffer_ms  # requested now
        self._written = 0  # frames written to the server, which counts positions in bytes
        self._stop_seen = False
        self._underflow = -1
        self._loop = self._pulse.pa_mainloop_new()
        self._context = self._pulse.pa_context_new(
            self._pulse.pa_mainloop_get_api(self._loop), b"rt-drama3"
        )
        self._stream: int | None = None
        try:
            self.rate = self._connect()
        except SinkError:
            self._free()
            raise
        # The last second rendered, by position: what a fade is made of.
        self._history = np.zeros((self.rate + 1, target.channels), np.int16)
        self._thread = threading.Thread(target=self._run, name=f"pulse {target.sink}", daemon=True)

    def start(self, player: Player) -> None:
        """Starts to play.

        Args:
            player: rendered from in this stream's thread; of the target's channels, at ``rate``.
        """
        self.player = player
        self._thread.start()

    def check(self) -> None:
        """Nothing to do: the thread notices and reports a failure."""

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

    def _connect(self) -> int:
        """Connects a stream and returns its rate."""
        pulse, target = self._pulse, self.target
        if pulse.pa_context_connect(self._context, None, _NO_AUTOSPAWN, None) < 0:
            raise self._error("cannot be reached")
        self._until(lambda: pulse.pa_context_get_state(self._context) == _CONTEXT_READY)
        spec = SampleSpec(_S16LE, _ASKED_RATE, target.channels)
        stream = pulse.pa_stream_new(self._context, b"speech", ctypes.byref(spec), None)
        if not stream:
            raise self._error("does not support this rate")
        self._stream = stream
        attributes = self._buffer(_ASKED_RATE)
        flags = _INTERPOLATE_TIMING | _AUTO_TIMING | _FIX_RATE | _ADJUST_LATENCY
        flags |= _DONT_MOVE if target.sink else 0
        name = target.sink.encode() if target.sink else None
        if pulse.pa_stream_connect_playback(
            stream, name, ctypes.byref(attributes), flags, None, None
        ):
            raise self._error("rejected the stream")
        self._until(lambda: pulse.pa_stream_get_state(stream) == _STREAM_READY)
        rate = int(pulse.pa_stream_get_sample_spec(stream).contents.rate)
        if rate != _ASKED_RATE:
            attributes = self._buffer(rate)
            self._finish(
                pulse.pa_stream_set_buffer_attr(stream, ctypes.byref(attributes), None, None),
                _CONNECT_SECONDS,
            )
        return rate

    def _buffer(self, rate: int) -> BufferAttr:
        length = int(rate * self._buffer_ms / 1e3) * self._frame
        # Playback starts, and resumes after an underflow, with a quarter of the buffer; without
        # this threshold the server would skip late samples instead of playing them late.
        threshold = int(rate * self.target.buffer_ms / 4e3) * self._frame
        return BufferAttr(_UNSET, length, threshold, _UNSET, _UNSET)

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
            return self._no_sink()
        if code == _ERROR_REFUSED:
            return NoServerError(
                "No sound server responds: start PulseAudio (pulseaudio --start) or PipeWire with "
                "pipewire-pulse, or set PULSE_SERVER."
            )
        if code in (_ERROR_ACCESS, _ERROR_AUTH_KEY):
            return SinkError(
                f"The sound server denies access ({reason}): run as the user that owns it, or set "
                "PULSE_COOKIE."
            )
        return SinkError(f"The sound server {what}: {reason}.")

    def _no_sink(self) -> SinkError:
        if self.target.sink is not None:
            remedy = "create it with rt-drama3 mic create."
            return SinkError(f"The sound server has no sink {self.target.sink!r}; {remedy}")
        if named := os.environ.get("PULSE_SINK"):
            remedy = "PULSE_SINK names it; pactl list short sinks shows those that there are."
            return SinkError(f"The sound server has no sink {named!r}; {remedy}")
        return NoServerError("The sound server has no output; connect one.")

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
            if self.player.stopping and not self._stop_seen:
                self._fade_out()
            self._stop_seen = self.player.stopping
            self._feed()
            self._measure()
        if not self._closing:
            removed = "the virtual microphone" if self.target.sink else "its output"
            self._failed(self._error(f"exited, or removed {removed}"))

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
        played = self.player.playing
        while wanted > 0 and not self._closing:
            block = np.empty((min(wanted, self.rate // 100), self.player.channels), "<i2")
            self.player.render(block)
            self._remember(block)
            self._write(block, 0, _SEEK_RELATIVE)
            self._written += len(block)
            wanted -= len(block)
        underflow = self._pulse.pa_stream_get_underflow_index(self._stream)
        if underflow != self._underflow:
            self._underflow = underflow
            if played or self.player.playing:
                self._ran_dry()

    def _ran_dry(self) -> None:
        """The server ran out of samples in a take."""
        if self.target.sink:
            self.gaps += 1
            return
        self.lost += 1
        self._buffer_ms = min(_MOST_MS, 2 * self._buffer_ms)
        attributes = self._buffer(self.rate)
        change = self._pulse.pa_stream_set_buffer_attr
        self._finish(change(self._stream, ctypes.byref(attributes), None, None), 0)

    def _write(self, block: NDArray[np.int16], offset: int, seek: int) -> None:
        # Without a function to free it, libpulse copies the block.
        self._pulse.pa_stream_write(
            self._stream, block.ctypes.data, block.nbytes, None, offset * self._frame, seek
        )

    def _measure(self) -> None:
        latency, negative = c_uint64(), c_int()
        if not self._pulse.pa_stream_get_latency(
            self._stream, ctypes.byref(latency), ctypes.byref(negative)
        ):
            self.latency_ms = 0.0 if negative.value else latency.value / 1e3

    def _remember(self, block: NDArray[np.int16]) -> None:
        indices = np.arange(self._written, self._written + len(block)) % len(self._history)
        self._history[indices] = block

    def _update_timing(self) -> None:
        """Requests the server's positions; automatic updates may be a second old."""
        update = self._pulse.pa_stream_update_timing_info
        self._finish(update(self._stream, None, None), _TIMING_SECONDS)

    def _finish(self, operation: int | None, seconds: float) -> None:
        """Waits for the server to complete an operation."""
        if not operation:
            return
        pulse, limit = self._pulse, time.monotonic() + seconds
        while pulse.pa_operation_get_state(operation) == _RUNNING and time.monotonic() < limit:
            if not self._iterate() or not self._healthy():
                break
        pulse.pa_operation_unref(operation)

    def _fade_out(self) -> None:
        """Writes a fade, then silence, over what the server has but has not played."""
        self._update_timing()
        info = self._pulse.pa_stream_get_timing_info(self._stream)
        fade = self.player.requested_fade
        if not info or info.contents.read_corrupt:
            return  # the player fades what comes next instead
        # Meanwhile the server has continued to read, in whole blocks.
        stamp = info.contents.seconds + info.contents.microseconds / 1e6
        age_ms = max(0.0, 1e3 * (time.time() - stamp))
        block_ms = min(info.contents.sink_block_usec / 1e3, _MAX_BLOCK_MS)
        ahead = (age_ms + block_ms + _MARGIN_MS) * self.rate / 1e3
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
        self.player.drop()
