"""Timelines with known delays, gaps and drift are measured exactly."""

from __future__ import annotations

import numpy as np
import pytest

from rt_drama3_bench.compare import compare
from rt_drama3_bench.metrics import (
    Arrival,
    Recording,
    audible_sample,
    columns,
    jitter,
    measure,
    play,
    stages,
)
from rt_drama3_bench.result import Result

RATE = 10_000
FRAME = 500  # samples: 50 ms


def chunks(*at_ms: float, samples: int = FRAME) -> list[Arrival]:
    return [Arrival(1.0 + at / 1e3, samples) for at in at_ms]


def utterance(*at_ms: float, **more: object) -> Recording:
    made = Recording(due=1.0, rate=RATE, sent=1.0, arrivals=chunks(*at_ms))
    made.ended = made.arrivals[-1].at + 0.001 if at_ms else None
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_a_stream_that_keeps_up_has_no_underrun() -> None:
    found = measure(utterance(80, 130, 180, 230))
    assert found.first_pcm_ms == pytest.approx(80)
    assert found.underruns == 0
    assert found.gapless
    assert found.least_lead_ms == pytest.approx(0, abs=1e-6)
    assert found.audio_s == pytest.approx(0.2)
    assert found.delivery_rtf == pytest.approx(0.231 / 0.2)
    assert found.jitter_ms == pytest.approx(0, abs=1e-6)
    assert found.lead_slope == pytest.approx(0, abs=1e-9)


def test_a_planted_underrun_of_30_ms_is_found() -> None:
    found = measure(utterance(80, 130, 210, 220, 300))
    assert found.underruns == 1
    assert found.underrun_worst_ms == pytest.approx(30)
    assert found.underrun_all_ms == pytest.approx(30)
    assert found.least_lead_ms == pytest.approx(-30)
    assert not found.gapless
    assert found.tolerable


def test_underruns_add_up_and_the_worst_is_kept() -> None:
    found = measure(utterance(0, 60, 230))  # 10 ms, then 120 ms late
    assert found.underruns == 2
    assert found.underrun_worst_ms == pytest.approx(120)
    assert found.underrun_all_ms == pytest.approx(130)
    assert not found.tolerable


def test_a_gap_for_lack_of_text_does_not_count() -> None:
    made = utterance(0, 500)
    made.arrivals[1] = Arrival(1.5, FRAME, excused=True)
    found = measure(made)
    assert found.underruns == 0
    assert play(made.arrivals, RATE)[1].heard == pytest.approx(1.5)


def test_drift_is_measured() -> None:
    """A server whose clock is 2 % slow loses 20 ms a second."""
    found = measure(utterance(*(80 + 51.0204 * n for n in range(100))))
    # Every chunk comes late, so the lead of an underrunning player stays: let it start with lead.
    ahead = utterance(*(80 + (0 if n < 40 else 51.0204 * (n - 39)) for n in range(140)))
    slope = measure(Recording(1.0, RATE, 1.0, arrivals=ahead.arrivals[39:])).lead_slope
    assert found.underruns == 99
    assert found.underrun_worst_ms == pytest.approx(1.0204)
    assert slope == pytest.approx(0, abs=1e-3)  # begins without lead: see the next one
    kept = play(ahead.arrivals, RATE)[40:]
    fit = np.polyfit([p.at for p in kept], [p.lead for p in kept], 1)[0]
    assert fit == pytest.approx(-0.02, rel=0.02)


def test_lead_slope_is_the_speed_beyond_real_time() -> None:
    twice = measure(utterance(*(25 * n for n in range(50))))
    assert twice.lead_slope == pytest.approx(1.0)


def test_jitter_is_the_deviation_of_the_transit() -> None:
    even = chunks(*(50 * n for n in range(9)))
    assert jitter(even, RATE) == pytest.approx(0, abs=1e-6)
    shaken = chunks(*(50 * n + (4 if n % 2 else 0) for n in range(9)))
    assert jitter(shaken, RATE) == pytest.approx(np.sqrt(np.mean([0, 64] * 4)), rel=0.5)
    assert jitter(shaken[:2], RATE) is None


