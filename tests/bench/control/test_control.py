"""The sweep's own parts: the search for the oracle, when a limit is settled, and the last line."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gateway.admission.config import AdmissionConfig
from gateway.simulator.figures import Trace
from gateway.simulator.setup import Objectives
from tests.bench.control.compare import Cell, Effort, Side, _Sides, compare, settled
from tests.bench.control.events import NAMES, instants, seeded
from tests.bench.control.rows import ROWS
from tests.bench.control.search import Capacity, Climb
from tests.bench.control.tables import everything, verdict
from tests.bench.control.targets import table


@pytest.mark.parametrize("start", [1, 40, 100, 1000])
def test_the_climb_finds_the_top_over_a_dip(start: int) -> None:
    def hill(limit: int) -> float:
        return -abs(limit - 128) - (20.0 if 85 < limit < 100 else 0.0)

    assert abs(Climb(hill).best(start) - 128) <= 0.1 * 128


def test_the_climb_stays_inside_its_bounds() -> None:
    assert Climb(float, most=50).best(45) == 50
    assert Climb(lambda limit: -float(limit)).best(3) == 1


def test_a_limit_is_settled_when_it_stays_near_where_it_ends() -> None:
    trace: Trace = [(at / 2, (SimpleNamespace(limit=10.0 if at < 20 else 100.0),)) for at in range(200)]  # type: ignore[misc]
    assert 9.5 <= settled(trace, 0.0, 100.0) <= 12.0
    assert settled(trace, 20.0, 100.0) == 0.0


def _cell(name: str, load: float, told: float, untold: float) -> Cell:
    return Cell(name, load, Side(8, told), Side(8, untold))


def test_the_last_line_names_the_worst_of_each_kind() -> None:
    cells = [
        _cell("a/b", 1.0, 0.98, 1.01),
        _cell("a/b", 2.0, 1.01, 0.97),
        _cell("a/c", 5.0, 1.04, 0.96),
        _cell("a/c", 0.5, 0.1, 0.1),
    ]
    assert verdict(cells) == "control: with objectives 1x 0.98 2x+ 1.01; without 1x 1.01 2x+ 0.96; worst a/c/5x"


def test_a_cell_runs_through_to_the_tables() -> None:
    row = replace(next(row for row in ROWS if row.name == "c550/asr"), horizon=30.0, measure_from=10.0)
    few = Effort(
        seeds=(30,),
        sought=(20,),
        thorough=(),
        rival_loads=(),
        token_loads=(),
        queue_loads=(2.0,),
        tolerance_loads=(2.0,),
    )
    cell = compare(row, 2.0, Capacity(1090.0, 64, 27.0), few)
    assert 0.5 < cell.told.share < 1.5
    assert 0.2 < cell.told.figures["shed_by_hand"] < 0.8
    assert cell.queues["no gateway"] < 0.5
    assert cell.tolerances[4.0] < cell.tolerances[8.0], "its objective allows nine times"
    assert cell.bound is not None
    assert cell.bound >= max(1.0, cell.told.share)
    scenario = Cell("hog", 0.0, Side(8, 1.0, figures={"others.in_objective": 0.8}), Side(8, 1.0))
    lines = list(everything([cell], [scenario]))
    pattern = r"control: with objectives 1x nan 2x\+ \d\.\d\d; without 1x nan 2x\+ \d\.\d\d; worst c550/asr/2x"
    assert re.fullmatch(pattern, lines[-1])
    assert any(line.startswith("| the worst ") for line in lines)
    assert "\nhog: others in objective 0.80 told, - untold" in lines


def test_what_is_asked_is_held_against_the_worst_of_each_kind() -> None:
    cells = [
        _cell("kv8b/history", 2.0, 1.2, 0.97),
        _cell("910b/azure-code", 2.0, 0.96, 0.99),
        _cell("910b/sharegpt", 2.0, 0.996, 1.2),
        _cell("910b/sharegpt", 5.0, 1.1, 0.95),
    ]
    steps = {f"settled_{at}": seconds for at, seconds in ((60, 8.0), (120, 4.0), (150, 11.0))}
    both = Side(8, 1.0, figures=steps), Side(8, 1.0, figures=steps | {"settled_150": 3.0})
    blind = Side(8, 0.9, figures={"of_blind": 0.97}), Side(8, 0.91, figures={"of_blind": 0.94})
    events = [Cell("load_steps", 0.0, *both), Cell("stale_hints", 0.0, *blind)]
    rows = {what: row for what, *row in table(cells, events)}
    assert rows == {
        "share, told, 2x+": [">= 1.00", "1.00", "910b/sharegpt/2x", "yes"],
        "share, told, 2x+, KV-bound": [">= 1.15", "1.20", "kv8b/history/2x", "yes"],
        "share, told, 2x+, long prompts": [">= 0.97", "0.96", "910b/azure-code/2x", "no"],
        "share, untold, 2x+": [">= 0.96", "0.95", "910b/sharegpt/5x", "no"],
        "goodput tokens, gauges wrong and then stale, of those without any": [
            ">= 0.95",
            "0.94",
            "stale_hints, untold",
            "no",
        ],
        "settled after a load step, s": ["<= 10.00", "11.00", "load_steps, told, 150 s", "no"],
    }


def test_what_an_engine_tells_of_itself_is_held_against_a_run_without() -> None:
    make, limit = seeded("stale_hints")
    side = _Sides(
        lambda seed: replace(make(seed), horizon=10.0, measure_from=2.0),
        Objectives(),
        Effort(seeds=(30,), sought=(20,)),
        thorough=False,
        blind=True,
    )
    assert side.compare(AdmissionConfig(), limit, None, near=True).figures["of_blind"] >= 0.95


@pytest.mark.parametrize("name", NAMES)
def test_every_scenario_of_the_sweep_is_there_at_any_seed(name: str) -> None:
    make, start = seeded(name)
    assert (make(3).seed, make(4).seed) == (3, 4)
    assert start > 0
    assert instants(make(3))[-1] == make(3).horizon
