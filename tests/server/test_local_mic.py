"""``serve --sink mic`` against a real PulseAudio: what is recorded is what the client was sent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rt_drama3.sinks import MicSink
from tests.server.test_listening import samples, speak, until_heard
from tests.server.tools import audio_of, serving
from tests.sinks.private_pulse import Recorder, daemon, needs_pulse, pactl
from tests.small import shared_drama, until


@needs_pulse
@pytest.mark.serial
def test_the_microphone_says_what_the_client_was_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with daemon(monkeypatch):
        sink = MicSink(rate=44_100)
        with serving(shared_drama(), tmp_path, sink=sink, drain_seconds=20) as place:
            recorder = Recorder("rt-drama3", 44_100)
            spoken = samples(audio_of(speak(place, max_seconds=1)))
            until_heard(place)
            wanted = np.count_nonzero(spoken)
            until(lambda: np.count_nonzero(recorder.samples) >= wanted, "recording")
            recorded = recorder.stop()
        # A busy machine may leave a gap of silence, and nothing else may differ.
        np.testing.assert_array_equal(recorded[recorded != 0], spoken[spoken != 0])
        assert "rt-drama3" not in pactl("list", "short", "sources").stdout
