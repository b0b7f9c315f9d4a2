"""What nobody can beat: a fluid bound on a row's goodput tokens, from the engine's constants and all that will come.

Each request takes at least so many engine-seconds, whatever runs beside it: the reading of its prompt, what each of its
tokens adds to a step, and for each token its part of what a step costs by itself, shared among as many as the engine's
slots, its KV pool and the TPOT objective let run at once. A clairvoyant knows every arrival and every length, may cut
requests in pieces, and spreads the engine's time over them between their arrival and their deadline; he takes those
that give the most goodput for it. What time can be given to which sets of requests is a polymatroid (each may be served
inside an interval), so to take the densest first, and of each as much as still fits, is the best that can be done.

All of a run counts, from an idle engine at its start, not only the part that is measured: else what came before could
be saved up for it. A request that is under way at the end counts by the work that is done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from math import ceil, inf, log2
from typing import Final, NamedTuple

from gateway.emulator.engine import Profile
from gateway.simulator.figures import LONG, PROMPT_WEIGHT
from gateway.simulator.setup import Load, Objectives, Setup
from gateway.simulator.workload import Want, arrivals, traced, wants

BINS: Final = 40  # of a run; intervals are rounded outwards to them
DENSITIES: Final = 32  # an octave, to which worth over work is rounded, upwards
MIXES: Final = (0.0, 0.5, 0.75, 1.0)  # of the prices of a slot and of KV; the tightest bound counts


class Job(NamedTuple):
    """One request: when it may be served, what it is worth, and the engine-seconds that it takes at least."""

    begin: float
    end: float
    worth: float
    work: float


def bound(setup: Setup) -> float:
    """Goodput tokens a second that no admission of any kind can exceed, on the first engine of ``setup``."""
    profile, objectives = setup.fleet[0].profile, setup.objectives
    asked = [arrival for number, kind in enumerate(setup.load) for arrival in _asked(setup, kind, number)]
    return min(
        _most(setup.horizon, [_job(profile, objectives, at, want, mix) for at, want in asked]) / setup.horizon
        for mix in MIXES
    )


def _asked(setup: Setup, kind: Load, number: int) -> Iterator[tuple[float, Want]]:
    """All that will be asked, as the clients of a run ask it."""
    seed = f"{setup.seed}/{kind.label}/{number}"
    if kind.trace:
        yield from traced(kind.trace, seed, clients=kind.clients, streamed=kind.streamed, first_id=0, label=kind.label)
        return
    drawn = wants(kind.workload, seed, clients=kind.clients, streamed=kind.streamed, first_id=0, label=kind.label)
    yield from zip(arrivals(kind.rates, seed, setup.horizon), drawn, strict=False)


def _job(profile: Profile, objectives: Objectives, at: float, want: Want, mix: float) -> Job:
    prompt, output = want.prompt_tokens, want.output_tokens
    gaps = max(0, output - 1)
    within = objectives.ttft_long if prompt + output > LONG else objectives.ttft_short
    # An answer in one piece may be as slow as it likes to begin, and a stream of one token has no pace.
    end = at + (inf if within is None else within) + (inf if objectives.tpot is None else objectives.tpot * output)
    context = gaps * prompt + gaps * (gaps + 1) / 2
    work = (
        profile.per_prompt
        + profile.per_prefill_token * prompt
        + profile.per_attention * prompt * prompt / 2
        + profile.per_sequence * (gaps + ceil(prompt / profile.max_num_batched_tokens))
        + profile.per_kv_token * context
        + mix * _step_share(profile, objectives.tpot) * gaps
        + (1.0 - mix) * profile.base * context / profile.kv_tokens
    )
    if profile.prefill_first:
        work += profile.base * max(1 / profile.max_prefill_seqs, prompt / profile.max_num_batched_tokens)
    return Job(at, end, PROMPT_WEIGHT * prompt + output, work)


@cache
def _step_share(profile: Profile, tpot: float | None) -> float:
    """Seconds of what a step costs by itself that each of its tokens bears, at least.

    The objective is about the mean of an answer's steps, so half a sequence more is more.
    """

    def own(count: float) -> float:
        return profile.base + profile.collapse * max(0.0, count - profile.collapse_beyond) ** 2

    most = inf if tpot is None else tpot * (1.0 + 1e-9)
    counts = (tenths / 10 for tenths in range(10, 10 * profile.max_num_seqs + 1))
    fits = [n for n in counts if own(n) + profile.per_sequence * n <= most]
    return min((own(n) / n for n in fits), default=profile.base)


def _most(seconds: float, jobs: list[Job]) -> float:
    """Worth of the best choice that so many seconds have room for."""
    width = seconds / BINS
    merged: dict[tuple[float, int, int], float] = defaultdict(float)
    low = min(job.worth / job.work for job in jobs)
    for job in jobs:
        first, last = int(job.begin / width), min(int(min(job.end, seconds) / width), BINS - 1)
        if first < BINS:
            merged[_rounded(job.worth / job.work, low), first, last] += job.work
    room = [[(last - first + 1) * width for last in range(BINS)] for first in range(BINS)]
    most = 0.0
    for (density, first, last), work in sorted(merged.items(), reverse=True):
        if room[0][-1] <= 0.0:
            break
        # Whatever may be served only inside a stretch of time must fit into it.
        fits = min(work, *(min(room[begin][last:]) for begin in range(first + 1)))
        if fits > 0.0:
            for begin in range(first + 1):
                row = room[begin]
                for end in range(last, BINS):
                    row[end] -= fits
            most += density * fits
    return most


def _rounded(density: float, low: float) -> float:
    """Up to the next of a geometric ladder."""
    return low * float(2.0 ** (ceil(DENSITIES * log2(density / low)) / DENSITIES))
