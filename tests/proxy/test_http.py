"""Heads as bytes, without a socket."""

from __future__ import annotations

import pytest

from gateway.model import Access, Reason, Rejection, Route, Shape, Ticket, WorkEstimate
from gateway.proxy.http import (
    ClientTerms,
    Framing,
    ResponseHead,
    framing,
    listed,
    own_reply,
    passed_on,
    refusal,
    request_head,
    response_head,
)

TICKET = Ticket(1, Shape(Route("chat", Access.ADMIT)), WorkEstimate(1, 1, 1.25))


def test_listed_reads_every_line_and_ignores_case_and_space() -> None:
    headers = [(b"Connection", b"close, X-One ,"), (b"CONNECTION", b"x-two"), (b"Other", b"x-three")]
    assert listed(headers, b"connection") == {b"close", b"x-one", b"x-two"}


def test_request_head_keeps_order_case_and_duplicates() -> None:
    headers = [(b"B-Header", b"1"), (b"a-header", b"2"), (b"B-Header", b"3")]
    head = request_head(b"GET / HTTP/1.1", passed_on(headers), host=b"engine:1", peer=b"::1", request_id=b"id")
    assert head == (
        b"GET / HTTP/1.1\r\nHost: engine:1\r\nB-Header: 1\r\na-header: 2\r\nB-Header: 3\r\n"
        b"X-Forwarded-For: ::1\r\nX-Request-Id: id\r\n\r\n"
    )


def test_request_head_replaces_what_belongs_to_the_hop() -> None:
    headers = [
        (b"Host", b"gateway"),
        (b"Content-Length", b"99"),
        (b"Expect", b"100-continue"),
        (b"TE", b"trailers"),
        (b"Upgrade", b"h2c"),
        (b"Connection", b"Upgrade, X-Private"),
        (b"X-Private", b"1"),
        (b"Keep-Alive", b"timeout=5"),
        (b"Transfer-Encoding", b"chunked"),
        (b"X-Request-Id", b"old"),
        (b"Accept", b"*/*"),
    ]
    passed = passed_on(headers)
    head = request_head(b"POST / HTTP/1.1", passed, host=b"e", length=3, request_id=b"id", peer=b"10.0.0.1")
    assert head.split(b"\r\n")[1:-2] == [
        b"Host: e",
        b"Accept: */*",
        b"X-Forwarded-For: 10.0.0.1",
        b"X-Request-Id: id",
        b"Content-Length: 3",
    ]


def test_forwarded_addresses_are_joined_in_order() -> None:
    headers = [(b"X-Forwarded-For", b"1.1.1.1"), (b"x-forwarded-for", b"2.2.2.2, 3.3.3.3")]
    head = request_head(b"GET / HTTP/1.1", passed_on(headers), host=b"e", peer=b"4.4.4.4", request_id=b"id")
    assert b"X-Forwarded-For: 1.1.1.1, 2.2.2.2, 3.3.3.3, 4.4.4.4\r\n" in head
    assert head.lower().count(b"x-forwarded-for") == 1


@pytest.mark.parametrize("credential", [b"Authorization", b"x-api-key"])
def test_a_backend_key_replaces_the_clients(credential: bytes) -> None:
    headers = [(credential, b"client-secret")]
    assert b"client-secret" in passed_on(headers)
    passed = passed_on(headers, credentials=False)
    assert b"client-secret" not in passed
    replaced = request_head(b"GET / HTTP/1.1", passed, host=b"e", peer=b"", request_id=b"id", api_key=b"backend-key")
    assert b"Authorization: Bearer backend-key\r\n" in replaced


@pytest.mark.parametrize(
    ("status", "length", "chunks", "terms", "expected"),
    [
        (200, 5, False, ClientTerms("GET"), Framing.LENGTH),
        (200, None, True, ClientTerms("GET"), Framing.CHUNKED),
        (200, None, False, ClientTerms("GET"), Framing.CHUNKED),
        (200, None, True, ClientTerms("GET", http10=True), Framing.CLOSE),
        (200, 5, False, ClientTerms("GET", http10=True), Framing.LENGTH),
        (200, 5, False, ClientTerms("HEAD"), Framing.NONE),
        (204, None, False, ClientTerms("GET"), Framing.NONE),
        (304, 5, False, ClientTerms("GET"), Framing.NONE),
    ],
)
def test_framing(status: int, length: int | None, chunks: bool, terms: ClientTerms, expected: Framing) -> None:
    assert framing(ResponseHead(status, b"", [], chunks, length), terms) is expected


def _lines(head: ResponseHead, terms: ClientTerms, *, keep_alive: bool = True) -> list[bytes]:
    framed = framing(head, terms)
    raw = response_head(head, terms, framed, keep_alive=keep_alive, request_id=b"id", timing=b"queue;dur=1")
    return raw.removesuffix(b"\r\n\r\n").split(b"\r\n")


