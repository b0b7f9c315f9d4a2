from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gateway.admission.config import AdmissionConfig, BreakerConfig, LimitConfig
from gateway.admission.lag import Lag
from gateway.admission.pool import Books, Pool
from gateway.admission.session import Session
from gateway.admission.window import Running, Streaming
from gateway.model import Backend, Health, Hints, Outcome
from tests.admission.helpers import adaptive, config, fixed, ticket

BREAKER = BreakerConfig(failures=2, cooldown=5.0, silence=30.0)


def pool(*backends: Backend) -> Pool:
    return Pool(backends, config(breaker=BREAKER))


def names(books: object) -> list[str]:
    return [entry.name for entry in books]  # type: ignore[attr-defined]


def run(own: Pool, books: Books, number: int, now: float = 0.0, *, stream: bool = True) -> Running:
    request = ticket(stream=stream)
    running = (
        Streaming(number, request, books.window, now, None) if stream else Running(number, request, books.window, now)
    )
    own.enter(books, running, now)
    return running


def fail(own: Pool, name: str, now: float = 0.0, outcome: Outcome = Outcome.CONNECT_FAILED) -> None:
    """Two failures in a row."""
    for number in (901, 902):
        run(own, own.by_name[name], number, now)
        own.leave(name, number, outcome, None, now)


# ---------------------------------------------------------------------------------------------------- who serves


def test_a_model_goes_where_it_is_listed_and_where_anything_is_served() -> None:
    own = pool(adaptive("a", models=("m", "n")), adaptive("b", models=("n",)), adaptive("c"))
    assert names(own.serving("m", frozenset())) == ["a", "c"]
    assert names(own.serving("n", frozenset())) == ["a", "b", "c"]
    assert names(own.serving("unknown", frozenset())) == ["c"]
    assert names(own.serving(None, frozenset())) == ["c"]
    assert names(own.serving("n", frozenset("ac"))) == ["b"]
    assert names(own.serving("m", frozenset("ac"))) == []


def test_where_every_backend_lists_models_an_unknown_one_goes_to_any() -> None:
    own = pool(adaptive("a", models=("m",)), adaptive("b", models=("n",)))
    assert names(own.serving("unknown", frozenset())) == ["a", "b"]
    assert names(own.serving(None, frozenset())) == ["a", "b"]


def test_models_that_backends_name_themselves_choose_among_them_and_refuse_nothing() -> None:
    own = pool(adaptive("a"), adaptive("b"), adaptive("c"))
    assert names(own.serving("m", frozenset())) == ["a", "b", "c"]
    assert own.note_models("a", ["m", "lora"])
    assert own.note_models("b", ["n"])
    assert names(own.serving("m", frozenset())) == ["a", "c"], "c has not said what it serves"
    assert names(own.serving("n", frozenset())) == ["b", "c"]
    assert own.note_models("c", ["m"])
    assert names(own.serving("m", frozenset())) == ["a", "c"]
    assert names(own.serving("lora", frozenset())) == ["a"]
    assert names(own.serving("unknown", frozenset())) == ["a", "b", "c"]
    assert names(own.serving(None, frozenset())) == ["a", "b", "c"]
    assert not own.note_models("a", ["lora", "m"]), "nothing new"
    assert own.note_models("a", ["m"])
    assert names(own.serving("lora", frozenset())) == ["a", "b", "c"]


def test_what_the_configuration_lists_comes_before_what_a_backend_names() -> None:
    own = pool(adaptive("a", models=("m",)), adaptive("b"))
    assert not own.note_models("a", ["n"])
    assert names(own.serving("m", frozenset())) == ["a", "b"]
    assert names(own.serving("n", frozenset())) == ["b"]
    assert own.note_models("b", ["n"])
    assert names(own.serving("m", frozenset())) == ["a"]


# ---------------------------------------------------------------------------------------------- who is sound


