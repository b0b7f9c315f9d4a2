"""Percentiles as numpy computes them."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.spread import GapPool, percentile, spread

VALUES = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=200)
PERCENT = st.floats(0.0, 100.0)


@given(VALUES, PERCENT)
def test_percentiles_are_numpys(values: list[float], percent: float) -> None:
    assert percentile(sorted(values), percent) == pytest.approx(float(np.percentile(values, percent)))


@given(VALUES, PERCENT)
def test_figures_are_numpys(values: list[float], percent: float) -> None:
    found = spread(list(values), (percent, 99.0))
    assert found.count == len(values)
    assert found.mean == pytest.approx(float(np.mean(values)))
    assert found.median == pytest.approx(float(np.median(values)))
    assert found.std == pytest.approx(float(np.std(values)), abs=1e-6)
    assert found.percentiles[percent] == pytest.approx(float(np.percentile(values, percent)))


def test_figures_of_nothing_are_zero() -> None:
    assert percentile([], 50.0) == 0.0
    for nothing in (spread([], (99.0,)), GapPool().spread((99.0,))):
        assert (nothing.count, nothing.mean, nothing.median, nothing.std) == (0, 0.0, 0.0, 0.0)
        assert nothing.percentiles == {99.0: 0.0}


STREAMS = st.lists(st.lists(st.integers(0, 2_000_000), max_size=30).map(lambda gaps: [*accumulate(gaps)]), max_size=8)


@given(STREAMS, PERCENT)
def test_gaps_of_streams_are_pooled_to_the_microsecond(streams: list[list[int]], percent: float) -> None:
    pool = GapPool()
    gaps = []
    for stamps in streams:
        pool.add(stamps)
        gaps += [(after - before) / 1e6 for before, after in pairwise(stamps)]
    found = pool.spread((percent,))
    assert found.count == len(gaps)
    if gaps:
        assert found.mean == pytest.approx(float(np.mean(gaps)))
        assert found.median == pytest.approx(float(np.median(gaps)))
        assert found.std == pytest.approx(float(np.std(gaps)), abs=1e-9)
        assert found.percentiles[percent] == pytest.approx(float(np.percentile(gaps, percent)))


def test_gaps_of_all_lengths_stay_within_bounds_and_half_a_percent() -> None:
    chance = np.random.default_rng(1)
    gaps = np.exp(chance.uniform(np.log(1e2), np.log(1e8), 300_000)).astype(int)
    pool = GapPool()
    for part in np.array_split(gaps, 60):
        pool.add([0, *accumulate(int(gap) for gap in part)])
        assert len(pool._times) <= 65_536 + 5_000
    found = pool.spread((1.0, 50.0, 90.0, 99.0))
    assert found.count == len(gaps)
    assert found.mean == pytest.approx(float(np.mean(gaps)) / 1e6, rel=1e-9)
    assert found.std == pytest.approx(float(np.std(gaps)) / 1e6, rel=0.001)
    for percent, value in found.percentiles.items():
        assert value == pytest.approx(float(np.percentile(gaps, percent)) / 1e6, rel=0.002)
