from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the shell of whoever runs the tests has set is no part of them."""
    for name in list(os.environ):
        if name.upper().startswith("GATEWAY_") or name == "OPENAI_API_KEY":
            monkeypatch.delenv(name)
