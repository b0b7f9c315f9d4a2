"""The prefix cache: what is found, what it saves, and what goes first."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.emulator.blocks import Blocks, Prefix, chained
from gateway.emulator.engine import Emission, Engine, Profile

READS = Profile(
    name="reads", base=1.0, per_prefill_token=1.0, per_prompt=0.5, block_size=4, kv_tokens=64, max_model_len=48
)
"""A step takes a second, and one more for each prompt token in it."""


def play(engine: Engine) -> list[Emission]:
    emissions: list[Emission] = []
    while (due := engine.next_event()) is not None:
        emissions += engine.advance(due)
    return emissions


def ask(engine: Engine, key: int, words: str, output: int = 1, now: float = 0.0) -> Prefix:
    """Each letter is a token; the answer is of full stops."""
    prefix = Prefix(chained(words + "." * output, engine.profile.block_size))
    assert engine.submit(key, len(words), output, now, prefix)
    return prefix


def test_a_chained_hash_stands_for_all_before_it() -> None:
    one, other = chained("aaaabbbbcc", 4), chained("xaaabbbbcc", 4)
    assert len(one) == len(other) == 2
    assert not set(one) & set(other)
    assert chained("aaaabbbbdd", 4) == one
    assert chained("aaaacccc", 4)[0] == one[0]


def test_a_prompt_that_begins_alike_costs_what_is_new() -> None:
    engine = Engine(READS)
    first = ask(engine, 1, "aaaabbbbcccc")
    assert play(engine)[-1].at == 1.5 + 12
    second = ask(engine, 2, "aaaabbbbdddd", now=20.0)
    assert play(engine)[-1].at == 20.0 + 1.5 + 4
    assert (first.cached, second.cached) == (0, 8)
    assert (engine.queried_tokens, engine.cached_tokens) == (24, 8)


def test_the_last_token_is_always_computed() -> None:
    engine = Engine(READS)
    ask(engine, 1, "aaaabbbb")
    play(engine)
    again = ask(engine, 2, "aaaabbbb", now=20.0)
    assert play(engine)[-1].at == 20.0 + 1.5 + 4
    assert again.cached == 4


def test_an_answer_is_part_of_the_next_prompt() -> None:
    engine = Engine(READS)
    ask(engine, 1, "aaaa", output=9)  # the last token of an answer is never computed: eight of the nine are known
    play(engine)
    turn = ask(engine, 2, "aaaa" + "." * 9 + "bbb", now=50.0)
    play(engine)
    assert turn.cached == 12


def test_without_the_cache_and_without_a_prefix_nothing_is_found() -> None:
    for engine in (Engine(replace(READS, prefix_cache=False)), Engine(READS)):
        for key in range(2):
            prefix = None if engine.profile.prefix_cache else Prefix(chained("aaaabbbb", 4))
            assert engine.submit(key, 8, 1, 20.0 * key, prefix)
            assert play(engine)[-1].at == 20.0 * key + 1.5 + 8
            assert prefix is None or prefix.cached == 0
        assert engine.cached_tokens == 0
    assert Engine(replace(READS, prefix_cache=False)).queried_tokens == 0


def test_requests_of_one_step_share_and_hold_one_block() -> None:
    engine = Engine(READS)
    one, two = ask(engine, 1, "aaaabbbb", output=5), ask(engine, 2, "aaaacccc", output=5)
    engine.advance(1.5)
    assert engine.kv_tokens == 8
    engine.advance(15.0)
    assert (one.cached, two.cached) == (0, 4)  # the second begins when the first one's step is over
    assert engine.kv_tokens == 4 * 5  # one block for both, and of each its second and its answer's first
    engine.abort(1, 15.0)
    assert engine.kv_tokens == 12
    play(engine)
    assert engine.kv_tokens == 0


def test_what_was_not_used_for_longest_is_forgotten_and_ends_before_beginnings() -> None:
    engine = Engine(replace(READS, kv_tokens=48))
    for key, words in enumerate(("a" * 20, "b" * 20)):  # five blocks each, of twelve
        ask(engine, key, words, now=100.0 * key)
        play(engine)
    ask(engine, 2, "a" * 9, now=200.0)  # its first two blocks were used last
    play(engine)
    ask(engine, 3, "c" * 20, now=300.0)  # takes what is blank, and three that are forgotten
    play(engine)
    assert [engine._blocks.known(chained(letter * 20, 4), 5) for letter in "abc"] == [2, 5, 5]


def test_who_is_thrown_out_finds_what_it_had_computed() -> None:
    profile = Profile(name="tight", base=1.0, per_prefill_token=1.0, block_size=4, kv_tokens=24, max_model_len=24)
    engine = Engine(profile)
    ask(engine, 1, "aaaaaaaaaaa", output=8)
    ask(engine, 2, "bbbbbbb", output=8)
    emissions = play(engine)
    assert engine.preemptions > 0
    assert sum(e.tokens for e in emissions) == 16
    assert engine.kv_tokens == 0
    anonymous = Engine(profile)
    anonymous.submit(1, 11, 8, 0.0)
    anonymous.submit(2, 7, 8, 0.0)
    assert emissions[-1].at < play(anonymous)[-1].at


@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=20), st.integers(0, 12)), max_size=30), st.integers(5, 9))
def test_the_books_balance_whatever_is_shared(asked: list[tuple[str, int]], room: int) -> None:
    engine = Engine(replace(READS, kv_tokens=4 * room, max_model_len=min(20, 4 * room), max_num_seqs=3))
    prefixes = {}
    now = 0.0
    for key, (words, output) in enumerate(asked):
        longest = engine.profile.max_model_len
        if len(words) + output <= longest:
            prefixes[key] = ask(engine, key, words, output, now)
        now += len(words) * 0.7
        if key % 5 == 4:
            engine.abort(key - 2, now)
        engine.advance(now)
        pool = engine._blocks
        held = {block for request in engine._running.values() for block in request.known}
        alone = sum(request.blocks - len(request.known) for request in engine._running.values())
        assert held == set(pool._users)
        assert sum(pool._users.values()) == sum(len(request.known) for request in engine._running.values())
        assert room - pool.free == len(held) + alone
        assert len(pool._idle) <= pool.free
        assert not held & set(pool._idle)
    play(engine)
    assert engine.kv_tokens == 0
    assert all(prefix.cached < len(asked[key][0]) for key, prefix in prefixes.items())


def test_a_block_has_one_owner_under_its_hash() -> None:
    pool = Blocks(4)
    pool.take(2)
    assert pool.publish(7)
    assert not pool.publish(7)
    pool.give_back([7], 1)
    assert (pool.free, pool.known([7, 8], 2), pool.left([7])) == (4, 1, 3)
    pool.take(4)
    assert pool.known([7], 1) == 0
    with pytest.raises(KeyError):
        pool.give_back([7], 0)
