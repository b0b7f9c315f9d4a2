"""Whose certificates are believed: the same on every Python.

Since 3.13 ``ssl.create_default_context`` is strict to the letter of RFC 5280: it refuses authorities without key usage,
as ``openssl req -x509`` makes them, and certificates without the authority's key identifier, as many clusters have. And
it takes what it is given for an anchor though it is no root.
"""

from __future__ import annotations

import ssl
from typing import Final

LENIENT: Final = ssl.VERIFY_X509_STRICT
"""The flag that is left out: what other clients of an engine or a cluster accept must not fail by the Python here."""
ANCHORS: Final = ssl.VERIFY_X509_PARTIAL_CHAIN
"""The flag that is set: whoever names a certificate means it, be it an authority between or a server's own."""


def trusting(cafile: str | None = None) -> ssl.SSLContext:
    """For a client that believes whom the authorities in ``cafile`` vouch for; where it is None, those of the system.

    Raises:
        OSError: the file cannot be read, or holds no certificates (``ssl.SSLError``).
    """
    context = ssl.create_default_context(cafile=cafile)
    context.verify_flags = context.verify_flags & ~LENIENT | ANCHORS
    return context
