"""The laws to compare with do what their sources say."""

from __future__ import annotations

import pytest

from gateway.admission.window import Window
from gateway.emulator.profiles import C550_ASR
from gateway.simulator.clients import Ending
from gateway.simulator.run import gateway
from gateway.simulator.setup import Load, Machine, Setup
from tests.sim.laws import LAWS, Aimd, Envoy, Gradient2, Law, Under, Vegas

OVERLOAD = Setup(
    horizon=40.0,
    measure_from=20.0,
    fleet=(Machine("a", C550_ASR),),
    load=(Load("asr", rates=((0.0, 60.0),)),),
)


def _feed(law: Law, rtts: list[float], inflight: int | None = None, spacing: float = 0.2) -> list[float]:
    seen = []
    for number, rtt in enumerate(rtts):
        law.sample(rtt, int(law.value) if inflight is None else inflight, 100.0 + number * spacing, dropped=False)
        seen.append(law.value)
    return seen


def test_aimd_adds_one_while_half_is_used_and_takes_a_tenth_for_what_is_late_or_dropped() -> None:
    assert _feed(Aimd(), [1.0, 1.0, 5.1, 1.0]) == [11.0, 12.0, 10.0, 11.0]
    assert _feed(Aimd(), [1.0], inflight=4) == [10.0]
    law = Aimd()
    law.sample(0.1, 10, 0.0, dropped=True)
    assert law.value == 9.0


def test_vegas_grows_without_a_queue_holds_inside_its_bounds_and_shrinks_beyond() -> None:
    assert _feed(Vegas(), [1.0, 1.0]) == [20.0, 26.0], "no queue: six at once"
    assert _feed(Vegas(), [1.0, 1.1]) == [20.0, 21.0], "two of twenty queue"
    assert _feed(Vegas(), [1.0, 1.3]) == [20.0, 20.0], "five do"
    assert _feed(Vegas(), [1.0, 2.0]) == [20.0, 19.0], "ten do"


def test_vegas_takes_any_latency_for_the_unloaded_one_now_and_then() -> None:
    law = Vegas()
    _feed(law, [1.0] + [2.0] * 600)
    assert law._noload == 2.0


def test_gradient2_adds_a_fifth_of_four_in_the_steady_state_and_shrinks_with_the_gradient() -> None:
    law = Gradient2()
    _feed(law, [1.0] * 10, spacing=0.11)  # the first sample closes a window too small to count
    steady = law.value
    _feed(law, [1.0] * 100, spacing=0.05)
    assert law.value > steady
    before = law.value
    law._judge(2.0, int(before))
    assert law.value == pytest.approx(before * 0.8 + 0.2 * (before * law._long / 2.0 + 4.0), rel=0.01)


def test_envoy_learns_its_minimum_at_three_and_then_moves_by_the_median() -> None:
    law, window = Envoy(), Window()
    for number in range(50):
        assert law.value == 3.0
        law.sample(1.0, 3, 2.0 + number, dropped=False)
    assert (law._noload, law._probing) == (1.0, False)
    law.sample(1.0, 3, 52.0, dropped=False)
    law.tick(window, None, 52.0)
    assert law.value == int(3.75 + 3.75**0.5), "a quarter more, and its root"
    law.sample(60.0, 3, 53.0, dropped=False)
    assert law._rtts == [], "it was sent before the minimum was measured"
    law.tick(window, None, 200.0)
    assert (law.value, law._probing) == (3.0, True)


@pytest.mark.parametrize("name", LAWS)
def test_each_law_rules_the_gateway_under_overload(name: str) -> None:
    result = gateway(OVERLOAD, make=Under(LAWS[name]))
    limits = {states[0].limit for _, states in result.trace}
    assert len(limits) > 3, "it moves"
    assert any(call.ending is Ending.ANSWERED for call in result.calls)
