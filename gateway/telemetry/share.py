"""Tells of the quotas that gateways share: series, and an event and a line of the log when the store comes or goes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.model import ShareFailure, ShareWay
from gateway.telemetry import definitions as names
from gateway.telemetry.events import Event, EventLog
from gateway.telemetry.series import Counters, Histograms

_log = logging.getLogger(__name__)

_SHOWN: Final = 200  # characters of what the store said


class ShareLog:
    """Is told what happens (``gateway.sharing.base.Watch``); ``collect`` gives the series."""

    def __init__(self, log: EventLog) -> None:
        self._events = log
        self._up = False
        self._gateways = 0
        self._decisions = Counters(names.SHARE_DECISIONS)
        self._claims = Counters(names.SHARE_CLAIMS)
        self._failures = Counters(names.SHARE_FAILURES)
        self._round_trip = Histograms(names.SHARE_ROUND_TRIP)
        for way in ShareWay:  # a rate() needs the zero before the first
            self._decisions.add(way.value, by=0)
        for failure in ShareFailure:
            self._failures.add(failure.value, by=0)

    def decided(self, way: ShareWay) -> None:
        """A request was let in or refused."""
        self._decisions.add(way.value)

    def answered(self, claims: int, seconds: float) -> None:
        """The store answered so many claims at once."""
        self._claims.add(by=claims)
        self._round_trip.of().add(seconds)

    def failed(self, failure: ShareFailure) -> None:
        """The store was of no use."""
        self._failures.add(failure.value)

    def changed(self, up: bool, gateways: int, text: str) -> None:
        """There is a store from now on, or none any more, and why."""
        self._up, self._gateways = up, gateways
        if up:
            told = f"quotas of API keys are shared: gateways that share: {gateways}"
            _log.info("%s", told)
            self._events.add(Event("share_found", told))
        else:
            why = text[:_SHOWN]
            told = f"quotas of API keys are not shared: each gateway keeps to one part in {gateways}: {why}"
            _log.warning("%s", told)
            self._events.add(Event("share_lost", told, severity="warning"))

    def counted(self, gateways: int) -> None:
        """So many gateways share now."""
        self._gateways = gateways

    def collect(self) -> Iterator[Metric]:
        """All series, now."""
        for definition, value in ((names.SHARE_UP, float(self._up)), (names.SHARE_GATEWAYS, float(self._gateways))):
            family = GaugeMetricFamily(definition.name, definition.meaning)
            family.add_metric((), value)
            yield family
        for series in (self._decisions, self._claims, self._failures, self._round_trip):
            yield series.family()
