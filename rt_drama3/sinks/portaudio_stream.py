"""One output stream of PortAudio, through its callback interface."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from rt_drama3.errors import SinkError
from rt_drama3.sinks import portaudio
from rt_drama3.sinks.pcm_format import PcmFormat
from rt_drama3.sinks.player import Player
from rt_drama3.sinks.portaudio import SERVER_PLUGINS, AudioDevice
from rt_drama3.system import machine

FALLBACK_RATES = (48_000, 44_100, 96_000, 32_000, 24_000, 22_050, 16_000, 8_000)
_log = logging.getLogger(__name__)
_PLUGIN_BLOCK_MS = 20.0  # a sound server's plugin loses shorter ones of a stream that it resamples
_CLOSE_SECONDS = 3.0  # then a stream that does not close is abandoned
# PortAudio's error codes: https://portaudio.com/docs/v19-doxydocs/portaudio_8h.html
_INVALID_CHANNELS, _INVALID_DEVICE, _INVALID_RATE = -9998, -9996, -9997
_DEVICE_UNAVAILABLE = -9985
_OUTPUT_UNDERFLOW = 4  # flag of the callback


class PortAudioStream:
    """Plays what a player renders, at the device's native rate, until it is closed or fails.

    Args:
        wanted: index, name, or part of the name of the device; None for the system's default.
        format: of the samples: the next choice where the native rate or channels are refused.
        block_ms: length of the blocks that the device requests; a sound server's plugin requests
            at least 20 ms.
        new_player: makes the player, from a rate and a number of channels.
        failed: called when the device is found to be gone.

    Attributes:
        device: the device.
        rate: its rate in Hz.
        gaps: 0; see ``lost``.
        lost: times that samples were lost or played late, between which PortAudio does not
            distinguish.

    Raises:
        SinkError: there is no such device, or it cannot be opened.
    """

    gaps = 0

    def __init__(
        self,
        wanted: str | int | None,
        format: PcmFormat,
        block_ms: float,
        new_player: Callable[[int, int], Player],
        failed: Callable[[SinkError], None],
    ) -> None:
        self.lost = 0
        self._block_ms = block_ms
        self._new_player, self._failed = new_player, failed
        self._stream: Any = None
        self._audio = portaudio.start()
        try:
            self.device = portaudio.pick_output(portaudio.devices(self._audio), wanted)
            self.player, self.rate = self._open(format)
        except SinkError:
            portaudio.end(self._audio)
            raise

    @property
    def latency_ms(self) -> float | None:
        """As the device reports it."""
        try:
            return 1e3 * float(self._stream.get_output_latency())
        except OSError:
            return None

    def wake(self) -> None:
        """Nothing to do: the device asks for its next block by itself."""

    def check(self) -> None:
        """Calls ``failed`` if the device is gone; does not block."""
        try:
            active = self._stream.is_active()
        except OSError:
            active = False
        if not active:
            self._failed(
                SinkError(
                    f"Output device {self.device.name!r} stopped playing: it was unplugged, or the "
                    "sound server exited. The next write tries to open it again."
                )
            )

    def close(self) -> None:
        """Closes it, also after a failure.

        ALSA's plugin for PulseAudio sometimes blocks forever after its server has died. PortAudio
        must not be terminated then either, since it would wait for the same stream.
        """
        closer = threading.Thread(target=self._close, name="close", daemon=True)
        closer.start()
        closer.join(_CLOSE_SECONDS)
        if closer.is_alive():
            _log.warning("closing the output device timed out; abandoning it")
        else:
            portaudio.end(self._audio)

    def _close(self) -> None:
        with contextlib.suppress(OSError):  # it is being closed because it failed
            self._stream.close()

    def _open(self, format: PcmFormat) -> tuple[Player, int]:
        """Opens the device at the first rate and number of channels that it takes."""
        pyaudio, device = portaudio.load(), self.device
        channels = min(device.outputs, max(format.channels, 2))
        block_ms = self._block_ms
        if device.name in SERVER_PLUGINS:
            block_ms = max(block_ms, _PLUGIN_BLOCK_MS)
        rates = list(dict.fromkeys((device.rate, format.rate, *FALLBACK_RATES)))
        refusal: Exception | None = None
        for rate in rates:
            for count in dict.fromkeys((channels, format.channels, 1)):
                if count > device.outputs:
                    continue
                player = self._new_player(rate, count)
                try:
                    with machine.silent_stderr():
                        self._stream = self._audio.open(
                            rate=rate,
                            channels=count,
                            format=pyaudio.paInt16,
                            output=True,
                            output_device_index=device.index,
                            frames_per_buffer=max(1, round(rate * block_ms / 1e3)),
                            stream_callback=self._callback(player, pyaudio.paContinue),
                        )
                except (OSError, ValueError) as error:
                    code = error.args[0] if error.args and len(error.args) > 1 else None
                    if code not in (_INVALID_RATE, _INVALID_CHANNELS):
                        raise _cannot_open(device, error) from error
                    refusal = error
                else:
                    return player, rate
        raise SinkError(
            f"Output device {device.name!r} supports none of the rates "
            f"{', '.join(map(str, rates))} Hz in 16 bits; choose another with --sink "
            f"speaker:DEVICE ({refusal})."
        )

    def _callback(self, player: Player, proceed: int) -> Callable[..., tuple[bytes, int]]:
        block = np.zeros((0, player.channels), np.int16)

        def fill(_recorded: object, count: int, _times: object, flags: int) -> tuple[bytes, int]:
            nonlocal block
            if flags & _OUTPUT_UNDERFLOW and player.playing:
                self.lost += 1
            if len(block) != count:  # only once: the length is fixed when the stream is opened
                block = np.zeros((count, player.channels), np.int16)
            player.render(block)
            return block.tobytes(), proceed

        return fill


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
