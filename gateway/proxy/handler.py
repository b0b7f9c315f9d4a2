"""The path of one request, top to bottom.

A POST is sent to a backend once. It goes to another one only after a connection could not be made at all, and to a
fresh connection of the same one only where the reused connection proves that nothing of it arrived. A backend's 429 or
503 passes to the client untouched. What ends otherwise before a status line was sent is 502 or 504.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote

from gateway.admission.estimator import Estimator
from gateway.admission.quota import Account, Revoked, used_tokens
from gateway.dialects.base import Fault
from gateway.dialects.large import LARGE, Condensed, condensed
from gateway.dialects.passthrough import OTHER
from gateway.dialects.registry import INVALID, Dialects
from gateway.dialects.usage import ask_for_usage
from gateway.model import Access, Observer, Outcome, Permit, Reason, Rejection, Shape, Ticket, WorkEstimate
from gateway.proxy.bodies import BodyMemory
from gateway.proxy.catalog import MODELS, Catalog
from gateway.proxy.client import CLOSE, CUT, KEEP_ALIVE, ClientConnection, Written
from gateway.proxy.config import ProxyConfig
from gateway.proxy.fit import Fit
from gateway.proxy.gate import Admission, Charged, Entered
from gateway.proxy.heads import Head, Request
from gateway.proxy.http import come_back, passed_on, rate_headers, refusal, request_head
from gateway.proxy.inbound import Call, Refused, too_large
from gateway.proxy.keys import KeyBook, unknown_key
from gateway.proxy.load import HEADER as LOAD_HEADER
from gateway.proxy.relay import BUSY, FAILURES, End, Relay, Wire
from gateway.proxy.trust import Trust
from gateway.proxy.turns import Turns
from gateway.proxy.upstream import Connection, Upstream

if TYPE_CHECKING:
    from gateway.proxy.listener import Parsing

_log = logging.getLogger(__name__)

CHOICE_HEADER: Final = "X-Gateway-Backend"
_AT_ONCE: Final = 16  # requests that begin, and that are refused, in one turn of the loop: a few milliseconds
_CARD: Final = f"{MODELS}/"
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})


class Handler:
    """Called by the listener with every request."""

    def __init__(
        self,
        config: ProxyConfig,
        dialects: Dialects,
        estimator: Estimator,
        gate: Admission,
        upstreams: Mapping[str, Upstream],
        observers: Sequence[Observer],
        fit: Fit,
        keys: KeyBook,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._dialects = dialects
        self._estimator = estimator
        self._gate = gate
        self._upstreams = upstreams
        self._observers = tuple(observers)
        self._fit = fit
        self._keys = keys
        self._trust = Trust(config.trusted_proxies)
        self._clock = clock
        self._catalog = Catalog(config.models_timeout)
        self._memory = BodyMemory(config.body_memory)
        self._condensing = asyncio.Lock()
        self._arrivals, self._refusals = Turns(_AT_ONCE), Turns(_AT_ONCE)
        self._ticket_ids = itertools.count(1)
        self._turn = 0
        self.in_flight = 0
        self._emptied: asyncio.Event | None = None  # somebody waits until nothing is in flight
        self.cutting = False  # the grace time is over: whoever is cut now did not leave by itself

    def reconfigure(self, config: ProxyConfig) -> None:
        """Go on with other settings, from the next request on."""
        self._config = config
        self._memory.limit = config.body_memory
        self._catalog = Catalog(config.models_timeout)
        self._trust = Trust(config.trusted_proxies)

    async def idle(self) -> None:
        """Wait until nothing is in flight."""
        while self.in_flight:
            self._emptied = self._emptied or asyncio.Event()
            self._emptied.clear()
            await self._emptied.wait()

    # -- one request ------------------------------------------------------------------------------------------------

    @property
    def draining(self) -> bool:
        """Whether everybody is refused from now on."""
        return self._gate.draining

    async def __call__(self, request: Request) -> Written:
        """Serve one request; returns when its answer is written."""
        connection, content = cast("Parsing", request.protocol).client, request.content
        call = Call(
            Head(request),
            connection,
            self._begun(connection),
            request_id=request.headers.get("X-Request-Id", ""),
            content=content,
            pending=request.can_read_body,
            cors=self._config.cors,
        )
        return await self._see_through(call, self._serve_in_turn(call)) or CLOSE  # nothing is handed over here

    def begin(self, head: Head, connection: ClientConnection, request_id: str, body: bytes) -> None:
        """Serve a request that is here whole, inside the calls that bring it and its answer.

        A task is made while something else has to be waited for: a place, a connection, the count of a key. The
        client's connection has the ``exchange`` until it hears of ``written``, perhaps before this returns.
        """
        began = self._begun(connection)
        call = Call(
            head, connection, began, request_id=request_id, body=body, pending=bool(body), cors=self._config.cors
        )
        exchange = Exchange(call)
        connection.exchange = exchange
        if not self._arrivals.taken():
            self._follow(exchange, self._serve_later(exchange.call))
            return
        try:
            rest = self._advance(exchange)
        except Refused as refused:
            self._close(exchange, self._refuse(exchange.call, refused))
        except Exception:  # noqa: BLE001 - as in ``_see_through``
            self._close(exchange, self._fail(exchange.call))
        else:
            if rest is not None:
                self._follow(exchange, rest)

    def lost(self, exchange: Exchange) -> None:
        """The client of an exchange that was begun is gone."""
        call, relay, permit = exchange.call, exchange.relay, exchange.permit
        if exchange.task is not None:
            asyncio.get_running_loop().call_soon(exchange.task.cancel)  # by then it has begun, and can clean up
        elif relay is not None and permit is not None:
            relay.close()
            self._give_back(call, relay, permit, Outcome.CLIENT_GONE)
            self._note_gone(call)
            self._over(call)

    def _begun(self, connection: ClientConnection) -> float:
        """Count a request in; when it came."""
        began, connection.head_at = connection.head_at, None
        self.in_flight += 1
        return self._clock() if began is None else began

    async def _see_through(self, call: Call, rest: Coroutine[None, None, Written | None]) -> Written | None:
        over = True
        try:
            written = await rest
        except Refused as refused:
            return self._refuse(call, refused)
        except (asyncio.CancelledError, ConnectionError):
            self._note_gone(call)
            raise
        except Exception:  # noqa: BLE001 - logged, and the client gets an answer, whatever the fault is
            return self._fail(call)
        else:
            over = written is not None
            return written
        finally:
            if over:
                self._over(call)

    def _note_gone(self, call: Call) -> None:
        ended = call.record.status == HTTPStatus.SWITCHING_PROTOCOLS and not self.cutting
        call.record.outcome = Outcome.COMPLETED if ended else Outcome.CLIENT_GONE  # either side may end a session
        call.record.error = "cut at the end of the drain's grace time" if self.cutting else None

    def _over(self, call: Call) -> None:
        self.in_flight -= 1
        if self._emptied is not None and not self.in_flight:
            self._emptied.set()
        if call.lease is not None:
            call.lease.end()
        if call.reserved is not None and call.account is not None:
            record = call.record
            used = used_tokens(record.usage, call.reserved, call.timeline.output_events)
            refused = not record.attempts or record.outcome in _NOT_SERVED
            self._gate.refund(call.account, call.reserved, used, refused=refused)
        self._tell(call)

    # -- without a task ----------------------------------------------------------------------------------------------

    def _advance(self, exchange: Exchange) -> Rest | None:
        """Go as far as nothing has to be waited for but the backend's answer; else what is left to do."""
        call = exchange.call
        self._identify(call)
        if rejection := self._refuse_unread(call):
            self._close(exchange, self._reject(call, rejection))
            return None
        body = call.take_body(self._config, self._memory)
        if len(body) > LARGE:
            return self._proceed(call, body)
        call.timeline.read = self._clock()
        shape, wire = self._read(call, body)
        if call.record.route.access is not Access.ADMIT:
            return self._unadmitted(call, shape, wire)
        ticket = self._admissible(call, shape, wire)
        if call.account is not None:
            charged = self._gate.charge_now(call.account, ticket.work.tokens)
            if charged is None:
                return self._on_account(call.account, call, shape, wire, ticket)
            if rejection := _charge(call, wire, ticket, charged):
                return self._turn_away(exchange, rejection)
        return self._send(exchange, shape, wire, ticket)

    def _turn_away(self, exchange: Exchange, rejection: Rejection) -> Rest | None:
        if not self._refusals.taken():
            return self._reject_later(exchange.call, rejection)
        self._close(exchange, self._reject(exchange.call, rejection))
        return None

    def _send(self, exchange: Exchange, shape: Shape, wire: Wire, ticket: Ticket) -> Rest | None:
        call = exchange.call
        entered = self._gate.ask(ticket)
        if isinstance(entered, Rejection):
            return self._turn_away(exchange, entered)
        if not isinstance(entered, Permit):
            return self._served(call, shape, wire, ticket, entered)
        relay = self._begin(call, shape, wire, entered)
        upstream = self._upstreams.get(entered.backend)
        connection = None if upstream is None else relay.pooled(upstream)
        if upstream is None or connection is None:
            return self._served(call, shape, wire, ticket, entered, relay)
        exchange.relay, exchange.permit, exchange.left = relay, entered, (shape, wire, ticket)
        self._hand_over(exchange, relay, entered, upstream, connection)
        return None

    def _hand_over(
        self, exchange: Exchange, relay: Relay, permit: Permit, upstream: Upstream, connection: Connection
    ) -> None:
        """From here on the calls of the two connections are all that is needed."""
        try:
            relay.begin(upstream, connection, partial(self._ended, exchange))
        except Exception:
            exchange.permit = None
            relay.close()
            self._give_back(exchange.call, relay, permit, Outcome.INTERNAL_ERROR)
            raise

    def _ended(self, exchange: Exchange, end: End) -> None:
        """The backend has answered, or will not."""
        call, relay, permit, left = exchange.call, exchange.relay, exchange.permit, exchange.left
        if relay is None or permit is None or left is None:
            return
        shape, wire, ticket = left
        if end is End.STALE:
            self._follow(exchange, self._served(call, shape, wire, ticket, permit, relay))
            return
        exchange.permit = None
        try:
            relay.close()
            self._give_back(call, relay, permit, decide(end, relay))
            if relay.unread:
                ticket = _elsewhere(ticket, permit.backend, relay)
                self._follow(exchange, self._served(call, shape, wire, ticket, end=end))
                return
            written = _finished(relay, end)
        except Refused as refused:
            written = self._refuse(call, refused)
        except Exception:  # noqa: BLE001 - as in ``_see_through``
            written = self._fail(call)
        self._close(exchange, written)

    def _close(self, exchange: Exchange, written: Written) -> None:
        self._over(exchange.call)
        exchange.call.connection.written(written)

    def _follow(self, exchange: Exchange, rest: Rest) -> None:
        exchange.task = asyncio.get_running_loop().create_task(self._in_task(exchange.call, rest))

    async def _in_task(self, call: Call, rest: Rest) -> None:
        written: Written | None
        try:
            written = await self._see_through(call, rest)
        except ConnectionError:
            written = CLOSE
        if written is not None:
            call.connection.written(written)

    # -- step by step ------------------------------------------------------------------------------------------------

    async def _serve_in_turn(self, call: Call) -> Written | None:
        return await (self._serve(call) if self._arrivals.taken() else self._serve_later(call))

    async def _serve_later(self, call: Call) -> Written | None:
        await self._arrivals.wait()
        return await self._serve(call)

    async def _reject_later(self, call: Call, rejection: Rejection) -> Written:
        await self._refusals.wait()
        return self._reject(call, rejection)

    async def _serve(self, call: Call) -> Written | None:
        self._identify(call)
        if rejection := self._refuse_unread(call) or await self._refuse_held_back(call):
            return self._reject(call, rejection)
        if call.upgrades_to_websocket():
            return await self._websocket(call)
        return await self._proceed(call, await call.read_body(self._config, self._memory))

    async def _proceed(self, call: Call, body: bytes) -> Written | None:
        """Go on once the body is here."""
        call.timeline.read = self._clock()
        whole = None
        if len(body) > LARGE:
            async with self._condensing:  # one at a time: each holds the loop for some milliseconds at once
                whole = await _condensed(body)
        shape, wire = self._read(call, body, whole)
        body, whole = b"", None  # the wire lets go of it when it is sent; compiled, a frame takes no ``del``
        if call.record.route.access is Access.ADMIT:
            return await self._admitted(call, shape, wire)
        return await self._unadmitted(call, shape, wire)

    def _identify(self, call: Call) -> None:
        call.dialect, call.record.route = self._dialects.resolve(call.method, call.target)  # the shape of an error
        call.account = self._keys.identify(call)

    def _read(self, call: Call, body: bytes, whole: Condensed | None = None) -> tuple[Shape, Wire]:
        wire = self._wire(call, body)
        call.gist = body if whole is None else whole.body
        blocks = self._config.hash_prompts and len(self._upstreams) > 1
        shape = call.dialect.read_request(call.record.route, call.request.content_type, call.gist, blocks=blocks)
        shape = shape if whole is None else whole.restored(shape)
        call.record.route = shape.route  # where engines share a path, the body told whose it is
        _hold_to_models(call, shape)
        return shape, wire

    async def _unadmitted(self, call: Call, shape: Shape, wire: Wire) -> Written:
        call.gist = b""
        if call.method == "GET" and call.record.path == MODELS and len(self._upstreams) > 1:
            return await self._models(call, shape, wire)
        return await self._bypass(call, shape, wire, self._live(shape.model or _described(call)))

    async def _websocket(self, call: Call) -> Written | None:
        """A session: it holds a permit for as long as it is open, and is refused before the upgrade."""
        shape = Shape(call.record.route, model=call.queried_model, session=True)
        _hold_to_models(call, shape)
        wire = Wire(call.terms, self._head(call, None, upgrade=True), b"", call.raw_id, upgrade=True)
        return await self._admitted(call, shape, wire)

    def _refuse_unread(self, call: Call) -> Rejection | None:
        """Refuse what is not taken before a byte of the body is: a client that waits for 100 then sends none."""
        if call.method == "CONNECT":
            raise Refused(HTTPStatus.NOT_IMPLEMENTED, "not_implemented", "The gateway makes no tunnels.")
        if call.record.route is INVALID:
            raise Refused(HTTPStatus.BAD_REQUEST, "invalid_path", "The path of the request cannot be read.")
        if call.record.route.access is Access.DENY:
            message = "This is administration of the engine; GATEWAY_ALLOW_ADMIN_ROUTES lets it pass."
            raise Refused(HTTPStatus.FORBIDDEN, "admin_route_denied", message)
        if call.length > self._config.max_body:
            raise too_large(self._config.max_body)
        if self._gate.draining:
            return Rejection(Ticket(0, Shape(call.record.route), WorkEstimate(0, 0, 0.0)), Reason.DRAINING, 1.0)
        return None

    async def _refuse_held_back(self, call: Call) -> Rejection | None:
        if call.record.route.access is Access.ADMIT and call.holds_body_back:
            return await self._gate.knock(self._ticket(call, Shape(call.record.route, prompt_bytes=call.length), b""))
        return None

    async def _admitted(self, call: Call, shape: Shape, wire: Wire) -> Written | None:
        """Work for the engine: wait for a permit, hold it until the last byte."""
        ticket = self._admissible(call, shape, wire)
        if call.account is None:
            return await self._served(call, shape, wire, ticket)
        return await self._on_account(call.account, call, shape, wire, ticket)

    def _admissible(self, call: Call, shape: Shape, wire: Wire) -> Ticket:
        """The ticket of a request that may be let in; ``wire`` is then as it goes on."""
        ticket = self._ticket(call, shape, wire.body)
        if small := self._fit.too_small(ticket, call.gist, self._gate.serving(shape.model)):
            ticket = replace(ticket, avoid=small)
        if self._config.inject_usage and shape.stream:
            self._ask_for_usage(call, wire)
        call.gist = b""
        call.timeline.offered = self._clock()
        if self._config.load_header:
            call.rates = ((LOAD_HEADER, self._gate.load()),)
            wire.rates = call.rates
        return ticket

    async def _on_account(
        self, account: Account, call: Call, shape: Shape, wire: Wire, ticket: Ticket
    ) -> Written | None:
        """Within what the client's key allows; what it took is counted at the end."""
        try:
            self._keys.check(account)
            charged = await self._gate.charge(account, ticket)
        except Revoked:
            raise unknown_key() from None
        if rejection := _charge(call, wire, ticket, charged):
            return self._reject(call, rejection)
        return await self._served(call, shape, wire, ticket)

    async def _served(
        self,
        call: Call,
        shape: Shape,
        wire: Wire,
        ticket: Ticket,
        entered: Entered | None = None,
        relay: Relay | None = None,
        *,
        end: End = End.CONNECT_FAILED,
    ) -> Written | None:
        """Wait for a permit and for the answer; at another backend where one cannot be reached, or took nothing.

        Where it was begun already, ``entered`` and ``relay`` are of the attempt at hand, and ``end`` is what became of
        the last. None: an exchange that was begun goes on without this.
        """
        for _ in range(ticket.tried, self._config.connect_attempts):
            if entered is None:
                entered = self._gate.ask(ticket)
            verdict = entered if isinstance(entered, (Permit, Rejection)) else await entered
            if verdict.ticket is not ticket:  # estimated anew, from what all processes learned
                ticket = call.record.ticket = verdict.ticket
                call.record.lane = self._gate.lane(ticket)
            if isinstance(verdict, Rejection):
                if ticket.tried and verdict.reason is Reason.RETRY_BUDGET:
                    break  # what the last backend did is the better answer
                if not self._refusals.taken():
                    await self._refusals.wait()
                return self._reject(call, verdict)
            relay = relay or self._begin(call, shape, wire, verdict)
            ended = await self._permitted(call, relay, verdict, (shape, wire, ticket))
            if ended is None:
                return None
            end = ended
            if end is not End.CONNECT_FAILED and not relay.unread:
                return _finished(relay, end)
            ticket = _elsewhere(ticket, verdict.backend, relay)
            entered = relay = None
        raise _failure(end)

    def _begin(self, call: Call, shape: Shape, wire: Wire, permit: Permit) -> Relay:
        call.timeline.admitted = permit.granted_at
        call.record.choice = permit.choice
        if self._config.choice_header:
            wire.rates = (*call.rates, (CHOICE_HEADER, f"{permit.backend}; {permit.choice.value}"))
        return self._relay(call, shape, wire, permit)

    async def _permitted(
        self, call: Call, relay: Relay, permit: Permit, left: tuple[Shape, Wire, Ticket]
    ) -> End | None:
        """The end of an attempt; None: it goes on without a task, for its client is there and its backend reached."""
        outcome = Outcome.CLIENT_GONE  # what it is where the task is cancelled
        reached = False
        upstream = self._upstreams[permit.backend]
        try:
            connection = await relay.reach(upstream)
            exchange = call.connection.exchange  # None: it has a task of aiohttp's, or the client has left meanwhile
            if exchange is not None and not isinstance(connection, End):
                reached = True
                exchange.relay, exchange.permit, exchange.left, exchange.task = relay, permit, left, None
                self._hand_over(exchange, relay, permit, upstream, connection)
                return None
            end = await relay.run(upstream, connection)
            outcome = decide(end, relay)
        except Exception:
            outcome = Outcome.INTERNAL_ERROR
            raise
        finally:
            if not reached:
                self._give_back(call, relay, permit, outcome)
        return end

    def _give_back(self, call: Call, relay: Relay, permit: Permit, outcome: Outcome) -> None:
        call.note(relay, permit.backend, outcome)
        self._gate.leave(permit, outcome, relay.usage, relay.rest)

    async def _bypass(self, call: Call, shape: Shape, wire: Wire, upstreams: Sequence[Upstream]) -> Written:
        """Cheap for the engine: any backend, at once, without a permit."""
        end = End.CONNECT_FAILED
        for upstream in upstreams[: self._config.connect_attempts]:
            relay = self._relay(call, shape, wire, None)
            outcome = Outcome.CLIENT_GONE
            try:
                end = await relay.run(upstream, await relay.reach(upstream))
                outcome = decide(end, relay)
            finally:
                call.note(relay, upstream.backend.name, outcome)
            if end is not End.CONNECT_FAILED:
                return _finished(relay, end)
        raise _failure(end)

    async def _models(self, call: Call, shape: Shape, wire: Wire) -> Written:
        """The union of what every live backend serves; where none answers well, the first one speaks for itself."""
        live = self._live(None)
        body = await self._catalog.union(live, replace(wire, head=self._head(call, None, without=b"accept-encoding")))
        if body is None:
            return await self._bypass(call, shape, wire, live)
        call.record.outcome = Outcome.COMPLETED
        return call.reply(HTTPStatus.OK, (), ("application/json", body), keep_alive=not self._gate.draining)

    # -- what is made for it ----------------------------------------------------------------------------------------

    def _ticket(self, call: Call, shape: Shape, body: bytes) -> Ticket:
        client = call.client(self._config)
        retries = call.request.retries
        ticket = Ticket(
            id=next(self._ticket_ids),
            shape=shape,
            work=self._estimator.estimate(shape, client),
            client=client,
            attempt=retries.attempt,
            read_timeout=retries.read_timeout,
            fingerprint=call.fingerprint(client, body),
            body_bytes=len(body),
            priority=call.priority(self._config),
            weight=call.weight,
            session=call.session(self._config, shape, client),
        )
        call.record.ticket = ticket
        call.record.lane = self._gate.lane(ticket)
        return ticket

    def _wire(self, call: Call, body: bytes) -> Wire:
        length = len(body) if body or call.method in _WITH_BODY else None
        return Wire(call.terms, self._head(call, length), body, call.raw_id, lease=call.lease)

    def _ask_for_usage(self, call: Call, wire: Wire) -> None:
        body = ask_for_usage(call.record.route, wire.body, call.gist)
        if body is not None:  # in place: another ``Wire`` would leave this one's body with whoever waits for the answer
            wire.body, wire.head, wire.asks_usage = body, self._head(call, len(body)), True

    def _head(
        self, call: Call, length: int | None, *, without: bytes = b"", upgrade: bool = False
    ) -> Callable[[Upstream], bytes]:
        credentials = not self._keys.closed or self._config.forward_client_keys
        return UpstreamHead(
            call, length, credentials=credentials, trusted=self._trust(call.peer), without=without, upgrade=upgrade
        )

    def _relay(self, call: Call, shape: Shape, wire: Wire, permit: Permit | None) -> Relay:
        # Of an unknown route nobody can say what it owes, unless a stream was asked for.
        due = permit is not None and shape.generates and (shape.stream or shape.route.label != OTHER)
        relay = Relay(
            call.connection,
            wire,
            call.timeline,
            self._config,
            call.dialect,
            shape,
            output_due=due and not shape.session,
            progress=None if permit is None else permit.progress,
            patience=0.0 if permit is None else permit.ticket.reading + permit.ticket.writing,
        )
        relay.keep_alive = relay.keep_alive and not self._gate.draining
        return relay

    def _live(self, model: str | None) -> list[Upstream]:
        """Backends in turn: those that serve the model and are not down first, then the rest."""
        self._turn += 1
        names = list(self._upstreams)
        if not names:  # none is found yet
            return []
        start = self._turn % len(names)
        rotated = [self._upstreams[name] for name in names[start:] + names[:start]]
        serving = self._gate.serving(model)
        return sorted(
            rotated, key=lambda each: self._gate.is_down(each.backend.name) or each.backend.name not in serving
        )

    # -- answers of the gateway's own -------------------------------------------------------------------------------

    def _reject(self, call: Call, rejection: Rejection) -> Written:
        status, message, headers = refusal(rejection)
        headers.extend(call.rates)
        call.record.outcome = Outcome.REFUSED
        call.record.reason = rejection.reason
        call.record.retry_after = rejection.retry_after
        content = call.dialect.rejection(call.record.route, rejection, message, status)
        return call.reply(status, headers, content, keep_alive=rejection.reason is not Reason.DRAINING)

    def _refuse(self, call: Call, refused: Refused) -> Written:
        record = call.record
        record.outcome, record.error = refused.outcome, record.error or refused.message
        if record.status:  # an answer was begun
            return CLOSE
        content = call.dialect.failure(record.route, refused.message, refused.status, refused.code)
        return call.reply(refused.status, refused.headers, content, keep_alive=not self._gate.draining)

    def _fail(self, call: Call) -> Written:
        """Answer for a fault of the gateway's own; to be called where it was caught."""
        _log.exception("request %s failed inside the gateway", call.id)
        return self._refuse(call, _INTERNAL)

    def _tell(self, call: Call) -> None:
        call.timeline.finished = self._clock()
        for observer in self._observers:
            try:
                observer.observe(call.record)
            except Exception:  # noqa: BLE001 - logged; no observer may harm a request
                _log.exception("%s stumbled over a record", type(observer).__name__)


