"""A client in a process of its own, to be killed: ``python -m tests.real.lone_client PORT MARK stream|whole``.

It asks for an answer that takes a while and prints each piece as it comes.
"""

from __future__ import annotations

import sys

from tests.real.cases import lasting
from tests.real.wire import opened

if __name__ == "__main__":
    port, mark, manner = sys.argv[1:]
    with opened(int(port), lasting(mark, stream=manner == "stream", tokens=500)) as (_, response):
        while piece := response.read1():
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()
