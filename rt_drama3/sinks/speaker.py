"""Plays through an output device with PortAudio's callback interface."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from rt_drama3.errors import SinkError
from rt_drama3.sinks import portaudio
from rt_drama3.sinks.device_sink import DeviceSink
from rt_drama3.sinks.pcm_format import PcmFormat
from rt_drama3.sinks.player import Player
from rt_drama3.sinks.portaudio import AudioDevice
from rt_drama3.sinks.prebuffer import Prebuffer

FALLBACK_RATES = (48_000, 44_100, 96_000, 32_000, 24_000, 22_050, 16_000, 8_000)
_log = logging.getLogger(__name__)
_CLOSE_SECONDS = 3.0  # then a stream that does not close is abandoned
_LEAD_MS = 50.0  # silence after opening: cards and drivers drop their first samples
# PortAudio's error codes: https://portaudio.com/docs/v19-doxydocs/portaudio_8h.html
_INVALID_CHANNELS, _INVALID_DEVICE, _INVALID_RATE = -9998, -9996, -9997
_DEVICE_UNAVAILABLE = -9985


class SpeakerSink(DeviceSink):
    """Plays through an output device at its native rate and number of channels.

    The device runs, silently, from ``open`` to ``close``, so that a take starts immediately. A stop
    takes one block, the fade, and what the device itself buffers (``stats.latency_ms``). Rates are
    converted by the low-latency filter, which adds 2 ms.

    Args:
        device: index, name, or part of the name; None for the system's default.
        fallback: use the system's default if the chosen device is missing or fails.
        block_ms: length of the blocks that the device requests. A stop waits for the next block;
            longer blocks suit a machine that is too busy for a hundred callbacks per second.
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
        self._block_ms = block_ms
        self._audio: Any = None
        self._stream: Any = None
        self.device: AudioDevice | None = None  # the one that plays

    def _connect(self, format: PcmFormat) -> tuple[Player, int]:
        self._audio = portaudio.start()
        try:
            found = portaudio.devices(self._audio)
            try:
                return self._start(portaudio.pick_output(found, self._wanted), format)
            except SinkError:
                if not self._fallback or self._wanted in (None, ""):
                    raise
                return self._start(portaudio.pick_output(found, None), format)
        except SinkError:
            self._disconnect()
            raise

    def _start(self, device: AudioDevice, format: PcmFormat) -> tuple[Player, int]:
        pyaudio = portaudio.load()
        channels = min(device.outputs, max(format.channels, 2))
        refusal: Exception | None = None
        for rate in dict.fromkeys((device.rate, format.rate, *FALLBACK_RATES)):
            for count in dict.fromkeys((channels, format.channels, 1)):
                if count > device.outputs:
                    continue
                player = self._new_player(rate, count, _LEAD_MS)
                try:
                    self._stream = self._audio.open(
                        rate=rate,
                        channels=count,
                        format=pyaudio.paInt16,
                        output=True,
                        output_device_index=device.index,
                        frames_per_buffer=max(1, round(rate * self._block_ms / 1e3)),
                        stream_callback=_callback(player, pyaudio.paContinue),
                    )
                except (OSError, ValueError) as error:
                    code = error.args[0] if error.args and len(error.args) > 1 else None
                    if code not in (_INVALID_RATE, _INVALID_CHANNELS):
                        raise _cannot_open(device, error) from error
                    refusal = error
                else:
                    self.device = device
                    return player, rate
        raise SinkError(
            f"Output device {device.name!r} supports none of the rates "
            f"{', '.join(map(str, dict.fromkeys((device.rate, format.rate, *FALLBACK_RATES))))} Hz "
            f"in 16 bits; choose another with --sink speaker:DEVICE ({refusal})."
        )

    def _disconnect(self) -> None:
        stream, self._stream = self._stream, None
        audio, self._audio = self._audio, None
        self.device = None
        closed = stream is None or _close(stream)
        if audio is not None and closed:
            portaudio.end(audio)

    def _latency_ms(self) -> float | None:
        stream = self._stream
        try:
            return None if stream is None else 1e3 * float(stream.get_output_latency())
        except OSError:
            return None

    def _check_device(self) -> None:
        try:
            active = self._stream is not None and self._stream.is_active()
        except OSError:
            active = False
        if not active:
            self._fail(
                SinkError(
                    f"Output device {self.device.name if self.device else self.name!r} stopped "
                    "playing: it was unplugged, or the sound server exited. The next write tries "
                    "to open it again."
                )
            )


def _callback(player: Player, proceed: int) -> Callable[..., tuple[bytes, int]]:
    block = np.zeros((0, player.channels), np.int16)

    def fill(_recorded: object, count: int, _times: object, _flags: int) -> tuple[bytes, int]:
        nonlocal block
        if len(block) != count:  # only once: the length is fixed when the stream is opened
            block = np.zeros((count, player.channels), np.int16)
        player.render(block)
        return block.tobytes(), proceed

    return fill


def _close(stream: Any) -> bool:
    """Closes a stream; False if closing timed out and the stream was abandoned.

    ALSA's plugin for PulseAudio sometimes blocks forever after its server has died. PortAudio must
    not be terminated then either, since it would wait for the same stream.
    """
    closer = threading.Thread(target=_close_quietly, args=(stream,), name="close", daemon=True)
    closer.start()
    closer.join(_CLOSE_SECONDS)
    if closer.is_alive():
        _log.warning("closing the output device timed out; abandoning it")
    return not closer.is_alive()


def _close_quietly(stream: Any) -> None:
    with contextlib.suppress(OSError):  # it is being closed because it failed
        stream.close()


def _cannot_open(device: AudioDevice, error: Exception) -> SinkError:
    code = error.args[0] if error.args else None
    if code == _DEVICE_UNAVAILABLE:
        return SinkError(
            f"Output device {device.name!r} is busy or was unplugged; quit the program that uses "
            "it, or choose another with --sink speaker:DEVICE."
        )
    if code == _INVALID_DEVICE:
        return SinkError(f"Output device {device.name!r} is gone; see rt-drama3 devices.")
    return SinkError(
        f"Output device {device.name!r} cannot be opened: {error}; see rt-drama3 devices."
    )
