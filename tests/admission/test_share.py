"""Several gateways on one store, at stated instants: the sum is one gateway's; without the store each has a part."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission.quota import KeyTerms, Shortage
from gateway.admission.share import Pending, Shared
from gateway.model import Reason
from tests.admission.ledger import Ledger

BLOCK = 0.05


class Gateways:
    """So many gateways, one holder of keys, one store whose answers take no time."""

    def __init__(self, count: int, terms: KeyTerms, block: float = BLOCK) -> None:
        self.ledger = Ledger()
        self.now = 0.0
        self.block = block
        self.all = [Shared(terms, None, self.now) for _ in range(count)]
        self.asked = 0

    def tell(self, number: int, waiting: Sequence[int] = ()) -> bool:
        """One turn with the store, if there is anything to say."""
        shared = self.all[number]
        claim = shared.claim(waiting, self.block, self.now)
        if claim is None:
            return False
        shared.hear(claim, self.ledger.claim(str(number), claim, self.now), self.now)
        return True

    def enter(self, number: int, tokens: int = 1) -> Shortage | None:
        for turn in range(3):
            found = self.all[number].enter(tokens, self.now)
            if found is not Pending.ASK:
                return found
            self.asked += not turn
            assert self.tell(number, [tokens])
        raise AssertionError("the store does not help")

    def settle(self) -> None:
        for number in range(len(self.all)):
            self.tell(number)


def terms(**bounds: int) -> KeyTerms:
    return KeyTerms("a", **bounds)  # type: ignore[arg-type]


def test_a_minutes_worth_is_let_in_by_all_together_and_the_wait_is_exact() -> None:
    gateways = Gateways(3, terms(requests_per_minute=60))
    found = [gateways.enter(number % 3) for number in range(90)]
    assert found.count(None) == 60
    shortage = found[-1]
    assert shortage is not None
    assert shortage.reason is Reason.KEY_REQUESTS
    assert shortage.wait == pytest.approx(1.0, abs=1e-5)
    gateways.now += 0.9
    shortage = gateways.enter(1)
    assert shortage is not None
    assert shortage.wait == pytest.approx(0.1, abs=1e-5)
    gateways.now += 0.11
    assert gateways.enter(1) is None
    assert gateways.enter(2) is not None


def test_a_busy_key_far_from_its_bounds_waits_for_the_store_once() -> None:
    gateways = Gateways(2, terms(requests_per_minute=6000, tokens_per_minute=600_000, max_in_flight=1000))
    for _ in range(200):
        for number in (0, 1):
            assert gateways.enter(number, 100) is None
            gateways.all[number].leave(100, 90, gateways.now)
            gateways.tell(number)  # in the background
        gateways.now += 0.05
    assert gateways.asked == 2


def test_what_nobody_takes_is_given_back() -> None:
    gateways = Gateways(2, terms(requests_per_minute=600, max_in_flight=100))
    assert gateways.enter(0) is None
    gateways.tell(0)
    gateways.all[0].leave(1, 1, gateways.now)
    held = gateways.ledger.places["0"]
    assert held > 1
    gateways.now += 1.5
    gateways.settle()
    assert gateways.ledger.places["0"] == 0
    assert gateways.all[0].idle
    gateways.enter(1)
    assert next(iter(gateways.all[1].standings(gateways.now))).remaining == 599


def test_near_the_bound_nothing_is_kept() -> None:
    gateways = Gateways(2, terms(max_in_flight=4))
    assert [gateways.enter(number) for number in (0, 0, 1, 1)] == [None] * 4
    assert gateways.enter(0) == Shortage(Reason.KEY_IN_FLIGHT, 1.0)
    gateways.all[1].leave(1, 1, gateways.now)
    gateways.now += 0.03
    assert gateways.enter(0) == Shortage(Reason.KEY_IN_FLIGHT, 1.0), "it is not known yet"
    gateways.tell(1)
    gateways.now += 0.03
    assert gateways.enter(0) is None


def test_a_refusal_takes_nothing_of_any_bound() -> None:
    gateways = Gateways(2, terms(requests_per_minute=60, tokens_per_minute=100))
    assert gateways.enter(0, 100) is None
    shortage = gateways.enter(1, 10)
    assert shortage is not None
    assert shortage.reason is Reason.KEY_TOKENS
    gateways.now += 2
    gateways.settle()
    assert gateways.ledger.full["requests", 60] <= gateways.now


def test_tokens_are_put_right_at_the_end() -> None:
    gateways = Gateways(2, terms(tokens_per_minute=1000), block=0.0)
    assert gateways.enter(0, 900) is None
    gateways.all[0].leave(900, 100, gateways.now)
    gateways.tell(0)
    assert gateways.enter(1, 800) is None
    gateways.all[1].leave(800, 1700, gateways.now)
    gateways.tell(1)
    shortage = gateways.enter(0, 1)
    assert shortage is not None
    assert shortage.wait == pytest.approx(48.06, abs=1e-3)


def test_more_than_a_minutes_worth_waits_for_a_full_bucket_and_leaves_a_debt() -> None:
    gateways = Gateways(2, terms(tokens_per_minute=100))
    assert gateways.enter(0, 250) is None
    shortage = gateways.enter(1, 1)
    assert shortage is not None
    assert shortage.wait == pytest.approx(90.6, abs=1e-3)


def test_many_who_wait_are_served_in_one_turn() -> None:
    gateways = Gateways(1, terms(requests_per_minute=600, tokens_per_minute=6000))
    assert gateways.all[0].enter(10, 0.0) is Pending.ASK
    gateways.tell(0, [10] * 40)
    assert [gateways.all[0].enter(10, 0.0) for _ in range(40)] == [None] * 40


def test_without_the_store_each_has_its_part_of_what_was_left() -> None:
    gateways = Gateways(3, terms(requests_per_minute=60, max_in_flight=100), block=0.0)
    for number in range(30):
        assert gateways.enter(number % 3) is None
        gateways.all[number % 3].leave(1, 1, 0.0)
    for number in range(3):
        assert gateways.tell(number, [0]), "each has heard how it stands"
        gateways.all[number].part(3, 0.0)
    alone = [[shared.enter(1, 0.0) for _ in range(20)] for shared in gateways.all]
    assert [found.count(None) for found in alone] == [10, 10, 10]
    shortage = alone[0][-1]
    assert isinstance(shortage, Shortage)
    assert alone[0][10:] == [shortage] * 10
    assert gateways.all[0].enter(1, shortage.wait) is None
    shortage = gateways.all[0].enter(1, shortage.wait)
    assert isinstance(shortage, Shortage)
    assert shortage.wait == pytest.approx(3.0, abs=1e-3), "one in three seconds is its part of one a second"


def test_a_part_of_places_is_one_at_least() -> None:
    gateways = Gateways(3, terms(max_in_flight=2))
    for shared in gateways.all:
        shared.part(3, 0.0)
        assert shared.enter(1, 0.0) is None
        assert shared.enter(1, 0.0) == Shortage(Reason.KEY_IN_FLIGHT, 1.0)


def test_the_store_is_told_what_it_did_not_see() -> None:
    gateways = Gateways(2, terms(requests_per_minute=60, max_in_flight=10))
    for number in (0, 1):
        assert gateways.enter(number) is None
        gateways.all[number].part(2, 0.0)
        for _ in range(3):
            assert gateways.all[number].enter(1, 0.0) is None
    for shared in gateways.all:
        shared.rejoin(0.0)
    gateways.settle()
    assert gateways.ledger.places == {"0": 4, "1": 4}
    assert gateways.enter(0) is None
    gateways.tell(1)
    remaining = [next(iter(shared.standings(0.0))).remaining for shared in gateways.all]
    assert max(remaining) <= 51
    assert sum(gateways.enter(number % 2) is None for number in range(60)) == 1, "two places were left, one is taken"


def test_a_store_that_lost_everything_is_told_how_it_stood() -> None:
    gateways = Gateways(2, terms(requests_per_minute=60))
    assert [gateways.enter(number % 2) for number in range(60)] == [None] * 60
    gateways.ledger = Ledger()
    for shared in gateways.all:
        shared.doubt()
    gateways.now = 1.5
    gateways.settle()
    assert gateways.enter(0) is None
    assert gateways.enter(1) is not None, "one of the minute's worth came back since, and no more"


def test_a_long_time_without_the_store_is_made_good_by_itself() -> None:
    gateways = Gateways(1, terms(requests_per_minute=60))
    (shared,) = gateways.all
    shared.part(1, 0.0)
    for second in range(600):
        assert shared.enter(1, float(second)) is None
        shared.leave(1, 1, float(second))
    gateways.now = 600.0
    shared.rejoin(gateways.now)
    gateways.settle()
    assert next(iter(shared.standings(gateways.now))).remaining == 60


def test_other_terms_keep_what_was_counted_under_the_same_bound() -> None:
    gateways = Gateways(1, terms(requests_per_minute=60, tokens_per_minute=100))
    assert gateways.enter(0, 100) is None
    (shared,) = gateways.all
    shared.retune(terms(requests_per_minute=60, tokens_per_minute=200, max_in_flight=1), 0.0)
    gateways.settle()
    assert gateways.enter(0) == Shortage(Reason.KEY_IN_FLIGHT, 1.0)
    shared.retune(terms(requests_per_minute=60), 0.0)
    gateways.settle()
    (requests,) = shared.standings(0.0)
    assert requests.remaining == 59
    shared.retune(terms(), 0.0)
    assert shared.enter(1, 0.0) is None
    assert shared.claim((), BLOCK, 9.0) is None


def test_an_answer_to_what_was_asked_under_other_terms_is_not_taken() -> None:
    gateways = Gateways(1, terms(requests_per_minute=60))
    (shared,) = gateways.all
    claim = shared.claim([1], BLOCK, 0.0)
    assert claim is not None
    shared.retune(terms(requests_per_minute=6), 0.0)
    shared.hear(claim, gateways.ledger.claim("0", claim, 0.0), 0.0)
    assert shared.enter(1, 0.0) is Pending.ASK


@settings(max_examples=300)
@given(
    count=st.integers(1, 4),
    limit=st.integers(1, 2000),
    places=st.integers(1, 40),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["enter"] * 6 + ["leave"] * 5 + ["tell"] * 3 + ["look"]),
            st.integers(0, 3),
            st.integers(1, 300),
            st.sampled_from([0.0, 0.0, 0.001, 0.03, 0.4, 2.0]),
        ),
        max_size=200,
    ),
)
def test_the_sum_is_what_one_gateway_would_let_in(
    count: int, limit: int, places: int, steps: list[tuple[str, int, int, float]]
) -> None:
    gateways = Gateways(count, terms(requests_per_minute=limit, tokens_per_minute=50 * limit, max_in_flight=places))
    running: list[list[int]] = [[] for _ in range(count)]
    requests = 0
    for what, which, tokens, pause in steps:
        gateways.now += pause
        number = which % count
        if what == "enter":
            if gateways.enter(number, tokens) is None:
                running[number].append(tokens)
                requests += 1
        elif what == "leave" and running[number]:
            gateways.all[number].leave(running[number].pop(), tokens, gateways.now)
        elif what == "tell":
            gateways.tell(number)
        elif what == "look":
            gateways.settle()
        assert requests <= limit * (1 + gateways.now / 60.0) + 1e-3
        assert sum(map(len, running)) <= places
        assert [shared.in_flight for shared in gateways.all] == [len(each) for each in running]
    # What no gateway has in use comes back to all of them.
    gateways.now += 5.0
    for number, each in enumerate(running):
        while each:
            gateways.all[number].leave(each.pop(), 1, gateways.now)
    gateways.settle()
    assert all(shared.idle for shared in gateways.all)
    assert set(gateways.ledger.places.values()) <= {0}


class Fates(Gateways):
    """What befalls gateways and their store, by name."""

    def __init__(self, count: int, limit: int) -> None:
        self.bounds = {"requests_per_minute": limit, "tokens_per_minute": 20 * limit, "max_in_flight": limit}
        super().__init__(count, terms(**self.bounds))
        self.running: list[list[int]] = [[] for _ in range(count)]
        self.alone = [False] * count

    def begins(self, number: int, tokens: int) -> None:
        if self.enter(number, tokens) is None:
            self.running[number].append(tokens)

    def ends(self, number: int, tokens: int) -> None:
        if self.running[number]:
            self.all[number].leave(self.running[number].pop(), tokens, self.now, refused=tokens % 5 == 0)

    def looks(self, number: int, _tokens: int) -> None:
        if not self.alone[number]:
            self.tell(number)

    def parts(self, number: int, _tokens: int) -> None:
        self.all[number].part(len(self.all), self.now)
        self.alone[number] = True

    def rejoins(self, number: int, _tokens: int) -> None:
        if self.alone[number]:
            self.all[number].rejoin(self.now)
            self.alone[number] = False

    def doubts(self, number: int, _tokens: int) -> None:
        if not self.alone[number]:
            self.all[number].doubt()

    def forgets(self, _number: int, _tokens: int) -> None:
        self.ledger = Ledger()

    def retunes(self, number: int, tokens: int) -> None:
        more = {**self.bounds, "max_in_flight": self.bounds["max_in_flight"] + tokens % 3}
        self.all[number].retune(terms(**more) if tokens % 7 else terms(requests_per_minute=60), self.now)


@settings(max_examples=200)
@given(
    fates=st.builds(Fates, st.integers(1, 3), st.integers(1, 500)),
    steps=st.lists(
        st.tuples(
            st.sampled_from(
                ["begins"] * 5 + ["ends"] * 4 + ["looks", "looks", "parts", "rejoins", "doubts", "forgets", "retunes"]
            ),
            st.integers(0, 2),
            st.integers(0, 300),
            st.sampled_from([0.0, 0.01, 0.5, 3.0]),
        ),
        max_size=150,
    ),
)
def test_whatever_befalls_the_store_nothing_is_counted_twice_or_for_ever(
    fates: Fates, steps: list[tuple[str, int, int, float]]
) -> None:
    for what, which, tokens, pause in steps:
        fates.now += pause
        getattr(fates, what)(which % len(fates.all), tokens)
        assert [shared.in_flight for shared in fates.all] == [len(each) for each in fates.running]
    for number, each in enumerate(fates.running):
        fates.rejoins(number, 0)
        while each:
            fates.ends(number, 1)
        fates.doubts(number, 0)
    fates.now += 5.0
    fates.settle()
    fates.settle()
    assert all(shared.idle for shared in fates.all)
    bounded = [str(number) for number, shared in enumerate(fates.all) if shared.terms.max_in_flight is not None]
    assert not any(fates.ledger.places.get(number) for number in bounded)


@given(limit=st.integers(1, 3000), takers=st.integers(1, 300))
def test_what_is_stranded_elsewhere_is_a_block_at_most(limit: int, takers: int) -> None:
    gateways = Gateways(2, terms(requests_per_minute=limit))
    taken = 0
    for _ in range(takers):
        taken += gateways.enter(0) is None
        gateways.tell(0)
    while gateways.enter(1) is None:
        taken += 1
    assert limit - taken <= max(1, 2 * BLOCK * limit)
