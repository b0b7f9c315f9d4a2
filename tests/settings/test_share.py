"""The URL of the store: what it may be, and that its password is nowhere."""

from __future__ import annotations

import pytest

from gateway.app.configs import load_all, share_config
from gateway.settings.faults import shown

pytest.importorskip("redis", reason="pip install 'inference-gateway[valkey]'")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://valkey:6379/0", "redis://valkey:6379/0"),
        ("redis://valkey", "redis://valkey"),
        ("rediss://user:s3cret@valkey:6380/3?ssl_ca_certs=/ca.pem", "rediss://***@valkey:6380/3?***"),
        ("redis://:s3cr%40et@[::1]:6379", "redis://***@[::1]:6379"),
        ("unix:///run/valkey.sock?db=2", "unix:///run/valkey.sock?***"),
        ("redis+sentinel://a:26379,b,[::1]:1/mymaster/2", "redis+sentinel://a:26379,b,[::1]:1/mymaster/2"),
        ("rediss+sentinel://u:s3cret@a,b/m?sentinel_password=s3crot", "rediss+sentinel://***@a,b/m?***"),
    ],
)
def test_a_url_is_taken_and_shown_without_its_password(url: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_SHARE_URL", url)
    loaded = load_all(None)
    assert loaded.faults == ()
    config = share_config(loaded.settings)
    assert config is not None
    assert config.url == url
    assert shown(loaded.settings, "share_url") == told
    assert "s3cr" not in repr(loaded.settings)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://valkey:6379",
            "valkey:6379",
            "redis://",
            "redis://u:s3cret@",
            "unix://",
            "redis://h:0",
            "redis://h:x",
        ),
        *(
            "redis://u:s3cret@h:99999/0",
            "redis://u:s3cret@h/zero",
            "redis://h?password=s3cret",
            "redis://h?db=s3cret",
            "redis://h?socket_timeout=1",
            "redis+sentinel://a,b",
            "redis+sentinel://a,,b/m",
            "redis+sentinel://a:99999/m",
            "redis+sentinel://:s3cret@a/m/zero",
            "redis+sentinel://a/m?password=s3cret",
            "unix+sentinel://a/m",
        ),
    ],
)
def test_what_is_no_url_of_a_store_is_refused_without_being_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_SHARE_URL", url)
    (fault,) = load_all(None).faults
    assert str(fault).startswith("GATEWAY_SHARE_URL: got a text (not shown)")
    assert "expected redis://HOST:PORT/DB, rediss://" in str(fault)
    assert "s3cret" not in str(fault)


def test_without_a_url_nothing_is_shared() -> None:
    assert share_config(load_all(None).settings) is None


def test_every_setting_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"url": "redis://h", "prefix": "p", "timeout": "20ms", "block": "0.1", "lease": "5", "gateways": "3"}
    for name, value in given.items():
        monkeypatch.setenv(f"GATEWAY_SHARE_{name.upper()}", value)
    config = share_config(load_all(None).settings)
    assert config is not None
    assert (config.prefix, config.timeout, config.block, config.lease, config.gateways) == ("p", 0.02, 0.1, 5.0, 3)


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_SHARE_URL", "redis://:s3cret@h")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    (fault,) = load_all(None).faults
    assert fault.fatal
    assert str(fault) == (
        "GATEWAY_SHARE_URL: redis is not installed, expected it: pip install 'inference-gateway[valkey]'"
    )
