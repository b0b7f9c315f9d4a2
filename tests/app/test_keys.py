"""``gateway keys``."""

from __future__ import annotations

import hashlib
import io
import json

import pytest

from gateway.cli import main
from gateway.settings import Settings
from gateway.settings.plain import api_keys


def test_a_new_key_is_shown_once_and_its_entry_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "--name", "team-b"]) == 0
    shown = capsys.readouterr()
    key, entry = shown.out.strip(), json.loads(shown.err.splitlines()[-1])
    assert len(key) >= 43
    assert key not in shown.err
    found = api_keys(Settings.model_validate({"api_keys": [entry]}))
    assert found is not None
    assert {digest: terms.name for digest, terms in found.items()} == {hashlib.sha256(key.encode()).digest(): "team-b"}
    assert main(["keys", "new"]) == 0
    assert capsys.readouterr().out.strip() != key


@pytest.mark.parametrize(
    ("given", "code"), [("sk-0123456789abcdef01\r\n", 0), ("short", 0), ("", 2), ("a b", 2), ("é", 2)]
)
def test_a_key_is_hashed_from_standard_input(
    given: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(given))
    assert main(["keys", "hash"]) == code
    shown = capsys.readouterr()
    key = given.strip()
    assert shown.out == (f"sha256:{hashlib.sha256(key.encode()).hexdigest()}\n" if code == 0 else "")
    assert ("may be guessed" in shown.err) == (given == "short")
    assert not key or key not in shown.out + shown.err