def test_response_head_passes_everything_but_the_hop() -> None:
    headers = [
        (b"date", b"today"),
        (b"Set-Cookie", b"a=1"),
        (b"Set-Cookie", b"b=2"),
        (b"Connection", b"X-Hop"),
        (b"X-Hop", b"1"),
        (b"Keep-Alive", b"timeout=5"),
        (b"Content-Length", b"2"),
    ]
    lines = _lines(ResponseHead(207, b"Odd Reason", headers, length=2), ClientTerms("GET"))
    assert lines == [
        b"HTTP/1.1 207 Odd Reason",
        b"date: today",
        b"Set-Cookie: a=1",
        b"Set-Cookie: b=2",
        b"Content-Length: 2",
        b"X-Request-Id: id",
        b"Server-Timing: queue;dur=1",
    ]


def test_P46_both_framings_from_a_backend_leave_as_one() -> None:
    headers = [(b"Content-Length", b"2"), (b"Transfer-Encoding", b"chunked")]
    lines = _lines(ResponseHead(200, b"OK", headers, chunked=True), ClientTerms("GET"))
    assert [line for line in lines if b"ength" in line or b"Encoding" in line] == [b"Transfer-Encoding: chunked"]


def test_a_repeated_length_leaves_once() -> None:
    headers = [(b"Content-Length", b"2"), (b"content-length", b"2")]
    lines = _lines(ResponseHead(200, b"OK", headers, length=2), ClientTerms("GET"))
    assert [line for line in lines if b"ength" in line] == [b"Content-Length: 2"]


def test_a_304_keeps_the_length_it_speaks_of_and_a_204_has_none() -> None:
    headers = [(b"Content-Length", b"7")]
    assert b"Content-Length: 7" in _lines(ResponseHead(304, b"", headers, length=7), ClientTerms("GET"))
    assert b"Content-Length: 7" not in _lines(ResponseHead(204, b"", headers, length=7), ClientTerms("GET"))


def test_P12_streams_tell_proxies_not_to_buffer_and_keep_what_the_backend_says() -> None:
    stream = [(b"Content-Type", b"text/event-stream")]
    lines = _lines(ResponseHead(200, b"OK", stream, chunked=True), ClientTerms("GET"))
    assert b"X-Accel-Buffering: no" in lines
    assert b"Cache-Control: no-cache" in lines
    said = [*stream, (b"cache-control", b"private"), (b"X-ACCEL-BUFFERING", b"yes")]
    lines = _lines(ResponseHead(200, b"OK", said, chunked=True), ClientTerms("GET"))
    assert [line for line in lines if line.lower().startswith((b"x-accel", b"cache"))] == [
        b"cache-control: private",
        b"X-ACCEL-BUFFERING: yes",
    ]
    plain = _lines(ResponseHead(200, b"OK", [(b"Content-Type", b"application/json")], length=1), ClientTerms("GET"))
    assert not [line for line in plain if line.startswith((b"X-Accel", b"Cache"))]


@pytest.mark.parametrize(
    ("terms", "keep_alive", "line"),
    [
        (ClientTerms("GET"), True, None),
        (ClientTerms("GET"), False, b"Connection: close"),
        (ClientTerms("GET", http10=True), True, b"Connection: keep-alive"),
        (ClientTerms("GET", http10=True), False, b"Connection: close"),
    ],
)
def test_the_connection_header_says_what_happens_next(terms: ClientTerms, keep_alive: bool, line: bytes | None) -> None:
    lines = _lines(ResponseHead(200, b"OK", [], length=0), terms, keep_alive=keep_alive)
    assert [one for one in lines if one.startswith(b"Connection")] == ([] if line is None else [line])


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_refusal(reason: Reason) -> None:
    status, message, headers = refusal(Rejection(TICKET, reason, 2.25))
    assert status == (503 if reason in {Reason.NO_BACKEND, Reason.DRAINING} else 429)
    assert message.endswith("Retry after 3 s.")
    fields = dict(headers)
    assert fields["Retry-After"] == "3"
    assert fields["retry-after-ms"] == "2250"
    assert fields["x-gateway-shed-reason"] == reason.value
    assert ("x-envoy-ratelimited" in fields) == (status == 429)
    assert "x-should-retry" not in fields


@pytest.mark.parametrize(
    ("wait", "seconds", "milliseconds"), [(0.0, "1", "1"), (1.0, "1", "1000"), (59.01, "60", "59010")]
)
def test_O24_retry_after_is_whole_seconds_and_never_zero(wait: float, seconds: str, milliseconds: str) -> None:
    fields = dict(refusal(Rejection(TICKET, Reason.QUEUE_FULL, wait))[2])
    assert (fields["Retry-After"], fields["retry-after-ms"]) == (seconds, milliseconds)


@pytest.mark.parametrize(("should", "said"), [(True, "true"), (False, "false")])
def test_the_retry_hint_is_said_where_it_is_known(should: bool, said: str) -> None:
    assert dict(refusal(Rejection(TICKET, Reason.DEADLINE, 1.0, should))[2])["x-should-retry"] == said


def test_own_reply_has_no_body_for_head() -> None:
    whole = own_reply(429, [("A", "b")], "application/json", b"{}", ClientTerms("HEAD"), keep_alive=False)
    assert whole == (
        b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nContent-Length: 2\r\nA: b\r\n"
        b"Connection: close\r\n\r\n"
    )


def test_own_reply_knows_no_phrase_for_a_made_up_status() -> None:
    assert own_reply(599, (), "t", b"", ClientTerms("GET"), keep_alive=True).startswith(b"HTTP/1.1 599 \r\n")
