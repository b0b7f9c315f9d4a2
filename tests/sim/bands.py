"""Which figures of a scenario lie outside their bands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.sim.scenario import Scenario

Results = Mapping[str, Mapping[str, float]]  # mode -> figure -> value


def modes(scenario: Scenario) -> list[str]:
    """What must run for the bands to be judged: ``a/b`` asks for the ratio of two runs' figures."""
    return sorted({mode for key in scenario.bands for mode in key.split("/")})


def breaches(scenario: Scenario, results: Results) -> Iterator[str]:
    """One line for each figure outside its band; a figure that is missing is outside."""
    for key, bands in scenario.bands.items():
        for name, (low, high) in bands.items():
            values = [results.get(mode, {}).get(name) for mode in key.split("/")]
            value = _ratio(values)
            if value is None or not low <= value <= high:
                yield f"{key} {name}: {value} measured, {low} to {high} expected (of {values})"


def _ratio(values: list[float | None]) -> float | None:
    first, *rest = values
    for divisor in rest:
        if first is None or not divisor:
            return None
        first /= divisor
    return first
