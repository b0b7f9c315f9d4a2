"""LangChain's ChatOpenAI. Arguments: the base URL and what to do; prints what it got as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import openai
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

QUESTION = "Say what 世界 is."


def model(url: str, **options: Any) -> ChatOpenAI:
    """The chat model as its documentation makes it."""
    return ChatOpenAI(**{"model": "tiny", "base_url": f"{url}/v1", "api_key": SecretStr("any")} | options)


def answers(url: str) -> Any:
    """An answer of every kind."""
    chat = model(url, max_tokens=12)
    whole = chat.invoke(QUESTION)
    streamed = list(chat.stream(QUESTION))
    counted = [chunk.usage_metadata["output_tokens"] for chunk in streamed if chunk.usage_metadata]
    return {
        "whole": [whole.content, whole.response_metadata["finish_reason"]],
        "usage": whole.usage_metadata and whole.usage_metadata["output_tokens"],
        "stream": "".join(str(chunk.content) for chunk in streamed),
        "streamed": sum(counted),
        "batch": [answer.content for answer in chat.batch(["one", "two"])],
    }


def errors(url: str) -> Any:
    """Errors of every kind."""
    told = []
    for options in ({"model": "other"}, {"max_tokens": -1}, {"model": "other", "streaming": True}):
        try:
            model(url, **options).invoke(QUESTION)
        except openai.APIStatusError as error:
            told.append([type(error).__name__, error.status_code, error.message])
    return told


def refused(url: str) -> Any:
    """What a refusal becomes."""
    try:
        model(url, max_tokens=4).invoke(QUESTION)
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.message]
    return None


if __name__ == "__main__":
    base, *what = sys.argv[1:]
    wanted = {"answers": answers, "errors": errors, "refused": refused}
    json.dump({name: wanted[name](base) for name in what}, sys.stdout)
