"""A listening socket that the kernel answers for no longer, though whoever connected before is still taken from it.

Between the last look at a listener and its end the kernel goes on making connections, and resets them at that end with
the requests that they brought: a proxy in front may not send those again. A filter that drops the first packet of each
new connection closes that gap. Its client sends it again after a second, finds the port closed and goes elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from array import array
from typing import Final

_SO_ATTACH_FILTER: Final = 26  # asm-generic/socket.h; Python has no name for it
# Classic BPF over the TCP header (linux/filter.h): load the flags, keep SYN and ACK, drop where SYN stands alone.
_STEPS: Final = (0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)
_PROGRAM: Final = array("B", b"".join(struct.pack("HBBI", *step) for step in _STEPS))


def deafen(listener: int) -> None:
    """Let the kernel make no more connections for the listening socket of this file descriptor. Linux only.

    Where that cannot be, all is as it was.
    """
    if not sys.platform.startswith("linux"):
        return
    address, _ = _PROGRAM.buffer_info()
    option = struct.pack("HP", len(_PROGRAM) // 8, address)
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(listener)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, option)
