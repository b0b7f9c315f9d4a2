from __future__ import annotations

import json
import shlex

import pytest

from gateway.app.announce import curl, first_model, reachable, trial


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://0.0.0.0:8080", "http://127.0.0.1:8080"),
        ("http://[::]:8080", "http://[::1]:8080"),
        ("http://10.0.0.1:8080", "http://10.0.0.1:8080"),
    ],
)
def test_nobody_connects_to_a_wildcard(url: str, local: str) -> None:
    assert reachable(url) == local


def test_the_line_survives_a_shell_whatever_the_model_is_called() -> None:
    words = shlex.split(curl("http://0.0.0.0:1", 'it\'s a "model" $HOME'))
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:1/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == 'it\'s a "model" $HOME'


def test_without_a_model_the_line_says_what_to_put_in() -> None:
    said, line = trial("http://0.0.0.0:1", None)
    assert "MODEL" in said
    assert '"model": "MODEL"' in line


async def test_no_answer_is_no_model(unused_tcp_port: int) -> None:
    assert await first_model(f"http://127.0.0.1:{unused_tcp_port}") is None
