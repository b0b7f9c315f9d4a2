"""The engine model, instant by instant."""

from dataclasses import replace

import pytest

from gateway.emulator.engine import Emission, Engine, Profile
from gateway.emulator.profiles import FLAT

TINY = Profile(name="tiny", base=1.0, block_size=4, kv_tokens=16, max_model_len=16, max_num_seqs=4)


def play(engine: Engine) -> list[Emission]:
    """Everything that the engine emits until it is idle."""
    emissions: list[Emission] = []
    while (due := engine.next_event()) is not None:
        emissions += engine.advance(due)
    return emissions


def first_tokens(emissions: list[Emission]) -> dict[int, float]:
    first: dict[int, float] = {}
    for emission in emissions:
        first.setdefault(emission.key, emission.at)
    return first


def ends(emissions: list[Emission]) -> dict[int, float]:
    return {emission.key: emission.at for emission in emissions if emission.finished}


def test_a_flat_engine_gives_a_token_a_step() -> None:
    engine = Engine(FLAT)
    assert engine.next_event() is None
    assert engine.submit(7, 100, 3, 5.0)
    assert engine.next_event() == pytest.approx(5.01)
    assert engine.advance(5.009) == []
    emissions = engine.advance(5.03)
    assert [(e.key, e.tokens, e.finished) for e in emissions] == [(7, 1, False), (7, 1, False), (7, 1, True)]
    assert [e.at for e in emissions] == pytest.approx([5.01, 5.02, 5.03])
    assert engine.next_event() is None
    assert (engine.running, engine.waiting, engine.kv_tokens, engine.finished) == (0, 0, 0, 1)


def test_a_request_that_comes_during_a_step_joins_the_next() -> None:
    engine = Engine(replace(FLAT, base=1.0))
    engine.submit(1, 1, 3, 0.0)
    engine.submit(2, 1, 1, 0.5)
    assert (engine.running, engine.waiting) == (1, 1)
    assert first_tokens(play(engine)) == {1: 1.0, 2: 2.0}


def test_one_call_ends_every_step_that_is_due() -> None:
    engine = Engine(FLAT)
    engine.submit(1, 1, 1000, 0.0)
    emissions = engine.advance(8.0)
    assert len(emissions) == 800
    assert emissions[-1].at == pytest.approx(8.0)


def test_what_a_step_costs() -> None:
    profile = Profile(
        name="priced",
        base=1.0,
        per_sequence=0.1,
        per_kv_token=0.001,
        per_prompt=0.5,
        per_prefill_token=0.01,
        per_attention=1e-6,
    )
    engine = Engine(profile)
    engine.submit(1, 100, 3, 0.0)
    assert engine.next_event() == pytest.approx(1.0 + 0.1 + 0.5 + 0.01 * 100 + 1e-6 * 100 * 50)
    start = engine.next_event()
    assert start is not None
    engine.advance(start)
    assert engine.next_event() == pytest.approx(start + 1.0 + 0.1 + 0.001 * 100)


def test_a_chunk_pays_the_longer_of_reading_and_computing_its_context() -> None:
    profile = Profile(name="roofline", base=1.0, per_kv_token=0.01, per_attention=0.0, max_num_batched_tokens=300)
    for per_attention, cost in ((0.0, 0.01 * 300), (1.0, 1.0 * 100 * (300 + 50))):
        engine = Engine(replace(profile, per_attention=per_attention))
        engine.submit(1, 400, 1, 0.0)
        start = engine.next_event()
        assert start is not None
        engine.advance(start)
        assert engine.next_event() == pytest.approx(start + 1.0 + cost)


def test_a_batch_beyond_the_knee_costs_a_square() -> None:
    engine = Engine(Profile(name="knee", base=1.0, collapse_beyond=2, collapse=0.25))
    for key in range(5):
        engine.submit(key, 1, 2, 0.0)
    assert engine.next_event() == 1.0  # the first one was alone
    engine.advance(1.0)
    assert engine.next_event() == pytest.approx(2.0 + 0.25 * 3 * 3)


def test_a_prompt_over_the_budget_takes_several_steps_and_decodes_go_on() -> None:
    engine = Engine(Profile(name="chunks", base=1.0, max_num_batched_tokens=10, max_num_seqs=4))
    engine.submit(1, 1, 10, 0.0)
    engine.submit(2, 26, 1, 0.0)
    emissions = play(engine)
    assert ends(emissions)[2] == 4.0  # 9 + 9 + 8 tokens behind the first one's step
    assert [e.at for e in emissions if e.key == 1] == [float(second) for second in range(1, 11)]


def test_a_long_prompt_leaves_room_under_its_threshold() -> None:
    profile = Profile(name="threshold", base=1.0, max_num_batched_tokens=10, max_num_seqs=4)
    for threshold, first in ((0, 11.0), (5, 2.0)):
        engine = Engine(replace(profile, long_prefill_threshold=threshold))
        engine.submit(1, 100, 1, 0.0)
        engine.submit(2, 5, 1, 0.5)
        assert first_tokens(play(engine))[2] == first


