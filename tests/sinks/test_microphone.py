"""The microphone without a sound server: loopback drivers and error messages."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest

from rt_drama3.errors import SinkError
from rt_drama3.sinks import MicSink, PcmFormat, SpeakerSink, libpulse, make_sink, pactl, virtual_mic
from rt_drama3.sinks.pulse import PulseStream, PulseTarget
from tests.sinks.doubles import FakePyAudio, card

PIPEWIRE_MODULES = """1\tlibpipewire-module-rt\t{
            nice.level    = -11
            #rt.prio      = 88
        }\t
2\tlibpipewire-module-protocol-native\t\t
536870913\tmodule-null-sink\tsink_name=rt-drama3.playback rate=48000 channels=1 \
sink_properties='device.description=rt-drama3.playback rt_drama3.owner=kept' norewinds=1\t
536870914\tmodule-remap-source\tmaster=rt-drama3.playback.monitor source_name=rt-drama3\t
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pactl that prints the contents of files and exits with the code in one."""
    script = tmp_path / "pactl"
    script.write_text(f'#!/bin/sh\ncd "{tmp_path}"\ncat out\ncat err >&2\nexit $(cat code)\n')
    script.chmod(0o755)
    for name, text in {"out": "", "err": "", "code": "0"}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize(
    ("platform", "device"), [("darwin", "BlackHole 2ch"), ("win32", "CABLE Input (VB-Audio)")]
)
def test_macos_and_windows_play_into_the_loopback_driver(
    monkeypatch: pytest.MonkeyPatch, platform: str, device: str
) -> None:
    fake = FakePyAudio(card("Speakers"), card("BlackHole 2ch"), card("CABLE Input (VB-Audio)"))
    monkeypatch.setitem(sys.modules, "pyaudio", fake)
    monkeypatch.setattr(sys, "platform", platform)
    sink = make_sink("mic")
    assert isinstance(sink, SpeakerSink)
    sink.open(PcmFormat(48_000))
    assert sink.device is not None
    assert sink.device.name == device
    sink.close()


@pytest.mark.parametrize(
    ("platform", "product"), [("darwin", "install BlackHole"), ("win32", "install VB-CABLE")]
)
def test_missing_driver_raises_with_where_to_get_it(
    monkeypatch: pytest.MonkeyPatch, platform: str, product: str
) -> None:
    monkeypatch.setitem(sys.modules, "pyaudio", FakePyAudio(card("Speakers")))
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(SinkError, match=product):
        make_sink("mic")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
class TestPactl:
    def test_listings_of_pipewire_are_read(self, program: Path) -> None:
        (program / "out").write_text(PIPEWIRE_MODULES)
        (mic,) = virtual_mic.existing()
        assert (mic.name, mic.rate, mic.owner, mic.alive) == ("rt-drama3", 48_000, "kept", True)
        assert mic.modules == (536_870_914, 536_870_913)
        assert len(pactl.modules()) == 4

    @pytest.mark.parametrize(
        ("stderr", "message"),
        [
            ("Connection failure: Access denied", r"denies access \(Access denied\): run as"),
            ("Connection failure: Connection refused", "No sound server responds"),
            ("Failure: Module initialization failed", "pactl list failed: Failure: Module init"),
        ],
    )
    def test_pactl_failures_raise_clear_errors(
        self, program: Path, stderr: str, message: str
    ) -> None:
        (program / "err").write_text(stderr)
        (program / "code").write_text("1")
        with pytest.raises(SinkError, match=message):
            MicSink().open(PcmFormat(48_000))


def test_missing_libpulse_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    libpulse.library.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", fail)
    with pytest.raises(SinkError, match="library libpulse cannot be loaded: install it"):
        PulseStream(PulseTarget("sink"), lambda error: None)
