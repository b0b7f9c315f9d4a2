"""A gateway of several processes, as its operator sees it: one limit, one queue, and any of them may be killed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Final

import pytest

from tests.acceptance.engine import EmulatedEngine, chat
from tests.real.gateway import GatewayProcess
from tests.real.process import eventually
from tests.real.wire import Request, exchange, sent

Engines = Callable[..., EmulatedEngine]
Gateways = Callable[..., GatewayProcess]
Streams = list[tuple[HTTPConnection, HTTPResponse]]

LONG: Final = 2000  # tokens: longer than a test
MANY: Final = 12  # streams: that all of them fall to one of two workers has a chance of one in two thousand
ROOM: Final = 2 * MANY  # requests at once that the limit lets through

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")


def parts(gateway: GatewayProcess, part: str) -> list[int]:
    """Ids of the gateway's processes of this kind."""
    pid = gateway.program.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if f"\0{part}\0".encode() in _command(child)]


def _command(pid: str) -> bytes:
    """Empty where it ended just now."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # ended, though whoever inherited it has not noticed


def hashed(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def workers(gateway: GatewayProcess) -> float:
    return gateway.series("gateway_workers")[""]


def in_flight(gateway: GatewayProcess) -> float:
    return sum(gateway.series("gateway_inflight_requests").values())


@contextmanager
def streams(gateway: GatewayProcess, count: int, max_tokens: int = LONG) -> Iterator[Streams]:
    """So many streams, each on a connection of its own and begun."""
    with ExitStack() as stack:
        found: Streams = []
        for _ in range(count):
            connection = sent(gateway.port, chat("flat", max_tokens=max_tokens))
            stack.callback(connection.close)
            answer = connection.getresponse()
            assert answer.status == 200
            answer.readline()
            found.append((connection, answer))
        yield found


def whole(answer: HTTPResponse) -> bool:
    """Whether a stream reaches its end."""
    try:
        return answer.read().rstrip().endswith(b"data: [DONE]")
    except (HTTPException, OSError):
        return False


def replace_one(gateway: GatewayProcess) -> None:
    """Kill a worker, and wait for the one that takes its place."""
    known = parts(gateway, "worker")
    os.kill(known[0], signal.SIGKILL)
    eventually(lambda: len(set(parts(gateway, "worker")) - set(known)) == 1, "another one is started")
    eventually(lambda: workers(gateway) == 2, "it listens")


def ask(gateway: GatewayProcess, **more: object) -> int:
    request = chat("flat", max_tokens=4, **more)
    return exchange(gateway.port, request).status


def two_workers(gateway: Gateways, **settings: str) -> GatewayProcess:
    """A gateway of two relaying processes, both of them there; ready it is when one is."""
    house = gateway(workers="2", breaker_silence="600", **settings)
    eventually(lambda: workers(house) == 2, "both of them listen")
    return house


def backend(engine: EmulatedEngine, limit: int) -> str:
    return json.dumps([{"name": "a", "url": engine.url, "limit": limit}])


def test_two_workers_hold_one_limit(engine: Engines, gateway: Gateways) -> None:
    served = engine("flat")
    house = two_workers(gateway, backends=backend(served, MANY), max_wait="60")
    assert workers(house) == 2
    assert len(parts(house, "worker")) == 2
    with streams(house, MANY), ExitStack() as stack:
        for _ in range(4):
            stack.callback(sent(house.port, chat("flat", max_tokens=4)).close)
        eventually(lambda: house.waiting() == 4, "the rest waits, in one queue")
        assert house.running() == MANY
        assert served.state()["running"] <= MANY
    eventually(lambda: house.running() == house.waiting() == 0, "nothing is left of it")


def test_M13_what_a_dead_worker_held_is_in_no_gauge(engine: Engines, gateway: Gateways) -> None:
    house = two_workers(gateway, backends=backend(engine("flat"), ROOM))
    with streams(house, MANY) as begun:
        eventually(lambda: in_flight(house) == MANY, "all of them are in flight")
        victim, survivor = parts(house, "worker")
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: in_flight(house) < MANY, "what it held is given back")
        left = in_flight(house)
        assert left > 0
        eventually(lambda: workers(house) == 2, "another one takes its place")
        assert survivor in parts(house, "worker")
        assert in_flight(house) == left
        eventually(lambda: ask(house) == 200, "new requests are served")
        for connection, _ in begun:
            connection.close()
    eventually(lambda: house.running() == 0, "nothing is left of it")


def test_M14_workers_that_come_and_go_leave_nothing_behind(engine: Engines, gateway: Gateways) -> None:
    house = gateway(workers="1", backends=engine("flat").url)
    assert parts(house, "worker") == []  # one process alone needs no other
    house = two_workers(gateway, backends=engine("flat").url)
    (brain,) = parts(house, "brain")
    folder = Path(Path(f"/proc/{brain}/cmdline").read_bytes().split(b"\0")[4].decode()).parent
    assert folder.stat().st_mode & 0o077 == 0  # of its user alone

    def left_behind() -> tuple[set[str], int, int]:
        series = sum(len(house.series(name)) for name in ("gateway_inflight_requests", "gateway_workers"))
        return (
            {each.name for each in folder.iterdir()} - {"state.json"},
            series,
            len(list(Path(f"/proc/{brain}/fd").iterdir())),
        )

    assert ask(house) == 200
    before = left_behind()
    for _ in range(5):
        replace_one(house)
        eventually(lambda: ask(house) == 200, "it serves")
    eventually(lambda: left_behind() <= before, f"as much is there as before: {before}")


def test_the_brain_may_die_under_streams(engine: Engines, gateway: Gateways) -> None:
    house = two_workers(gateway, backends=backend(engine("flat"), ROOM))
    for _ in range(3):
        assert ask(house) == 200
    with streams(house, MANY) as begun:  # which last longer than a brain takes to start, on a busy machine too
        eventually(lambda: house.running() == MANY, "all of them are in flight")
        (brain,) = parts(house, "brain")
        os.kill(brain, signal.SIGKILL)
        eventually(lambda: brain not in parts(house, "brain"), "it is gone")
        assert ask(house, stream=False) in {200, 503}
        house.wait_until_ready()
        eventually(lambda: house.running() == MANY, "the next one is told what runs")
        eventually(lambda: ask(house) == 200, "new requests are served")
        assert all(answer.readline() for _, answer in begun for _ in range(20)), "they go on"
    eventually(lambda: house.running() == 0, "and it is told when they end")


def test_keys_and_settings_that_change_reach_every_worker(engine: Engines, gateway: Gateways, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(json.dumps([{"name": "team", "keys": [hashed("first-key-of-the-team-01")]}]))
    keys.chmod(0o600)
    house = two_workers(gateway, backends=engine("flat").url, api_keys_file=str(keys))

    def status(key: str) -> int:
        request = chat("flat", max_tokens=4)
        return exchange(house.port, Request(request.method, request.path, request.body, (("x-api-key", key),))).status

    assert status("first-key-of-the-team-01") == 200
    assert status("other-key-of-the-team-02") == 401
    keys.write_text(json.dumps([{"name": "team", "keys": [hashed("other-key-of-the-team-02")]}]))
    eventually(lambda: status("other-key-of-the-team-02") == 200, "the new key is known")
    eventually(lambda: all(status("first-key-of-the-team-01") == 401 for _ in range(10)), "to all of them")


def test_streams_finish_before_it_ends(engine: Engines, gateway: Gateways) -> None:
    house = two_workers(gateway, backends=backend(engine("flat"), ROOM))
    with streams(house, MANY, max_tokens=300) as begun:
        house.program.signal(signal.SIGTERM)
        eventually(lambda: ask(house) == 503, "new work is refused")
        assert all(whole(answer) for _, answer in begun)
    assert house.program.wait() == 0


def test_a_stream_is_not_cut_where_the_signal_comes_before_all_have_started(engine: Engines, gateway: Gateways) -> None:
    """Ready it is when one worker is; the other is held up here."""
    house = gateway(workers="2", until="/livez", backends=backend(engine("flat"), ROOM))
    eventually(lambda: len(parts(house, "worker")) == 2, "both are under way")
    late = parts(house, "worker")[1]
    os.kill(late, signal.SIGSTOP)
    try:
        eventually(lambda: workers(house) == 1, "one of them serves")
        with streams(house, 2, max_tokens=100) as begun:
            house.program.signal(signal.SIGTERM)
            eventually(lambda: ask(house) == 503, "new work is refused")
            os.kill(late, signal.SIGCONT)
            assert all(whole(answer) for _, answer in begun)
        assert house.program.wait() == 0
    finally:
        with suppress(ProcessLookupError):
            os.kill(late, signal.SIGCONT)


def test_a_signal_to_every_process_is_one_signal(engine: Engines, gateway: Gateways) -> None:
    """As systemd stops a service; that it comes twice to those whom the first process tells as well cuts nothing."""
    house = two_workers(gateway, backends=backend(engine("flat"), ROOM))
    with streams(house, MANY, max_tokens=300) as begun:
        for process in (house.program.pid, *parts(house, "brain"), *parts(house, "worker")):
            os.kill(process, signal.SIGTERM)
        assert all(whole(answer) for _, answer in begun)
    assert house.program.wait() == 0


def test_a_second_signal_cuts(engine: Engines, gateway: Gateways) -> None:
    house = two_workers(gateway, backends=backend(engine("flat"), ROOM))
    with streams(house, 2) as begun:
        house.program.signal(signal.SIGTERM)
        eventually(lambda: ask(house) == 503, "new work is refused")
        house.program.signal(signal.SIGINT)
        assert house.program.wait() == 128 + signal.SIGINT
        assert not any(whole(answer) for _, answer in begun)


def test_nobody_is_left_where_the_first_process_is_killed(engine: Engines, gateway: Gateways) -> None:
    house = two_workers(gateway, backends=engine("flat").url)
    everybody = [*parts(house, "brain"), *parts(house, "worker")]
    assert len(everybody) == 3
    house.program.kill()
    eventually(lambda: not any(map(alive, everybody)), "all of them end")


def test_an_address_in_use_is_told_once(engine: Engines, gateway: Gateways) -> None:
    first = gateway(backends=engine("flat").url)
    with pytest.raises(
        RuntimeError, match=rf"cannot listen on 127\.0\.0\.1:{first.port} \(GATEWAY_HOST, GATEWAY_PORT\)"
    ):
        gateway(workers="2", backends=first.url, port=str(first.port))
