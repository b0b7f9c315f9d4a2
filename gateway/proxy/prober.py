"""Health, gauges and models of each backend, asked at an interval in the language of its kind.

Only what a busy engine does not do counts against it: no connection, or an answer with 5xx, several times in a row.
A slow answer, or a connection closed without one, is what a full engine does, and changes nothing. A hung engine that
still answers its health question is found by admission, from the silence of its requests.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

from gateway.dialects.base import EngineDialect, Plane, Probe
from gateway.dialects.engines import AUTO, ENGINES, GENERIC
from gateway.dialects.kinds import QUESTIONS, first_model, recognise, served_models
from gateway.model import EngineState, Health, HintsUse
from gateway.proxy.config import ProxyConfig
from gateway.proxy.fetch import Unanswered
from gateway.proxy.gate import Gate
from gateway.proxy.hints import HintReader
from gateway.proxy.planes import Planes
from gateway.proxy.upstream import Upstream

_log = logging.getLogger(__name__)

_FAILED: Final = 500  # the first status that speaks against an engine
_MODELS: Final = "/v1/models"

OnModels = Callable[[str, EngineDialect, Mapping[str, int | None]], None]


def _ignore(_backend: str, _engine: EngineDialect, _models: Mapping[str, int | None]) -> None:
    pass


class Prober:
    """One task per backend. ``on_kind`` is told the kinds that are there, at first and whenever one is found out.

    ``on_models`` is told the models that a backend says it serves, with the context length of each where it has one.
    """

    def __init__(
        self,
        config: ProxyConfig,
        upstreams: Mapping[str, Upstream],
        gate: Gate,
        on_kind: Callable[[frozenset[str]], None] = lambda _kinds: None,
        on_models: OnModels = _ignore,
    ) -> None:
        self._config = config
        self._gate = gate
        self._on_kind = on_kind
        self._on_models = on_models
        self._watches = {name: self._watch(upstream) for name, upstream in upstreams.items()}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._note_kind()

    def _watch(self, upstream: Upstream) -> Watch:
        return Watch(self._config, upstream, self._gate, self._note_kind, self._on_models)

    def start(self) -> None:
        """Probe every backend from now on, at once first."""
        self._tasks = {name: asyncio.create_task(watch.run()) for name, watch in self._watches.items()}

    async def stop(self) -> None:
        """End every task."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def add(self, upstream: Upstream) -> None:
        """Probe one backend more, at once first."""
        name = upstream.backend.name
        self._watches[name] = self._watch(upstream)
        self._tasks[name] = asyncio.create_task(self._watches[name].run())
        self._note_kind()

    def forget(self, name: str) -> None:
        """Probe a backend no more."""
        self._tasks.pop(name).cancel()
        del self._watches[name]
        self._note_kind()

    def reconfigure(self, config: ProxyConfig) -> None:
        """Go on with other settings, from the next probes on."""
        self._config = config
        for watch in self._watches.values():
            watch.reconfigure(config)

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        """Where else than at the backends' serving ports it asks."""
        return tuple(other for watch in self._watches.values() for other in watch.planes.others)

    def state(self, name: str) -> EngineState:
        """What is known of the engine behind the backend of this name."""
        return self._watches[name].state

    def _note_kind(self) -> None:
        self._on_kind(frozenset(watch.state.kind for watch in self._watches.values()))


