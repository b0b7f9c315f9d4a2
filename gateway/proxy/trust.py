"""Who is believed when it says for whom it speaks: proxies on the operator's own networks."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

_REMEMBERED: Final = 4_096


class Trust:
    """Whether a peer is on one of ``networks``; a peer without an address (a Unix socket) is on this machine."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(ip_network(network) for network in networks)
        self._known: dict[str, bool] = {"": True}

    def __call__(self, peer: str) -> bool:
        """Look at one peer's address."""
        known = self._known.get(peer)
        if known is None:
            known = self._look(peer)
            if len(self._known) >= _REMEMBERED:
                self._known = {"": True}
            self._known[peer] = known
        return known

    def _look(self, peer: str) -> bool:
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)
