"""Hand-made entries."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gateway.model import Outcome, Reason
from gateway.telemetry.entry import Entry


def entry(received: float = 100.0, stamps: Sequence[int] = (500_000, 600_000, 700_000), **changes: Any) -> Entry:
    """A completed stream, a token a chunk; its role came with the first token."""
    made = Entry(
        received=received,
        request_id="req-1",
        route="chat",
        model="qwen3-8b",
        lane="short",
        priority=None,
        backend="gpu1",
        outcome=Outcome.COMPLETED,
        status=200,
        reason=None,
        stream=True,
        generates=True,
        retry=0,
        attempts=1,
        prompt_tokens=40,
        output_tokens=len(stamps),
        cached_tokens=None,
        estimated_prompt_tokens=50,
        estimated_output_tokens=60,
        read=1_000,
        offered=2_000,
        admitted=102_000,
        sent=103_000,
        last_output=stamps[-1] if stamps else None,
        finished=(stamps[-1] if stamps else 0) + 1_000,
        output_events=len(stamps),
        stamps=array("I", stamps),
        blanks=array("I", stamps[:1]),
        unheard=None,
    )
    return replace(made, **changes)


def ended(outcome: Outcome, received: float = 100.0, **changes: Any) -> Entry:
    """A request that came to nothing, 50 ms after it came."""
    nothing = {"output_tokens": None, "prompt_tokens": None, "blanks": None, "finished": 50_000}
    return entry(received, (), outcome=outcome, **{**nothing, **changes})


def refused(received: float = 100.0, reason: Reason = Reason.DEADLINE, **changes: Any) -> Entry:
    """A request that the gateway turned away."""
    nothing = {"status": 429, "attempts": 0, "admitted": None, "sent": None, "backend": None}
    return ended(Outcome.REFUSED, received, reason=reason, **{**nothing, **changes})
