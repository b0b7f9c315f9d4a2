"""What a line tells, and above all what it does not."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.model import Choice, Outcome, Priority, Reason, Record, Timeline, Usage
from gateway.telemetry.access_log import AccessLog, line
from tests.telemetry.helpers import MODELS, asked, record, refused, ticket, timeline

ENDED = datetime(2026, 1, 31, 12, 0, 0, 123_000, UTC).timestamp()


def told(made: Record) -> dict[str, Any]:
    text = line(made, ENDED)
    assert text.endswith(b"\n")
    assert text.count(b"\n") == 1
    fields = json.loads(text)
    assert isinstance(fields, dict)
    return fields


def test_a_priority_is_told_where_it_is_not_standard() -> None:
    assert "priority" not in told(record())
    assert told(record(ticket=ticket(priority=Priority.CRITICAL)))["priority"] == "critical"


def test_everything_of_a_completed_stream() -> None:
    made = record(lane="short", timeline=timeline(queued=0.25, backend_ttft=0.5, gap=0.02, events=11))
    fields = told(made)
    assert fields.pop("itl_mean_ms") == pytest.approx(20.0)
    assert fields.pop("itl_max_ms") == pytest.approx(20.0, rel=0.006)
    assert fields == {
        "time": "2026-01-31T12:00:00.123+00:00",
        "request_id": "req-1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "route": "chat",
        "status": 200,
        "outcome": "completed",
        "lane": "short",
        "backend": "gpu1",
        "attempts": 1,
        "bytes_in": 512,
        "bytes_out": 2048,
        "model": "qwen3-8b",
        "stream": True,
        "client": "key:1f2e",
        "estimated_prompt_tokens": 100,
        "estimated_output_tokens": 200,
        "read_ms": 1.0,
        "parse_ms": 1.0,
        "queue_ms": 250.0,
        "connect_ms": 1.0,
        "headers_ms": 250.0,
        "backend_ttft_ms": 500.0,
        "ttft_ms": 753.0,
        "output_ms": 200.0,
        "total_ms": 954.0,
        "output_events": 11,
        "prompt_tokens": 57,
        "completion_tokens": 11,
        "cached_tokens": 32,
    }


def test_why_a_backend_was_chosen_is_told_where_it_was_not_for_its_headroom() -> None:
    assert told(record(choice=Choice.SPILL))["choice"] == "spill"
    assert "choice" not in told(record(choice=Choice.HEADROOM))
    assert "choice" not in told(record())


def test_the_legs_add_up_to_the_time_to_first_token() -> None:
    fields = told(record(timeline=timeline(queued=0.125, backend_ttft=0.75)))
    legs = ("read_ms", "parse_ms", "queue_ms", "connect_ms", "backend_ttft_ms")
    assert sum(fields[name] for name in legs) == pytest.approx(fields["ttft_ms"])


def test_a_refusal() -> None:
    fields = told(
        refused(reason=Reason.QUEUE_FULL, retry_after=2.5, ticket=ticket(attempt=2), error="the queue is full")
    )
    expected = {"outcome": "refused", "reason": "queue_full", "status": 429, "retry_after_ms": 2500.0, "retry": 2}
    assert expected.items() <= fields.items()
    assert fields["error"] == "the queue is full"
    assert fields["total_ms"] == 50.0
    assert not {"backend", "attempts", "ttft_ms", "queue_ms", "prompt_tokens", "itl_mean_ms"} & fields.keys()


def test_a_cheap_route_has_no_estimates() -> None:
    made = record(ticket=None, route=MODELS, method="GET", path="/v1/models", usage=None, lane=None)
    fields = told(replace(made, timeline=Timeline(received=1.0, sent=1.001, headers=1.003, finished=1.004)))
    assert fields["total_ms"] == 4.0
    assert not {"model", "stream", "client", "estimated_prompt_tokens", "lane"} & fields.keys()


def test_an_answer_that_is_not_streamed_has_no_first_token() -> None:
    fields = told(record(ticket=asked(stream=False)))
    assert not {"ttft_ms", "backend_ttft_ms", "output_ms", "output_events", "itl_mean_ms"} & fields.keys()
    assert fields["headers_ms"] == 250.0


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_a_line(outcome: Outcome) -> None:
    assert told(record(outcome=outcome, status=0, usage=Usage()))["outcome"] == outcome.value


def test_a_query_string_is_never_written() -> None:
    text = line(record(path="/v1/chat/completions?key=sk-secret&api_key=hunter2"), ENDED)
    assert b'"path":"/v1/chat/completions"' in text
    assert b"secret" not in text
    assert b"hunter2" not in text


@pytest.mark.parametrize("field", ["request_id", "method", "path", "error"])
def test_long_fields_are_cut(field: str) -> None:
    text = line(record(**{field: "z" * 1_000_000}), ENDED)
    assert len(text) < 4096
    assert b"z" * 128 in text


def test_long_names_are_cut() -> None:
    assert len(line(record(ticket=asked("m" * 1_000_000, client="c" * 1_000_000)), ENDED)) < 4096


ODD = {
    "line feed": "a\nb",
    "escape": "\x1b[2J",
    "quote": 'a"b\\',
    "nul": "\x00",
    "emoji": "😀",
    "surrogate": "a\udcffb",
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_no_text_breaks_the_line(odd: str) -> None:
    fields = told(record(path=f"/{odd}", request_id=odd, ticket=asked(odd, client=odd)))
    expected = odd.replace("\udcff", "?")
    assert fields["path"] == f"/{expected}"
    assert fields["request_id"] == fields["model"] == fields["client"] == expected


def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path), wall_clock=lambda: ENDED)
    for number in range(100):
        log.observe(record(request_id=f"req-{number}"))
    log.stop()
    written = [json.loads(text) for text in path.read_text().splitlines()]
    assert [each["request_id"] for each in written] == [f"req-{number}" for number in range(100)]
    assert {each["time"] for each in written} == {"2026-01-31T12:00:00.123+00:00"}
    assert log.dropped() == 0


def test_a_full_disk_never_breaks_serving() -> None:
    trouble: list[str] = []
    log = AccessLog("/dev/full", on_trouble=trouble.append)
    for _ in range(100):
        log.observe(record())
    log.stop(timeout=30.0)
    assert log.dropped() == 100
    assert len(trouble) == 1


def test_the_process_log_tells_of_it(caplog: pytest.LogCaptureFixture) -> None:
    log = AccessLog("/dev/full")
    log.observe(record())
    log.stop(timeout=30.0)
    assert [(each.name, each.levelname) for each in caplog.records] == [("gateway.access_log", "WARNING")]
    assert "cannot write to /dev/full" in caplog.text


def test_rotation(tmp_path: Path) -> None:
    path, rotated = tmp_path / "access.log", tmp_path / "access.log.1"
    log = AccessLog(str(path))
    path.rename(rotated)
    log.reopen()
    log.observe(record())
    log.stop()
    assert (path.read_text() + rotated.read_text()).count("req-1") == 1
    assert path.exists()


def test_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    log = AccessLog("stdout")
    log.observe(record())
    log.stop()
    assert json.loads(capfd.readouterr().out)["request_id"] == "req-1"
