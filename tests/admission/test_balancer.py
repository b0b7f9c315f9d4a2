from __future__ import annotations

from collections.abc import Sequence

from gateway.admission.balancer import Balancer
from gateway.admission.config import AdmissionConfig, LimitConfig
from gateway.admission.pool import Books, Pool
from gateway.admission.spot import Hold
from gateway.admission.window import Running, Streaming
from gateway.model import Backend, Ticket
from tests.admission.helpers import adaptive, config, fixed, ticket


class Choice:
    """A pool and its balancer. ``go`` picks and enters."""

    def __init__(self, *backends: Backend, settings: AdmissionConfig | None = None) -> None:
        self.config = settings or AdmissionConfig()
        self.pool = Pool(backends, self.config)
        self.balancer = Balancer(self.config.queue)
        self.numbers = 0

    def pick(self, request: Ticket | None = None, lane: int = 0, now: float = 0.0) -> Books | Hold:
        spot = self.balancer.pick(self.pool.books, request or ticket(), lane, now)
        return spot if isinstance(spot, Hold) else spot.books

    def go(self, request: Ticket | None = None, lane: int = 0, now: float = 0.0) -> str:
        request = request or ticket()
        books = self.pick(request, lane, now)
        assert isinstance(books, Books)
        self.numbers += 1
        running = (
            Streaming(self.numbers, request, books.window, now, None)
            if request.shape.stream
            else Running(self.numbers, request, books.window, now)
        )
        self.pool.enter(books, running, now)
        if lane == 0:
            books.window.others_at = now
        return books.name


def spread(names: Sequence[str]) -> dict[str, int]:
    return {name: names.count(name) for name in sorted(set(names))}


def test_the_least_full_for_its_limit_is_chosen() -> None:
    choice = Choice(fixed(2, "a"), fixed(6, "b"))
    assert spread([choice.go() for _ in range(8)]) == {"a": 2, "b": 6}
    assert choice.pick() is Hold.FULL


def test_weight_draws_requests() -> None:
    choice = Choice(fixed(90, "a", weight=2.0), fixed(90, "b"))
    assert spread([choice.go() for _ in range(30)]) == {"a": 20, "b": 10}


def test_idle_backends_take_turns() -> None:
    choice = Choice(fixed(9, "a"), fixed(9, "b"), fixed(9, "c"))
    order = []
    for _ in range(6):
        order.append(choice.go())
        choice.pool.by_name[order[-1]].window.leave(choice.numbers)
    assert order == ["a", "b", "c", "a", "b", "c"]


def test_it_says_whether_places_are_left() -> None:
    choice = Choice(fixed(1, "a"), fixed(2, "b"))
    left = []
    for _ in range(3):
        spot = choice.balancer.pick(choice.pool.books, ticket(), 0, 0.0)
        assert not isinstance(spot, Hold)
        left.append(spot.more)
        choice.go()
    assert left == [True, True, False]


def test_tokens_bound_as_well_but_never_the_only_request() -> None:
    settings = config(limit=LimitConfig(initial=10, token_limit=500))
    choice = Choice(adaptive("a"), settings=settings)
    assert choice.go(ticket(9_000, 100)) == "a"
    assert choice.pick(ticket(1, 1)) is Hold.TOKENS
    assert choice.pool.by_name["a"].window.held
    choice = Choice(adaptive("a"), settings=settings)
    choice.go(ticket(200, 200))
    assert choice.pick(ticket(100, 1)) is Hold.TOKENS
    assert choice.go(ticket(50, 50)) == "a"


def test_room_elsewhere_is_used_before_anything_is_held() -> None:
    choice = Choice(adaptive("a"), adaptive("b"), settings=config(limit=LimitConfig(initial=10, token_limit=500)))
    choice.go(ticket(200, 200))
    assert choice.go(ticket(200, 200)) == "b"


def test_of_those_that_have_room_for_its_tokens_the_emptiest_is_chosen() -> None:
    settings = config(limit=LimitConfig(initial=10, token_limit=500))
    choice = Choice(adaptive("a"), adaptive("b"), adaptive("c"), settings=settings)
    assert [choice.go(ticket(200, 200)), choice.go(ticket(50, 50)), choice.go(ticket(50, 50))] == ["a", "b", "c"]
    assert choice.go(ticket(50, 50)) == "a"
    for _ in range(2):
        choice.go(ticket(5, 5))
    assert choice.go(ticket(200, 100)) in {"b", "c"}


def test_a_share_kept_for_the_first_lane_holds_only_the_others() -> None:
    choice = Choice(adaptive("a"), settings=config(limit=LimitConfig(initial=4), reserve_short=0.5))
    choice.go(lane=1)
    choice.go(lane=1)
    assert choice.pick(lane=1) is Hold.LANE
    assert choice.go() == "a"


# ------------------------------------------------------------------------------------------------- long prompts


LONG = 9_000


def test_one_long_prompt_at_a_time_while_others_want_to_be_served() -> None:
    choice = Choice(fixed(9, "a"))
    choice.go()
    first = ticket(LONG)
    choice.go(first, 1)
    assert choice.pick(ticket(LONG), 1) is Hold.LANE
    assert choice.go(ticket(4_000), 1) == "a"  # long, but read at once
    assert choice.go() == "a"
    choice.pool.by_name["a"].window.running[2].output(1, 1.0)
    assert choice.go(ticket(LONG), 1, now=1.0) == "a"


def test_each_backend_reads_one() -> None:
    choice = Choice(fixed(9, "a"), fixed(9, "b"))
    for _ in range(2):
        choice.go()
    assert spread([choice.go(ticket(LONG), 1), choice.go(ticket(LONG), 1)]) == {"a": 1, "b": 1}
    assert choice.pick(ticket(LONG), 1) is Hold.LANE


def test_where_nobody_else_came_for_ten_seconds_long_prompts_go_together() -> None:
    choice = Choice(fixed(9, "a"))
    choice.go()
    choice.go(ticket(LONG), 1, now=5.0)
    assert choice.pick(ticket(LONG), 1, now=9.9) is Hold.LANE
    assert choice.go(ticket(LONG), 1, now=10.0) == "a"


def test_what_is_not_streamed_or_not_of_the_last_lane_is_not_held() -> None:
    choice = Choice(fixed(9, "a"))
    choice.go()
    choice.go(ticket(LONG), 1)
    assert choice.go(ticket(LONG, stream=False), 1) == "a"
    assert choice.go(ticket(LONG), 0) == "a"


def test_the_bound_is_a_setting() -> None:
    choice = Choice(fixed(9, "a"), settings=config(long_prefills=0))
    choice.go()
    choice.go(ticket(LONG), 1)
    assert choice.go(ticket(LONG), 1) == "a"
    choice = Choice(fixed(9, "a"), settings=config(long_prefills=2))
    choice.go()
    choice.go(ticket(LONG), 1)
    choice.go(ticket(LONG), 1)
    assert choice.pick(ticket(LONG), 1) is Hold.LANE


def test_tokens_hold_more_than_a_lane_does() -> None:
    choice = Choice(adaptive("a"), adaptive("b"), settings=config(limit=LimitConfig(initial=9, token_limit=20_000)))
    for _ in range(2):
        choice.go()
    choice.go(ticket(LONG), 1)
    choice.go(ticket(18_000, stream=False), 1)
    assert choice.pick(ticket(LONG), 1) is Hold.TOKENS
