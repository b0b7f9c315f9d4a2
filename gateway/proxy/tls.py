"""TLS on both sides: how clients reach the gateway, and how the gateway reaches backends.

Certificates are replaced while it runs. A context is always made anew and whole, so a certificate whose key has not
been written yet changes nothing; connections that are open go on with what they began with.
"""

from __future__ import annotations

import ssl

from gateway.model import BackendTls
from gateway.proxy.config import ListenerTls, TlsConfig
from gateway.trust import trusting


class TurnedAway(ConnectionError):  # noqa: N818 - says what happened
    """The backend took the connection and closed it before TLS was up, as a full one of its kind does."""


class ServerTls:
    """The listener's side. ``context`` is for the server; each handshake takes what is current.

    OpenSSL asks for the name that the client wants before it looks at any certificate, whether the client gives one
    or not, and lets the answer be another context (``SSL_set_SSL_CTX``).
    """

    def __init__(self, config: ListenerTls) -> None:
        """See ``server_context``."""
        self.current = server_context(config)
        self.context = server_context(config)
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self.current


def server_context(config: ListenerTls) -> ssl.SSLContext:
    """How clients are spoken to, of what the files hold now.

    Raises:
        OSError: a file cannot be read, or does not hold what it should (``ssl.SSLError``).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(config.cert, config.key, password=lambda: "")  # else OpenSSL asks on the terminal
    if config.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(config.client_ca)
        # A session that is resumed is not verified again: an authority that was taken away would live on in it.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context


def client_context(config: TlsConfig, own: BackendTls) -> ssl.SSLContext:
    """How a backend is spoken to: what is set for itself comes before what holds for all.

    A certificate and its key stay together.

    Raises:
        OSError: as above.
    """
    context = trusting(own.ca or config.ca)
    if not (config.verify if own.verify is None else own.verify):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    cert, key = (config.cert, config.key) if own.cert is None else (own.cert, own.key)
    if cert is not None:
        context.load_cert_chain(cert, key, password=lambda: "")
    return context