Rest = Coroutine[None, None, Written | None]
"""What is left to do of a request, and has to be waited for. None: the exchange goes on by itself."""


class UpstreamHead:
    """The head of a request as each backend is sent it; ``without`` names a header that is not (lower case)."""

    __slots__ = ("_call", "_credentials", "_length", "_trusted", "_upgrade", "_without")

    def __init__(
        self, call: Call, length: int | None, *, credentials: bool, trusted: bool, without: bytes, upgrade: bool
    ) -> None:
        self._call = call
        self._length = length
        self._credentials = credentials
        self._trusted = trusted
        self._without = without
        self._upgrade = upgrade

    def __call__(self, upstream: Upstream) -> bytes:
        """The head for one of them."""
        call, head = self._call, self._call.request
        credentials = self._credentials and upstream.api_key is None
        if self._without:
            headers = [header for header in head.raw_headers if header[0].lower() != self._without]
            passed = passed_on(headers, credentials=credentials, trusted=self._trusted)
        else:
            passed = head.passed(credentials=credentials, trusted=self._trusted)
        prefix = b"" if head.raw_target == b"*" else upstream.prefix
        return request_head(
            b"%b %b%b HTTP/1.1" % (head.method.encode(), prefix, head.raw_target),
            passed,
            host=upstream.host,
            peer=call.peer.encode(),
            request_id=call.raw_id,
            length=self._length,
            api_key=upstream.api_key,
            close=upstream.single_use,
            upgrade=self._upgrade,
        )


