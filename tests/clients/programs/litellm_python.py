"""LiteLLM's client. Arguments: the base URL and what to do; prints what it got as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm
import openai

QUESTION = [{"role": "user", "content": "Say what 世界 is."}]


def call(url: str, **options: Any) -> Any:
    """One call, as its documentation makes it for an engine of one's own."""
    ask = {"model": "openai/tiny", "messages": QUESTION, "api_base": f"{url}/v1", "api_key": "any", "max_tokens": 12}
    return litellm.completion(**ask | options)


def answers(url: str) -> Any:
    """An answer of every kind."""
    whole = call(url)
    stream = list(call(url, stream=True))
    return {
        "whole": [whole.choices[0].message.content, whole.choices[0].finish_reason, whole.usage.completion_tokens],
        "stream": "".join(chunk.choices[0].delta.content or "" for chunk in stream),
        "finish": [chunk.choices[0].finish_reason for chunk in stream if chunk.choices[0].finish_reason],
    }


def errors(url: str) -> Any:
    """Errors of every kind."""
    told = []
    for options in ({"model": "openai/other"}, {"max_tokens": -1}, {"model": "openai/other", "stream": True}):
        try:
            call(url, **options)
        except openai.APIStatusError as error:
            told.append([type(error).__name__, error.status_code, error.message])
    return told


def refused(url: str) -> Any:
    """What a refusal becomes."""
    try:
        call(url, max_tokens=4)
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.message]
    return None


if __name__ == "__main__":
    base, *what = sys.argv[1:]
    litellm.suppress_debug_info = True
    wanted = {"answers": answers, "errors": errors, "refused": refused}
    json.dump({name: wanted[name](base) for name in what}, sys.stdout)
