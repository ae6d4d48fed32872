"""Planted clicks, holes and repetitions at the seams are found; clean speech has none."""

from __future__ import annotations

import numpy as np
import pytest

from rt_drama3_bench.metrics import Samples
from rt_drama3_bench.seams import check, pause

RATE = 44_100
SEAMS = [2048, 4096, 8192, 16_384]


def voice(seconds: float = 0.6, level: float = 0.3) -> Samples:
    """Something like a vowel whose pitch moves, with some breath."""
    time = np.arange(round(seconds * RATE)) / RATE
    phase = 2 * np.pi * (120 * time + 8 * np.sin(5 * time))
    tone = sum(np.sin(n * phase) / n for n in range(1, 12))
    breath = np.random.default_rng(0).normal(0, 0.02, len(time))
    made: Samples = (level * (0.4 * tone + breath)).astype(np.float32)
    return made


def kinds(pcm: Samples) -> list[tuple[str, int]]:
    return [(fault.kind, fault.sample) for fault in check(pcm, SEAMS, RATE)]


def test_a_clean_voice_has_no_faults() -> None:
    assert kinds(voice()) == []


def test_silence_and_onsets_are_clean() -> None:
    pcm = voice()
    pcm[:4000] = 0
    assert kinds(pcm) == []
    assert kinds(np.zeros(20_000, np.float32)) == []


@pytest.mark.parametrize("step", [0.25, -0.4])
def test_a_click_at_a_seam_is_found(step: float) -> None:
    pcm = voice()
    pcm[8192:8200] += np.float32(step)
    assert ("click", 8192) in kinds(pcm)


def test_a_click_in_a_quiet_voice_is_found() -> None:
    pcm = voice(level=0.02)
    pcm[4096] += 0.1
    assert kinds(pcm) == [("click", 4096)]


def test_a_click_elsewhere_is_not_the_seams() -> None:
    pcm = voice()
    pcm[6000] += 0.5
    assert kinds(pcm) == []


def test_a_hole_is_found_and_measured() -> None:
    pcm = voice()
    pcm[8192 : 8192 + 441] = 0
    found = [fault for fault in check(pcm, SEAMS, RATE) if fault.kind == "hole"]
    assert [fault.sample for fault in found] == [8192]
    assert found[0].size == pytest.approx(10, abs=0.2)


def test_a_repeated_block_is_found() -> None:
    pcm = voice()
    pcm[4096:6144] = pcm[2048:4096]
    assert ("repeat", 4096) in kinds(pcm)


@pytest.mark.parametrize("silence", [0.0, 0.3, 1.06])
def test_a_pause_between_sentences_is_measured(silence: float) -> None:
    sound = voice()
    before, after = sound[:22_050], sound[22_050:]
    quiet = 0.001 * np.sin(np.arange(round(silence * RATE))).astype(np.float32)
    for seam in (22_050, 22_050 + len(quiet) // 2, 22_050 + len(quiet)):  # wherever it is noted
        pcm = np.concatenate([before, quiet, after])
        assert pause(pcm, seam, RATE) == pytest.approx(1e3 * silence, abs=10)


def test_the_nano_voice_does_not_stop_between_sentences(nano: object) -> None:
    """What one text is in two chunks sounds like one text: the join is a pause of a reader's."""
    from rt_drama3.drama3 import Drama3
    from rt_drama3.engine.events import Audio, Segment
    from rt_drama3.engine.speech import SpeechRequest

    assert isinstance(nano, Drama3)
    speech = nano.engine.open(SpeechRequest("The door is open. ", final=False, seed=3))
    speech.push_text("Come in and sit down. ")
    speech.finish()
    events = list(speech.events())
    pcm = np.concatenate([event.pcm for event in events if isinstance(event, Audio)])
    first, second = (event.first_frame for event in events if isinstance(event, Segment))
    assert first == 0
    assert pause(pcm, 2_048 * second, nano.sample_rate) < 700


def test_streamed_nano_voice(nano: object) -> None:
    """The product's own seams, and the same audio with one seam spoilt."""
    from rt_drama3.drama3 import Drama3

    assert isinstance(nano, Drama3)
    chunks = list(nano.stream("Hello there.", seed=3))
    pcm = np.concatenate([chunk.pcm for chunk in chunks])
    seams = np.cumsum([len(chunk.pcm) for chunk in chunks])[:-1].tolist()
    assert check(pcm, seams, nano.sample_rate) == []
    loudest = max(seams, key=lambda seam: float(np.abs(pcm[seam - 200 : seam + 200]).mean()))
    pcm[loudest : loudest + 30] += 0.5
    assert [f.sample for f in check(pcm, seams, nano.sample_rate) if f.kind == "click"] == [loudest]
