"""Who may see what: the whole matrix of peer, Host, token and path."""

from __future__ import annotations

import pytest

from gateway.console.access import OPEN_PATHS, Caller, denial
from gateway.console.status import FILES

TOKEN = "s3cret-token"
GUARDED = ("/state", "/config", "/status", "/limits", "//", "/anything/else")


def caller(
    peer: str | None = "127.0.0.1",
    *,
    host: str | None = "localhost:8081",
    authorization: str | None = None,
    forwarded: bool = False,
) -> Caller:
    return Caller(peer, host, authorization, forwarded)


def status(path: str, who: Caller, token: str | None = TOKEN) -> int:
    refused = denial(path, who, token)
    return 200 if refused is None else refused.status


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz", "/metrics"])
@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize(
    "who",
    [
        caller(),
        caller("10.1.2.3"),
        caller(None),
        caller("10.1.2.3", host="evil.example"),
        caller("10.1.2.3", authorization="Bearer wrong"),
        caller(forwarded=True),
    ],
)
def test_probes_and_metrics_are_open_to_all(path: str, token: str | None, who: Caller) -> None:
    assert status(path, who, token) == 200


@pytest.mark.parametrize("path", GUARDED)
@pytest.mark.parametrize("token", [None, "", TOKEN])
@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_a_caller_on_this_machine_needs_no_token(path: str, token: str | None, peer: str) -> None:
    assert status(path, caller(peer), token) == 200


@pytest.mark.parametrize("path", [*GUARDED, "/metrics/x", "/METRICS", "/livez/../state", "/status.js/x"])
@pytest.mark.parametrize("token", [None, "", TOKEN])
@pytest.mark.parametrize(
    "peer", ["10.1.2.3", "192.168.0.1", "2001:db8::1", "::ffff:10.1.2.3", "not an address", "", None]
)
def test_others_are_refused(path: str, token: str | None, peer: str | None) -> None:
    assert status(path, caller(peer), token) == 403


def test_a_refusal_says_what_to_do() -> None:
    without = denial("/state", caller("10.1.2.3"), None)
    assert without is not None
    assert "/state" in without.message
    assert "GATEWAY_ADMIN_TOKEN" in without.message
    assert "not set" in without.message
    given = denial("/state", caller("10.1.2.3"), TOKEN)
    assert given is not None
    assert "Authorization: Bearer" in given.message
    assert TOKEN not in given.message


@pytest.mark.parametrize("authorization", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER  {TOKEN} "])
@pytest.mark.parametrize("peer", ["10.1.2.3", "127.0.0.1", None])
def test_the_token_opens_everything_from_everywhere(authorization: str, peer: str | None) -> None:
    who = caller(peer, host="gateway.example:8081", authorization=authorization, forwarded=True)
    assert [status(path, who) for path in GUARDED] == [200] * len(GUARDED)


@pytest.mark.parametrize(
    "authorization",
    [
        "Bearer wrong",
        "Bearer ",
        "Bearer",
        "",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN}x",
        "Bearer ünïcode",
        "Bearer \udcff",
    ],
)
@pytest.mark.parametrize("peer", ["10.1.2.3", "127.0.0.1"])
def test_a_wrong_token_is_401_from_everywhere(authorization: str, peer: str) -> None:
    refused = denial("/state", caller(peer, authorization=authorization), TOKEN)
    assert refused is not None
    assert refused.status == 401
    assert TOKEN not in refused.message
    assert "wrong" not in authorization or "wrong" not in refused.message.removeprefix("wrong token")


@pytest.mark.parametrize("token", [None, ""])
@pytest.mark.parametrize(("peer", "expected"), [("127.0.0.1", 200), ("10.1.2.3", 403)])
def test_where_no_token_is_set_none_opens(token: str | None, peer: str, expected: int) -> None:
    for authorization in ("Bearer ", "Bearer anything", "Bearer None"):
        assert status("/state", caller(peer, authorization=authorization), token) == expected


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8081", "LOCALHOST", "127.0.0.1", "127.0.0.1:8081", "[::1]", "[::1]:8081", "10.0.0.7"],
)
def test_addresses_and_localhost_are_good_hosts(host: str) -> None:
    assert status("/state", caller(host=host)) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8081",
        "localhost.evil.example",
        "127.0.0.1.nip.io:8081",
        "localhost@evil.example",
        "[evil.example]:80",
        ":8081",
        "",
        None,
    ],
)
def test_a_rebound_name_does_not_pass_as_local(host: str | None) -> None:
    refused = denial("/state", caller(host=host), TOKEN)
    assert refused is not None
    assert refused.status == 403
    assert "Host" in refused.message


def test_what_another_proxy_relays_is_not_local() -> None:
    assert status("/state", caller(forwarded=True)) == 403


def test_the_open_paths_are_the_probes_the_metrics_and_the_files_of_the_page() -> None:
    assert frozenset({"/livez", "/readyz", "/healthz", "/metrics"}) | FILES.keys() == OPEN_PATHS
