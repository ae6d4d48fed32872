"""Energy counters from made-up files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rt_drama3_bench.energy import Meter, WorkCost


def zone(folder: Path, name: str, microjoules: int) -> Path:
    made = folder / name
    made.mkdir(exist_ok=True)
    (made / "energy_uj").write_text(str(microjoules))
    (made / "max_energy_range_uj").write_text("100000000")
    return made


def test_packages_count_and_their_parts_do_not(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", 1_000_000)
    zone(tmp_path, "intel-rapl:1", 99_000_000)
    zone(tmp_path, "intel-rapl:0:0", 5)
    joules = iter([10.0, 12.5])
    meter = Meter(tmp_path, lambda: next(joules))
    zone(tmp_path, "intel-rapl:0", 4_000_000)
    zone(tmp_path, "intel-rapl:1", 1_000_000)  # it wrapped around
    zone(tmp_path, "intel-rapl:0:0", 77_000_000)
    spent = meter.spent()
    assert spent.cpu_joules == pytest.approx(3 + 2)
    assert spent.gpu_joules == pytest.approx(2.5)


def test_a_machine_without_counters(tmp_path: Path) -> None:
    assert Meter(tmp_path / "none").spent().cpu_joules is None


def test_cost_of_a_second_of_audio() -> None:
    assert WorkCost(9, 3, 6, None).per(1.5) == {"cpu_seconds": 2, "cpu_joules": 4}
    assert WorkCost(9, 3, 6, None).per(0) == {}
