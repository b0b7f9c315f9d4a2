"""Shape -> WorkEstimate, without a tokenizer, learned online from ``usage``.

Prompt tokens are bytes times a learned rate. In UTF-8 bytes English, Chinese and code lie within 15 % of each other
(3.6 to 4.6 bytes a token in the vocabularies of Qwen, Llama 3 and DeepSeek; in characters they differ 2.7-fold), so the
prior needs no language. But signs cost twice as much as letters, and digits, hex and base64 three to nine times (Qwen
makes a token of every digit), so JSON has 2.7 bytes a token: letters, signs, dense and wide bytes have rates of their
own, and vocabularies differ in all four. Cached prompt tokens count like others: they hold KV all the same.

Output tokens are ``min(cap, mean of past outputs)``. Lengths differ by application, and an application shows in its
model, the size of its prompts, the cap it sets and its client: means are kept by these and fall back to coarser ones.
A cap is no bound where outputs under caps of its size were longer than any of them: MindIE does not know
``max_completion_tokens``, and gives what its ``maxIterTimes`` allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import exp, log
from typing import Final, Generic, TypeVar

from gateway.admission.config import EstimatorConfig
from gateway.admission.memory import OutputMemory, PromptMemory
from gateway.model import ModelState, Shape, Usage, WorkEstimate

_TOKENS_MAX: Final = 100_000_000  # no request is predicted or believed to have more
_MODELS_MAX: Final = 512
_MEANS_MAX: Final = 8_192

_SORTS: Final = ("letters", "signs", "dense", "wide")  # letters with white space; dense: digits, hex, base64
_WEIGHTS: Final[tuple[float, ...]] = (1.0, 1.9, 3.8, 1.0)  # their priors
_LONG: Final = 512  # bytes from which a prompt tells the rates; a shorter one tells what the template adds
_RATE_MIN: Final = 1 / 32  # tokens a byte; indented YAML has 1/7
_RATE_MAX: Final = 2.0
_RATE_STEP: Final = 0.1  # of an error, once many prompts were seen; the first one is believed at once
_RATE_SURE: Final = 0.25  # how fast that is reached: step 1 / (1 + 0.25 n)
_TEMPLATE_MAX: Final = 4_096.0  # tokens; some templates carry a system prompt of their own
_TEMPLATE_STEP: Final = 0.1

_REMEMBERED: Final = 1_024  # means that are worth keeping over a restart
_MEAN_STEP: Final = 0.1
_PLAIN: Final = 10  # values up to which a mean is a plain one
_SEEN_BY_CLIENT: Final = 5  # outputs before a client's own mean is trusted
_SEEN: Final = 3  # the same for any other but the model's

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Features = tuple[int, int, int, int]
_MeanKey = tuple[str, int, int, str]  # model, log2 of prompt, log2 of cap, client; -1 and "" stand for any
_ANY: Final = -1


class Estimator:
    """Predicts the tokens of a request and learns from what the backend reports. Memory is bounded."""

    def __init__(self, config: EstimatorConfig) -> None:
        """Start from the priors in ``config``."""
        self._config = config
        self._prompts: _Recent[tuple[str, bool], _PromptModel] = _Recent(_MODELS_MAX, lambda: _PromptModel(config))
        self._outputs: _Recent[_MeanKey, _Mean] = _Recent(_MEANS_MAX, _Mean, _REMEMBERED)
        self._together: dict[_MeanKey, list[_Mean]] = {}  # as long as none of them is forgotten

    def estimate(self, shape: Shape, client: str = "") -> WorkEstimate:
        """Predicted work of a request of this shape; every figure is finite, cost is at least 1."""
        prompt = self._prompt(shape)
        output = self._output(shape, prompt, client) if shape.generates else 0
        return WorkEstimate(prompt, output, max(1.0, self._config.prompt_weight * prompt + output))

    def learn(self, shape: Shape, usage: Usage, client: str = "") -> None:
        """Learn from a finished request. Prompts with media teach nothing about text."""
        model = None
        if usage.prompt_tokens and shape.prompt_bytes > 0 and not shape.media_tokens and shape.prompt_tokens is None:
            model = self._prompts.obtain((shape.model or "", shape.generates))
            model.learn(_features(shape), shape.messages, _bounded(usage.prompt_tokens))
        if usage.completion_tokens is not None and shape.generates:
            output = _bounded(usage.completion_tokens / max(shape.choices, 1))
            for mean in self._means(_finest(shape, self._prompt(shape, model), client)):
                mean.add(output)

    def learned(self, most: int) -> tuple[ModelState, ...]:
        """What is known of the models asked for last, of so many at most."""
        return tuple(self._told(name, generates, model) for (name, generates), model in self._prompts.latest(most))

    def remember(self) -> tuple[tuple[PromptMemory, ...], tuple[OutputMemory, ...]]:
        """What was learned of models, the latest first; of single clients nothing."""
        prompts = tuple(
            PromptMemory(model, generates, tuple(learned.rates), learned.template, learned.seen)
            for (model, generates), learned in self._prompts.latest(_MODELS_MAX)
        )
        outputs = (
            OutputMemory(model, prompt, cap, mean.count, mean.value)
            for (model, prompt, cap, client), mean in self._outputs.latest(_MEANS_MAX)
            if not client
        )
        return prompts, tuple(islice(outputs, _REMEMBERED))

    def recall(self, prompts: Sequence[PromptMemory], outputs: Sequence[OutputMemory]) -> None:
        """Go on from what an earlier gateway learned."""
        for known in reversed(prompts):
            if len(known.rates) == len(_WEIGHTS):
                model = self._prompts.obtain((known.model, known.generates))
                model.rates = [min(max(rate, _RATE_MIN), _RATE_MAX) for rate in known.rates]
                model.template, model.seen = min(known.template, _TEMPLATE_MAX), known.seen
        for output in reversed(outputs):
            mean = self._outputs.obtain((output.model, output.prompt_bits, output.cap_bits, ""))
            mean.count, mean.value = output.count, output.tokens
        self._together.clear()  # there may be too many of them now

    def _told(self, name: str, generates: bool, model: _PromptModel) -> ModelState:
        rates = dict(zip(_SORTS, model.rates, strict=True))
        state = ModelState(name, generates, model.seen, rates, model.template)
        outputs = self._outputs.peek((name, _ANY, _ANY, "")) if generates else None
        return state if outputs is None else replace(state, answers=outputs.count, output=outputs.value)

    def _means(self, key: _MeanKey) -> list[_Mean]:
        """What outputs of ``key`` belong to, itself first."""
        means = self._together.get(key)
        if means is None:
            means = [self._outputs.obtain(each) for each in (key, *_coarser(key))]
            if len(self._outputs) <= _REMEMBERED:
                self._together[key] = means
            else:  # from here on it matters which were used last, and the others are forgotten
                self._together.clear()
        return means

    def _prompt(self, shape: Shape, model: _PromptModel | None = None) -> int:
        if shape.prompt_tokens is not None:
            return _bounded(shape.prompt_tokens + shape.media_tokens)
        if model is None:
            model = self._prompts.find((shape.model or "", shape.generates)) or _PromptModel(self._config)
        return max(1, _bounded(model.predict(_features(shape), shape.messages) + shape.media_tokens))

    def _output(self, shape: Shape, prompt: int, client: str) -> int:
        expected, cap, heeded = float(self._config.default_output), shape.max_output, True
        key = _finest(shape, prompt, client)
        mean = self._outputs.find(key)
        if mean is None or mean.count < (_SEEN_BY_CLIENT if client else _SEEN):
            key, mean = self._coarser_mean(key)
        if mean is not None:
            expected = mean.value
            heeded = cap is None or key[2] == _ANY or expected < 1 << cap.bit_length()
        if cap is not None and heeded:
            expected = min(expected, cap)
        floor = 0 if cap == 0 else 1
        return max(floor, _bounded(max(expected, floor) * max(shape.choices, 1)))

    def _coarser_mean(self, key: _MeanKey) -> tuple[_MeanKey, _Mean | None]:
        """The finest of those above ``key`` that has seen enough."""
        for coarser in _coarser(key):
            mean = self._outputs.find(coarser)
            if mean is not None and mean.count >= (1 if coarser[2] == _ANY else _SEEN):
                return coarser, mean
        return key, None


class _PromptModel:
    """tokens = sum of rate x bytes by sort of byte + a constant per message + what the template adds once; one model's.

    The rates are learned from long prompts by exponentiated gradient (Kivinen and Warmuth, 1997): each answers for the
    error of a prediction by its share in it, and stays positive. The template's part is a mean over short prompts,
    whose few bytes say nothing of the rates.
    """

    __slots__ = ("_per_message", "rates", "seen", "template")

    def __init__(self, config: EstimatorConfig) -> None:
        self.rates = [weight / config.bytes_per_token for weight in _WEIGHTS]
        self._per_message = config.tokens_per_message
        self.template = 0.0
        self.seen = 0

    def _text(self, features: _Features) -> float:
        words, signs, dense, wide = self.rates  # spelt out: this is asked for each request, in one process for all
        return words * features[0] + signs * features[1] + dense * features[2] + wide * features[3]

    def predict(self, features: _Features, messages: int) -> float:
        template = self.template if messages else 0.0
        return self._text(features) + self._per_message * messages + template

    def learn(self, features: _Features, messages: int, tokens: int) -> None:
        rest = tokens - self._per_message * messages
        words, signs, dense, wide = features
        if (size := words + signs + dense + wide) >= _LONG:
            self._learn_rates(features, min(max(rest - self.template, _RATE_MIN * size), _RATE_MAX * size))
        elif messages:
            added = min(max(rest - self._text(features), 0.0), _TEMPLATE_MAX)
            self.template += _TEMPLATE_STEP * (added - self.template)

    def _learn_rates(self, features: _Features, text: float) -> None:
        rates = self.rates
        parts = [rate * size for rate, size in zip(rates, features, strict=True)]
        words, signs, dense, wide = parts
        predicted = words + signs + dense + wide
        step = max(_RATE_STEP, 1.0 / (1.0 + _RATE_SURE * self.seen))
        squares = words * words + signs * signs + dense * dense + wide * wide
        push = step * log(text / predicted) * predicted / squares
        self.rates = [
            min(max(rate * exp(push * part), _RATE_MIN), _RATE_MAX)
            if part
            else rate  # one that had none answers for none
            for rate, part in zip(rates, parts, strict=True)
        ]
        self.seen += 1


class _Mean:
    """A mean that forgets: plain over the first ten values, exponentially weighted after them."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count = 0
        self.value = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        step = 1.0 / self.count if self.count < _PLAIN else _MEAN_STEP
        self.value += step * (value - self.value)


