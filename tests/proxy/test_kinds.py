"""Who a backend is, on which of its ports it is asked, and whether its gauges are believed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from gateway.dialects.base import Plane
from gateway.dialects.engines import ENGINES
from gateway.model import Backend, EngineState, Health, Hints, HintsUse
from gateway.proxy.config import ProbeConfig
from gateway.proxy.fetch import Unanswered
from gateway.proxy.gate import Gate
from gateway.proxy.hints import HintReader
from gateway.proxy.planes import Planes
from gateway.proxy.prober import Watch
from gateway.proxy.upstream import Upstream
from tests.proxy.helpers import (
    GUARD,
    CountingController,
    Message,
    Peer,
    Script,
    ScriptedBackend,
    StartBackend,
    always,
    open_house,
    proxy_config,
    reply,
    request,
    wait_until,
)
from tests.real.process import free_port

NOT_FOUND = reply(b"", "404 Not Found", ())


def by_path(answers: Mapping[str, bytes | str]) -> Script:
    """200 with these bodies, or these statuses; 404 to everything else."""

    async def script(peer: Peer, message: Message) -> None:
        answer = answers.get(message.target)
        if answer is None:
            await peer.send(NOT_FOUND)
        elif isinstance(answer, str):
            await peer.send(reply(b"", answer, ()))
        else:
            await peer.send(reply(answer))

    return script


def owned_by(owner: str) -> bytes:
    return orjson.dumps({"object": "list", "data": [{"id": "qwen", "owned_by": owner}]})


VLLM = {"/v1/models": owned_by("vllm"), "/health": b"", "/metrics": b"vllm:num_requests_running 1\n"}
MINDIE = {"/v1/models": owned_by("MindIE Server")}


class Watching:
    """One backend's watch, driven probe by probe."""

    def __init__(self, backend: Backend, **changes: Any) -> None:
        self.controller = CountingController(["a"])
        self.kinds: list[str] = []
        probe = ProbeConfig(interval=0.001, timeout=GUARD, failures=1, successes=1)
        config = proxy_config(connect_timeout=GUARD, probe=probe, **changes)
        self.upstream = Upstream(backend, config)
        self.watch = Watch(config, self.upstream, Gate(self.controller), self._note)

    def _note(self) -> None:
        self.kinds.append(self.watch.state.kind)

    async def probe(self, times: int = 1) -> EngineState:
        for _ in range(times):
            await self.watch.probe()
        return self.watch.state

    @property
    def hints(self) -> list[Hints]:
        return self.controller.hints["a"]


@pytest.fixture
async def engine(backend: StartBackend) -> ScriptedBackend:
    return await backend(always(reply()))


def targets(engine: ScriptedBackend) -> list[str]:
    """What it was asked, apart from the names of its models."""
    return [message.target for message in engine.probes if message.target != "/v1/models"]


# --------------------------------------------------------------------------------------------------------------
# Who it is
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        (VLLM, "vllm"),
        ({"/version": b'{"version":"0.9.1"}'}, "vllm"),
        ({"/v1/models": owned_by("llamacpp")}, "llamacpp"),
        ({"/v1/models": owned_by("team"), "/props": b'{"default_generation_settings":{}}'}, "llamacpp"),
        ({"/info": b'{"model_id":"m","max_concurrent_requests":128}'}, "tgi"),
        ({"/get_model_info": b'{"model_path":"m"}'}, "sglang"),
        ({"/v2": b'{"name":"triton"}'}, "triton"),
        (MINDIE, "mindie"),
    ],
)
async def test_an_engine_is_recognised_at_first_contact(
    engine: ScriptedBackend, answers: dict[str, bytes], kind: str
) -> None:
    engine.probe_script = by_path(answers)
    watching = Watching(Backend("a", engine.url, kind="auto"))
    assert watching.watch.state.kind == "auto"
    state = await watching.probe()
    assert (state.kind, state.detected) == (kind, True)
    assert watching.kinds == [kind]
    assert watching.upstream.closes_when_full is ENGINES[kind].closes_when_full
    assert watching.upstream.single_use is ENGINES[kind].single_use
    asked = len(targets(engine))
    await watching.probe(3)
    assert not {"/version", "/props", "/info", "/v2"} & set(targets(engine)[asked:]), "it is asked once"


