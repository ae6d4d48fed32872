"""PortAudio through PyAudio: load it, list the devices, and pick one."""

from __future__ import annotations

import ctypes
import functools
import glob
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rt_drama3.errors import SinkError
from rt_drama3.system import machine

# Names of ALSA's plugins for sound servers; "default" is one wherever a server runs.
SERVER_PLUGINS = ("default", "pulse", "pipewire")
_VIRTUAL = ("blackhole", "cable", "rt-drama3", "loopback", "vb-audio", "soundflower")
_starting = threading.Lock()  # PortAudio's user count is not thread-safe


@dataclass(frozen=True)
class AudioDevice:
    """A device as PortAudio describes it.

    Attributes:
        index: PortAudio's index, which changes as devices come and go.
        name: its name.
        host: host API that provides it, e.g. ALSA or Core Audio.
        outputs, inputs: number of output and input channels.
        rate: its native rate in Hz.
        output_latency_ms, input_latency_ms: as reported for short buffers; None without channels.
        default_output, default_input: whether it is the system's default.
        virtual: whether it is a loopback device, judged by its name.
    """

    index: int
    name: str
    host: str
    outputs: int
    inputs: int
    rate: int
    output_latency_ms: float | None = None
    input_latency_ms: float | None = None
    default_output: bool = False
    default_input: bool = False
    virtual: bool = False


def load() -> Any:
    """Returns the ``pyaudio`` module.

    Raises:
        SinkError: it is not installed, or PortAudio's library is missing.
    """
    try:
        pyaudio = importlib.import_module("pyaudio")
    except ModuleNotFoundError as error:
        raise SinkError(
            f"The speaker needs {_or_a_server()}PortAudio through pyaudio, which is not installed: "
            "pip install 'rt-drama3[speaker]' (Debian: first apt-get install portaudio19-dev gcc; "
            "macOS: brew install portaudio)."
        ) from error
    except ImportError as error:
        raise SinkError(
            f"pyaudio is installed, but PortAudio's library cannot be loaded ({error}): install it "
            "(Debian: apt-get install libportaudio2; macOS: brew install portaudio)."
        ) from error
    _silence_alsa()
    return pyaudio


def _or_a_server() -> str:
    return "a sound server (PulseAudio, PipeWire), or " if sys.platform == "linux" else ""


@functools.cache
def _silence_alsa() -> None:
    """Drops the lines that ALSA prints to standard error, hundreds for a device that fails."""
    extension = sys.modules.get("pyaudio._portaudio")
    if sys.platform != "linux" or extension is None or extension.__file__ is None:
        return
    # A handle of the extension also finds the functions of the libraries that it is linked to.
    set_handler = getattr(ctypes.CDLL(extension.__file__), "snd_lib_error_set_handler", None)
    if set_handler is not None:
        # The handler is called from any thread, in the worst case thousands of times per second: a
        # function of C that ignores its arguments.
        set_handler(ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p))


def start() -> Any:
    """Starts PortAudio, which scans for devices unless it is already in use in this process.

    Returns:
        A ``pyaudio.PyAudio``; release it with ``end``.

    Raises:
        SinkError: PortAudio is missing or does not start.
    """
    pyaudio = load()
    with _starting, machine.silent_stderr():
        try:
            return pyaudio.PyAudio()
        except OSError as error:
            raise SinkError(f"PortAudio does not start: {error}; see rt-drama3 doctor.") from error


def end(audio: Any) -> None:
    """Releases what ``start`` returned."""
    with _starting, machine.silent_stderr():
        audio.terminate()


def devices(audio: Any) -> list[AudioDevice]:
    """Returns all devices, in PortAudio's order.

    Raises:
        SinkError: PortAudio cannot list them.
    """
    try:
        return _devices(audio)
    except OSError as error:
        raise SinkError(
            f"PortAudio cannot list the devices: {error}; see rt-drama3 doctor."
        ) from error


def _devices(audio: Any) -> list[AudioDevice]:
    default_output = _default(audio.get_default_output_device_info)
    default_input = _default(audio.get_default_input_device_info)
    found = []
    for index in range(audio.get_device_count()):
        facts = audio.get_device_info_by_index(index)
        outputs, inputs = int(facts["maxOutputChannels"]), int(facts["maxInputChannels"])
        name = _text(facts["name"])
        found.append(
            AudioDevice(
                index=index,
                name=name,
                host=_text(audio.get_host_api_info_by_index(facts["hostApi"])["name"]),
                outputs=outputs,
                inputs=inputs,
                rate=round(facts["defaultSampleRate"]),
                output_latency_ms=1e3 * facts["defaultLowOutputLatency"] if outputs else None,
                input_latency_ms=1e3 * facts["defaultLowInputLatency"] if inputs else None,
                default_output=index == default_output,
                default_input=index == default_input,
                virtual=any(part in name.lower() for part in _VIRTUAL),
            )
        )
    return found


def pick_output(found: Sequence[AudioDevice], wanted: str | int | None) -> AudioDevice:
    """Picks the device to play through.

    Args:
        found: all devices.
        wanted: an index, a name, or part of a name (case-insensitive; a full match has priority,
            and the first of several devices with the same name is used); None for the system's
            default.

    Raises:
        SinkError: there is no such output device, or part of a name matches several names.
    """
    outputs = [device for device in found if device.outputs > 0]
    if not outputs:
        raise SinkError(no_output_message())
    if wanted is None or wanted == "":
        return next((device for device in outputs if device.default_output), outputs[0])
    text = str(wanted).strip()
    if text.isdecimal():
        chosen = [device for device in outputs if device.index == int(text)]
    else:
        names = [(device.name.lower(), device) for device in outputs]
        chosen = [device for name, device in names if name == text.lower()]
        chosen = chosen or [device for name, device in names if text.lower() in name]
    if not chosen:
        known = ", ".join(f"{device.index} {device.name!r}" for device in outputs)
        raise SinkError(f"No output device matches {text!r}; there are: {known}.")
    fitting = list(dict.fromkeys(device.name for device in chosen))
    if len(fitting) > 1:
        raise SinkError(
            f"{text!r} matches several output devices: {', '.join(map(repr, fitting))}; give more "
            "of the name, or the index that rt-drama3 devices shows."
        )
    return chosen[0]


def no_output_message() -> str:
    """Returns why there is probably no output device, and what to do about it."""
    cards = glob.glob("/dev/snd/pcm*p") if sys.platform == "linux" else []
    if cards and not any(os.access(card, os.R_OK | os.W_OK) for card in cards):
        return (
            "There is a sound card, but no permission to use it: add the user to the group that "
            f"owns {cards[0]} (usually 'audio'), or start a sound server."
        )
    return "No output device was found: connect one, or start a sound server such as PipeWire."


def _default(ask: Any) -> int:
    try:
        return int(ask()["index"])
    except OSError:  # there is none
        return -1


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode("utf-8", errors="replace")
