"""llama.cpp's own HTTP server, out of the wheel ``xllamacpp``: the real engine of the tests.

As a program (``python -m tests.real.llamacpp MODEL PORT``) it serves until SIGTERM.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.real.wire import Request, exchange

SLOTS = 4
CONTEXT = 4096  # tokens a slot


class LlamaCpp:
    """A running server, seen through its own telling."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def figure(self, name: str) -> float:
        """One of its metrics; ``name`` without the prefix."""
        text = exchange(self.port, Request("GET", "/metrics")).body.decode()
        figures = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
        return float(figures[f"llamacpp:{name}"])

    def running(self) -> int:
        """Requests in a slot now."""
        return int(self.figure("requests_processing"))


def serve(model: Path, port: int) -> None:
    """Serve ``model`` on loopback until told to stop."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.model_alias = {"tiny"}
    parameters.hostnames, parameters.port = ["127.0.0.1"], port
    parameters.n_parallel, parameters.n_ctx = SLOTS, SLOTS * CONTEXT
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.n_threads_http = 400  # one per open request, so that a burst waits in the engine and not before it
    parameters.n_batch = parameters.n_ubatch = 256
    parameters.embedding = True  # as well as chat
    parameters.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    parameters.cache_prompt, parameters.cache_ram_mib = False, 0  # what came before must not change an answer
    parameters.endpoint_metrics = parameters.endpoint_slots = True
    parameters.ui = parameters.warmup = False
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # before the server's threads, which inherit it
    server = xllamacpp.Server(parameters)
    signal.sigwait({signal.SIGTERM})
    del server


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