class Watch:
    """One backend's probes and what they have come to."""

    def __init__(
        self,
        config: ProxyConfig,
        upstream: Upstream,
        gate: Gate,
        on_kind: Callable[[], None] = lambda: None,
        on_models: OnModels = _ignore,
    ) -> None:
        self._config = config.probe
        self._upstream = upstream
        self._gate = gate
        self._on_kind = on_kind
        self._on_models = on_models
        self._ask_models_at = 0.0
        self._models: Mapping[str, int | None] | None = None
        self.planes = Planes(upstream, config)
        self._hints = HintReader(self.planes)
        self._told = HintsUse.UNKNOWN
        self._health = Health.UNKNOWN
        self._trouble: str | None = None
        self._failures = 0
        self._successes = 0
        self._detects = upstream.backend.kind == AUTO
        self._detected = False
        self._source: Probe | None = None  # the health question that it answers
        self._engine: EngineDialect = ENGINES[GENERIC if self._detects else upstream.backend.kind]
        self._introduced = False
        self._known = not self._detects
        self._speak(self._engine)

    def reconfigure(self, config: ProxyConfig) -> None:
        """Go on with other settings."""
        self._config = config.probe
        self.planes.reconfigure(config)

    @property
    def state(self) -> EngineState:
        """What is known."""
        source = self._source
        return EngineState(
            self._engine.kind if self._known else AUTO,
            self._detected,
            None if source is None else f"{self.planes.address(source.plane)}{source.path}",
            self._hints.at,
            self._hints.use,
            self._models,
            self._trouble,
        )

    async def run(self) -> None:
        """Probe for ever. A fault inside the probing itself is logged, and the next round tries again."""
        while True:
            try:
                await self.probe()
            except Exception:  # noqa: BLE001 - logged; without probes a dead backend would be asked for ever
                _log.exception("the probe of backend %s failed inside the gateway", self._name)
            await asyncio.sleep(self._config.interval)

    @property
    def _name(self) -> str:
        return self._upstream.backend.name

    async def probe(self) -> None:
        """Ask once, health first; a backend that cannot be reached is not asked for its gauges."""
        try:
            if not self._introduced:
                await self._introduce()
            await self._check_health()
            await self._learn_models()
            hints = await self._hints.read(self._upstream.in_flight)
        except OSError as error:
            self._fail(f"no connection: {str(error) or type(error).__name__}")
            self._trouble = f"no connection: {_reason(error)}"
            return
        self._tell_use()
        if hints is not None:
            self._gate.note_hints(self._name, hints)

    def _tell_use(self) -> None:
        """Say once that gauges are missed, and once that they are back: serving goes on without them."""
        use = self._hints.use
        if use is self._told:
            return
        if use is HintsUse.USED:
            _log.info("backend %s: its gauges are heeded", self._name)
        elif use is not HintsUse.UNKNOWN:
            _log.warning(
                "backend %s: its gauges are %s; its limit rests on what the gateway measures", self._name, use.value
            )
        self._told = use

    # -- whom we speak to -------------------------------------------------------------------------------------------

    async def _introduce(self) -> None:
        """Find out what it is, once, and again after it was dead: it may come back as another engine."""
        model = next(iter(self._upstream.backend.models), None)
        if self._detects:
            kind, model = await self._recognised(model)
            if kind is None:
                return
            self._known, self._detected = True, kind != GENERIC
            _log.info("backend %s is taken for %s", self._name, kind)
            self._speak(ENGINES[kind])
            self._on_kind()
        self._introduced = True
        self._hints.begin(self._engine, model)

    async def _recognised(self, model: str | None) -> tuple[str | None, str | None]:
        """(kind, name of a model): the generic kind where every question was answered and none gave it away.

        None as long as it could not be asked: it may be loading, or too busy to answer.
        """
        asked = True
        for path in QUESTIONS:
            try:
                answer = await self.planes.ask(path)
            except Unanswered as error:
                _log.debug("backend %s left a question unanswered: %s", self._name, error)
                return None, model
            kind = recognise(path, answer.status, answer.body)
            model = model or first_model(answer.body)
            if kind is not None:
                return kind, model
            asked = asked and answer.status < _FAILED
        return GENERIC if asked else None, model

    def _speak(self, engine: EngineDialect) -> None:
        """Its kind's language from now on."""
        self._engine, self._source = engine, None
        self.planes.settle(engine)
        self._upstream.closes_when_full = engine.closes_when_full
        self._upstream.single_use = engine.single_use

    async def _learn_models(self) -> None:
        """Ask now and then what it serves: adapters are loaded and dropped while it runs."""
        now = time.monotonic()
        if now < self._ask_models_at or self._health is Health.DOWN or not self._introduced:
            return
        interval = self._config.models_interval
        self._ask_models_at = math.inf if interval is None else now + interval
        models = {} if interval is None else await self._served()
        if models:  # else what it said before stands
            self._on_models(self._name, self._engine, models)
            self._gate.note_models(self._name, () if self._engine.any_model else models)
        self._models = models or self._models or {}

    async def _served(self) -> Mapping[str, int | None]:
        try:
            answer = await self.planes.ask(_MODELS)
        except Unanswered as error:
            _log.debug("backend %s did not say what it serves: %s", self._name, error)
            return {}
        return served_models(answer.body) if answer.status == HTTPStatus.OK else {}

    # -- health -----------------------------------------------------------------------------------------------------

    async def _check_health(self) -> None:
        try:
            probe, status = await self._health_status()
        except Unanswered as error:
            _log.debug("backend %s left a probe unanswered: %s", self._name, error)
            self._trouble = "it left the last probe unanswered"
            return
        self._trouble = None
        self._judge(probe, status)

    async def _health_status(self) -> tuple[Probe, int]:
        """Ask the question that it answered before, else each in turn until one is answered well."""
        if self._source is not None:
            try:
                return self._source, (await self.planes.ask(self._source.path, self._source.plane)).status
            except Unanswered:
                if self._source.plane is Plane.SERVING:
                    raise
                self._source = None  # that plane is gone: ask elsewhere
        return await self._first_answered(self._engine.health)

    async def _first_answered(self, probes: Sequence[Probe]) -> tuple[Probe, int]:
        *others, last = probes
        for probe in others:
            try:
                status = (await self.planes.ask(probe.path, probe.plane)).status
            except Unanswered:
                continue
            if probe.verdict(status) is Health.UP:
                self._source = probe
            if self._source is probe or (status >= _FAILED and self._believes(probe)):
                return probe, status
        status = (await self.planes.ask(last.path, last.plane)).status
        self._source = last
        return last, status

    def _believes(self, probe: Probe) -> bool:
        """Bad news count from the port that serves, and from a plane that the operator named; a guess is a guess."""
        return probe.plane is Plane.SERVING or self.planes.is_given(probe.plane)

    def _judge(self, probe: Probe, status: int) -> None:
        verdict = probe.verdict(status)
        if verdict is Health.DOWN:
            self._trouble = f"its health answers {status}"
            self._fail(self._trouble)
            return
        self._failures = 0
        self._successes += 1
        if self._health is not Health.DOWN or self._successes >= self._config.successes:
            self._note(verdict, "it answers")

    def _fail(self, why: str) -> None:
        self._successes = 0
        self._failures += 1
        if self._failures >= self._config.failures:
            self._note(Health.DOWN, why)

    def _note(self, health: Health, why: str) -> None:
        if health is self._health:
            return
        level = logging.WARNING if health is Health.DOWN else logging.INFO
        _log.log(level, "backend %s is %s: %s", self._name, health.value, why)
        if self._health is Health.DOWN:
            self._introduced, self._ask_models_at = False, 0.0
        self._health = health
        self._gate.note_health(self._name, health)


def _reason(error: OSError) -> str:
    """What the system calls it; what the error says itself may hold an address."""
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else type(error).__name__