class Exchange:
    """A request that was begun without a task, until its answer is written or its client lost."""

    __slots__ = ("call", "left", "permit", "relay", "task")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.permit: Permit | None = None
        self.relay: Relay | None = None
        self.left: tuple[Shape, Wire, Ticket] | None = None  # what another attempt would be made of
        self.task: asyncio.Task[None] | None = None


_INTERNAL: Final = Refused(
    HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", "The gateway failed.", Outcome.INTERNAL_ERROR
)

_NOT_SERVED: Final = frozenset({Outcome.CONNECT_FAILED, Outcome.BACKEND_BUSY})
LONGEST_RETRY_AFTER: Final = 60.0  # seconds; SDKs ignore a longer one, so they are told not to retry

_ENDS: Final = {
    End.CONNECT_FAILED: Outcome.CONNECT_FAILED,
    End.NO_DESCRIPTORS: Outcome.INTERNAL_ERROR,
    End.LOST: Outcome.BACKEND_LOST,
    End.TURNED_AWAY: Outcome.BACKEND_BUSY,
    End.EMPTY: Outcome.BACKEND_LOST,
    End.SILENT: Outcome.BACKEND_SILENT,
    End.IDLE: Outcome.COMPLETED,
}
_FAULTS: Final = {Fault.BUSY: Outcome.BACKEND_BUSY, Fault.FAILED: Outcome.BACKEND_ERROR, None: Outcome.COMPLETED}


