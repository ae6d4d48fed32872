"""Around every scenario: calibration before and after, the environment, the cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rt_drama3_bench.calibration import calibrate, judge
from rt_drama3_bench.energy import Meter
from rt_drama3_bench.environment import environment
from rt_drama3_bench.result import Result


def run(name: str, arguments: dict[str, Any], scenario: Callable[..., None]) -> Result:
    """Runs a scenario, which adds its measurements to the result.

    Args:
        name: of the scenario.
        arguments: of the scenario, kept in the result.
        scenario: takes the result and the arguments.
    """
    before = calibrate()
    result = Result(name, arguments, environment())
    meter = Meter()
    scenario(result, **arguments)
    spent = meter.spent()
    result.before, result.after = before, calibrate()
    where = result.environment
    result.noise = judge(before, result.after, where["load"], where["cores"])
    result.facts["seconds"] = spent.seconds
    audio = result.facts.get("audio seconds")
    if isinstance(audio, float):
        for what, cost in spent.per(audio).items():
            unit = what.replace("_", " ").replace("cpu seconds", "processor seconds")
            result.facts[f"cost of a second of audio, {unit}"] = cost
    if spent.cpu_joules is None and spent.gpu_joules is None:
        result.notes.append("energy: this machine does not report it")
    return result