async def test_an_engine_that_nobody_knows_is_spoken_to_in_the_common_tongue(engine: ScriptedBackend) -> None:
    engine.probe_script = by_path({"/v1/models": owned_by("somebody")})
    state = await Watching(Backend("a", engine.url, kind="auto")).probe()
    assert (state.kind, state.detected, state.hints_use) == ("openai", False, HintsUse.ABSENT)
    assert state.health_at is not None
    assert state.health_at.endswith("/v1/models")


async def test_a_kind_that_is_set_is_not_asked_for(engine: ScriptedBackend) -> None:
    engine.probe_script = by_path(VLLM)
    watching = Watching(Backend("a", engine.url, kind="lmdeploy"))
    state = await watching.probe()
    assert (state.kind, state.detected, watching.kinds) == ("lmdeploy", False, [])
    assert targets(engine) == ["/health", "/metrics"]


async def hang_up(peer: Peer, _message: Message) -> None:
    peer.close()


@pytest.mark.parametrize("script", [hang_up, always(reply(b"", "503 Service Unavailable", ()))])
async def test_an_engine_that_is_still_loading_or_too_busy_is_asked_again(
    engine: ScriptedBackend, script: Script
) -> None:
    engine.probe_script = script
    watching = Watching(Backend("a", engine.url, kind="auto"))
    assert (await watching.probe(2)).kind == "auto"
    engine.probe_script = by_path(VLLM)
    assert (await watching.probe()).kind == "vllm"


async def test_what_returns_from_the_dead_may_be_another_engine(engine: ScriptedBackend) -> None:
    engine.probe_script = by_path(MINDIE)
    watching = Watching(Backend("a", engine.url, kind="auto"))
    assert (await watching.probe()).kind == "mindie"
    port = int(engine.url.rpartition(":")[2])
    await engine.stop()
    await watching.probe()
    assert watching.controller.health["a"][-1] is Health.DOWN
    await engine.start(port)
    engine.probe_script = by_path(VLLM)
    state = await watching.probe(2)
    assert (state.kind, watching.kinds) == ("vllm", ["mindie", "vllm"])
    assert not watching.upstream.single_use
    assert watching.hints[-1] == Hints(running=1.0)


async def test_a_native_route_is_taken_for_one_of_the_engine_that_is_there(backend: StartBackend) -> None:
    engine = await backend(always(reply(b'{"text":["a"]}')))
    engine.probe_script = by_path(VLLM)
    async with open_house(Backend("a", engine.url, kind="auto"), probe=ProbeConfig(interval=0.001)) as house:
        await wait_until(lambda: house.gateway.state().backends[0].engine.kind == "vllm")  # type: ignore[union-attr]
        await house.ask(request(target="/generate", body=b'{"prompt":"a"}'))
        (record,) = await house.records.count(1)
        assert record.route.label == "vllm_generate"
        assert house.controller.offered[0].shape.max_output == 16


# --------------------------------------------------------------------------------------------------------------
# Its ports
# --------------------------------------------------------------------------------------------------------------


async def three_planes(backend: StartBackend, **answers: Mapping[str, bytes | str]) -> list[ScriptedBackend]:
    """Serving, management and metrics plane of a MindIE."""
    engines = []
    for plane in ("serving", "management", "metrics"):
        engine = await backend(always(reply()))
        engine.probe_script = by_path(answers.get(plane, {}))
        engines.append(engine)
    return engines


def mindie(engines: list[ScriptedBackend], **more: Any) -> Backend:
    serving, management, metrics = engines
    return Backend("a", serving.url, kind="mindie", management_url=management.url, metrics_url=metrics.url, **more)


GAUGES = b"num_requests_running 3\nnpu_cache_usage_perc 0.5\n"
STATUS = orjson.dumps({
    "resource": {"runningRequestNum": 5, "waitingRequestNum": 1, "freeNpuBlockNums": 10, "totalNpuBlockNums": 40}
})  # fmt: skip
CONFIG = b'{"cacheBlockSize":128}'


