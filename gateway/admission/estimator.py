"""Shape -> WorkEstimate, without a tokenizer, learned online from ``usage``.

Prompt tokens are bytes over a learned ratio. In UTF-8 bytes English, Chinese and code lie within 15 % of each other
(3.6 to 4.6 bytes a token in the vocabularies of Qwen, Llama 3 and DeepSeek; in characters they differ 2.7-fold), so the
prior needs no language; digits, hex and base64 cost 1.0 to 1.4 bytes a token and are weighed apart. Cached prompt
tokens count like others: they hold KV all the same.

Output tokens are ``min(cap, mean of past outputs)``. Lengths differ by application, and an application shows in its
model, the size of its prompts, the cap it sets and its client: means are kept by these and fall back to coarser ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from gateway.admission.config import EstimatorConfig
from gateway.model import Shape, Usage, WorkEstimate

_TOKENS_MAX: Final = 100_000_000  # no request is predicted or believed to have more
_MODELS_MAX: Final = 512
_MEANS_MAX: Final = 8_192

_DENSE_WEIGHT: Final = 3.2  # digits, hex and base64 against text: 1.25 bytes a token instead of 4
_LONG: Final = 512  # weighed bytes from which a prompt tells the ratio; a shorter one tells what the template adds
_PRIOR: Final = 4_096.0  # bytes that the prior ratio weighs
_KEEP: Final = 0.98  # of the sums, at each prompt: a memory of about 50 prompts
_RATE_MIN: Final = 1 / 32  # tokens a byte; indented YAML has 1/7
_RATE_MAX: Final = 2.0
_TEMPLATE_MAX: Final = 4_096.0  # tokens; some templates carry a system prompt of their own
_TEMPLATE_STEP: Final = 0.1

_MEAN_STEP: Final = 0.1
_SEEN_BY_CLIENT: Final = 5  # outputs before a client's own mean is trusted
_SEEN: Final = 3  # the same for any other but the model's

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_MeanKey = tuple[str, int, int, str]  # model, log2 of prompt, log2 of cap, client; -1 and "" stand for any
_ANY: Final = -1


class Estimator:
    """Predicts the tokens of a request and learns from what the backend reports. Memory is bounded."""

    def __init__(self, config: EstimatorConfig) -> None:
        """Start from the priors in ``config``."""
        self._config = config
        self._prompts: _Recent[tuple[str, bool], _PromptModel] = _Recent(_MODELS_MAX, lambda: _PromptModel(config))
        self._outputs: _Recent[_MeanKey, _Mean] = _Recent(_MEANS_MAX, _Mean)

    def estimate(self, shape: Shape, client: str = "") -> WorkEstimate:
        """Predicted work of a request of this shape; every figure is finite, cost is at least 1."""
        prompt = self._prompt(shape)
        output = self._output(shape, prompt, client) if shape.generates else 0
        return WorkEstimate(prompt, output, max(1.0, self._config.prompt_weight * prompt + output))

    def learn(self, shape: Shape, usage: Usage, client: str = "") -> None:
        """Learn from a finished request. Prompts with media teach nothing about text."""
        size = _weighed(shape)
        if usage.prompt_tokens and size and not shape.media_tokens and shape.prompt_tokens is None:
            model = self._prompts.obtain((shape.model or "", shape.generates))
            model.learn(size, shape.messages, _bounded(usage.prompt_tokens))
        if usage.completion_tokens is not None and shape.generates:
            output = _bounded(usage.completion_tokens / max(shape.choices, 1))
            for key, _ in _mean_keys(shape, self._prompt(shape), client):
                self._outputs.obtain(key).add(output)

    def _prompt(self, shape: Shape) -> int:
        if shape.prompt_tokens is not None:
            return _bounded(shape.prompt_tokens + shape.media_tokens)
        model = self._prompts.find((shape.model or "", shape.generates)) or _PromptModel(self._config)
        return max(1, _bounded(model.predict(_weighed(shape), shape.messages) + shape.media_tokens))

    def _output(self, shape: Shape, prompt: int, client: str) -> int:
        expected = float(self._config.default_output)
        for key, seen in _mean_keys(shape, prompt, client):
            mean = self._outputs.find(key)
            if mean is not None and mean.count >= seen:
                expected = mean.value
                break
        if shape.max_output is not None:
            expected = min(expected, shape.max_output)
        floor = 0 if shape.max_output == 0 else 1
        return max(floor, _bounded(max(expected, floor) * max(shape.choices, 1)))


class _PromptModel:
    """tokens = rate x bytes + a constant per message + what the template adds once, for one model.

    The rate is a ratio of exponentially weighted sums over long prompts, so a long one weighs by its length; the
    template's share is a mean over short ones, whose few bytes say nothing of the rate.
    """

    __slots__ = ("_per_message", "_size", "_template", "_tokens")

    def __init__(self, config: EstimatorConfig) -> None:
        self._size = _PRIOR
        self._tokens = _PRIOR / config.bytes_per_token
        self._per_message = config.tokens_per_message
        self._template = 0.0

    def _rate(self) -> float:
        return min(max(self._tokens / self._size, _RATE_MIN), _RATE_MAX)

    def predict(self, size: float, messages: int) -> float:
        template = self._template if messages else 0.0
        return self._rate() * size + self._per_message * messages + template

    def learn(self, size: float, messages: int, tokens: int) -> None:
        rest = tokens - self._per_message * messages
        if size >= _LONG:
            text = min(max(rest - self._template, _RATE_MIN * size), _RATE_MAX * size)
            self._tokens = _KEEP * self._tokens + text
            self._size = _KEEP * self._size + size
        elif messages:
            added = min(max(rest - self._rate() * size, 0.0), _TEMPLATE_MAX)
            self._template += _TEMPLATE_STEP * (added - self._template)


class _Mean:
    """A mean that forgets: plain over the first ten values, exponentially weighted after them."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count = 0
        self.value = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += max(1.0 / self.count, _MEAN_STEP) * (value - self.value)


class _Recent(Generic[_Key, _Value]):
    """A table of bounded size; the entry that was used least recently goes first."""

    def __init__(self, size: int, make: Callable[[], _Value]) -> None:
        self._size = size
        self._make = make
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()

    def find(self, key: _Key) -> _Value | None:
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def obtain(self, key: _Key) -> _Value:
        value = self.find(key)
        if value is None:
            value = self._entries[key] = self._make()
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)
        return value


def _mean_keys(shape: Shape, prompt: int, client: str) -> list[tuple[_MeanKey, int]]:
    """Where outputs like this one are kept, finest first, and how many must have been seen there."""
    model, size = shape.model or "", prompt.bit_length()
    cap = 0 if shape.max_output is None else 1 + shape.max_output.bit_length()
    keys = [((model, size, cap, ""), _SEEN), ((model, _ANY, cap, ""), _SEEN), ((model, _ANY, _ANY, ""), 1)]
    return [((model, size, cap, client), _SEEN_BY_CLIENT), *keys] if client else keys


def _weighed(shape: Shape) -> float:
    return shape.prompt_bytes + (_DENSE_WEIGHT - 1.0) * min(shape.dense_bytes, shape.prompt_bytes)


def _bounded(tokens: float) -> int:
    return round(min(max(tokens, 0), _TOKENS_MAX))
