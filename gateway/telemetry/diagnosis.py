"""Which bottleneck, and on what evidence.

Pure functions over ``Facts``: each rule gives its evidence, or nothing. A finding about speed needs a complaint: a
level, a ratio or a gauge is no fault while requests are served in time. Causes exclude each other where one would be
another's consequence: a hung engine also has a slow first token, and a storm fills every queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from gateway.telemetry.causes import MEANINGS, Cause, Finding, Severity
from gateway.telemetry.clients import ClientCounts
from gateway.telemetry.facts import BackendFacts, Facts

TOLERANCE: Final = 5.0  # times the unloaded pace, where there is no objective: as admission holds it
HEADROOM: Final = 0.85  # of a TPOT objective: the same

SETTLED: Final = 30.0  # seconds: before, a limit that is still being found looks like a bottleneck
SEARCHING: Final = 1.5  # times that a limit grew in the window without a cut: it is still being found
CROWDED: Final = 0.02  # share of requests refused that is a complaint
LATE: Final = 0.1  # the same of answers that missed an objective
FEW: Final = 20  # requests that tell nothing
OFTEN: Final = 0.3  # share of looks
MOSTLY: Final = 0.8  # the same
FULL: Final = 0.9  # of a KV cache: the rest is what growing requests need next

Evidence: TypeAlias = list[str]
"""Sentences with figures; empty where the cause is not found."""

_Rules: TypeAlias = Mapping[Cause, Callable[[Facts, BackendFacts], Evidence]]


def diagnose(facts: Facts) -> list[Finding]:
    """Every cause that the facts speak for, the gravest first."""
    dead = [found for backend in facts.backends for found in _first(_DEAD, facts, backend)]
    out = {found.backend for found in dead}
    storm = [] if dead else _found(Cause.RETRY_STORM, _storm(facts))
    found = [*dead, *storm, *_gateway(facts), *_clients(facts)]
    for backend in facts.backends:
        if backend.state.name not in out:
            found += _engine(facts, backend, storm=bool(storm))
    order = list(Severity)
    return sorted(found, key=lambda each: order.index(each.severity))


def unknown(facts: Facts) -> list[str]:
    """What could not be judged, for want of figures."""
    told = []
    for backend in facts.backends:
        name, gauges = backend.state.name, backend.gauges
        if gauges is None:
            told.append(f"{name} tells no gauges: its KV cache, preemptions and own queue cannot be seen")
        elif gauges.contradicted:
            told.append(
                f"{name}: its gauges tell of far fewer requests than are in flight, so the limit heeds them not"
            )
    return told


def _engine(facts: Facts, backend: BackendFacts, *, storm: bool) -> list[Finding]:
    """What ails a living engine; where nothing does, what holds it back."""
    ailing = _first(_AILING, facts, backend) or _all(_AILING_TOO, facts, backend)
    searching = facts.looked < SETTLED or (backend.growth >= SEARCHING and not backend.cuts)
    return ailing if ailing or storm or searching else _first(_BOTTLENECKS, facts, backend)


def _first(rules: _Rules, facts: Facts, backend: BackendFacts) -> list[Finding]:
    return next((found for cause in rules if (found := _all({cause: rules[cause]}, facts, backend))), [])


def _all(rules: _Rules, facts: Facts, backend: BackendFacts) -> list[Finding]:
    name = backend.state.name
    return [found for cause, rule in rules.items() for found in _found(cause, rule(facts, backend), name, backend=name)]


def _found(cause: Cause, evidence: Evidence, name: str = "", *, backend: str | None = None) -> list[Finding]:
    if not evidence:
        return []
    meaning = MEANINGS[cause]
    advice = tuple(line.format(name=name) for line in meaning.advice)
    return [Finding(cause, meaning.title.format(name=name), meaning.severity, tuple(evidence), advice, backend)]


# -------------------------------------------------------------------------------------------------------- complaints


def _complaints(facts: Facts) -> Evidence:
    """What clients could complain of; empty while all is well."""
    told = []
    if facts.crowded >= max(2.0, CROWDED * facts.received):
        share = facts.crowded / facts.received
        told.append(f"{facts.crowded} of {facts.received} requests ({share:.0%}) were refused: too many were there.")
    if facts.queued >= 1.0:
        told.append(f"{facts.queued:.1f} requests waited in the gateway's queue in the mean.")
    if facts.late is not None and facts.late >= LATE:
        told.append(f"{facts.late:.0%} of the answers missed an objective.")
    return told


def _target(facts: Facts, backend: BackendFacts) -> float | None:
    """The pace to hold, seconds a token; None while nothing says what is fast."""
    if facts.tpot_objective is not None:
        return HEADROOM * facts.tpot_objective
    base = backend.state.pace_base
    return None if base is None else TOLERANCE * base


def _paces(facts: Facts, backend: BackendFacts, pace: float, target: float) -> str:
    if facts.tpot_objective is not None:
        wanted = f"the objective of {_time(facts.tpot_objective)} less its headroom"
    else:
        wanted = f"{TOLERANCE:g} times the {_time(backend.state.pace_base or 0.0)} of the unloaded engine"
    return f"An output token takes {_time(pace)}; wanted are {_time(target)}, {wanted}."


def _time(seconds: float) -> str:
    return f"{1000.0 * seconds:.1f} ms" if seconds < 1.0 else f"{seconds:.1f} s"


# ------------------------------------------------------------------------------------------------------ dead or alive


def _down(facts: Facts, backend: BackendFacts) -> Evidence:
    health = backend.state.health
    if health not in {"down", "open", "half_open"}:
        return []
    how = "Its health check fails" if health == "down" else "Requests to it failed in a row: its breaker is open"
    return [
        f"{how}.",
        f"In {facts.seconds:.0f} s it answered {backend.answers} requests and spoilt {backend.failures}.",
    ]


def _hung(_: Facts, backend: BackendFacts) -> Evidence:
    """In flight, no bytes, and its health says nothing."""
    state, longest = backend.state, backend.longest_silence
    least = 30.0 if longest is None else max(15.0, 2.0 * longest)
    if not state.running or backend.unheard < least or state.health == "down":
        return []
    usual = "" if longest is None else f"; lately the longest that it came back from was {_time(longest)}"
    return [
        f"{state.running} requests are in flight, and no byte of any came for {backend.unheard:.0f} s{usual}.",
        f"Its health is {state.health}: a health check asks an engine's front end, not what stands behind it.",
    ]


# --------------------------------------------------------------------------------------------- the gateway, its clients


def _storm(facts: Facts) -> Evidence:
    """Attempts that are retries, made too early or after the client gave up by itself."""
    received = facts.received
    retries = min(received, max(facts.retried, facts.early + facts.kept))
    hasty = facts.early >= 0.15 * received or facts.gone >= 0.2 * received
    if received < FEW or retries < 0.3 * received or not hasty:
        return []
    fresh, served = (received - retries) / facts.seconds, facts.completed / facts.seconds
    came = f"{facts.early} came back before the time they were told, {facts.kept} waited for it"
    return [
        f"{retries} of {received} requests ({retries / received:.0%}) were retries.",
        f"{came}, {facts.gone} had given up by themselves.",
        f"Without retries {fresh:.1f} requests a second come in; {served:.1f} are served.",
    ]


def _gateway(facts: Facts) -> Iterator[Finding]:
    if facts.loop_lag >= 0.2:  # noqa: PLR2004 - seconds by which every stream is late
        yield from _found(Cause.GATEWAY_BUSY, [f"Its event loop ran up to {_time(facts.loop_lag)} late."])
    for name, how in facts.canaries:
        yield from _found(Cause.CANARY_FAILED, [how], name, backend=name)


def _clients(facts: Facts) -> Iterator[Finding]:
    """Clients that fare far worse than all others: the fault is theirs, or on the way to them."""
    for client in facts.clients:
        others = [each for each in facts.clients if each is not client]
        yield from _found(Cause.CLIENT_FAILING, _failing(client, others), client.name)
        yield from _found(Cause.CLIENT_SLOW, _slow(client, others), client.name)


def _failing(client: ClientCounts, others: list[ClientCounts]) -> Evidence:
    ended, spoilt = sum(each.ended for each in others), sum(each.errors + each.gone for each in others)
    if client.ended < FEW or client.errors + client.gone < 0.5 * client.ended or not ended or spoilt > 0.1 * ended:
        return []
    return [
        f"Of its {client.ended} requests {client.errors} got a 4xx from the engine, and it left {client.gone}.",
        f"Of the {ended} requests of all others this happened to {spoilt}.",
    ]


def _slow(client: ClientCounts, others: list[ClientCounts]) -> Evidence:
    held, paused = sum(each.held for each in others), sum(each.paused for each in others)
    if client.paused < max(1.0, 0.2 * client.held) or paused > 0.05 * held:
        return []
    share = client.paused / client.held
    return [f"For {_time(client.paused)}, {share:.0%} of its requests' time, it took nothing of what was there for it."]


# ------------------------------------------------------------------------------------------------------ ailing engines


def _kv(facts: Facts, backend: BackendFacts) -> Evidence:
    """The KV cache is full: requests are thrown out and computed again, or held back lest they be."""
    state, gauges = backend.state, backend.gauges
    preempted = gauges.preemptions if gauges else None
    steps = facts.seconds / backend.pace if backend.pace else 0.0
    evidence = []
    if preempted and steps and preempted >= 0.1 * steps:
        share = preempted / steps
        evidence.append(
            f"{preempted:.0f} preemptions in about {steps:.0f} steps ({share:.0%}): each is computed again."
        )
    complaints = _complaints(facts)
    if complaints and backend.held >= OFTEN:
        held = f"The token limit ({state.token_limit:.0f}) held requests back {backend.held:.0%} of the time"
        evidence += [f"{held}; {backend.running:.0f} ran, and the limit on requests is {state.limit:.0f}.", *complaints]
    usage = gauges.kv_usage if gauges else None
    queued = gauges.waiting if gauges else None
    if usage is not None and usage >= FULL and queued is not None and queued >= max(1.0, 0.1 * backend.running):
        evidence.append(f"{queued:.0f} requests waited inside it in the mean, for want of KV blocks.")
    if evidence and usage is not None:
        evidence.append(f"Its KV cache was {usage:.0%} full in the mean.")
    return evidence


def _starved(facts: Facts, backend: BackendFacts) -> Evidence:
    """Short requests wait while a long prompt is read, or are refused because those before them wait."""
    met, bearable = backend.beside, facts.short_ttft_objective or 1.0
    if met is None:
        return []
    waiting = met.beside >= max(bearable, 3.0 * met.alone)
    if not waiting and met.refused_share < max(0.5, 3.0 * met.refused_alone):
        return []
    evidence = [
        f"{met.requests} short requests ({met.share:.0%}) met a prompt of up to {met.prompt} tokens being read.",
        f"Their first token took {_time(met.beside)} in the median, that of the others {_time(met.alone)}.",
    ]
    if met.refused:
        share, usual = f"{met.refused_share:.0%}", f"{met.refused_alone:.0%}"
        evidence.append(
            f"{met.refused} more ({share} of those that came) were refused meanwhile, {usual} at other times."
        )
    return evidence


def _stalling(facts: Facts, backend: BackendFacts) -> Evidence:
    stalls = backend.stalls
    if stalls.count < 2 and stalls.longest < 3.0:  # noqa: PLR2004 - one short one is chance
        return []
    often = f"{stalls.count} times in {facts.seconds:.0f} s all of its streams stopped at once and went on together"
    return [
        f"{often}: for {_time(stalls.total)} in all, {_time(stalls.longest)} the longest.",
        "No long prompt was read meanwhile, and no request had its first token.",
    ]


def _slowing(_: Facts, backend: BackendFacts) -> Evidence:
    slower = backend.slowdown
    if slower is None or slower.ratio < 1.3:  # noqa: PLR2004 - loads of one level differ by less
        return []
    return [
        f"An output token takes {_time(slower.now)} where it took {_time(slower.before)} minutes before.",
        f"That is {slower.ratio:.2f} times as long with as many requests in flight and contexts as long.",
    ]


# --------------------------------------------------------------------------------------------------------- bottlenecks


def _too_high(facts: Facts, backend: BackendFacts) -> Evidence:
    """More run than the objective bears, and the limit cannot fall."""
    state, target, pace = backend.state, _target(facts, backend), backend.pace
    stuck = state.limit_min is None or state.limit <= state.limit_min
    if not stuck or target is None or pace is None or pace <= 1.2 * target or backend.running < 2.0:  # noqa: PLR2004 - one cannot be too many
        return []
    bound = "is fixed" if state.limit_min is None else "is at its minimum"
    return [
        f"{backend.running:.0f} requests ran in the mean; the limit of {state.limit:.0f} {bound}.",
        _paces(facts, backend, pace, target),
    ]


def _too_low(facts: Facts, backend: BackendFacts) -> Evidence:
    """The engine has room, requests wait, and the limit does not rise."""
    state, target, pace = backend.state, _target(facts, backend), backend.pace
    complaints = _complaints(facts)
    stuck = backend.full >= MOSTLY and not backend.moves
    if not complaints or not stuck or target is None or pace is None or pace > 0.5 * target:
        return []
    bound = "is fixed" if state.limit_min is None else "does not rise"
    return [
        f"The limit of {state.limit:.0f} {bound} and was reached {backend.full:.0%} of the time.",
        _paces(facts, backend, pace, target),
        *complaints,
    ]


def _front_end(facts: Facts, backend: BackendFacts) -> Evidence:
    """Requests are inside the engine, but neither run nor wait in its scheduler, and those that run are fast."""
    gauges, target = backend.gauges, _target(facts, backend)
    if gauges is None or gauges.running is None or backend.ttft is None or backend.ttft_alone is None:
        return []
    room = backend.pace is None or target is None or backend.pace <= 0.5 * target
    slower = backend.ttft / backend.ttft_alone
    if not room or slower < 1.5:  # noqa: PLR2004 - less is the step under way that a request waits for
        return []
    known = gauges.running + (gauges.waiting or 0.0)
    times = f"{_time(backend.ttft)} in the median, {_time(backend.ttft_alone)} with half as many in flight or fewer"
    told = [f"The first token took {times}, and those that run are as fast as in an engine with room."]
    if gauges.contradicted or gauges.inflight - known >= max(2.0, 0.3 * gauges.inflight):
        inside = f"{gauges.inflight:.0f} requests were in flight in the mean; its scheduler knew of {known:.0f}"
        return [f"{inside}: the others were in its HTTP server, its tokenizer or its preprocessing.", *told]
    complaints = _complaints(facts)
    if complaints and backend.standing > 1 and (gauges.waiting or 0.0) < 1.0:
        cuts = f"The limit was cut {backend.standing} times because requests stood in it before their first token"
        return [f"{cuts}, while nothing waited in its scheduler.", *told, *complaints]
    return []


def _prefill(facts: Facts, backend: BackendFacts) -> Evidence:
    complaints, prompt, output = _complaints(facts), backend.prompt_rate, backend.output_rate
    if not complaints or not output or prompt <= 3.0 * output:
        return []
    return [
        f"It reads {prompt:.0f} prompt tokens a second and writes {output:.0f}: {prompt / output:.1f} to 1.",
        *complaints,
    ]


def _capacity(facts: Facts, backend: BackendFacts) -> Evidence:
    """Nothing is wrong but that too much comes in."""
    complaints = _complaints(facts)
    if not complaints or backend.full < OFTEN:
        return []
    return [
        f"Its limit of {backend.state.limit:.0f} was reached {backend.full:.0%} of the time.",
        f"It serves {backend.answers / facts.seconds:.1f} requests and {backend.output_rate:.0f} tokens a second.",
        *complaints,
    ]


_DEAD: Final[_Rules] = {Cause.BACKEND_HUNG: _hung, Cause.BACKEND_DOWN: _down}
_AILING: Final[_Rules] = {Cause.KV_BOUND: _kv, Cause.LONG_STARVES_SHORT: _starved}
_AILING_TOO: Final[_Rules] = {Cause.STALLS: _stalling, Cause.SLOWING_DOWN: _slowing}
_BOTTLENECKS: Final[_Rules] = {
    Cause.LIMIT_TOO_HIGH: _too_high,
    Cause.LIMIT_TOO_LOW: _too_low,
    Cause.FRONT_END_BOUND: _front_end,
    Cause.PREFILL_BOUND: _prefill,
    Cause.AT_CAPACITY: _capacity,
}
