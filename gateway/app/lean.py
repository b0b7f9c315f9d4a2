"""Only what is needed of aiohttp: its server, until somebody asks for its client.

aiohttp's package imports its client when any part of it is imported, and with it the system's certificate authorities:
4 MiB and a twelfth of the time that a start takes, for what ``serve`` needs only to find engines or other gateways.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec
from typing import Any, Final

_PACKAGE: Final = "aiohttp"


def without_client() -> None:
    """Let ``import aiohttp.PART`` import that part alone; any other name of the package imports all of it then.

    Nobody sees a difference but in ``sys.modules``. Where the package is imported already nothing is done.
    """
    spec = None if _PACKAGE in sys.modules else find_spec(_PACKAGE)
    loader = None if spec is None else spec.loader
    if spec is None or not isinstance(loader, SourceFileLoader):
        return
    version = re.search(r'^__version__ = "([^"]+)"', loader.get_source(_PACKAGE) or "", re.MULTILINE)
    if version is None:
        return
    package = module_from_spec(spec)

    def missing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if find_spec(f"{_PACKAGE}.{name}") is not None:
            return importlib.import_module(f"{_PACKAGE}.{name}")
        if vars(package).pop("__getattr__", None) is not None:
            loader.exec_module(package)
        return getattr(package, name)

    vars(package).update(__getattr__=missing, __version__=version[1])  # its own parts ask for the version
    sys.modules[_PACKAGE] = package
