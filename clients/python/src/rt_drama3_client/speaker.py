"""Speaker: the sound card, through PyAudio (the ``speaker`` extra)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from rt_drama3_client.errors import ClientError

BUFFER_SECONDS = 0.02


class SpeakerError(ClientError):
    """The sound cannot be played."""

    code = "speaker"
    remedy = "Save it instead: --out speech.wav."


class Speaker:
    """Plays signed 16-bit mono PCM; a context manager, which plays to the end when left in peace.

    Args:
        rate: Hz.
        device: number or part of the name of an output device; None takes the system's.

    Raises:
        SpeakerError: PyAudio is not installed, or the device cannot be used.
    """

    def __init__(self, rate: int, device: str | None = None) -> None:
        try:
            import pyaudio
        except ImportError as error:
            raise SpeakerError(
                "playing needs PyAudio.",
                remedy="pip install 'rt-drama3-client[speaker]', or save it: --out speech.wav.",
            ) from error
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
        """Plays; waits while much is still to be heard.

        Raises:
            SpeakerError: the device is gone.
        """
        try:
            self._stream.write(pcm)
        except OSError as error:
            raise SpeakerError(f"the sound device failed: {error}.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._stream.stop_stream()  # waits for the last sample
            self._stream.close()  # drops what is left
        except OSError as failed:
            if error is None:
                raise SpeakerError(f"the sound device failed: {failed}.") from failed
        finally:
            with _silent_stderr():
                self._audio.terminate()


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Sends file descriptor 2 to nowhere for a while.

    ALSA and JACK write there past ``sys.stderr``, a line or more for every card that is absent.
    """
    try:
        kept = os.dup(2)
    except OSError:  # it is closed: nobody reads them
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
    raise SpeakerError(f"no output device has {device!r} in its name.")
