"""Plays through an output device: by the sound server, where there is one, or by PortAudio."""

from __future__ import annotations

import sys

from rt_drama3.errors import SinkError
from rt_drama3.sinks.device_sink import DeviceSink, DeviceStream
from rt_drama3.sinks.libpulse import NoServerError
from rt_drama3.sinks.pcm_format import PcmFormat
from rt_drama3.sinks.player import Player
from rt_drama3.sinks.portaudio import SERVER_PLUGINS, AudioDevice
from rt_drama3.sinks.portaudio_stream import PortAudioStream
from rt_drama3.sinks.prebuffer import Prebuffer
from rt_drama3.sinks.pulse import PulseStream, PulseTarget

_SERVER_MS = 60.0  # buffered by the server
_LEAD_MS = 50.0  # silence after opening: cards and drivers drop their first samples


def server_rate() -> int | None:
    """Returns the rate in Hz of the sound server's output; None without a server."""
    if sys.platform != "linux":
        return None
    try:
        stream = PulseStream(PulseTarget(), lambda _error: None)
    except SinkError:
        return None
    stream.close()
    return stream.rate


class SpeakerSink(DeviceSink):
    """Plays through an output device at its native rate.

    On Linux the default output is that of the sound server, PulseAudio or PipeWire, which is used
    directly; other devices, systems without a server, macOS and Windows are used through PortAudio.

    The device runs, silently, from ``open`` to ``close``, so that a take starts immediately. A stop
    takes one block, the fade, and what the device itself buffers (``stats.latency_ms``); a sound
    server's buffer is overwritten. Rates are converted by the low-latency filter, which adds 2 ms.

    Args:
        device: index, name, or part of the name; None for the system's default.
        fallback: use the system's default if the chosen device is missing or fails.
        block_ms: length of the blocks that PortAudio requests. A stop waits for the next block;
            longer blocks suit a machine that is too busy for a hundred callbacks per second.
        server_ms: audio that a sound server buffers; see ``PulseTarget``.
        buffer_ms, stall_seconds, prebuffer: see ``DeviceSink``.

    PortAudio scans for devices when it starts: one plugged in later is found only after all sinks
    of this process that use PortAudio were closed or have failed.
    """

    def __init__(
        self,
        device: str | int | None = None,
        *,
        fallback: bool = False,
        block_ms: float = 10.0,
        server_ms: float = _SERVER_MS,
        buffer_ms: float = 500.0,
        stall_seconds: float = 3.0,
        prebuffer: Prebuffer | None = None,
    ) -> None:
        name = "the default speaker" if device in (None, "") else f"speaker {device!r}"
        super().__init__(
            name, buffer_ms=buffer_ms, stall_seconds=stall_seconds, prebuffer=prebuffer
        )
        self._wanted = device
        self._fallback = fallback
        self._block_ms, self._server_ms = block_ms, server_ms
        self._has_server = False  # one has played; it may be restarting

    @property
    def device(self) -> AudioDevice | None:
        """PortAudio's device that plays; None while closed, and with a sound server."""
        return self._stream.device if isinstance(self._stream, PortAudioStream) else None

    def _connect(self, format: PcmFormat) -> DeviceStream:
        try:
            return self._start(self._wanted, format)
        except SinkError:
            if not self._fallback or self._wanted in (None, ""):
                raise
            return self._start(None, format)

    def _start(self, wanted: str | int | None, format: PcmFormat) -> DeviceStream:
        named = "" if wanted is None else str(wanted).strip().lower()
        if sys.platform == "linux" and named in ("", *SERVER_PLUGINS):
            try:
                stream = PulseStream(
                    PulseTarget(channels=min(2, format.channels), buffer_ms=self._server_ms),
                    self._fail,
                )
            except NoServerError:
                if self._has_server:  # PortAudio might take the card that it needs again
                    raise
            else:
                self._has_server = True
                stream.start(self._player(stream.rate, stream.target.channels))
                return stream
        return PortAudioStream(wanted, format, self._block_ms, self._player, self._fail)

    def _player(self, rate: int, channels: int) -> Player:
        return self._new_player(rate, channels, _LEAD_MS)
