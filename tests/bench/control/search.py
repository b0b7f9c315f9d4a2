"""What an oracle would know: what the engine serves, and the best limit set by hand. Found by trying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import fmean

from gateway.admission.config import AdmissionConfig
from gateway.simulator.run import Result, direct, gateway
from gateway.simulator.setup import Setup
from tests.bench.control.rows import Row

STEP = 2.0**0.25  # between two limits tried
MOST = 1024
NO_LIMIT = 4096  # requests, where tokens are what is limited
LOAD_1X = 0.95  # of the best throughput: arrivals being random, a bounded queue refuses some of more


@dataclass(slots=True)
class Climb:
    """Climbs the hill of a figure over a geometric grid; with a ``reach`` of two steps it looks beyond a dip of one."""

    figure: Callable[[int], float]
    most: int = MOST
    reach: int = 2
    _seen: dict[int, float] = field(default_factory=dict)

    def best(self, start: int) -> int:
        """Where the figure is largest, as seen from ``start``."""
        centre = min(max(start, 1), self.most)
        while True:
            tried = {self._near(centre, step) for step in range(-self.reach, self.reach + 1)}
            best = max(sorted(tried), key=self._at)
            if self._at(best) <= self._at(centre):
                return centre
            centre = best

    def _near(self, centre: int, step: int) -> int:
        away = max(abs(step), round(abs(centre * STEP**step - centre)))
        return min(max(centre + (away if step > 0 else -away), 1), self.most)

    def _at(self, place: int) -> float:
        if place not in self._seen:
            self._seen[place] = self.figure(place)
        return self._seen[place]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a row's engine serves of its mix: cost units a second inside the objectives, at the best concurrency."""

    goodput_tokens: float
    concurrency: int
    rate: float  # requests a second: the load of 1x


def capacity(row: Row) -> Capacity:
    """Find it, straight at the engine with users who ask again at once."""
    seen: dict[int, float] = {}

    def figure(concurrency: int) -> float:
        seen[concurrency] = direct(row.saturated(concurrency, 0)).figures["goodput_tokens"]
        return seen[concurrency]

    tries = [round(4 * 2.0**step) for step in range(9)]
    start = max(tries, key=figure)
    best = Climb(figure).best(start)
    return Capacity(seen[best], best, LOAD_1X * seen[best] / row.mean_cost())


def with_limit(setup: Setup, limit: int, config: AdmissionConfig) -> Result:
    """The production queue in front of a limit in requests."""
    return gateway(setup, limit=limit, config=config)


def with_tokens(setup: Setup, tokens: int, config: AdmissionConfig) -> Result:
    """The production queue in front of a limit in predicted tokens."""
    limited = replace(config, limit=replace(config.limit, token_limit=tokens))
    return gateway(setup, limit=NO_LIMIT, config=limited)


def best_static(
    make: Callable[[int], Setup],
    run: Callable[[Setup, int, AdmissionConfig], Result],
    config: AdmissionConfig,
    start: int,
    seeds: tuple[int, ...],
    most: int = MOST,
    reach: int = 2,
) -> int:
    """The limit with the most goodput tokens in the mean of ``seeds``."""

    def figure(limit: int) -> float:
        return fmean(run(make(seed), limit, config).figures["goodput_tokens"] for seed in seeds)

    return Climb(figure, most, reach).best(start)
