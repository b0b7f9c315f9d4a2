from __future__ import annotations

import pytest

from gateway.app import demo


def test_both_sides_are_played_and_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "DIRECT_SECONDS", 1.5)
    monkeypatch.setattr(demo, "GATED_SECONDS", 1.5)
    monkeypatch.setenv("GATEWAY_MAX_BODY_SIZE", "1")  # what is set does not touch the demo
    assert demo.run_demo() == 0
    said = capsys.readouterr().out
    assert "straight at the engine" in said
    assert "Same engine, same load" in said
    refused = next(line for line in said.splitlines() if line.startswith("told to come back later"))
    direct, gated = (int(word) for word in refused.split()[-2:])
    assert direct == 0
    assert gated > 0
