"""The anthropic SDK. Arguments: the base URL and what to do; prints what it got as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import anthropic

ASK: Any = {"model": "tiny", "max_tokens": 12, "messages": [{"role": "user", "content": "Say what 世界 is."}]}


def answers(client: anthropic.Anthropic) -> Any:
    """An answer of every kind."""
    whole = client.messages.create(**ASK)
    with client.messages.stream(**ASK) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    return {
        "whole": [block.to_dict().get("text") for block in whole.content],
        "stopped": [whole.stop_reason, whole.usage.output_tokens],
        "stream": text,
        "streamed": [final.stop_reason, final.usage.input_tokens, final.usage.output_tokens],
    }


def errors(client: anthropic.Anthropic) -> Any:
    """Errors of every kind."""
    told = []
    for ask in ({**ASK, "model": "other"}, {**ASK, "max_tokens": -1}, {**ASK, "model": "other", "stream": True}):
        try:
            client.messages.create(**ask)
        except anthropic.APIStatusError as error:
            told.append([type(error).__name__, error.status_code, error.message])
    return told


def refused(client: anthropic.Anthropic) -> Any:
    """What a refusal becomes."""
    try:
        client.messages.create(**ASK)
    except anthropic.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.message]
    return None


if __name__ == "__main__":
    url, *what = sys.argv[1:]
    with anthropic.Anthropic(base_url=url, api_key="any") as made:
        wanted = {"answers": answers, "errors": errors, "refused": refused}
        json.dump({name: wanted[name](made) for name in what}, sys.stdout)
