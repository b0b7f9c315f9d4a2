"""Certificates made on the spot with the openssl command."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.trust import trusting

_MAKE = ssl.create_default_context
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def strict(cafile: str | None = None) -> ssl.SSLContext:
    """What ``ssl.create_default_context`` gives on Python 3.13 and newer."""
    context = _MAKE(cafile=cafile)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


@dataclass(frozen=True)
class Certificate:
    """Paths of PEM files."""

    cert: Path
    key: Path

    def context(self, authority: Certificate | None = None) -> ssl.SSLContext:
        """A client that trusts ``self`` and shows nothing, or ``authority``'s where that is given and then ``self``."""
        context = trusting(str((authority or self).cert))
        if authority is not None:
            context.load_cert_chain(self.cert, self.key)
        return context


class Authority:
    """A certificate authority in a folder of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("needs the openssl command")
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.root = self._paths(name)
        _openssl(
            *("req", "-x509", *_CURVE, "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", self.root.key, "-out", self.root.cert),
        )

    def _paths(self, name: str) -> Certificate:
        return Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")

    def issue(self, name: str, address: str = "127.0.0.1") -> Certificate:
        """A certificate for ``address`` whose subject is ``name``."""
        made = self._paths(name)
        _openssl(
            *("req", "-x509", *_CURVE, "-days", "2", "-subj", f"/CN={name}"),
            *("-CA", self.root.cert, "-CAkey", self.root.key),
            *("-addext", f"subjectAltName=IP:{address}", "-addext", "basicConstraints=critical,CA:FALSE"),
            *("-keyout", made.key, "-out", made.cert),
        )
        return made


def _openssl(*arguments: str | Path) -> None:
    command = ["openssl", *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - a fixed command
    assert done.returncode == 0, done.stderr
