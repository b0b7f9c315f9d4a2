"""The retry rules beside those of the real SDK."""

import math
import time
from collections.abc import Iterator
from email.utils import formatdate

import openai
import pytest
from httpx2 import Headers, Request, Response
from openai import _base_client
from openai._constants import MAX_RETRY_AFTER_DELAY
from openai._models import FinalRequestOptions

from gateway.emulator import sdk

WALL = 1_800_000_000.0

REPLIES: list[dict[str, str]] = [
    {},
    {"x-should-retry": "true"},
    {"x-should-retry": "false"},
    {"x-should-retry": "perhaps"},
    {"retry-after": "3"},
    {"retry-after": "0"},
    {"retry-after": "-1"},
    {"retry-after": "120"},
    {"retry-after": "121"},
    {"retry-after": "121", "x-should-retry": "true"},
    {"retry-after": "soon"},
    {"retry-after": "nan"},
    {"retry-after": "inf"},
    {"retry-after": "1.5"},
    {"retry-after": formatdate(WALL + 7, usegmt=True)},
    {"retry-after": formatdate(WALL - 7, usegmt=True)},
    {"retry-after": formatdate(WALL + 700, usegmt=True)},
    {"retry-after-ms": "1500", "retry-after": "9"},
    {"retry-after-ms": "much", "retry-after": "9"},
    {"retry-after-ms": "130000"},
    {"retry-after-ms": "0", "retry-after": "9"},
]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", max_retries=2) as made:
        yield made


@pytest.mark.parametrize("headers", REPLIES, ids=str)
@pytest.mark.parametrize("status", [400, 404, 408, 409, 422, 429, 500, 502, 503, 529])
def test_as_the_sdk_decides(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, status: int, headers: dict[str, str]
) -> None:
    monkeypatch.setattr(time, "time", lambda: WALL)
    monkeypatch.setattr(_base_client, "random", lambda: 0.6)
    response = Response(status, headers=headers, request=Request("POST", "http://x"))
    options = FinalRequestOptions(method="post", url="/")
    for attempt in (0, 1):
        theirs = None
        if client._should_retry(response):
            theirs = client._calculate_retry_timeout(2 - attempt, options, Headers(headers))
        ours = sdk.retry_delay(status, headers, attempt, lambda: 0.6, WALL)
        assert ours == pytest.approx(theirs), (attempt, theirs)


def test_a_connection_error_is_retried_after_the_backoff() -> None:
    delays = [sdk.retry_delay(None, {}, attempt, lambda: 0.0, WALL) for attempt in range(7)]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert sdk.retry_delay(None, {}, 0, lambda: 1.0, WALL) == pytest.approx(0.375)


def test_what_it_says_of_itself() -> None:
    assert sdk.headers(1, 10.0)["x-stainless-retry-count"] == "1"
    assert sdk.headers(0, 10.0)["x-stainless-read-timeout"] == "10"
    assert sdk.headers(0, 2.5)["x-stainless-read-timeout"] == "2.5"
    assert math.isclose(sdk.MAX_RETRY_AFTER, MAX_RETRY_AFTER_DELAY)
