"""A few seeds of the storm, each on its loop; `make chaos` runs many."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gateway.model import Outcome
from tests.chaos.storm import Storm, ran


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [0, 3])
def test_F07_F08_whatever_fails_every_request_ends_once_and_all_comes_back(seed: int, tmp_path: Path) -> None:
    """Seed 3 runs on uvloop and writes its access log to a full disk."""
    storm = ran(seed, tmp_path, requests=500, seconds=3.0)
    assert storm.faults == []
    outcomes = Counter(record.outcome for record in storm.records)
    assert outcomes[Outcome.COMPLETED] > 50, "most of it was weather"
    assert outcomes.keys() >= {Outcome.BACKEND_LOST, Outcome.CLIENT_GONE, Outcome.BACKEND_BUSY}


def test_the_oracle_sees_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that ends cut streams as if they were whole, and forgets a permit now and then."""
    from gateway.proxy.gate import Gate
    from gateway.proxy.relay import Relay

    fail, leave = Relay._fail, Gate.leave
    count = 0

    def pretend(self: Relay, end: object, error: str) -> None:
        if self.status and self._client.transport is not None:
            self._client.transport.write(b"0\r\n\r\n")
        fail(self, end, error)  # type: ignore[arg-type]

    def forget(self: Gate, *arguments: object) -> None:
        nonlocal count
        count += 1
        if count % 50:
            leave(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Relay, "_fail", pretend)
    monkeypatch.setattr(Gate, "leave", forget)
    monkeypatch.setattr("tests.chaos.storm._SETTLE", 1.0)
    storm: Storm = ran(2, tmp_path, requests=200, seconds=1.0)
    told = "\n".join(storm.faults)
    assert "looks complete" in told
    assert "not all came back" in told
