"""``gateway serve`` with several processes: one that decides, others that relay, and this one, which keeps them alive.

Who relays dies alone: what it held is given back at once, and another takes its place. While the one that decides is
gone, the others go on with what they have and refuse new work with 503; the next one learns from them what runs, and
from the state file where the limits stood.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gateway.app.announce import announce
from gateway.app.configs import worker_count
from gateway.app.exits import EXIT_SIGNAL, StartError
from gateway.app.notify import ServiceManager
from gateway.app.part import BRAIN, WORKER
from gateway.app.process import Signals
from gateway.settings import Loaded, Settings, variable

_log = logging.getLogger("gateway")

_LEAVING: Final = 20.0  # seconds beyond the grace time for what was cut, for the brain, and for the logs
_STEADY: Final = 30.0  # seconds after which a process that ends did not fail to start
_AGAIN: Final = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds before it is started again, each time it failed at once


async def serve_together(loaded: Loaded, env_file: str | None) -> int:
    """Serve with ``GATEWAY_WORKERS`` relaying processes until a signal; the exit code.

    Raises:
        StartError: an address cannot be listened on, or a process does not start.
    """
    settings = loaded.settings
    signals = Signals()
    async with contextlib.AsyncExitStack() as stack:
        manager = stack.enter_context(contextlib.closing(ServiceManager()))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-")))  # of its user alone
        held = stack.enter_context(contextlib.closing(_hold(settings)))
        more = {} if settings.state_file else {variable("state_file"): str(folder / "state.json")}
        if not settings.backends and not settings.discover:
            from gateway.app.emulate import embedded_engine  # not needed in front of real engines

            engine = await stack.enter_async_context(embedded_engine(settings.emulator_profile))
            given = {"name": engine.name, "url": engine.url, "kind": engine.kind}
            more[variable("backends")] = json.dumps([given])
        crew = Crew(folder / "brain", held.getsockname()[1], worker_count(settings), env_file, more)
        stack.push_async_callback(crew.kill)
        if not await signals.unless_told(crew.start()):
            return await _leave(crew, signals, signal.SIGTERM)  # one of them may serve already
        signals.on_hangup(lambda: _pass_on(crew, manager))
        announcement = asyncio.create_task(announce(settings, crew.clients, crew.admin))
        manager.ready()
        number = await signals.next()
        announcement.cancel()
        manager.stopping(settings.drain_grace + _LEAVING)
        return await _leave(crew, signals, number)


def _hold(settings: Settings) -> socket.socket:
    """The port, bound and not listened on, for as long as the gateway lives: workers come and go on it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        held = socket.socket(family, kind, protocol)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(address)
    except OSError as error:
        names = f"{variable('host')}, {variable('port')}"
        reason = error.strerror or error
        raise StartError(f"cannot listen on {settings.host}:{settings.port} ({names}): {reason}") from error
    return held


async def _line(pipe: int) -> bytes:
    """What is written to a pipe until a line or the pipe ends; it is closed then.

    By hand, so that nobody else closes it: uvloop's transports close a file after its owner has, and where the number
    is not another one's by then, libuv ends the process.
    """
    loop = asyncio.get_running_loop()
    said, whole = bytearray(), asyncio.Event()

    def hear() -> None:
        data = os.read(pipe, 4096)
        said.extend(data)
        if not data or data.endswith(b"\n"):
            loop.remove_reader(pipe)
            whole.set()

    loop.add_reader(pipe, hear)
    try:
        await whole.wait()
    finally:
        loop.remove_reader(pipe)
        os.close(pipe)
    return bytes(said)


def _pass_on(crew: Crew, manager: ServiceManager) -> None:
    manager.reloading()
    crew.hang_up()
    manager.ready()


async def _leave(crew: Crew, signals: Signals, number: int) -> int:
    """Let what runs finish, within the grace time or until another signal."""
    crew.signal(number)
    ended = asyncio.create_task(crew.ended())
    again = asyncio.create_task(signals.next())
    await asyncio.wait({ended, again}, return_when=asyncio.FIRST_COMPLETED)
    if ended.done():
        again.cancel()
        return 0
    number = again.result()
    crew.cut(number)
    await ended
    return EXIT_SIGNAL + number


class Crew:
    """A brain that workers meet at the socket ``meet``, and ``workers`` of them that listen on ``port``."""

    def __init__(self, meet: Path, port: int, workers: int, env_file: str | None, more: Mapping[str, str]) -> None:
        """``more`` are environment variables for all of them."""
        self._meet = meet
        self._port = port
        self._names = [f"{WORKER} {number}" for number in range(1, workers + 1)]
        self._env_file = env_file
        self._more = dict(more)
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._leaving = False
        self.admin = self.clients = ""  # URLs of the ports, once they are open

    async def start(self) -> None:
        """Start everybody.

        Raises:
            StartError: one of them does not start.
        """
        self.admin = (await self._begin(BRAIN))["admin"]
        self.clients = (await asyncio.gather(*map(self._begin, self._names)))[0]["clients"]

    async def _begin(self, name: str) -> Any:
        said = await self._launch(name)
        self._keepers.append(asyncio.create_task(self._keep(name)))
        return said

    def hang_up(self) -> None:
        """Let the brain read its settings again: it tells the others."""
        with contextlib.suppress(ProcessLookupError):
            self._processes[BRAIN].send_signal(signal.SIGHUP)

    def signal(self, number: int) -> None:
        """Send everybody a signal that ends them; nobody is started again."""
        self._leaving = True
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def cut(self, number: int) -> None:
        """Tell everybody of a second signal. Not by one: others may have sent them the first as well."""
        for process in self._processes.values():
            if process.stdin is not None:
                process.stdin.write(bytes((number,)))

    async def ended(self) -> None:
        """Wait until everybody has ended."""
        await asyncio.gather(*(process.wait() for process in self._processes.values()))

    async def kill(self) -> None:
        """End whoever is left, at once."""
        self._leaving = True
        for keeper in self._keepers:
            keeper.cancel()
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await self.ended()

    async def _launch(self, name: str) -> Any:
        """Start a process; what it says when it is ready."""
        hears, tells = os.pipe()
        part = name.partition(" ")[0]
        command = [sys.executable, "-m", "gateway.app.part", part, str(self._meet), str(tells)]
        command += [] if part == BRAIN else ["--port", str(self._port)]
        command += [] if self._env_file is None else ["--env-file", self._env_file]
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,  # for ``cut``; and its end tells that this process is gone
                pass_fds=(tells,),
                env=os.environ | self._more,
                start_new_session=True,  # Ctrl-C is for this process, which passes it on
            )
        except BaseException:
            os.close(hears)
            raise
        finally:
            os.close(tells)
        self._processes[name] = process
        said = await _line(hears)
        if not said:
            raise StartError(f"the {name} process did not start (exit code {await process.wait()})")
        return json.loads(said)

    async def _keep(self, name: str) -> None:
        """Start it again whenever it ends."""
        tries = 0
        while True:
            since = time.monotonic()
            code = await self._processes[name].wait()
            if self._leaving:
                return
            tries = 0 if time.monotonic() - since > _STEADY else tries + 1
            _log.error("the %s process ended (exit code %d): it is started again", name, code)
            await asyncio.sleep(_AGAIN[min(tries, len(_AGAIN)) - 1] if tries else 0.0)
            try:
                await self._launch(name)
            except (StartError, OSError) as error:  # no memory for another process, or no descriptors: there will be
                _log.error("%s", error)
            else:
                _log.info("the %s process is back", name)