def test_leading_silence_is_not_audible() -> None:
    pcm = np.zeros(3 * FRAME, np.float32)
    pcm[700:] = 0.3 * np.sin(np.arange(800) / 3 + 1)
    made = utterance()
    made.arrivals = [
        Arrival(1.1, FRAME, pcm=pcm[:FRAME]),
        Arrival(1.19, FRAME, pcm=pcm[FRAME : 2 * FRAME]),  # 40 ms late: heard later as well
        Arrival(1.2, FRAME, pcm=pcm[2 * FRAME :]),
    ]
    found = measure(made)
    assert found.first_pcm_ms == pytest.approx(100)
    assert found.first_audible_ms == pytest.approx(190 + 20, abs=0.5)


def test_what_counts_as_audible() -> None:
    silence = np.zeros(1000, np.float32)
    assert audible_sample(silence, RATE) is None
    click = silence.copy()
    click[100] = 0.9
    assert audible_sample(click, RATE) is None
    faint = silence + np.float32(0.009)
    assert audible_sample(faint, RATE) is None
    step = silence.copy()
    step[300:] = 0.02
    assert audible_sample(step, RATE) == 300
    click[300:] = 0.02
    assert audible_sample(click, RATE) == 300


def test_audible_is_unknown_without_samples_of_sound() -> None:
    assert measure(utterance(10, 20)).first_audible_ms is None


def test_what_waits_for_the_client_counts_from_when_it_was_due() -> None:
    found = measure(utterance(80, sent=1.05))
    assert found.first_pcm_ms == pytest.approx(80)
    assert found.late_ms == pytest.approx(50)


def test_barge_in() -> None:
    found = measure(utterance(0, 50, 112, 130, cancelled=1.100, silent=1.131))
    assert found.barge_in_ms == pytest.approx(30)
    assert found.silent_ms == pytest.approx(31)
    assert found.delivery_rtf is None
    quiet = measure(utterance(0, 50, cancelled=1.100, silent=1.104))
    assert quiet.barge_in_ms == pytest.approx(4)


def test_nothing_came() -> None:
    found = measure(Recording(due=1.0))
    assert found.first_pcm_ms is None
    assert found.audio_s == 0
    assert found.delivery_rtf is None
    assert columns([found])["underrun_worst_ms"] == [0.0]
    assert "first_pcm_ms" not in columns([found])


def test_stages_from_stamps() -> None:
    stamps = {"prefilled": 10.0, "sampled": 16.0, "decoded": 20.0, "sent": 20.5}
    found = stages(Arrival(1.0, FRAME, stamps=stamps))
    assert found == {"prefill": 10.0, "frames": 6.0, "codec": 4.0, "send": 0.5}
    assert stages(Arrival(1.0, FRAME)) == {}


def test_jitter_ranks_last_and_is_never_better_or_worse() -> None:
    """It is large for servers whose listeners hear no gap."""
    growing = [Arrival(at, 500 * n) for n, at in ((1, 1.0), (2, 1.05), (4, 1.15), (4, 1.25))]
    found = measure(Recording(0.9, RATE, ended=9.0, arrivals=growing))
    assert found.gapless
    assert found.jitter_ms == pytest.approx(58, abs=1)
    result = Result("peer")
    for name, arrivals in (("even: ", chunks(*range(0, 300, 50))), ("growing: ", growing)):
        result.record(name, [Recording(0.9, RATE, ended=9.0, arrivals=arrivals)] * 6)
    result.add("barge in", "ms", [1.0])
    names = [one.name for one in result.ranked]
    assert [name for name in names if name.endswith("jitter")] == names[-2:]
    kept = {one.name: one for one in result.series}
    assert all(kept[f"{name}: jitter"].minor for name in ("even", "growing"))
    assert not kept["even: least lead"].minor
    before, after = Result("peer"), Result("peer")
    before.add("jitter", "ms", [3.0] * 9, kept["even: jitter"].better)
    after.add("jitter", "ms", [50.0] * 9, kept["even: jitter"].better)
    assert [change.word for change in compare(before, after)] == ["other"]
