from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.registry import ADMIN, INVALID, standard
from gateway.model import Access


def test_a_request_is_given_to_the_dialect_that_knows_it() -> None:
    dialects = standard()
    assert dialects.resolve("POST", "/v1/chat/completions")[0].name == "openai"
    assert dialects.resolve("POST", "/v1/messages")[0].name == "anthropic"
    assert dialects.resolve("POST", "/generate")[0].name == "native"
    assert dialects.resolve("POST", "/whatever")[0].name == "other"


def test_S18_what_cannot_be_read_is_told_from_what_is_denied() -> None:
    dialects = standard()
    assert dialects.resolve("GET", "/v1/%00")[1] is INVALID
    assert dialects.resolve("GET", "/v1/%2e%2e/stopService")[1] is ADMIN
    assert dialects.resolve("GET", "/v1/%252e%252e/stopService")[1] is ADMIN


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/stopService", "/%00", "*", "/x"])
def test_P36_a_preflight_always_passes(path: str) -> None:
    assert standard().resolve("OPTIONS", path)[1].access is Access.BYPASS


def test_the_operator_may_let_admin_routes_pass() -> None:
    _, route = standard(allow_admin=True).resolve("POST", "/sleep")
    assert (route.label, route.access) == ("admin", Access.BYPASS)
    assert standard(allow_admin=True).resolve("GET", "/%00")[1] is INVALID


def test_what_is_remembered_is_bounded() -> None:
    dialects = standard()
    for n in range(3000):
        dialects.resolve("GET", f"/x/{n}")
    dialects.resolve("GET", "/" + "x" * 10_000)
    assert 0 < len(dialects._known) <= 1024
    assert all(len(path) <= 256 for _, path in dialects._known)
    assert dialects.resolve("GET", "/x/1") == dialects.resolve("GET", "/x/1")


@given(st.sampled_from(["GET", "POST", "PATCH", "OPTIONS", "get", ""]), st.text())
def test_every_request_has_a_route_of_few_labels(method: str, path: str) -> None:
    dialect, route = standard().resolve(method, path)
    assert route.label
    assert route.label.isascii()
    assert dialect.name in {"openai", "anthropic", "native", "other"}