def test_a_backend_whose_probe_fails_gets_nothing_while_another_is_up() -> None:
    own = pool(adaptive("a"), adaptive("b"))
    own.note_health("a", Health.DOWN)
    assert names(own.sound(own.books, 0.0)) == ["b"]
    own.note_health("a", Health.UP)
    assert names(own.sound(own.books, 0.0)) == ["a", "b"]


def test_C08_a_backend_that_produces_output_is_alive_whatever_its_probe_says() -> None:
    own = pool(adaptive("a"), adaptive("b"))
    busy = run(own, own.by_name["a"], 1)
    busy.output(1, 10.0)
    own.note_health("a", Health.DOWN)
    assert names(own.sound(own.books, 14.0)) == ["a", "b"]
    assert names(own.sound(own.books, 15.0)) == ["b"]
    assert own.by_name["a"].window.inflight == 1


def test_C09_when_every_probe_fails_all_go_on() -> None:
    own = pool(adaptive("a"), adaptive("b"))
    own.note_health("a", Health.DOWN)
    own.note_health("b", Health.DOWN)
    assert names(own.sound(own.books, 0.0)) == ["a", "b"]


def test_a_failing_probe_is_less_bad_than_an_open_breaker() -> None:
    own = pool(adaptive("a"), adaptive("b"))
    own.note_health("a", Health.DOWN)
    fail(own, "b")
    assert names(own.sound(own.books, 1.0)) == ["a"]


