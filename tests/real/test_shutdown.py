"""SIGTERM to the real process: what runs is finished, what comes is refused, and the exit code is 0."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.real.cases import chat, lasting
from tests.real.conftest import running_gateway
from tests.real.llamacpp import LlamaCpp
from tests.real.process import answers_ok, eventually
from tests.real.wire import exchange, opened

pytestmark = pytest.mark.real


def test_a_stream_is_finished_while_new_work_is_refused(engine: LlamaCpp, tmp_path: Path) -> None:
    """C05 (vllm-project/vllm#24885)."""
    with running_gateway(tmp_path, backends=engine.url) as gateway, ThreadPoolExecutor(1) as other:
        with opened(gateway.port, lasting("goes on", stream=True, tokens=600)) as (_, response):
            heard = response.read1()
            ended = other.submit(gateway.program.stop)
            eventually(lambda: not answers_ok(gateway.admin_port, "/readyz"), "the gateway says that it is not ready")
            refused = exchange(gateway.port, chat())
            assert refused.status == HTTPStatus.SERVICE_UNAVAILABLE
            assert refused.header("connection") == "close"
            heard += response.read()
        assert heard.count(b"data: ") > 600
        assert heard.endswith(b"data: [DONE]\n\n")
        assert ended.result() == 0
