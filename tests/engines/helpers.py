"""A gateway with real admission before an emulated MindIE, all over real sockets."""

from __future__ import annotations

import contextlib
import random
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.admission.config import AdmissionConfig
from gateway.admission.controller import AdmissionController
from gateway.admission.estimator import Estimator
from gateway.emulator.mindie import EmulatedMindIE
from gateway.emulator.profiles import FLAT
from gateway.model import Backend, BackendState, BackendTls, EngineState, Record
from gateway.proxy.config import ProbeConfig
from gateway.proxy.server import Gateway
from tests.proxy.helpers import Message, RawClient, Records, proxy_config

FAST = replace(FLAT, base=0.001, max_model_len=4096)
SLOW = replace(FLAT, base=60.0, max_model_len=4096)  # one token a minute after the first
PEM = str(Path(__file__).parent / "localhost.pem")  # a certificate for 127.0.0.1 with its key, made for these tests


@dataclass
class House:
    """A gateway and the engine behind it."""

    gateway: Gateway
    mindie: EmulatedMindIE
    records: Records

    @property
    def state(self) -> BackendState:
        return self.gateway.state().backends[0]

    @property
    def engine(self) -> EngineState:
        engine = self.state.engine
        assert engine is not None
        return engine

    async def ask(self, data: bytes) -> Message:
        client = await RawClient.connect(self.gateway.url)
        try:
            return await client.ask(data)
        finally:
            client.close()

    async def record(self, count: int = 1) -> Record:
        """The record of the request number ``count``."""
        return (await self.records.count(count))[count - 1]


@contextlib.asynccontextmanager
async def open_house(
    profile: Any = FAST, *, backend: dict[str, Any] | None = None, proxy: dict[str, Any] | None = None, **mindie: Any
) -> AsyncIterator[House]:
    """``backend`` changes what is configured of the engine, ``proxy`` of the gateway; the rest is the engine's."""
    async with EmulatedMindIE(profile, ["m"], **mindie) as server:
        planes = {"management_url": server.management_url, "metrics_url": server.metrics_url}
        configured = Backend("npu", server.url, **({"kind": "mindie"} | planes | (backend or {})))
        config = AdmissionConfig()
        estimator, records = Estimator(config.estimator), Records()
        controller = AdmissionController(config, [configured], random.Random(1).uniform, estimator)
        probe = ProbeConfig(interval=0.02)
        gateway = Gateway(
            proxy_config(**{"probe": probe, **(proxy or {})}), [configured], controller, estimator, (records,)
        )
        await gateway.start()
        try:
            yield House(gateway, server, records)
        finally:
            await gateway.stop()


def tls_server() -> ssl.SSLContext:
    """TLS that demands the client's certificate, as MindIE's default does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)
    context.load_verify_locations(PEM)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


TLS = BackendTls(ca=PEM, cert=PEM)
