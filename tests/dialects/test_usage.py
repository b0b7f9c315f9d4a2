"""Token counts that the client did not ask for, and never sees."""

from __future__ import annotations

from collections.abc import Iterable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.usage import UsageFilter, ask_for_usage
from gateway.model import Access, Route
from tests.dialects.helpers import CHAT, capture, cut, pieces

COMPLETIONS = Route("completions", Access.ADMIT)
ASKED = b'"stream_options":{"include_usage":true},'


# ---------------------------------------------------------------------------------------------------------- asking


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("body", "start"),
    [
        (b'{"stream":true}', 1),
        (b'{ "model": "m",\n "stream": true, "x": {"a": 1.10} }', 1),
        (b'\r\n\t {"stream":true,"messages":[{"content":"\\u00e9{"}]}', 5),
    ],
)
def test_the_option_stands_before_the_other_fields_which_stay_as_they_are(
    route: Route, body: bytes, start: int
) -> None:
    asking = ask_for_usage(route, body)
    assert asking == body[:start] + ASKED + body[start:]
    assert orjson.loads(asking) == orjson.loads(body) | {"stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream":false}',
        b'{"stream":1}',
        b"{}",
        b"[]",
        b"",
        b'{"stream":true',
        b'{"stream":true,"stream_options":null}',
        b'{"stream":true,"stream_options":{}}',
        b'{"stream":true,"stream_options":{"include_usage":false}}',
        b'{"stream":true,"stream_options":{"include_usage":true}}',
    ],
)
def test_who_streams_nothing_or_says_what_he_wants_is_left_alone(body: bytes) -> None:
    assert ask_for_usage(CHAT, body) is None


def test_other_routes_are_left_alone() -> None:
    assert ask_for_usage(Route("messages", Access.ADMIT), b'{"stream":true}') is None


# ------------------------------------------------------------------------------------------------------- taking out

USAGE = b'{"id":"1","choices":[],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2}}'


def passed(data: Iterable[bytes]) -> bytes:
    listener = UsageFilter()
    return b"".join([*(listener.feed(piece, ended=False) for piece in data), listener.feed(b"", ended=True)])


@pytest.mark.parametrize("size", [1, 7, 300, 100_000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    "name",
    [f"{engine}/{route}_stream_usage" for engine in ("vllm", "llamacpp") for route in ("chat", "completion")],
)
def test_of_real_streams_all_but_the_counts_pass(name: str, end: bytes, size: int) -> None:
    body = capture(name).body
    events = body.split(b"\n\n")
    wanted = b"\n\n".join(event for event in events if b'"choices":[]' not in event)
    assert len(events) - wanted.count(b"\n\n") == 1 + (name != "llamacpp/completion_stream_usage")
    body, wanted = (text.replace(b"\n", end) for text in (body, wanted))
    if end == b"\r\n":  # a line end that is cut in two leaves an empty line at the most
        assert passed(pieces(body, size)).replace(b"\r\n\n", b"\r\n") == wanted
    else:
        assert passed(pieces(body, size)) == wanted


PAYLOADS = [
    b'{"choices":[{"index":0,"delta":{"content":"a"}}]}',
    b'{"choices":[{"index":0,"delta":{"content":"\\"usage\\":{}"}}]}',
    b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}',
    b'{"choices":[],"usage":null}',
    b'{"choices":[],"prompt_filter_results":[]}',
    b'{"usage":{"prompt_tokens":3}}',
    b'["usage"]',
    b'{"usage"',
    b"[DONE]",
]


@given(
    st.lists(st.sampled_from([*PAYLOADS, USAGE]), max_size=8),
    st.lists(st.integers(0, 900), max_size=8),
    st.sampled_from([b"data: %b\n\n", b"data:%b\n\n", b": ping\n\ndata: %b\n\n", b"event: x\ndata: %b\n\n"]),
)
def test_whatever_is_not_the_counts_passes_byte_for_byte(payloads: list[bytes], at: list[int], form: bytes) -> None:
    stream = b"".join(form % payload for payload in payloads)
    wanted = b"".join((form % payload).replace(form.rpartition(b": ping\n\n")[2] % USAGE, b"") for payload in payloads)
    assert passed(cut(stream, at)) == wanted


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_bytes_that_are_no_stream_pass(data: list[bytes]) -> None:
    assert passed(data) == b"".join(data)


def test_whole_events_pass_at_once_and_a_cut_one_with_its_end() -> None:
    listener = UsageFilter()
    first, second = (b"data: %b\n\n" % payload for payload in PAYLOADS[:2])
    assert listener.feed(first, ended=False) == first
    assert listener.feed(first + second[:20], ended=False) == first
    assert listener.feed(second[20:-1], ended=False) == b""
    assert listener.feed(second[-1:], ended=False) == second


def test_the_counts_go_even_where_the_stream_ends_without_an_empty_line() -> None:
    assert passed([b"data: a\n\ndata: %b" % USAGE]) == b"data: a\n\n"
    assert passed([b"data: a\n\ndata: b"]) == b"data: a\n\ndata: b"


def test_an_event_too_large_to_hold_passes_as_it_comes() -> None:
    listener = UsageFilter()
    head = b'data: {"choices":[],"usage":{"x":"' + b"x" * 65_536
    assert listener.feed(head, ended=False) == head
    assert listener.feed(b'"}}\n\n', ended=False) == b'"}}\n\n'
