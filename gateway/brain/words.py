"""How each word that travels between processes is written; both sides read this."""

from __future__ import annotations

from struct import Struct
from typing import Final

from gateway.brain.codec import Codec
from gateway.model import Choice, Outcome, Record, Ticket, Usage, WorkEstimate

TICKETS: Final = Codec(Ticket)
USAGES: Final = Codec(Usage)
RECORDS: Final = Codec(Record)
OUTCOMES: Final = {outcome.value: outcome for outcome in Outcome}  # a call of the class takes five times as long
CHOICES: Final = {choice.value: choice for choice in Choice}
PROGRESS: Final = Struct("=QId")
"""An output: the ticket's id in its worker, events, instant. The monotonic clock is one for all processes."""


def weighed(ticket: Ticket, work: WorkEstimate) -> Ticket:
    """The same with another estimate; as ``dataclasses.replace``, which takes five times as long, would make it."""
    return Ticket(
        ticket.id,
        ticket.shape,
        work,
        ticket.client,
        ticket.attempt,
        ticket.read_timeout,
        ticket.fingerprint,
        ticket.body_bytes,
        ticket.avoid,
        ticket.priority,
        ticket.weight,
        ticket.session,
        ticket.tried,
        ticket.refused,
    )
