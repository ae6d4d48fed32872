"""Schedules are made beforehand, the same for the same seed, at the rate that was asked for."""

from __future__ import annotations

import itertools

import pytest

from rt_drama3_bench.schedules import fixed, lasts, poisson, turns


def test_fixed() -> None:
    found = fixed(2.0, 3.0)
    assert [due.at for due in found] == [0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert len({due.caller for due in found}) == 6


def test_poisson() -> None:
    found = poisson(5.0, 1000.0, seed=1)
    assert len(found) == pytest.approx(5000, rel=0.05)
    assert found == poisson(5.0, 1000.0, seed=1)
    assert found != poisson(5.0, 1000.0, seed=2)
    assert all(a.at < b.at < 1000 for a, b in itertools.pairwise(found))
    gaps = [b.at - a.at for a, b in itertools.pairwise(found)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((g - mean) ** 2 for g in gaps) / len(gaps)) ** 0.5
    assert deviation == pytest.approx(mean, rel=0.1)  # as of an exponential distribution


def test_turns() -> None:
    found = turns(3, 600.0, seed=4, barge_in=0.5)
    assert {due.caller for due in found} == {0, 1, 2}
    cuts = [due for due in found if due.cut_after is not None]
    assert len(cuts) == pytest.approx(0.5 * len(found), rel=0.25)
    for caller in range(3):
        mine = [due for due in found if due.caller == caller]
        for one, two in itertools.pairwise(mine):
            heard = one.cut_after if one.cut_after is not None else lasts(one.text)
            assert heard + 1.0 <= two.at - one.at <= heard + 4.0
    assert turns(4, 600.0, seed=4, barge_in=0.5)[:1] != []
    assert [d for d in turns(4, 600.0, 4, 0.5) if d.caller < 3] == found  # callers do not mix
