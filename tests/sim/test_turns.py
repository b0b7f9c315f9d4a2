"""Conversations: what a prompt has in common with the one before it, and what the engines make of that."""

from dataclasses import replace
from itertools import islice, pairwise
from statistics import fmean

import pytest

from gateway.emulator.profiles import LLAMA3_8B_A100_NO_FLAG
from gateway.simulator.run import gateway
from gateway.simulator.setup import Load, Machine, Setup
from gateway.simulator.turns import Chat, Chats, chats, mooncake
from gateway.simulator.workload import BLOCK_TOKENS, Want

KIND = Chats(turns=4.0, think=5.0, systems=3)


def drawn(count: int, seed: str = "s", kind: Chats = KIND) -> list[Chat]:
    return list(islice(chats(kind, seed, clients=5, streamed=1.0, first_id=0, label="chats"), count))


def asked(chat: Chat) -> list[Want]:
    return [chat.ask() for _ in range(len(chat.turns))]


def common(one: Want, other: Want) -> int:
    pairs = enumerate(zip(one.blocks, other.blocks, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one.blocks), len(other.blocks)))


def test_a_prompt_begins_with_all_that_was_said_before() -> None:
    for chat in drawn(50):
        for before, after in pairwise(asked(chat)):
            said = before.prompt_tokens + before.output_tokens
            assert after.prompt_tokens > said
            assert len(before.blocks) == said // BLOCK_TOKENS
            assert after.blocks[: len(before.blocks)] == before.blocks
            assert (after.session, after.client) == (before.session, before.client)


def test_conversations_share_their_system_prompt_and_nothing_else() -> None:
    wants = {chat.id: (chat.system, chat.system_tokens, asked(chat)[0]) for chat in drawn(40)}
    for one, (system, tokens, want) in wants.items():
        for other, (other_system, _, other_want) in wants.items():
            if one != other:
                assert common(want, other_want) == (tokens // BLOCK_TOKENS if system == other_system else 0)


def test_they_are_as_long_as_they_are_said_to_be() -> None:
    found = drawn(3000)
    assert fmean(len(chat.turns) for chat in found) == pytest.approx(4.0, rel=0.1)
    assert fmean(chat.turns[0].think for chat in found) == pytest.approx(5.0, rel=0.1)
    assert {chat.system for chat in found} == {0, 1, 2}
    brief = drawn(300, kind=Chats(at_most=2000, system_tokens=(500, 500)))
    assert max(want.prompt_tokens + want.output_tokens for chat in brief for want in asked(chat)) <= 2000
    numbers = [want.id for chat in drawn(300) for want in asked(chat)]
    assert len(set(numbers)) == len(numbers)


def test_a_seed_is_one_set_of_conversations() -> None:
    assert drawn(20) == drawn(20) != drawn(20, "t")


def test_rows_of_a_trace_share_whole_conversations() -> None:
    rows = mooncake(2.0, 100.0, 7)
    assert len(rows) == pytest.approx(200, rel=0.3)
    assert all(len(row.blocks) == row.prompt_tokens // 512 * 4 for row in rows)
    assert len({row.blocks[:4] for row in rows}) == 1  # all begin with one system prompt
    by_session: dict[str, list[tuple[int, ...]]] = {}
    shared = 0
    for row in rows:
        others = by_session.setdefault(row.session, [])
        shared += any(row.blocks[:8] == other[:8] for other in others)
        others.append(row.blocks)
    assert 0.15 < shared / len(rows) < 0.6
    assert mooncake(2.0, 100.0, 8) != rows == mooncake(2.0, 100.0, 7)


def test_a_trace_is_made_faster_where_all_of_it_is_too_little() -> None:
    many = mooncake(30.0, 1000.0, 1)
    assert len(many) == pytest.approx(2700, rel=0.05)
    assert many[-1].at == pytest.approx(90.0, rel=0.1)
    assert all(row.prompt_tokens + row.output_tokens <= 8000 for row in mooncake(2.0, 100.0, 1, at_most=8000))


@pytest.mark.parametrize("block_size", [16, 128])
def test_turns_find_in_the_cache_what_was_said_before(block_size: int) -> None:
    machine = Machine("a", replace(LLAMA3_8B_A100_NO_FLAG, block_size=block_size))
    load = Load(chats=KIND, rates=((0.0, 1.0),))
    result = gateway(Setup(horizon=60.0, fleet=(machine,), load=(load,)))
    assert 0.75 < result.figures["hit_rate"] < 0.97
    assert result.figures["answered"] > 0.99
    alone = gateway(Setup(horizon=60.0, fleet=(machine,), load=(Load("sharegpt", rates=((0.0, 1.0),)),)))
    assert alone.figures["hit_rate"] == 0.0


def test_who_is_not_answered_does_not_ask_again() -> None:
    hung = Machine("a", LLAMA3_8B_A100_NO_FLAG, speeds=((0.0, 0.0),))
    setup = Setup(horizon=400.0, fleet=(hung,), load=(Load(chats=KIND, rates=((0.0, 0.5),)),))
    calls = gateway(setup).calls
    assert calls
    assert len({call.want.session for call in calls}) == len(calls)
