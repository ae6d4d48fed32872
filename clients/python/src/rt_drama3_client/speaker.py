"""Speaker: plays through an output device with PyAudio (the ``speaker`` extra)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from rt_drama3_client.errors import ClientError

BUFFER_SECONDS = 0.02
TAIL_SECONDS = 0.15  # of silence at the end: on Linux, a stop drops what the device buffers


class SpeakerError(ClientError):
    """The audio cannot be played."""

    code = "speaker"
    remedy = "Save it instead: --out speech.wav."


class Speaker:
    """Plays signed 16-bit mono PCM; a context manager that plays to the end on a normal exit.

    Args:
        rate: sample rate in Hz.
        device: index or part of the name of an output device; None for the system's default.

    Raises:
        SpeakerError: PyAudio is not installed, or the device cannot be used.
    """

    def __init__(self, rate: int, device: str | None = None) -> None:
        try:
            import pyaudio
        except ImportError as error:
            raise SpeakerError(
                "playback needs PyAudio.",
                remedy="pip install 'rt-drama3-client[speaker]', or save it: --out speech.wav.",
            ) from error
        self._tail = bytes(2 * int(rate * TAIL_SECONDS))
        with _silent_stderr():
            self._open(pyaudio, rate, device)

    def _open(self, pyaudio: Any, rate: int, device: str | None) -> None:
        try:
            self._audio: Any = pyaudio.PyAudio()
        except OSError as error:
            raise SpeakerError(f"PortAudio does not start: {error}.") from error
        try:
            self._stream: Any = self._audio.open(
                rate=rate,
                channels=1,
                format=pyaudio.paInt16,
                output=True,
                output_device_index=_find(self._audio, device),
                frames_per_buffer=int(rate * BUFFER_SECONDS),
            )
        except (OSError, ValueError) as error:
            self._audio.terminate()
            raise SpeakerError(f"the sound device cannot be opened: {error}.") from error
        except SpeakerError:
            self._audio.terminate()
            raise

    def write(self, pcm: bytes) -> None:
        """Plays; blocks while the device's buffer is full.

        Raises:
            SpeakerError: the device failed.
        """
        try:
            self._stream.write(pcm)
        except OSError as error:
            raise SpeakerError(f"the sound device failed: {error}.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, *_: object) -> None:
        try:
            if error is None:
                self._stream.write(self._tail)
                self._stream.stop_stream()  # elsewhere, it waits for the last sample
            self._stream.close()  # drops what is buffered
        except OSError as failed:
            if error is None:
                raise SpeakerError(f"the sound device failed: {failed}.") from failed
        finally:
            with _silent_stderr():
                self._audio.terminate()


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Redirects file descriptor 2 to the null device.

    ALSA and JACK bypass ``sys.stderr`` and print lines about every missing card.
    """
    try:
        kept = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _find(audio: Any, device: str | None) -> int | None:
    if device is None:
        return None
    if device.isdigit():
        return int(device)
    for number in range(audio.get_device_count()):
        info = audio.get_device_info_by_index(number)
        if info["maxOutputChannels"] and device.lower() in str(info["name"]).lower():
            return number
    raise SpeakerError(f"no output device matches {device!r}.")
