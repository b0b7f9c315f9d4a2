"""``gateway replay``: the load of a record file again, on another server.

Requests arrive at the same distances and ask for as many tokens; what they say is made up of short words, at random so
that no prefix cache knows them. Two requests ahead tell how many tokens this server makes of a word. Clients' retries
are left out: they answered to another server's refusals.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import orjson
from rich.console import Console
from rich.progress import Progress

from gateway.app.exchange import PATH, exchange
from gateway.app.exits import EXIT_START, EXIT_USAGE
from gateway.app.process import run
from gateway.app.report import read_files
from gateway.model import Outcome, WorkEstimate
from gateway.telemetry.entry import Entry
from gateway.telemetry.record_file import Unreadable
from gateway.telemetry.report import Heading, bench_report, result, rule_of
from gateway.telemetry.tally import Tally, tallied
from gateway.trust import trusting

_WORDS: Final = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
    "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system",
    "program", "question", "work", "number", "night", "point", "home", "water", "room", "mother", "area", "money",
    "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side",
)  # fmt: skip
_SAMPLE: Final = 200  # words of the longer request ahead
_SLACK: Final = 0.1  # seconds that an arrival may be late before it is told


class ReplayError(Exception):
    """What keeps a replay from being run; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to send: seconds after the first, and tokens."""

    at: float
    prompt_tokens: int
    output_tokens: int
    stream: bool


@dataclass(frozen=True, slots=True)
class Wording:
    """How a server counts: ``tokens`` a word, and ``overhead`` tokens of its template.

    ``exact_output``: it can be made to answer at a given length.
    """

    tokens: float = 1.0
    overhead: float = 0.0
    exact_output: bool = True

    def words(self, prompt_tokens: int) -> int:
        """How many words make a prompt of so many tokens."""
        return max(1, round((prompt_tokens - self.overhead) / self.tokens))


def run_replay(arguments: argparse.Namespace) -> int:
    """Replay and print the figures; the exit code is one of those that ``cli`` lists."""
    try:
        rule = rule_of(arguments.compat)
        entries = sorted(read_files(arguments.files), key=lambda entry: entry.received)
        arrivals = arrivals_of(entries, arguments.speed, arguments.limit)
        model = arguments.model or next((entry.model for entry in entries if entry.model), "")
        replay = Replay(arguments.to, model, arguments.max_concurrency, arguments.timeout)
        with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
            task = progress.add_task("replaying", total=len(arrivals))
            run(replay.run(arrivals, lambda: progress.advance(task)))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    except (ReplayError, Unreadable) as failure:
        sys.stderr.write(f"{failure}\n")
        return EXIT_START
    figures = tallied(replay.entries, Tally(rule))
    heading = Heading(replay.prefix, model, time.time() - time.monotonic())
    as_json = arguments.format == "json"
    sys.stdout.write(json.dumps(result(figures, heading), indent=2) + "\n" if as_json else bench_report(figures))
    sys.stderr.writelines(f"{note}\n" for note in replay.notes(len(entries)))
    return 0


def arrivals_of(entries: Sequence[Entry], speed: float, limit: int) -> list[Arrival]:
    """The first ``limit`` first attempts among ``entries``, which are in the order in which they came.

    Raises:
        ValueError: there is none.
    """
    chosen = [entry for entry in entries if entry.generates and entry.retry == 0][:limit]
    if not chosen:
        raise ValueError("the files hold no first attempt of a request that generates: nothing to send")
    return [
        Arrival(
            at=(entry.received - chosen[0].received) / speed,
            prompt_tokens=entry.estimated_prompt_tokens if entry.prompt_tokens is None else entry.prompt_tokens,
            output_tokens=max(1, _output(entry)),
            stream=entry.stream,
        )
        for entry in chosen
    ]


def _output(entry: Entry) -> int:
    """What the answer had; of one that never came whole, what it was expected to have."""
    if entry.outcome is not Outcome.COMPLETED:
        return entry.estimated_output_tokens
    if entry.output_tokens is not None:
        return entry.output_tokens
    return entry.output_events or entry.estimated_output_tokens


@dataclass(slots=True)
class Replay:
    """One run against the server at ``url``."""

    url: str
    model: str
    max_concurrency: int
    timeout: float
    prefix: str = field(default_factory=lambda: f"bench-{secrets.token_hex(4)}-")  # of request ids, as vLLM's
    entries: list[Entry] = field(default_factory=list, init=False)
    _wording: Wording = field(default_factory=Wording, init=False)
    _lag: float = field(default=0.0, init=False)
    _chance: random.Random = field(default_factory=lambda: random.Random(0), init=False)  # noqa: S311 - repeatable

    def __post_init__(self) -> None:
        """Take the root out of a base URL as clients write it.

        Raises:
            ValueError: it is no http(s) URL.
        """
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"--to: got {self.url!r}, expected http://host:port")
        self.url = self.url.rstrip("/").removesuffix("/v1").rstrip("/") + PATH

    async def run(self, arrivals: Sequence[Arrival], on_end: Callable[[], None]) -> int:
        """Send them all and wait for the ends; ``on_end`` is called at each.

        Raises:
            ReplayError: the server does not answer the requests ahead.
        """
        key = os.environ.get("OPENAI_API_KEY")
        async with aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            connector=aiohttp.TCPConnector(limit=0, ssl=trusting()),
            timeout=aiohttp.ClientTimeout(self.timeout),
            read_bufsize=2**18,
        ) as session:
            self._wording = await self._learn(session)
            began, free = time.monotonic(), asyncio.Semaphore(self.max_concurrency)

            def ended(_: asyncio.Task[None]) -> None:
                free.release()
                on_end()

            async with asyncio.TaskGroup() as tasks:
                for number, arrival in enumerate(arrivals):
                    await asyncio.sleep(max(0.0, began + arrival.at - time.monotonic()))
                    await free.acquire()
                    self._lag = max(self._lag, time.monotonic() - began - arrival.at)
                    tasks.create_task(self._call(session, arrival, f"{self.prefix}{number}")).add_done_callback(ended)
        return 0

    def notes(self, recorded: int) -> Iterable[str]:
        """What a reader of the figures must know."""
        yield f"{len(self.entries)} of {recorded} recorded requests sent to {self.url}, timed from here."
        yield f"Their ids begin with {self.prefix}: a gateway there can report on them by that."
        if not self._wording.exact_output:
            yield "The server takes no ignore_eos: answers may be shorter than those in the records."
        if self._lag > _SLACK:
            yield (
                f"Arrivals were up to {self._lag:.1f} s late: --max-concurrency, or this machine, held them up, "
                "so the load was lighter than recorded."
            )

    # -- one request ------------------------------------------------------------------------------------------------

    def _body(self, words: int, output_tokens: int, *, stream: bool, exact: bool) -> bytes:
        text = " ".join(self._chance.choices(_WORDS, k=words))
        document: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": output_tokens,
            "stream": stream,
        }
        if stream:
            document["stream_options"] = {"include_usage": True}
        if exact:
            document["ignore_eos"] = True
        return orjson.dumps(document)

    async def _learn(self, session: aiohttp.ClientSession) -> Wording:
        exact = True
        short = await self._ask(session, self._body(1, 1, stream=False, exact=True))
        if isinstance(short, str):
            exact = False
            short = await self._ask(session, self._body(1, 1, stream=False, exact=False))
        if isinstance(short, str):
            raise ReplayError(f"{self.url} does not serve this: {short}")
        sample = await self._ask(session, self._body(_SAMPLE, 1, stream=False, exact=exact))
        if isinstance(sample, str) or short == 0 or sample <= short:
            return Wording(exact_output=exact)
        tokens = (sample - short) / (_SAMPLE - 1)
        return Wording(tokens, short - tokens, exact)

    async def _ask(self, session: aiohttp.ClientSession, body: bytes) -> int | str:
        """Prompt tokens as the server counts them, 0 where it does not say; or why it has not answered."""
        entry, error = await exchange(session, self.url, body, WorkEstimate(1, 1, 0.0))
        return error or entry.prompt_tokens or 0

    async def _call(self, session: aiohttp.ClientSession, arrival: Arrival, request_id: str) -> None:
        words = self._wording.words(arrival.prompt_tokens)
        body = self._body(words, arrival.output_tokens, stream=arrival.stream, exact=self._wording.exact_output)
        work = WorkEstimate(arrival.prompt_tokens, arrival.output_tokens, 0.0)
        entry, _ = await exchange(session, self.url, body, work, request_id)
        self.entries.append(entry)
