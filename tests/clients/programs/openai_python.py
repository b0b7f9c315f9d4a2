"""The openai SDK. Arguments: the base URL and what to do; prints what it got as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import openai
from openai.types.chat import ChatCompletionMessageParam

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say what 世界 is."}]


def answers(client: openai.OpenAI) -> Any:
    """An answer of every kind."""
    whole = client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=12)
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    stream = list(client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=12, **options))
    usage = stream[-1].usage
    response = client.responses.create(model="tiny", input="Hello", max_output_tokens=8, stream=True)
    return {
        "whole": [whole.choices[0].message.content, whole.choices[0].finish_reason, whole.usage.to_dict()]
        if whole.usage
        else None,
        "stream": "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices),
        "usage": usage.to_dict() if usage else None,
        "completion": client.completions.create(model="tiny", prompt="Hello", max_tokens=4).choices[0].text,
        "response": [event.type for event in response],
        "vectors": [len(item.embedding) for item in client.embeddings.create(model="tiny", input=["a", "b"]).data],
        "models": [model.id for model in client.models.list()],
    }


def errors(client: openai.OpenAI) -> Any:
    """Errors of every kind."""
    told = []
    asks: list[Any] = [
        {"model": "other", "messages": QUESTION},
        {"model": "tiny", "messages": QUESTION, "max_tokens": -1},
        {"model": "other", "messages": QUESTION, "stream": True},
    ]
    for ask in asks:
        try:
            client.chat.completions.create(**ask)
        except openai.APIStatusError as error:
            told.append([type(error).__name__, error.status_code, error.message])
    return told


def refused(client: openai.OpenAI) -> Any:
    """What a refusal becomes."""
    try:
        client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=4)
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.message]
    return None


if __name__ == "__main__":
    url, *what = sys.argv[1:]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any") as made:
        wanted = {"answers": answers, "errors": errors, "refused": refused}
        json.dump({name: wanted[name](made) for name in what}, sys.stdout)
