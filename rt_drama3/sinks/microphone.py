"""Plays into a virtual microphone that other programs record from."""

from __future__ import annotations

import contextlib
import sys

from rt_drama3.errors import SinkError
from rt_drama3.sinks import portaudio, virtual_mic
from rt_drama3.sinks.device_sink import DeviceSink
from rt_drama3.sinks.pcm_format import PcmFormat
from rt_drama3.sinks.prebuffer import Prebuffer
from rt_drama3.sinks.pulse import PulseStream, PulseTarget
from rt_drama3.sinks.sink import Sink
from rt_drama3.sinks.speaker import SpeakerSink

# The device to play into on systems whose loopback devices are drivers installed by the user.
_LOOPBACKS = {
    "darwin": ("BlackHole", "BlackHole (https://existential.audio/blackhole/)"),
    "win32": ("CABLE Input", "VB-CABLE (https://vb-audio.com/Cable/)"),
}


def microphone(name: str | None = None) -> Sink:
    """Returns the sink that plays into this system's virtual microphone.

    On Linux a ``MicSink``; on macOS and Windows a ``SpeakerSink`` that plays into BlackHole or
    VB-CABLE, whose other end is the microphone.

    Args:
        name: name of the microphone (Linux), or part of the loopback device's name.

    Raises:
        SinkError: there is no loopback device; the message says where to get one.
    """
    if not _has_drivers():
        return MicSink(name or virtual_mic.NAME)
    return SpeakerSink(loopback_device(name))


def _has_drivers() -> bool:
    return sys.platform in _LOOPBACKS


def loopback_device(name: str | None = None) -> str:
    """Returns the name of the loopback device to play into on macOS and Windows.

    Raises:
        SinkError: there is none.
    """
    part, product = _LOOPBACKS.get(sys.platform, _LOOPBACKS["darwin"])
    audio = portaudio.start()
    try:
        found = portaudio.devices(audio)
    finally:
        portaudio.end(audio)
    wanted = (name or part).lower()
    for device in found:
        if device.outputs and wanted in device.name.lower():
            return device.name
    raise SinkError(
        f"A virtual microphone needs a loopback device, and there is none named {name or part!r}: "
        f"install {product}, restart, and choose it as the microphone in the other program."
    )


class MicSink(DeviceSink):
    """Plays into the sound server's virtual microphone, creating it if it does not exist.

    If the stream is mono and has the microphone's rate, its samples arrive bit-exact; other rates
    are converted with an error below -80 dB and up to 20 ms of delay (44.1 to 48 kHz). A stop fades
    out what the server has not played yet, within a few milliseconds. After a restart of the server
    the next write creates the microphone again.

    Args:
        name: name of the source that other programs select.
        rate: rate of the microphone in Hz if it is created here; an existing one keeps its own.
        keep: do not remove the microphone when this sink is closed.
        server_ms: audio that the server buffers; see ``PulseTarget``.
        buffer_ms, stall_seconds, prebuffer: see ``DeviceSink``.
    """

    def __init__(
        self,
        name: str = virtual_mic.NAME,
        *,
        rate: int = virtual_mic.RATE,
        keep: bool = False,
        server_ms: float = 60.0,
        buffer_ms: float = 500.0,
        stall_seconds: float = 5.0,
        prebuffer: Prebuffer | None = None,
    ) -> None:
        super().__init__(
            f"microphone {name!r}",
            buffer_ms=buffer_ms,
            stall_seconds=stall_seconds,
            prebuffer=prebuffer,
            quality="high",
        )
        self._mic_name, self._mic_rate, self._keep = name, rate, keep
        self._server_ms = server_ms
        self.mic: virtual_mic.VirtualMic | None = None

    def _connect(self, format: PcmFormat) -> PulseStream:
        mic = next((m for m in virtual_mic.existing() if m.name == self._mic_name), None)
        used = mic is not None and (mic.alive or virtual_mic.in_play(mic))
        rate = mic.rate if mic is not None and used else self._mic_rate
        self.mic = virtual_mic.create(self._mic_name, rate, keep=self._keep)
        try:
            stream = PulseStream(PulseTarget(self.mic.sink, buffer_ms=self._server_ms), self._fail)
        except SinkError:
            self._disconnected()
            raise
        stream.start(self._new_player(stream.rate, 1))
        return stream

    def _disconnected(self) -> None:
        mic, self.mic = self.mic, None
        if mic is not None and not self._keep:
            with contextlib.suppress(SinkError):  # it ended together with its server
                virtual_mic.release(mic)
