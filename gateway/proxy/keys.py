"""Whose request it is: API keys, known by their hashes.

Only SHA-256 hashes are kept. A key is long and random, so nothing slower is needed: the slow hashes of passwords exist
because people choose passwords, and would cost each request milliseconds. Hashes are looked up under a secret of this
process and compared in constant time, so that how long an answer takes says nothing of any key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Final

from multidict import CIMultiDictProxy

from gateway.admission.quota import Account, KeyTerms, Revoked
from gateway.proxy.inbound import Call, Refused

Keys = Mapping[bytes, KeyTerms]
"""SHA-256 of each key -> what its holder may do. Several keys may be of one holder, as while one replaces another."""

_UNKNOWN: Final = (
    HTTPStatus.UNAUTHORIZED,
    "invalid_api_key",
    "No valid API key was given. Send yours as Authorization: Bearer or as x-api-key.",
)


class KeyBook:
    """Every key and what its holder has used of it. ``keys`` None: everybody may come, with any key or none."""

    def __init__(self, keys: Keys | None) -> None:
        self._secret = secrets.token_bytes(32)
        self._keys: dict[bytes, tuple[bytes, Account]] = {}
        self._accounts: dict[str, Account] = {}
        self.closed = False
        self.given: Keys | None = None
        self.replace(keys)

    def replace(self, keys: Keys | None) -> None:
        """Go on with other keys, from the next request on; who is known already keeps what was counted."""
        self.closed = keys is not None
        self.given = keys
        known, self._accounts, self._keys = self._accounts, {}, {}
        for digest, terms in (keys or {}).items():
            account = self._accounts.get(terms.name) or known.get(terms.name) or Account(terms)
            account.retune(terms)
            self._accounts[terms.name] = account
            self._keys[self._place(digest)] = digest, account

    def account(self, name: str) -> Account | None:
        """What the holder of this name has used; None where there is none."""
        return self._accounts.get(name)

    def _place(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._secret, digest_size=16).digest()

    def identify(self, call: Call) -> Account | None:
        """Whose request it is; None where everybody may come, and for a browser's preflight, which carries no key.

        This is the one door, and it does not look at the path: no spelling of one can get round it.

        Raises:
            Refused: no key, or none that is known.
        """
        if not self.closed:
            return None
        for given in _given(call.request.headers):
            digest = hashlib.sha256(given).digest()
            known, account = self._keys.get(self._place(digest), (b"", None))
            if hmac.compare_digest(digest, known):
                return account
        if call.is_preflight:
            return None
        raise unknown_key()

    def check(self, account: Account) -> None:
        """See to it that a key is still good: a body may be minutes on its way.

        Raises:
            Revoked: it is not.
        """
        if self.closed and account.terms.name not in self._accounts:
            raise Revoked


def unknown_key() -> Refused:
    """The refusal of a request without a key that is good."""
    return Refused(*_UNKNOWN, headers=(("WWW-Authenticate", "Bearer"), ("x-should-retry", "false")))


def _given(headers: CIMultiDictProxy[str]) -> Iterator[bytes]:
    """Keys as the SDKs send them: OpenAI's, Anthropic's, Azure's."""
    for value in headers.getall("Authorization", ()):
        scheme, _, key = value.partition(" ")
        if scheme.lower() == "bearer":
            yield key.strip().encode("utf-8", "surrogateescape")
    for name in ("X-Api-Key", "Api-Key"):
        for value in headers.getall(name, ()):
            yield value.strip().encode("utf-8", "surrogateescape")
