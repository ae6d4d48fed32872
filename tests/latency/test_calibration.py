"""The calibration loop on machines whose time is made up."""

from __future__ import annotations

import pytest

from rt_drama3_bench.calibration import Calibration, calibrate, judge


class Machine:
    """Work that takes so long, of which others take a share."""

    def __init__(self, *costs_ms: float, share: float = 1.0) -> None:
        self.now = self.worked = 0.0
        self.costs, self.turn, self.share = costs_ms, 0, share

    def work(self) -> None:
        cost = self.costs[self.turn % len(self.costs)] / 1e3
        self.turn += 1
        self.now += cost
        self.worked += self.share * cost

    def calibrate(self) -> Calibration:
        return calibrate(50, self.work, lambda: self.now, lambda: self.worked)


def test_a_quiet_machine() -> None:
    machine = Machine(2.0)
    first = machine.calibrate()
    assert first.p50_ms == pytest.approx(2.0)
    assert first.spread == pytest.approx(1.0)
    assert first.share == pytest.approx(1.0)
    noise = judge(first, machine.calibrate())
    assert not noise.noisy
    assert noise.floor == pytest.approx(0.02)


def test_noise_is_reported() -> None:
    jumpy = judge(Machine(2.0, 3.0).calibrate(), Machine(2.0).calibrate())
    assert jumpy.noisy
    assert "1.50-fold before" in jumpy.reasons[0]
    assert jumpy.floor == pytest.approx(0.2)  # the median moves by less than single turns
    robbed = judge(Machine(2.0).calibrate(), Machine(2.0, share=0.6).calibrate())
    assert "40 % of the core after" in robbed.reasons[0]
    slower = judge(Machine(2.0).calibrate(), Machine(2.5).calibrate())
    assert "25 %" in slower.reasons[0]
    assert slower.floor == pytest.approx(0.25)


def test_a_crowded_machine_is_noisy_even_to_a_process_that_goes_first() -> None:
    quiet = Machine(2.0).calibrate()
    assert judge(quiet, quiet, 9.0, 2).reasons == ["load average 9.0 on 2 cores when the run began"]
    assert not judge(quiet, quiet, 1.5, 2).noisy
    assert not judge(quiet, quiet, None, 2).noisy


def test_the_real_loop_runs() -> None:
    found = calibrate(3)
    assert found.turns == 3
    assert 0 < found.p05_ms <= found.p50_ms <= found.p95_ms <= found.longest_ms