def decide(end: End, relay: Relay) -> Outcome:
    """What became of a relayed request; a client that left is known by its cancelled task."""
    if end is not End.COMPLETE:
        return _ENDS[end]
    if relay.status in BUSY:
        return Outcome.BACKEND_BUSY
    if relay.status >= 500 and relay.status != 501:  # noqa: PLR2004 - one of HTTPStatus is compared in Python
        return Outcome.BACKEND_ERROR
    if relay.status >= 400:  # noqa: PLR2004 - as above; 501 too: llama.cpp's answer to embeddings where it has none
        return Outcome.CLIENT_ERROR
    return _FAULTS[relay.fault]


async def _condensed(body: bytes) -> Condensed:
    steps = condensed(body)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            whole: Condensed = end.value
            return whole
        await asyncio.sleep(0)


def _elsewhere(ticket: Ticket, backend: str, relay: Relay) -> Ticket:
    """``ticket`` for another attempt, at any other backend."""
    return replace(ticket, avoid=ticket.avoid | {backend}, tried=ticket.tried + 1, refused=relay.unread)


def _finished(relay: Relay, end: End) -> Written:
    if not relay.status:
        raise _failure(end)
    if relay.cut:
        return CUT
    return KEEP_ALIVE if relay.keep_alive else CLOSE