@pytest.mark.parametrize(
    ("behind", "slow"), [("", ""), ("b", "b"), ("bc", "bc"), ("abc", ""), ("abcd", "")], ids=lambda text: text or "none"
)
def test_who_is_far_slower_than_before_is_slow_unless_most_are(
    behind: str, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = pool(*(adaptive(name) for name in "abcd"))
    monkeypatch.setattr(Lag, "tick", lambda *_: None)
    for name in behind:
        own.by_name[name].lag.behind = True
    own.tick(0.1)
    assert "".join(books.name for books in own.books if books.rank(0.1) == 1) == slow
    for books in own.books:
        books.lag.behind = False
    own.tick(0.2)
    assert not any(books.slow for books in own.books)


@pytest.mark.parametrize("down", [False, True])
def test_the_last_backend_is_never_taken_out(down: bool) -> None:
    own = pool(adaptive("a"))
    fail(own, "a")
    if down:
        own.note_health("a", Health.DOWN)
    assert own.by_name["a"].state(1.0).health == "open"
    assert names(own.sound(own.books, 1.0)) == ["a"]


def test_after_the_cooldown_one_request_tries() -> None:
    own = pool(adaptive("a"), adaptive("b"))
    fail(own, "a")
    assert names(own.sound(own.books, 4.9)) == ["b"]
    assert names(own.sound(own.books, 5.0)) == ["a", "b"]
    run(own, own.by_name["a"], 1, 5.0)
    assert names(own.sound(own.books, 5.0)) == ["b"]
    assert own.by_name["a"].state(5.0).health == "half_open"
    own.leave("a", 1, Outcome.COMPLETED, None, 6.0)
    assert not own.troubled
    assert names(own.sound(own.books, 6.0)) == ["a", "b"]


def test_requests_that_were_under_way_do_not_count_as_the_trial() -> None:
    own = pool(adaptive("a"))
    run(own, own.by_name["a"], 1)
    fail(own, "a")
    run(own, own.by_name["a"], 2, 1.0)
    assert own.by_name["a"].breaker.trial is None


@pytest.mark.parametrize("outcome", [Outcome.BACKEND_BUSY, Outcome.CLIENT_ERROR, Outcome.CLIENT_GONE])
def test_what_is_no_failure_never_opens_the_breaker(outcome: Outcome) -> None:
    own = pool(adaptive("a"))
    for number in range(50):
        run(own, own.by_name["a"], number)
        own.leave("a", number, outcome, None, 0.0)
    assert own.by_name["a"].state(0.0).health == "unknown"


def test_a_backend_that_is_silent_with_requests_in_flight_hangs() -> None:
    own = pool(adaptive("a"))
    books = own.by_name["a"]
    run(own, books, 1)
    own.tick(31.0)  # its 100 prompt tokens take a second where an engine is slow
    assert books.state(31.0).health == "unknown"
    own.tick(31.1)
    assert books.state(31.1).health == "open"
    assert own.troubled
    own.tick(31.2)  # once
    assert books.breaker.until == pytest.approx(36.1)


def test_any_byte_of_any_request_says_that_it_does_not_hang() -> None:
    own = pool(adaptive("a"))
    books = own.by_name["a"]
    run(own, books, 1)
    run(own, books, 2, stream=False).output(1, 20.0)
    own.tick(45.0)
    run(own, books, 3)
    own.leave("a", 3, Outcome.CLIENT_ERROR, None, 45.0)
    own.tick(70.0)
    assert books.state(70.0).health == "unknown"
    own.leave("a", 1, Outcome.CLIENT_GONE, None, 75.0)  # a client that gives up is no byte
    own.tick(175.0)  # what is left comes in one piece: 100 tokens in as many seconds
    assert books.state(175.0).health == "unknown"
    own.tick(176.1)
    assert books.state(176.1).health == "open"


def test_P44_long_prompts_on_a_slow_engine_are_no_hang() -> None:
    own = pool(adaptive("a"))
    books = own.by_name["a"]
    for number in (1, 2):
        own.enter(books, Streaming(number, ticket(8_000), books.window, 0.0, None), 0.0)
    own.tick(30.0 + 160.0)
    assert books.state(190.0).health == "unknown"
    books.window.running[1].output(1, 190.0)
    own.tick(190.0 + 30.0 + 80.0)
    assert books.state(300.0).health == "unknown"
    own.tick(300.1)
    assert books.state(300.1).health == "open"


def test_an_open_session_may_be_silent_for_ever() -> None:
    own = pool(adaptive("a"))
    books = own.by_name["a"]
    own.enter(books, Session(1, ticket(stream=False), books.window, 0.0), 0.0)
    own.tick(1000.0)
    assert (books.state(1000.0).health, books.state(1000.0).silence) == ("unknown", 0.0)
    assert books.state(1000.0).running == 1
    run(own, books, 2, 1000.0)
    own.tick(1020.0)
    assert books.state(1020.0).silence == pytest.approx(20.0), "counted from what is owed"
    own.tick(1031.1)
    assert books.state(1031.1).health == "open", "beside one, a hang is still found"


@pytest.mark.parametrize("together", [1, 3])
def test_clients_that_give_up_one_after_another_do_not_hide_a_hang(together: int) -> None:
    own = pool(adaptive("a"))
    books = own.by_name["a"]
    now = 0.0
    for turn in range(9):  # each waits for five seconds; one of them is what the slowest engine takes to read
        for number in range(together):
            run(own, books, 10 * turn + number, now)
        own.tick(now + 5.0)
        if books.breaker.open:
            break
        for number in range(together):
            own.leave("a", 10 * turn + number, Outcome.CLIENT_GONE, None, now + 5.0)
        now += 6.0
    assert books.state(now + 5.0).health == "open"
    assert 25.0 < books.state(now + 5.0).silence < 40.0, "what nobody waited for is not counted"


def test_any_byte_ends_what_was_silence_before() -> None:
    own = pool(adaptive("a"))
    books = own.by_name["a"]
    run(own, books, 1)
    own.leave("a", 1, Outcome.CLIENT_GONE, None, 29.0)
    run(own, books, 2, 50.0)
    assert books.state(50.0).silence == pytest.approx(28.0)
    books.window.running[2].output(1, 51.0)
    own.leave("a", 2, Outcome.CLIENT_GONE, None, 52.0)
    run(own, books, 3, 60.0)
    assert books.state(60.0).silence == pytest.approx(1.0)
    own.leave("a", 3, Outcome.COMPLETED, None, 61.0)
    run(own, books, 4, 70.0)
    assert books.state(70.0).silence == 0.0


def test_F42_a_crowd_that_leaves_sooner_than_an_engine_answers_never_opens_the_breaker() -> None:
    own = pool(adaptive("a"))
    books = own.by_name["a"]
    run(own, books, 0)
    for number in range(1, 1000):  # never nobody, and each for less than the second that its prompt may take
        run(own, books, number, 0.4 * number)
        own.leave("a", number - 1, Outcome.CLIENT_GONE, None, 0.4 * number + 0.4)
        own.tick(0.4 * number + 0.4)
    assert books.state(400.0).health == "unknown"
    own.leave("a", 999, Outcome.CLIENT_GONE, None, 400.0)
    run(own, books, 1000, 400.0)
    own.tick(403.0)
    assert books.state(403.0).health == "unknown"
    own.tick(431.1)
    assert books.state(431.1).health == "open", "one who waits is enough"


def test_a_session_that_ends_says_nothing_of_silence() -> None:
    own = pool(adaptive("a"))
    books = own.by_name["a"]
    own.enter(books, Session(1, ticket(stream=False), books.window, 0.0), 0.0)
    own.leave("a", 1, Outcome.CLIENT_GONE, None, 900.0)
    run(own, books, 2, 900.0)
    assert books.state(900.0).silence == 0.0


def test_a_request_that_was_only_sent_does_not_make_a_backend_look_alive() -> None:
    own = pool(adaptive("a"), adaptive("b"))
    for name in "ab":
        own.note_health(name, Health.DOWN)
    request = run(own, own.by_name["a"], 1)
    assert names(own.sound(own.books, 1.0)) == ["a", "b"]
    request.output(1, 1.0)
    assert names(own.sound(own.books, 1.0)) == ["a"]


def test_an_open_session_is_a_place_taken_and_nothing_learned() -> None:
    own = pool(adaptive("a"))
    books = own.by_name["a"]
    own.enter(books, Session(1, ticket(stream=False), books.window, 0.0), 0.0)
    assert (books.window.inflight, books.window.whole, books.window.unstarted) == (1, 0, 0)
    own.leave("a", 1, Outcome.COMPLETED, None, 3600.0)
    assert (books.window.inflight, books.window.whole_answers, books.capacity) == (0, 0, 0.0)
    assert books.window.served.value is None


def test_an_idle_backend_does_not_hang() -> None:
    own = pool(adaptive("a"))
    own.tick(1000.0)
    assert not own.troubled


# ---------------------------------------------------------------------------------------------------- what is learned


def test_failures_before_the_first_token_are_drops_and_later_ones_are_not() -> None:
    own = pool(adaptive("a"))
    books = own.by_name["a"]
    for number, outcome in enumerate((Outcome.BACKEND_ERROR, Outcome.BACKEND_LOST, Outcome.BACKEND_SILENT)):
        run(own, books, number)
        own.leave("a", number, outcome, None, 0.0)
    run(own, books, 9).output(1, 1.0)
    own.leave("a", 9, Outcome.BACKEND_LOST, None, 2.0)
    assert books.window.drops == 3


def test_a_refusal_bounds_the_limit_by_what_was_held_and_only_before_the_first_token() -> None:
    own = pool(adaptive("a"))
    books = own.by_name["a"]
    for number in range(4):
        run(own, books, number).output(1, 1.0)
    own.leave("a", 0, Outcome.BACKEND_BUSY, None, 1.0)
    assert books.cap == 4
    run(own, books, 8)
    own.leave("a", 8, Outcome.BACKEND_BUSY, None, 1.0)
    assert books.cap == 3


def test_capacity_is_what_a_full_limit_serves() -> None:
    own = pool(fixed(4, "a"))
    books = own.by_name["a"]
    assert books.capacity == 0.0
    for number in range(30):
        run(own, books, number)  # 125 cost units each
        own.leave("a", number, Outcome.COMPLETED, None, 5.0)
    assert books.capacity == pytest.approx(4 * 125 / 5)


def test_a_backend_that_comes_back_to_life_grows_fast() -> None:
    own = pool(adaptive("a"))
    own.by_name["a"].limit.refuse(1)
    fail(own, "a")
    run(own, own.by_name["a"], 1, 6.0)
    own.leave("a", 1, Outcome.COMPLETED, None, 7.0)
    law = own.by_name["a"]._law
    assert law._slow
    assert own.by_name["a"].state(7.0).health == "unknown"


# ---------------------------------------------------------------------------------------------------------- hints


def test_hints_bound_the_tokens_and_lapse() -> None:
    own = pool(adaptive("a"))
    books = own.by_name["a"]
    assert books.state(0.0).hints_age is None
    books.note_hints(Hints(kv_usage=0.5, kv_capacity_tokens=10_000), 0.0)
    assert books.state(3.0).hints_age == 3.0
    assert books.state(3.0).token_limit == 9_000


@pytest.mark.parametrize(("age", "believed"), [(10.0, True), (10.1, False)])
def test_a_gauge_older_than_ten_seconds_is_not_believed(
    age: float, believed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = pool(adaptive("a"))
    books = own.by_name["a"]
    books.note_hints(Hints(kv_usage=1.0, kv_capacity_tokens=300), 0.0)
    run(own, books, 1)
    seen: list[float | None] = []
    monkeypatch.setattr(books.limit, "tick", lambda _window, usage, _now: seen.append(usage))
    books.tick(age)
    assert seen == [1.0 if believed else None]


def test_preemptions_are_counted_from_gauge_to_gauge_and_a_restart_is_none() -> None:
    own = pool(adaptive("a"))
    books = own.by_name["a"]
    for total in (10.0, 14.0, 2.0, None, 7.0):
        books.note_hints(Hints(preemptions_total=total), 0.0)
    assert books.window.preemptions == 4.0


FULL = Hints(running=8, waiting=2, kv_usage=0.4)


@pytest.mark.parametrize(
    ("told", "slots"),
    [
        ((FULL,), None),  # once may be chance: prompts that begin in the next step
        ((FULL, FULL), 8),
        ((FULL, FULL, Hints(running=3, waiting=0, kv_usage=0.2)), 8),  # they are there when fewer run
        ((FULL, FULL, Hints(running=9, waiting=0, kv_usage=0.4)), None),  # they were more
        ((FULL, FULL, Hints(running=6, waiting=1, kv_usage=0.4)), None),  # it is not they that bound it
        ((Hints(running=8, waiting=2, kv_usage=0.97),) * 2, None),  # nor here
        ((Hints(running=30, waiting=2, kv_usage=0.4),) * 2, None),  # others' requests
        ((Hints(running=8, kv_usage=0.4),) * 2, None),
    ],
)
def test_an_engine_that_is_full_twice_on_end_with_as_many_tells_its_slots(
    told: Sequence[Hints], slots: int | None
) -> None:
    own = pool(adaptive("a"))
    books = own.by_name["a"]
    for number in range(10):
        run(own, books, number)
    for hints in told:
        books.tick(0.0)
        books.note_hints(hints, 0.0)
    assert books.window.slots == slots
    books.tick(10.1)
    assert books.window.slots is None  # as old as that they are not believed


# ----------------------------------------------------------------------------------------------------------- state


def test_the_books_show_everything() -> None:
    own = pool(adaptive("a"))
    books = own.by_name["a"]
    run(own, books, 1)
    run(own, books, 2).output(1, 1.0)
    state = books.state(1.0)
    assert (state.name, state.url, state.running, state.tokens, state.unstarted) == ("a", "http://a", 2, 400, 1)
    assert (state.limit, state.token_limit, state.pace, state.pace_base) == (4.0, None, None, None)
    for _ in range(30):
        books.window.base_whole.add(0.5)
    assert books.state(1.0).pace_base == 0.5
    for _ in range(30):
        books.window.base_stream.add(0.02)
    assert books.state(1.0).pace_base == 0.02


def test_a_permit_is_given_back_once() -> None:
    own = pool(adaptive("a"))
    run(own, own.by_name["a"], 1)
    own.leave("a", 1, Outcome.COMPLETED, None, 1.0)
    assert own.running == 0
    with pytest.raises(KeyError):
        own.leave("a", 1, Outcome.COMPLETED, None, 1.0)
    assert own.running == 0


def test_a_share_may_be_kept_for_the_first_lane() -> None:
    settings: AdmissionConfig = config(limit=LimitConfig(initial=4), reserve_short=0.3)
    books = Pool([adaptive("a")], settings).by_name["a"]
    assert (books.cap, books.cap_others) == (4, 2)
    small = Pool([adaptive("a")], replace(settings, limit=LimitConfig(initial=1))).by_name["a"]
    assert (small.cap, small.cap_others) == (1, 1)


# ------------------------------------------------------------------------------------------------------ equal engines


def learned(limits: dict[str, float], *, caches: dict[str, int] | None = None, base: float = 0.01) -> Pool:
    """Engines whose limits were found, each by as many as run there."""
    own = pool(*(adaptive(name) for name in limits))
    for books in own.books:
        books.window.base_stream.recall(base * (3.0 if books.name == "other" else 1.0))
        if caches is None or books.name in caches:
            books.note_hints(Hints(kv_capacity_tokens=(caches or {}).get(books.name, 430_000)), 0.0)
        books.limit.value = limits[books.name]
        books.limit.changes["down", "pace"] += 1
        for number in range(round(limits[books.name])):
            run(own, books, number)
    own.tick(0.1)
    return own


def values(own: Pool) -> list[int]:
    return [round(books.limit.value) for books in own.books]


def test_no_limit_stands_out_above_those_of_an_engine_s_equals() -> None:
    assert values(learned({"a": 40.0, "b": 20.0, "c": 18.0, "d": 14.0})) == [22, 20, 18, 14]
    assert values(learned({"a": 40.0, "b": 40.0, "c": 20.0, "d": 20.0})) == [40, 40, 20, 20]  # as many say so


def test_what_three_engines_bear_says_nothing_of_each_other() -> None:
    assert values(learned({"a": 40.0, "b": 20.0, "c": 18.0})) == [40, 20, 18]


@pytest.mark.parametrize("caches", [{"a": 500_000, "b": 430_000, "c": 430_000, "d": 430_000, "e": 430_000}, {}])
def test_engines_with_another_cache_or_one_that_nobody_knows_are_no_equals(caches: dict[str, int]) -> None:
    limits = {"a": 40.0, "b": 20.0, "c": 20.0, "d": 20.0, "e": 20.0}
    assert values(learned(limits, caches=caches)) == [40, 20, 20, 20, 20]


def test_nor_is_one_with_another_pace() -> None:
    assert values(learned({"other": 40.0, "a": 20.0, "b": 20.0, "c": 20.0, "d": 20.0})) == [40, 20, 20, 20, 20]


def test_a_limit_that_is_not_met_says_nothing() -> None:
    own = learned({"a": 20.0, "b": 20.0, "c": 20.0, "d": 20.0})
    for books in own.books[1:]:
        for number in range(20):
            own.leave(books.name, number, Outcome.COMPLETED, None, 1.0)
    own.books[0].limit.value = 40.0
    for number in range(20, 40):
        run(own, own.books[0], number)
    own.tick(40.0)
    assert values(own) == [40, 20, 20, 20]
