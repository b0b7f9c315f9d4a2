"""API keys in the environment and in their file: how they are spelt, what is wrong, and that none is ever shown."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from gateway.admission.quota import KeyTerms
from gateway.model import Priority
from gateway.settings import load, shown
from gateway.settings.keys import hashed
from gateway.settings.plain import api_keys

KEY = "sk-canary-0123456789abcdef"
OTHER = "sk-other-0123456789abcdef0"


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def faults(monkeypatch: pytest.MonkeyPatch, **given: str) -> list[str]:
    for name, value in given.items():
        monkeypatch.setenv(f"GATEWAY_{name.upper()}", value)
    loaded = load()
    text = [str(fault) for fault in loaded.faults]
    for secret in (KEY, OTHER):
        assert secret not in repr((text, [shown(loaded.settings, name) for name in loaded.sources], loaded.settings))
    return text


@pytest.mark.parametrize("given", [KEY, hashed(KEY), f" {KEY} , ", f'[{{"name": "x", "keys": "{KEY}"}}]'])
def test_a_key_or_its_hash_may_stand_in_the_environment(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert faults(monkeypatch, api_keys=given) == []
    found = api_keys(load().settings)
    assert found is not None
    assert list(found) == [digest(KEY)]


def test_keys_without_names_are_named_by_their_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    assert faults(monkeypatch, api_keys=f"{KEY},{OTHER}") == []
    found = api_keys(load().settings)
    assert found is not None
    assert [terms.name for terms in found.values()] == [f"key-{digest(key).hex()[:8]}" for key in (KEY, OTHER)]


def test_everything_that_a_holder_may_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {
        "name": "team-a",
        "keys": [hashed(KEY), hashed(OTHER)],
        "weight": 2.5,
        "priority": "critical",
        "requests_per_minute": 60,
        "tokens_per_minute": 1000,
        "max_in_flight": 4,
        "models": ["m", "n"],
    }
    file = tmp_path / "keys.json"
    file.write_text(json.dumps([entry]), encoding="utf-8")
    assert faults(monkeypatch, api_keys_file=str(file)) == []
    terms = KeyTerms("team-a", 2.5, Priority.CRITICAL, 60, 1000, 4, frozenset({"m", "n"}))
    assert api_keys(load().settings) == {digest(KEY): terms, digest(OTHER): terms}


def test_without_a_setting_no_key_is_asked_for_and_an_empty_file_lets_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert api_keys(load().settings) is None
    file = tmp_path / "keys.json"
    file.write_text("[]", encoding="utf-8")
    assert faults(monkeypatch, api_keys_file=str(file)) == []
    assert api_keys(load().settings) == {}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            f"[{KEY}",
            "GATEWAY_API_KEYS: got a text (not shown) (the JSON breaks at character 1), expected keys or their",
        ),
        ('[{"name": "x"}]', "GATEWAY_API_KEYS[0].keys: is missing, expected one key or a list of keys"),
        (f'[{{"keys": "{KEY}"}}]', "GATEWAY_API_KEYS[0].name: is missing, expected a name of 1 to 100 characters"),
        (f'["{KEY}"]', "GATEWAY_API_KEYS[0]: got something else, expected an object with name and keys"),
        (f'[{{"name": "x", "key": "{KEY}"}}]', "GATEWAY_API_KEYS[0].key: no such key; did you mean keys?"),
        (f'[{{"name": "x", "keys": ["{KEY} "]}}]', "GATEWAY_API_KEYS[0].keys: got a value (not shown), expected"),
        (
            f'[{{"name": "x", "keys": "{KEY}", "max_in_flight": 0}}]',
            "GATEWAY_API_KEYS[0].max_in_flight: got '0', expected a whole number of at least 1",
        ),
        (
            f'[{{"name": "x", "keys": "{KEY}", "priority": "urgent"}}]',
            "GATEWAY_API_KEYS[0].priority: got 'urgent', expected critical, standard or sheddable",
        ),
        (
            f'[{{"name": "x", "keys": "{KEY}"}}, {{"name": "x", "keys": "{OTHER}"}}]',
            "GATEWAY_API_KEYS: 2 entries are named 'x', expected one with all of its keys",
        ),
        (
            f'[{{"name": "x", "keys": "{KEY}"}}, {{"name": "y", "keys": "{hashed(KEY)}"}}]',
            "GATEWAY_API_KEYS: 'x' and 'y' have the same key, expected each to have its own",
        ),
        ("token-abc", "GATEWAY_API_KEYS: a key of 'key-"),
    ],
)
def test_what_is_wrong_is_named_and_no_key_shown(given: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = faults(monkeypatch, api_keys=given)
    assert any(fault.startswith(expected) for fault in found), found


def test_a_short_key_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "may be guessed" in faults(monkeypatch, api_keys="token-abc")[0]
    assert load().ok


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (f'[{{"name": "x", "keys": "{KEY}"}}]', "a key of 'x' stands there itself, expected its hash: sha256:... of"),
        (KEY, "expected a JSON list of objects with name and keys"),
        (f'[{{"name": "x", "keys": "{KEY}"', "the JSON breaks at character"),
        (f'[{{"name": "x", "kees": "{KEY}"}}]', "entry 0.keys is wrong, expected one key"),
        (f'["{KEY}"]', "entry 0 is wrong, expected an object with name, keys and any of weight"),
        (
            f'[{{"name": "x", "keys": "{hashed(KEY)}"}}, {{"name": "x", "keys": "{hashed(OTHER)}"}}]',
            "2 entries are named 'x'",
        ),
        ("\udcff", "it is no UTF-8 text"),
        (" " * (4 * 1024 * 1024 + 1), "it is larger than"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_and_no_key_shown(
    content: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    found = faults(monkeypatch, api_keys_file=str(file))
    assert found[0].startswith(f"GATEWAY_API_KEYS_FILE: got {str(file)!r}: ")
    assert expected in found[0]
    assert not load().ok


def test_environment_and_file_add_up_and_may_not_contradict_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps([{"name": "x", "keys": hashed(OTHER)}]), encoding="utf-8")
    assert faults(monkeypatch, api_keys=KEY, api_keys_file=str(file)) == []
    assert set(api_keys(load().settings) or ()) == {digest(KEY), digest(OTHER)}
    assert "have the same key" in faults(monkeypatch, api_keys=OTHER)[0]


def test_S09_a_key_with_a_line_break_at_its_end_is_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert faults(monkeypatch, api_keys=f"{KEY}\r\n") == []
    assert list(api_keys(load().settings) or ()) == [digest(KEY)]


@pytest.mark.parametrize("name", ["GATEWAY_APIKEYS", "GATEWAY_API_KEY", "GATEWAY_CLIENT_KEYS", "GATEWAY_API_KYES"])
def test_a_misspelt_name_shows_no_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, KEY)
    assert [KEY in str(fault) for fault in load().faults] == [False]
