"""Authorities as people make them are believed, whatever Python's own default is."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

import gateway
from gateway.trust import trusting
from tests.proxy.certificates import Authority, Certificate, strict


def shakes_hands(client: ssl.SSLContext, shown: Certificate) -> None:
    """A whole handshake in memory, as ``client`` with a server that shows ``shown``."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(shown.cert, shown.key)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(back, there, server_hostname="127.0.0.1"),
        server.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[0].getpeercert()


def test_an_authority_without_key_usage_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssl, "create_default_context", strict)
    authority = Authority(tmp_path, "plain")
    made = authority.issue("engine")
    with pytest.raises(ssl.SSLCertVerificationError, match="key usage"):
        shakes_hands(strict(str(authority.root.cert)), made)
    shakes_hands(trusting(str(authority.root.cert)), made)


def test_a_server_s_own_certificate_may_be_named(tmp_path: Path) -> None:
    made = Authority(tmp_path, "root").issue("engine")
    shakes_hands(trusting(str(made.cert)), made)


def test_nobody_else_is(tmp_path: Path) -> None:
    made = Authority(tmp_path / "a", "one").issue("engine")
    other = Authority(tmp_path / "b", "other").root
    for context in (trusting(str(other.cert)), trusting()):
        with pytest.raises(ssl.SSLCertVerificationError):
            shakes_hands(context, made)


def test_whoever_verifies_asks_here() -> None:
    root = Path(gateway.__file__).parent
    assert [path.name for path in root.rglob("*.py") if "create_default_context(" in path.read_text()] == ["trust.py"]
