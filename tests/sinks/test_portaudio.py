"""Picking a device, and clear errors when PortAudio or its devices are missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rt_drama3.errors import SinkError
from rt_drama3.sinks import portaudio
from rt_drama3.sinks.portaudio import AudioDevice, pick_output
from tests.sinks.doubles import FakePyAudio, card


def device(index: int, name: str, outputs: int = 2, default: bool = False) -> AudioDevice:
    return AudioDevice(index, name, "Fake", outputs, 0, 48_000, default_output=default)


FOUND = [
    device(0, "Webcam", outputs=0),
    device(1, "USB Headset"),
    device(2, "HDMI 1", default=True),
    device(3, "HDMI 1.2"),
    device(4, "USB Headset"),
    device(5, "USB Stick"),
]


@pytest.mark.parametrize(
    ("wanted", "index"),
    [(None, 2), ("", 2), (3, 3), ("5", 5), ("hdmi 1", 2), ("1.2", 3), ("headset", 1), ("Stick", 5)],
)
def test_devices_are_found_by_index_name_and_substring(
    wanted: str | int | None, index: int
) -> None:
    assert pick_output(FOUND, wanted).index == index


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("piano", r"No output device matches 'piano'; there are: 1 'USB Headset', 2"),
        (0, r"No output device matches '0'"),
        (77, r"No output device matches '77'"),
        ("usb", r"'usb' matches several output devices: 'USB Headset', 'USB Stick'"),
    ],
)
def test_unknown_or_ambiguous_device_raises(wanted: str | int, message: str) -> None:
    with pytest.raises(SinkError, match=message):
        pick_output(FOUND, wanted)


def test_first_output_is_used_without_a_system_default() -> None:
    assert pick_output([device(0, "in", outputs=0), device(1, "out")], None).index == 1


def test_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glob.glob", lambda _pattern: [])
    with pytest.raises(SinkError, match="No output device was found: connect one"):
        pick_output(FOUND[:1], None)


@pytest.mark.skipif(sys.platform != "linux", reason="sound cards are files on Linux only")
def test_no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glob.glob", lambda _pattern: ["/dev/snd/pcmC0D0p"])
    monkeypatch.setattr("os.access", lambda _path, _mode: False)
    with pytest.raises(SinkError, match=r"no permission to use it: add the user to the group that"):
        pick_output([], None)


def test_no_pyaudio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyaudio", None)
    with pytest.raises(SinkError, match=r"not installed: pip install 'rt-drama3\[speaker\]'"):
        portaudio.start()


def test_no_portaudio_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError("libportaudio.so.2: cannot open shared object file")

    monkeypatch.setattr("importlib.import_module", fail)
    with pytest.raises(SinkError, match=r"PortAudio's library cannot be loaded \(libportaudio"):
        portaudio.load()


def test_devices_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakePyAudio(card("mic", 0, 1, 16_000), card("BlackHole 2ch"), card("headset", 2, 1))
    monkeypatch.setitem(sys.modules, "pyaudio", fake)
    audio = portaudio.start()
    mic, virtual, headset = portaudio.devices(audio)
    portaudio.end(audio)
    assert (mic.inputs, mic.outputs, mic.rate, mic.default_input) == (1, 0, 16_000, True)
    assert (mic.output_latency_ms, mic.input_latency_ms) == (None, 20)
    assert (virtual.virtual, virtual.default_output, virtual.output_latency_ms) == (True, True, 10)
    assert not headset.virtual
    assert fake.users == 0


@pytest.mark.skipif(sys.platform != "linux", reason="ALSA is Linux only")
def test_alsa_prints_nothing() -> None:
    pytest.importorskip("pyaudio")
    program = (
        "import ctypes\n"
        "from rt_drama3.sinks import portaudio\n"
        "pyaudio = portaudio.load()\n"
        "alsa = ctypes.CDLL(pyaudio._portaudio.__file__)\n"
        "pcm = ctypes.c_void_p()\n"
        "assert alsa.snd_pcm_open(ctypes.byref(pcm), b'no-such-device', 0, 0) < 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