async def test_mindie_is_asked_on_its_own_planes(backend: StartBackend) -> None:
    engines = await three_planes(
        backend,
        serving=MINDIE,
        management={"/v2/health/live": b"", "/v2/status": STATUS, "/v1/config": CONFIG},
        metrics={"/metrics": GAUGES},
    )
    watching = Watching(mindie(engines))
    state = await watching.probe(2)
    hosts = [engine.url.removeprefix("http://") for engine in engines]
    assert state.health_at == f"{hosts[1]}/v2/health/live"
    assert (state.hints_at, state.hints_use) == (f"{hosts[2]}/metrics", HintsUse.USED)
    expected = Hints(running=3.0, kv_usage=0.5, kv_capacity_tokens=40 * 128)
    assert watching.hints == [expected, expected], "the size of the cache is asked for once"
    assert targets(engines[0]) == ["/metrics"], "while it looked for the size"
    assert targets(engines[2]) == ["/metrics", "/metrics"]


async def test_where_metrics_are_off_its_status_is_read(backend: StartBackend) -> None:
    engines = await three_planes(
        backend,
        serving=MINDIE,
        management={"/v2/health/live": b"", "/v2/status": STATUS, "/v1/config": CONFIG},
        metrics={"/metrics": "500 Internal Server Error"},
    )
    watching = Watching(mindie(engines))
    state = await watching.probe(2)
    assert state.hints_at == engines[1].url.removeprefix("http://") + "/v2/status"
    assert watching.hints[-1] == Hints(5.0, 1.0, 0.75, 40 * 128)


async def test_where_even_that_is_missing_its_slots_are_counted(backend: StartBackend) -> None:
    slots = b'{"total_slots":200,"free_slots":190,"available_tokens_length":1}'
    engines = await three_planes(
        backend, serving=MINDIE, management={"/v2/models/qwen/getSlotCount": slots, "/v2/health/live": b""}
    )
    watching = Watching(mindie(engines, models=("qwen",)))
    state = await watching.probe()
    assert state.hints_at is not None
    assert state.hints_at.endswith("/v2/models/qwen/getSlotCount")
    assert watching.hints == [Hints(running=10.0)]
    nameless = Watching(mindie(engines))
    assert (await nameless.probe()).hints_use is HintsUse.ABSENT


async def test_one_port_may_be_all_planes(engine: ScriptedBackend) -> None:
    engine.probe_script = by_path({**MINDIE, "/v2/health/live": b"", "/metrics": GAUGES})
    watching = Watching(Backend("a", engine.url, kind="auto"))
    state = await watching.probe()
    assert state.kind == "mindie"
    assert (state.health_at or "").endswith("/v2/health/live")
    assert watching.hints == [Hints(running=3.0, kv_usage=0.5)]


async def test_a_management_plane_that_goes_away_is_not_the_engine_s_death(backend: StartBackend) -> None:
    engines = await three_planes(backend, serving=MINDIE, management={"/v2/health/live": b""})
    watching = Watching(mindie(engines))
    await watching.probe()
    await engines[1].stop()
    state = await watching.probe(2)
    assert (state.health_at or "").endswith("/v1/models")
    assert watching.controller.health["a"] == [Health.UP]


async def test_bad_news_from_the_management_plane_that_was_named_count(backend: StartBackend) -> None:
    engines = await three_planes(backend, serving=MINDIE, management={"/v2/health/live": "500 Internal Server Error"})
    watching = Watching(mindie(engines))
    await watching.probe()
    assert watching.controller.health["a"] == [Health.DOWN]


async def test_the_engine_s_default_ports_are_guessed_beside_its_default_port_alone() -> None:
    def address(url: str, plane: Plane) -> str:
        planes = Planes(Upstream(Backend("a", url), proxy_config()), proxy_config())
        planes.settle(ENGINES["mindie"])
        return planes.address(plane)

    assert address("http://npu1:1025", Plane.MANAGEMENT) == "npu1:1026"
    assert address("http://npu1:1025", Plane.METRICS) == "npu1:1027"
    assert address("http://[::1]:1025", Plane.METRICS) == "[::1]:1027"
    assert address("http://npu1:40001", Plane.MANAGEMENT) == ""


