"""Every scenario of the folder holds its bands, with the production admission in the middle."""

from __future__ import annotations

import pytest

from tests.sim import run
from tests.sim.bands import breaches, modes
from tests.sim.scenario import Scenario, everything


@pytest.mark.timeout(300)  # seconds of computing, on a machine that may be busy with more
@pytest.mark.parametrize("scenario", everything(), ids=lambda scenario: "-".join((*scenario.cases, scenario.name)))
def test_scenario(scenario: Scenario) -> None:
    results = {mode: run.MODES[mode](scenario).figures for mode in modes(scenario)}
    assert list(breaches(scenario, results)) == []