class _Recent(Generic[_Key, _Value]):
    """A table of bounded size; the entry that was used least recently goes first.

    Of up to ``few`` entries nobody asks for that order, and none is kept.
    """

    def __init__(self, size: int, make: Callable[[], _Value], few: int = 0) -> None:
        self._size = size
        self._few = few
        self._make = make
        self._entries: dict[_Key, _Value] = {}  # in the order of their last use
        self._last: _Value | None = None  # of that order: often it is the one that is asked for

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: _Key) -> _Value | None:
        value = self._entries.get(key)
        if value is not None and value is not self._last and len(self._entries) > self._few:
            del self._entries[key]
            self._entries[key] = self._last = value
        return value

    def peek(self, key: _Key) -> _Value | None:
        """The same, and it does not count as use."""
        return self._entries.get(key)

    def latest(self, most: int) -> Iterator[tuple[_Key, _Value]]:
        """Those used last, the latest first; to be walked before the next is used."""
        return islice(reversed(self._entries.items()), most)

    def obtain(self, key: _Key) -> _Value:
        value = self.find(key)
        if value is not None:
            return value
        if len(self._entries) >= self._size:
            del self._entries[next(iter(self._entries))]
        value = self._entries[key] = self._last = self._make()
        return value


def _finest(shape: Shape, prompt: int, client: str) -> _MeanKey:
    """Under what outputs are kept that are most like that of this request."""
    cap = 0 if shape.max_output is None else 1 + shape.max_output.bit_length()
    return shape.model or "", prompt.bit_length(), cap, client


def _coarser(key: _MeanKey) -> list[_MeanKey]:
    """What is kept of requests less like it, the finest first."""
    model, size, cap, client = key
    keys = [(model, _ANY, cap, ""), (model, _ANY, _ANY, "")]
    return [(model, size, cap, ""), *keys] if client else keys


def _features(shape: Shape) -> _Features:
    """Bytes of the prompt by their sort, as in ``_WEIGHTS``; together they are all of it."""
    size, wide, dense, signs = shape.prompt_bytes, shape.wide_bytes, shape.dense_bytes, shape.sign_bytes
    if wide + dense + signs > size:
        wide = min(wide, size)
        dense = min(dense, size - wide)
        signs = min(signs, size - wide - dense)
    return size - wide - dense - signs, signs, dense, wide


def _bounded(tokens: float) -> int:
    if tokens <= 0.0:
        return 0
    return int(tokens + 0.5) if tokens < _TOKENS_MAX else _TOKENS_MAX