async def test_bad_news_from_a_guess_count_for_nothing(engine: ScriptedBackend, backend: StartBackend) -> None:
    """Somebody else listens on that port."""
    stranger = await backend(always(reply(b"", "500 Internal Server Error", ())))
    stranger.probe_script = stranger.script
    engine.probe_script = by_path(MINDIE)
    watching = Watching(Backend("a", engine.url, kind="mindie"))
    watching.watch.planes._others[Plane.MANAGEMENT] = Upstream(
        watching.upstream.backend, proxy_config(), address=stranger.url
    )
    await watching.probe()
    assert watching.controller.health["a"] == [Health.UP]
    assert targets(stranger)[0] == "/v2/health/live"


async def test_a_plane_that_is_not_known_is_not_asked(engine: ScriptedBackend) -> None:
    planes = Planes(Upstream(Backend("a", engine.url), proxy_config()), proxy_config())
    with pytest.raises(Unanswered, match="no metrics plane"):
        await planes.ask("/metrics", Plane.METRICS)


async def test_the_port_that_serves_tells_of_death_and_no_other() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    config = proxy_config(connect_timeout=GUARD)
    planes = Planes(Upstream(Backend("a", url, metrics_url=url), config), config)
    planes.settle(ENGINES["mindie"])
    with pytest.raises(OSError, match=r"refused|[Cc]onnect"):
        await planes.ask("/health")
    with pytest.raises(Unanswered):
        await planes.ask("/metrics", Plane.METRICS)


# --------------------------------------------------------------------------------------------------------------
# Its gauges
# --------------------------------------------------------------------------------------------------------------


class Reading:
    """A reader of vLLM's gauges, at instants that the test says."""

    def __init__(self, engine: ScriptedBackend) -> None:
        self.engine = engine
        self.now = 1000.0
        config = proxy_config(connect_timeout=GUARD, probe=ProbeConfig(timeout=GUARD))
        self.reader = HintReader(Planes(Upstream(Backend("a", engine.url), config), config), lambda: self.now)
        self.reader.begin(ENGINES["vllm"], None)

    def use(self) -> HintsUse:
        return self.reader.use

    async def read(self, text: bytes | None, in_flight: int = 0, after: float = 2.0) -> Hints | None:
        self.now += after
        self.engine.probe_script = by_path({} if text is None else {"/metrics": text})
        return await self.reader.read(in_flight)


async def test_F39_gauges_that_are_no_longer_heard_lapse_and_are_looked_for_again(engine: ScriptedBackend) -> None:
    reading = Reading(engine)
    assert reading.use() is HintsUse.UNKNOWN
    assert await reading.read(b"vllm:num_requests_running 1\n") == Hints(running=1.0)
    assert reading.use() is HintsUse.USED
    assert await reading.read(None) is None
    assert reading.use() is HintsUse.USED
    assert await reading.read(None, after=9.0) is None
    assert reading.use() is HintsUse.STALE
    assert await reading.read(None, after=60.0) is None
    assert reading.use() is HintsUse.ABSENT
    assert await reading.read(b"vllm:num_requests_running 2\n") == Hints(running=2.0)
    assert reading.use() is HintsUse.USED


async def test_a_search_that_found_nothing_is_not_repeated_at_every_probe(engine: ScriptedBackend) -> None:
    reading = Reading(engine)
    for _ in range(10):
        assert await reading.read(None) is None
    assert len(engine.probes) == 1
    assert reading.use() is HintsUse.ABSENT
    assert await reading.read(b"vllm:num_requests_waiting 2\n", after=60.0) == Hints(waiting=2.0)