def test_sequences_are_bounded_and_wait_in_order() -> None:
    engine = Engine(replace(FLAT, base=1.0, max_num_seqs=2))
    for key in range(5):
        engine.submit(key, 1, 2, 0.0)
    emissions = play(engine)
    assert ends(emissions) == {0: 2.0, 1: 3.0, 2: 4.0, 3: 5.0, 4: 6.0}
    assert list(first_tokens(emissions)) == [0, 1, 2, 3, 4]


def test_prefill_first_stops_the_decodes() -> None:
    profile = Profile(name="mindie", base=1.0, prefill_first=True, max_num_batched_tokens=10, max_prefill_seqs=2)
    engine = Engine(profile)
    engine.submit(1, 4, 3, 0.0)
    for key in (2, 3, 4):
        engine.submit(key, 3, 2, 0.5)
    emissions = play(engine)
    # 1 | 2 and 3 | 4 | then all four decode, 1 for the last time a step later
    assert first_tokens(emissions) == {1: 1.0, 2: 2.0, 3: 2.0, 4: 3.0}
    assert ends(emissions) == {1: 5.0, 2: 4.0, 3: 4.0, 4: 4.0}


def test_prefill_first_takes_a_prompt_over_its_budget_alone() -> None:
    profile = Profile(name="mindie", base=1.0, prefill_first=True, max_num_batched_tokens=10)
    engine = Engine(profile)
    engine.submit(0, 1, 1, 0.0)
    for key, prompt in ((1, 6), (2, 6), (3, 50), (4, 1)):
        engine.submit(key, prompt, 1, 0.0)
    assert ends(play(engine)) == {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 4: 5.0}


def test_a_request_without_output_ends_in_one_emission_of_no_token() -> None:
    engine = Engine(FLAT)
    engine.submit(1, 10, 0, 0.0)
    assert engine.advance(1.0) == [Emission(1, 0, True, 0.01)]


def test_the_pool_holds_whole_blocks_and_admits_a_prompt_only_whole() -> None:
    engine = Engine(TINY)
    engine.submit(1, 9, 2, 0.0)
    assert engine.kv_tokens == 12
    engine.submit(2, 5, 1, 0.0)  # two blocks, one is free
    engine.advance(1.0)
    assert (engine.running, engine.waiting) == (1, 1)
    assert ends(play(engine)) == {1: 2.0, 2: 3.0}


def test_the_newest_is_preempted_and_computes_again_first() -> None:
    engine = Engine(TINY)
    engine.submit(1, 7, 9, 0.0)
    engine.submit(2, 7, 4, 0.0)
    engine.submit(3, 1, 1, 0.0)
    emissions = engine.advance(3.0)
    assert engine.preemptions == 1  # at 2 s the first one's blocks were full
    assert (engine.running, engine.waiting) == (1, 2)
    emissions += play(engine)
    assert [e.at for e in emissions if e.key == 1] == [float(second) for second in range(1, 10)]
    # once the first one had left: its prompt and its one token computed again, then the rest
    assert [(e.at, e.finished) for e in emissions if e.key == 2] == [
        (2.0, False),
        (10.0, False),
        (11.0, False),
        (12.0, True),
    ]
    assert ends(emissions)[3] == 10.0  # not before the preempted one
    assert (engine.kv_tokens, engine.finished) == (0, 3)


def test_a_preempted_request_pays_for_its_prompt_and_its_output_again() -> None:
    engine = Engine(replace(TINY, per_prefill_token=1.0))
    engine.submit(1, 7, 6, 0.0)
    engine.submit(2, 7, 4, 0.0)
    emissions = play(engine)
    assert engine.preemptions == 1
    at = {key: [e.at for e in emissions if e.key == key] for key in (1, 2)}
    assert at[1] == [8.0, 16.0, 17.0, 18.0, 19.0, 20.0]
    assert at[2] == [16.0, 20.0 + 1.0 + 8.0, 30.0, 31.0]


def test_preempted_requests_come_back_in_their_old_order() -> None:
    engine = Engine(Profile(name="order", base=1.0, block_size=1, kv_tokens=12, max_model_len=12, max_num_seqs=4))
    engine.submit(1, 1, 11, 0.0)
    for key in (2, 3):
        engine.submit(key, 3, 8, 0.0)
    emissions = play(engine)
    assert engine.preemptions >= 2  # the third one, then the second
    assert [e.at for e in emissions if e.key == 2] == [2.0, 3.0, 4.0, 5.0, 12.0, 13.0, 14.0, 15.0]
    assert [e.at for e in emissions if e.key == 3] == [2.0, 3.0, 12.0, 16.0, 17.0, 18.0, 19.0, 20.0]


def test_what_leaves_is_paid_for_no_more() -> None:
    engine = Engine(Profile(name="priced", base=1.0, per_kv_token=0.01))
    engine.submit(1, 100, 50, 0.0)
    engine.submit(2, 300, 50, 0.0)
    engine.advance(3.0)
    due = engine.next_event()
    assert due is not None
    engine.abort(2, due - 0.5)
    engine.advance(due)
    assert engine.next_event() == pytest.approx(due + 1.0 + 0.01 * 102)