def _failure(end: End) -> Refused:
    """The answer where the backend gave none. One that was silent so long is not worth asking again at once."""
    message, status, code = FAILURES[end]
    if end is End.TURNED_AWAY:
        wait = random.uniform(1.0, 3.0)  # noqa: S311 - spreads who comes back
        return Refused(status, code, message, _ENDS[end], come_back(wait, status))
    hint = ("x-should-retry", "false") if end is End.SILENT else ("Retry-After", "1")
    return Refused(status, code, message, _ENDS[end], (hint,))


def _charge(call: Call, wire: Wire, ticket: Ticket, charged: Charged) -> Rejection | None:
    """Take what the key's count said: the refusal, if it is one. What is taken is given back in ``Handler._over``."""
    shortage, standings = charged
    call.rates = wire.rates = (*call.rates, *rate_headers(standings))
    if shortage is not None:
        lasting = shortage.wait > LONGEST_RETRY_AFTER
        return Rejection(ticket, shortage.reason, shortage.wait, False if lasting else None)
    call.reserved = ticket.work.tokens
    return None


def _hold_to_models(call: Call, shape: Shape) -> None:
    """Refuse work for a model that the client's key is not for; looking at lists and names is not work.

    Raises:
        Refused: it is not, or what model is asked for cannot be told.
    """
    model = shape.model or _described(call)
    if call.account is None or call.account.may_use(model):
        return
    if call.record.route.access is Access.ADMIT or model is not None:
        message = "Your API key is not for this model." if model else "Your API key is for certain models: name one."
        raise Refused(HTTPStatus.FORBIDDEN, "model_not_allowed", message)


def _described(call: Call) -> str | None:
    """The model that ``GET /v1/models/{model}`` asks about; its name may hold slashes."""
    return unquote(call.record.path[len(_CARD) :]) if call.record.path.startswith(_CARD) else None