async def test_gauges_that_tell_of_far_fewer_requests_than_are_in_flight_are_not_believed(
    engine: ScriptedBackend,
) -> None:
    """They are another engine's, or stand still (vllm-ascend#2245: a constant gauge of a hung engine)."""
    text = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 1.0\n"
    reading = Reading(engine)
    believed = [await reading.read(text, in_flight=20) is not None for _ in range(4)]
    assert believed == [True, True, False, False], "a gauge may be seconds old"
    assert reading.use() is HintsUse.CONTRADICTED
    assert await reading.read(text, in_flight=8) is not None
    assert reading.use() is HintsUse.USED


@pytest.mark.parametrize(
    ("text", "in_flight"),
    [
        (b"vllm:num_requests_running 0\n", 4),
        (b"vllm:num_requests_running 10\n", 20),
        (b"vllm:kv_cache_usage_perc 0.5\n", 100),
    ],
)
async def test_few_requests_late_gauges_and_gauges_without_counts_contradict_nothing(
    engine: ScriptedBackend, text: bytes, in_flight: int
) -> None:
    reading = Reading(engine)
    for _ in range(5):
        assert await reading.read(text, in_flight) is not None


async def test_state_shows_what_is_read_and_what_becomes_of_it(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    engine.probe_script = by_path(VLLM)
    async with open_house(Backend("a", engine.url, kind="auto"), probe=ProbeConfig(interval=0.001)) as house:
        await wait_until(lambda: house.controller.hints["a"])
        (state,) = house.gateway.state().backends
        host = engine.url.removeprefix("http://")
        asked = f"{host}/health", f"{host}/metrics"
        assert state.engine == EngineState("vllm", True, *asked, HintsUse.USED, {"qwen": None})


# --------------------------------------------------------------------------------------------------------------
# The door
# --------------------------------------------------------------------------------------------------------------


async def test_connections_to_an_engine_that_spends_a_thread_on_each_are_used_once(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    async with open_house(Backend("a", engine.url, kind="mindie")) as house:
        client = await house.client()
        for _ in range(3):
            assert (await client.ask(request(body=b"{}"))).status == 200
        assert [message.get("Connection") for message in engine.requests] == ["close"] * 3
        assert len({message.connection for message in engine.requests}) == 3
        await engine.deserted()


async def test_a_door_that_stays_shut_although_nobody_is_inside_is_the_door_of_a_dead_engine(
    backend: StartBackend,
) -> None:
    """A container's port forwarder takes connections for an engine that is gone."""
    engine = await backend(hang_up)
    engine.probe_script = hang_up
    async with open_house(Backend("a", engine.url, kind="mindie")) as house:
        statuses = [(await house.ask(request(body=b"{}"))).status for _ in range(8)]
        assert statuses == [429] * 5 + [502] * 3
        outcomes = [outcome.value for outcome in house.controller.outcomes]
        assert outcomes == ["backend_busy"] * 5 + ["backend_lost"] * 3
        engine.script = always(reply())
        assert (await house.ask(request(body=b"{}"))).status == 200
        engine.script = hang_up
        assert (await house.ask(request(body=b"{}"))).status == 429, "it had answered"


async def test_a_full_engine_with_requests_of_ours_inside_is_never_taken_for_dead(backend: StartBackend) -> None:
    release, arrivals = asyncio.Event(), itertools.count(1)

    async def first_only(peer: Peer, _message: Message) -> None:
        if next(arrivals) == 1:
            await release.wait()
            await peer.send(reply())
        else:
            peer.close()

    engine = await backend(first_only)
    engine.probe_script = hang_up
    async with open_house(Backend("a", engine.url, kind="mindie")) as house:
        inside = await house.client()
        await inside.send(request(body=b"{}"))
        await engine.received(1)
        assert [(await house.ask(request(body=b"{}"))).status for _ in range(12)] == [429] * 12
        release.set()
        assert (await inside.answer()).status == 200


async def test_a_connection_that_breaks_later_is_lost_and_not_turned_away(
    backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that dies ends what it had taken long ago."""
    monkeypatch.setattr("gateway.proxy.upstream._DOOR", 0.0)
    engine = await backend(hang_up)
    async with open_house(Backend("a", engine.url, kind="mindie")) as house:
        assert (await house.ask(request(body=b"{}"))).status == 502
