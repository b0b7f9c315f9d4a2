"""What is kept of a request, and which of its chunks count."""

from __future__ import annotations

import tracemalloc
from array import array
from dataclasses import replace

import pytest

from gateway.model import Outcome, Reason, Timeline, Usage
from gateway.telemetry.entry import Entry, Recorder, Rule, entry_of
from tests.telemetry.entries import entry
from tests.telemetry.helpers import asked, record, refused, ticket, timeline

ANY, V32, V33 = Rule.ANY, Rule.V32, Rule.V33


def test_an_entry_holds_a_records_instants_as_microseconds_since_it_came() -> None:
    line = timeline(queued=0.5, backend_ttft=0.25, gap=0.02, events=3)
    line.aside(1, 2, 100.75)
    found = entry_of(record(timeline=line, request_id="bench-1", usage=Usage(57, 3, 32)), ticket(attempt=2))
    assert (found.received, found.request_id, found.route, found.model) == (100.0, "bench-1", "chat", "qwen3-8b")
    assert (found.lane, found.backend, found.outcome, found.status) == ("short", "gpu1", Outcome.COMPLETED, 200)
    assert (found.stream, found.generates, found.retry, found.attempts) == (True, True, 2, 1)
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens) == (57, 3, 32)
    assert (found.estimated_prompt_tokens, found.estimated_output_tokens) == (100, 200)
    instants = (found.read, found.offered, found.admitted, found.sent, found.last_output, found.finished)
    assert instants == pytest.approx((1_000, 2_000, 502_000, 503_000, 793_000, 794_000), abs=1)
    assert (found.output_events, found.stamps) == (3, line.stamps)
    assert (found.blanks, found.unheard) == (line.blanks, line.unheard)


def test_an_entry_of_a_refusal_says_why() -> None:
    found = entry_of(refused(reason=Reason.QUEUE_FULL), ticket())
    assert (found.outcome, found.reason, found.status) == (Outcome.REFUSED, Reason.QUEUE_FULL, 429)
    assert (found.admitted, found.sent, found.last_output, found.prompt_tokens) == (None, None, None, None)
    assert found.finished == pytest.approx(50_000, abs=1)


def test_what_streams_without_being_asked_to_is_a_stream() -> None:
    assert entry_of(record(), asked(stream=False)).stream
    assert not entry_of(record(timeline=Timeline(1.0)), asked(stream=False)).stream
    assert entry_of(record(timeline=Timeline(1.0)), asked(stream=True)).stream


def test_names_that_callers_chose_are_cut() -> None:
    found = entry_of(record(request_id="i" * 200), asked("m" * 200))
    assert found.request_id == "i" * 128
    assert found.model == "m" * 128
    assert entry_of(record(), asked(None)).model is None


def test_only_what_came_to_admission_makes_an_entry() -> None:
    taken: list[Entry] = []

    class Taker:
        def take(self, entry: Entry) -> None:
            taken.append(entry)

    recorder = Recorder(Taker(), Taker())
    recorder.observe(record(ticket=None))
    assert taken == []
    recorder.observe(record())
    assert len(taken) == 2
    assert taken[0] is taken[1]


# ------------------------------------------------------------------------------------------------------ which count


def test_chunks_that_count_under_each_rule() -> None:
    plain = entry(stamps=(10, 20, 30))
    plain.blanks = None
    assert [list(plain.counted(rule)) for rule in (ANY, V33, V32)] == [[10, 20, 30]] * 3
    mixed = replace(plain, blanks=array("I", [5, 30]), unheard=array("I", [10, 20]))
    assert list(mixed.counted(ANY)) == [10, 20, 30]
    assert list(mixed.counted(V33)) == [30]
    assert list(mixed.counted(V32)) == [5, 10, 20, 30, 30]


def test_of_chunks_that_came_at_once_those_are_left_out_that_do_not_count() -> None:
    mixed = replace(entry(stamps=(10, 10, 10, 20, 20)), unheard=array("I", [10, 10, 20]))
    assert list(mixed.counted(V33)) == [10, 20]


@pytest.mark.parametrize(
    ("rule", "blanks", "unheard", "end"),
    [
        (ANY, None, None, 900),
        (V33, None, None, 900),
        (V33, None, [20], 30),  # whether the last output counts is not known: the last stamp stands
        (V32, None, None, 900),
        (V32, [950], None, 950),
    ],
)
def test_a_stream_that_outgrew_its_stamps_ends_with_its_last_output(
    rule: Rule, blanks: list[int] | None, unheard: list[int] | None, end: int
) -> None:
    long = entry(stamps=(10, 20, 30), output_events=500, last_output=900)
    long.blanks = array("I", blanks) if blanks else None
    long.unheard = array("I", unheard) if unheard else None
    assert long.ended(rule, long.counted(rule)) == end


def test_a_stream_with_all_its_stamps_ends_with_the_last_that_counts() -> None:
    assert entry(stamps=(10, 20), last_output=20).ended(ANY, [10, 20]) == 20
    assert entry(stamps=(10, 20), last_output=20).ended(V33, [10]) == 10


@pytest.mark.parametrize("events", [1, 20, 200, 2_000])
def test_the_size_of_an_entry_is_what_it_takes_in_memory(events: int) -> None:
    made = []
    tracemalloc.start()
    try:
        for number in range(300):
            line = timeline(events=events)
            line.aside(1, 0, 100.25)
            made.append(entry_of(record(timeline=line, request_id=f"bench-12345678-{number}"), ticket()))
            del line
        taken = tracemalloc.get_traced_memory()[0] / len(made)
    finally:
        tracemalloc.stop()
    assert 0.8 * taken <= made[0].size <= 1.4 * taken
