"""Open files: as many as the system lets this process have, and the last of them kept for what was let in.

Whoever comes when there are none left is closed without a word: libuv (``uv__server_io``) tells nobody. So clients are
turned away while a few are still there; connections to backends, logs and the admin port need them.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

if sys.platform != "win32":
    import resource

_log = logging.getLogger(__name__)

_WANTED: Final = 65_536  # two to a request
_FEW: Final = 4_096
_KEPT: Final = 8, 64  # that clients do not get: at least, at most
_PART: Final = 16  # of all


def raise_limit() -> None:
    """Lift the soft limit on open files as far as the hard one allows, and say so where that is little."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < _FEW:
        _log.warning("only %d files may be open at once: about %d requests; raise ulimit -n", wanted, wanted // 2)


def few_left(newest: int) -> bool:
    """Whether the file that was opened just now, with this number, is one of the last: numbers are given from below."""
    if sys.platform == "win32":
        return False
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and newest >= limit - sorted((limit // _PART, *_KEPT))[1]