def test_the_newest_may_preempt_itself() -> None:
    engine = Engine(replace(TINY, max_num_batched_tokens=64))
    engine.submit(1, 4, 5, 0.0)
    engine.submit(2, 8, 8, 0.0)
    emissions = play(engine)
    assert engine.preemptions >= 1
    assert [e.at for e in emissions if e.key == 1] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert sum(e.tokens for e in emissions if e.key == 2) == 8


def test_a_prompt_under_way_can_be_preempted() -> None:
    profile = replace(TINY, max_num_batched_tokens=5, max_num_seqs=4)
    engine = Engine(profile)
    engine.submit(1, 4, 12, 0.0)
    engine.advance(1.0)
    engine.submit(2, 8, 2, 1.0)
    emissions = play(engine)
    assert engine.preemptions >= 1
    assert sum(e.tokens for e in emissions if e.key == 2) == 2
    assert ends(emissions)[1] == 12.0


@pytest.mark.parametrize("at", [0.5, 1.5, 2.5], ids=["prefilling its first chunk", "its second", "decoding"])
def test_an_abort_frees_what_it_held(at: float) -> None:
    engine = Engine(replace(TINY, max_num_batched_tokens=8))
    engine.submit(1, 12, 4, 0.0)
    engine.abort(1, at)
    assert (engine.running, engine.waiting, engine.kv_tokens, engine.aborted) == (0, 0, 0, 1)
    engine.advance(at)
    assert play(engine) == []
    assert engine.submit(1, 16, 0, 4.0)
    assert ends(play(engine)) == {1: 6.0}


def test_an_abort_leaves_the_others_alone() -> None:
    engine = Engine(replace(TINY, kv_tokens=32))
    for key in (1, 2):
        engine.submit(key, 4, 8, 0.0)
    engine.advance(3.0)
    engine.abort(1, 3.5)
    assert engine.kv_tokens == 8
    assert ends(play(engine)) == {2: 9.0}


def test_a_waiting_and_a_preempted_request_can_be_aborted() -> None:
    engine = Engine(TINY)
    for key in (1, 2, 3):
        engine.submit(key, 7, 9, 0.0)
    engine.advance(3.0)
    assert (engine.preemptions, engine.running, engine.waiting) == (1, 1, 2)
    engine.abort(2, 3.0)
    assert (engine.running, engine.waiting, engine.aborted) == (1, 1, 1)
    engine.abort(3, 3.0)
    assert (engine.running, engine.waiting, engine.aborted) == (1, 0, 2)
    assert ends(play(engine)) == {1: 9.0}


def test_an_unknown_key_is_not_aborted() -> None:
    engine = Engine(TINY)
    engine.submit(1, 1, 2, 0.0)
    engine.abort(9, 0.5)
    assert (engine.aborted, engine.running) == (0, 1)
    engine.abort(1, 0.6)
    engine.abort(1, 0.7)
    assert (engine.aborted, engine.running) == (1, 0)


def test_a_late_call_loses_no_emission() -> None:
    engine = Engine(replace(FLAT, base=1.0))
    engine.submit(1, 1, 2, 0.0)
    engine.submit(2, 1, 1, 1.5)  # the step until 1 s was never collected
    assert engine.next_event() == 1.0
    assert [(e.key, e.at) for e in engine.advance(1.5)] == [(1, 1.0)]
    engine.abort(1, 2.5)  # too late: it had ended at 2 s
    assert (engine.aborted, engine.finished) == (0, 1)
    assert [(e.key, e.at) for e in play(engine)] == [(1, 2.0), (2, 3.0)]


def test_its_own_queue_limit_refuses() -> None:
    engine = Engine(replace(FLAT, max_num_queued_reqs=2))
    assert engine.submit(1, 1, 2, 0.0)
    assert engine.submit(2, 1, 2, 0.0)
    assert not engine.submit(3, 1, 2, 0.0)
    play(engine)
    assert engine.submit(3, 1, 2, 1.0)


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, -1), (10, 7)])
def test_what_cannot_be_served_is_a_programmers_error(prompt: int, output: int) -> None:
    with pytest.raises(ValueError, match=f"{prompt} prompt and {output} output tokens given.*at most 16"):
        Engine(TINY).submit(1, prompt, output, 0.0)


def test_a_key_is_inside_once() -> None:
    engine = Engine(TINY)
    for key in (1, 2):
        engine.submit(key, 7, 4, 0.0)
    for key in (1, 2):
        with pytest.raises(ValueError, match=f"key {key} given"):
            engine.submit(key, 1, 1, 0.0)
    engine.advance(3.0)
    assert engine.preemptions == 1
    with pytest.raises(ValueError, match="key 2 given"):
        engine.submit(2, 1, 1, 3.0)


@pytest.mark.parametrize(
    ("field", "value"), [("base", 0.0), ("max_num_batched_tokens", 4), ("max_model_len", 17)], ids=str
)
def test_a_profile_with_which_requests_could_wait_for_ever_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field}: {value} given, .* expected"):
        replace(TINY, **{field: value})  # type: ignore[arg-type]
