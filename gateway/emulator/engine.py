"""A continuous-batching engine as a pure model: told the time, returns what it emitted.

Stands in for an accelerator in the tests, the simulation and the demo; ``server.py`` puts real HTTP on it.

How it works. The engine does one step after another; a step advances every decoding request by one token and some
requests by a chunk of their prompt. What a step holds is decided when it starts, as vLLM's V1 scheduler does:
decodes first, then prompts under way, then waiting requests in order of arrival, within a budget of tokens, sequences
and KV blocks. A request that finds no block left throws the newest request out of the batch; that one goes to the
head of the queue and computes its prompt and its output so far again. Blocks of a prompt that are in the pool already
are not computed again (``blocks``).

All decoding requests gain exactly one token a step, so the step at which one ends or needs its next block is known
when it starts to decode. Both stand in calendars keyed by the count of decode steps, and a step costs the emissions
and little else.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from gateway.emulator.blocks import Blocks, Prefix


class Emission(NamedTuple):
    """``tokens`` output tokens of request ``key`` at ``at``; ``finished`` on its last.

    A request without output (an embedding) ends in one emission of no token.
    """

    key: int
    tokens: int
    finished: bool
    at: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Constants of one engine; times in seconds, sizes in tokens.

    A step of n sequences that decode over c KV tokens, with p tokens of prompts in it, s of which start, lasts
    ``base + per_sequence*n + per_kv_token*c + per_prompt*s + per_prefill_token*p + attention
    + collapse*max(0, n - collapse_beyond)**2``, where attention is for each chunk of a prompt the longer of reading
    the context before it (``per_kv_token``) and computing on it (``per_attention``): a kernel does both at once.
    """

    name: str
    base: float  # a step of nothing: reading the weights, launching kernels
    per_sequence: float = 0.0
    per_kv_token: float = 0.0
    per_prompt: float = 0.0  # building the inputs of a request that starts; an audio encoder's fixed part
    per_prefill_token: float = 0.0
    per_attention: float = 0.0  # a prompt token attending to one token before it
    collapse_beyond: int = 0  # sequences up to which the cost of a batch is affine
    collapse: float = 0.0  # and what each further one costs, squared
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192  # of one step (vLLM), of one prefill batch (MindIE's maxPrefillTokens)
    long_prefill_threshold: int = 0  # most tokens of one prompt in a step; 0: no bound
    kv_tokens: int = 1_048_576  # size of the KV pool
    block_size: int = 16
    prefix_cache: bool = True  # vLLM's default since V1; without it nothing is found that another request computed
    max_model_len: int = 32_768  # prompt and output together
    max_num_queued_reqs: int | None = None  # running and waiting together, as vLLM's flag of that name counts
    prefill_first: bool = False  # whole prompts in steps of their own, decodes stand meanwhile (MindIE)
    max_prefill_seqs: int = 50  # prompts in one such step (MindIE's maxPrefillBatchSize)
    per_request: float = 0.0  # of the front end's one core, before the scheduler hears of the request
    stall: float = 0.0  # that a step takes longer now and then: a compilation, a checkpoint, a neighbour
    stall_every: float = inf
    wear: float = 0.0  # share that steps become longer by in each minute: throttling, fragmentation
    hangs_at: float = inf  # when it goes silent, while its health stays green

    def __post_init__(self) -> None:
        """Refuse constants with which a request could wait for ever."""
        if self.base <= 0:
            raise ValueError(f"base: {self.base} given, more than 0 expected: a step takes time")
        if self.max_num_batched_tokens < self.max_num_seqs + 1 and not self.prefill_first:
            raise ValueError(
                f"max_num_batched_tokens: {self.max_num_batched_tokens} given, more than max_num_seqs"
                f" ({self.max_num_seqs}) expected: every step has room for all decodes and a prompt token"
            )
        if self.max_model_len > self.kv_blocks * self.block_size:
            raise ValueError(
                f"max_model_len: {self.max_model_len} given, at most the KV pool"
                f" ({self.kv_blocks * self.block_size}) expected: the longest request must fit alone"
            )

    @property
    def kv_blocks(self) -> int:
        """Blocks of the KV pool."""
        return self.kv_tokens // self.block_size


@dataclass(slots=True, eq=False)
class _Request:
    """One request inside the engine. ``tokens`` and ``left`` of a decoding one are as of decode step ``since``."""

    key: int
    tokens: int  # prompt, and what was produced and is (or must again be) in the KV pool
    left: int  # output tokens still to come
    pending: int  # of ``tokens``: not in the KV pool yet
    prefix: Prefix | None = None
    chunk: int = 0  # of ``pending``: computed in the step under way
    found: int = 0  # of ``tokens``: in the KV pool when it was let into the batch
    blocks: int = 0
    known: list[int] = field(default_factory=list)  # of those, the ones that others can share
    published: int = 0  # of the prefix's blocks, so many were looked at
    since: int = 0
    ends: int = 0  # decode step with the last token
    grows: int = 0  # decode step after which its blocks are full


class Engine:
    """One engine. ``now`` never decreases. Keys are unique among the requests inside."""

    def __init__(self, profile: Profile) -> None:
        """Start idle."""
        self.profile = profile
        self.preemptions = 0
        self.finished = 0
        self.aborted = 0
        self.queried_tokens = 0  # of prompts, where there is a prefix cache
        self.cached_tokens = 0  # of those, the ones it had
        self._waiting: OrderedDict[int, _Request] = OrderedDict()  # by arrival; a dict is slow at its head
        self._preempted: deque[_Request] = deque()  # to run before all waiting ones
        self._running: dict[int, _Request] = {}  # in order of admission
        self._prefilling: dict[int, _Request] = {}  # of those
        self._decoding: dict[int, _Request] = {}  # of those
        self._blocks = Blocks(profile.kv_blocks)
        self._context = 0  # KV tokens of the decoding ones
        self._steps = 0  # decode steps so far
        self._ends: dict[int, list[_Request]] = {}
        self._grows: dict[int, list[_Request]] = {}
        self._decodes = False  # the step under way advances the decoding ones
        self._due: float | None = None
        self._emitted: list[Emission] = []
        self._front: deque[tuple[float, _Request]] = deque()  # in the front end, and when it will be through
        self._next_stall = profile.stall_every

    def submit(
        self, key: int, prompt_tokens: int, output_tokens: int, now: float, prefix: Prefix | None = None
    ) -> bool:
        """Take a request; False where the engine's own queue limit refuses it.

        Without a ``prefix`` it has nothing in common with any other.

        Raises:
            ValueError: the key is inside already, or the request cannot be: no prompt, or over ``max_model_len``.
        """
        profile = self.profile
        if prompt_tokens < 1 or output_tokens < 0 or prompt_tokens + output_tokens > profile.max_model_len:
            raise ValueError(
                f"request of {prompt_tokens} prompt and {output_tokens} output tokens given,"
                f" at least 1, at least 0 and together at most {profile.max_model_len} expected"
            )
        if key in self._running or key in self._waiting or any(r.key == key for r in self._elsewhere()):
            raise ValueError(f"key {key} given, one that is not inside the engine expected")
        self._run(now)
        limit = profile.max_num_queued_reqs
        if limit is not None and self.running + self.waiting >= limit:
            return False
        request = _Request(key, prompt_tokens, output_tokens, prompt_tokens, prefix if profile.prefix_cache else None)
        if profile.per_request:
            free = max(now, self._front[-1][0]) if self._front else now
            self._front.append((free + profile.per_request, request))
        else:
            self._enqueue(request, now)
        return True

    def _elsewhere(self) -> Iterator[_Request]:
        """Those inside that are neither running nor waiting for the first time."""
        yield from self._preempted
        yield from (request for _, request in self._front)

    def _enqueue(self, request: _Request, now: float) -> None:
        """Let the scheduler hear of it."""
        self._waiting[request.key] = request
        if self._due is None:
            self._begin(now)

    def abort(self, key: int, now: float) -> None:
        """Forget a request and free what it holds; unknown keys are ignored."""
        self._run(now)
        if key in self._running:
            self._release(self._running[key])
        elif self._waiting.pop(key, None) is None:
            if all(request.key != key for request in self._elsewhere()):
                return
            self._preempted = deque(r for r in self._preempted if r.key != key)
            self._front = deque((due, r) for due, r in self._front if r.key != key)
        self.aborted += 1

    def next_event(self) -> float | None:
        """When something happens by itself next, such as the end of the step under way; None: nothing will."""
        if self._emitted:
            return self._emitted[0].at
        due = min(inf if self._due is None else self._due, self._front[0][0] if self._front else inf)
        return None if due == inf else due

    def advance(self, now: float) -> list[Emission]:
        """End every step that is due by ``now``."""
        self._run(now)
        emitted, self._emitted = self._emitted, []
        return emitted

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests in the scheduler's queue."""
        return len(self._waiting) + len(self._preempted)

    @property
    def entering(self) -> int:
        """Requests in the front end, of which the scheduler, and so its gauges, know nothing yet."""
        return len(self._front)

    @property
    def kv_tokens(self) -> int:
        """KV tokens in use, whole blocks."""
        return (self.profile.kv_blocks - self._blocks.free) * self.profile.block_size

    def _run(self, now: float) -> None:
        while True:
            due = inf if self._due is None else self._due
            if self._front and self._front[0][0] <= min(due, now):
                through, request = self._front.popleft()
                self._enqueue(request, through)
            elif due <= now:
                self._end(due)
            else:
                return

    # ---------------------------------------------------------------------------------------- a step starts

    def _begin(self, start: float) -> None:
        if self.profile.prefill_first:
            self._admit_whole()
            self._decodes = not self._prefilling
            if self._decodes:
                self._grow()
        else:
            self._decodes = True
            self._grow()
            self._admit_chunks()
        if self._running:
            self._due = start + self._duration() * (1.0 + self.profile.wear * start / 60.0) + self._fault(start)
        else:
            self._due = None
            self._ends.clear()
            self._grows.clear()

    def _grow(self) -> None:
        """Give the decodes their next blocks.

        Who is thrown out for it does not come back in the same step: one block of its own is taken by then.
        """
        for request in self._grows.pop(self._steps, ()):
            if self._decoding.get(request.key) is not request or request.grows != self._steps:
                continue  # it left, or came back with another calendar
            while not self._blocks.free and request.key in self._running:
                self._preempt()
            if request.key in self._running:
                self._blocks.take(1)
                request.blocks += 1
                self._note_growth(request)

    def _preempt(self) -> None:
        request = self._running[next(reversed(self._running))]
        decoded = request.key in self._decoding
        self._release(request)
        request.tokens += decoded  # the newest token's KV was not computed yet
        request.pending = request.tokens
        self._preempted.appendleft(request)
        self.preemptions += 1

    def _admit_chunks(self) -> None:
        # Every prompt under way gets something: whoever began to decode since had a token of the last step's budget.
        budget = self.profile.max_num_batched_tokens - len(self._decoding)
        most = self.profile.long_prefill_threshold or budget
        for request in self._prefilling.values():
            budget -= self._read(request, min(most, budget))
        while budget and (admitted := self._next_admissible()):
            budget -= self._read(admitted, min(most, budget))

    def _admit_whole(self) -> None:
        budget = self.profile.max_num_batched_tokens
        while len(self._prefilling) < self.profile.max_prefill_seqs and (request := self._next_admissible(budget)):
            budget -= self._read(request, request.pending)

    def _read(self, request: _Request, most: int) -> int:
        """Compute some of a prompt in the step that begins; who comes after it in the same step finds its blocks."""
        request.chunk = min(request.pending, most)
        self._publish(request, request.tokens - request.pending + request.chunk)
        return request.chunk

    def _publish(self, request: _Request, tokens: int) -> None:
        """Let others find the blocks that its first ``tokens`` fill."""
        if request.prefix is None:
            return
        full = tokens // self.profile.block_size
        blocks = request.prefix.blocks[request.published : full]
        request.known += [block for block in blocks if self._blocks.publish(block)]
        request.published = full

    def _next_admissible(self, budget: int | None = None) -> _Request | None:
        """Move the head of the queue into the batch if it fits; blocks for its whole prompt are taken at once.

        (vLLM too admits a request only where all of its prompt fits: ``scheduler_reserve_full_isl``.) With a budget
        a prompt must fit into it, except that the first of a step always does.
        """
        request = self._preempted[0] if self._preempted else next(iter(self._waiting.values()), None)
        if request is None or len(self._running) >= self.profile.max_num_seqs:
            return None
        size, pool = self.profile.block_size, self._blocks
        # The last token is always computed: what comes after it is read off it.
        shared = self._shared(request, (request.tokens - 1) // size)
        found = len(shared) * size
        blocks = -(-request.tokens // size) - len(shared)
        if blocks > pool.left(shared):
            return None
        if budget is not None and request.tokens - found > budget and self._prefilling:
            return None
        if self._preempted:
            self._preempted.popleft()
        else:
            del self._waiting[request.key]
            self._count_found(request, found)
        pool.share(shared)
        pool.take(blocks)
        request.blocks, request.known, request.published = blocks + len(shared), list(shared), len(shared)
        request.found = found
        request.pending = request.tokens - found
        self._running[request.key] = self._prefilling[request.key] = request
        return request

    def _shared(self, request: _Request, most: int) -> Sequence[int]:
        """The blocks of its prefix that are in the pool."""
        if request.prefix is None:
            return ()
        blocks = request.prefix.blocks
        return blocks[: self._blocks.known(blocks, most)]

    def _count_found(self, request: _Request, found: int) -> None:
        if self.profile.prefix_cache:
            self.queried_tokens += request.tokens
            self.cached_tokens += found
        if request.prefix is not None:
            request.prefix.cached = found

    def _duration(self) -> float:
        profile = self.profile
        sequences, prefill, seconds = len(self._prefilling), 0, profile.base
        if self._decodes:
            sequences += len(self._decoding)
            seconds += profile.per_kv_token * self._context
        for request in self._prefilling.values():
            chunk, before = request.chunk, request.tokens - request.pending
            prefill += chunk
            seconds += profile.per_prompt if before == request.found else 0.0
            seconds += max(profile.per_kv_token * before, profile.per_attention * chunk * (before + chunk / 2))
        excess = max(0, sequences - profile.collapse_beyond)
        return (
            seconds
            + profile.per_sequence * sequences
            + profile.per_prefill_token * prefill
            + profile.collapse * excess * excess
        )

    def _fault(self, start: float) -> float:
        """Seconds that a step takes longer for no reason of its own."""
        if start >= self.profile.hangs_at:
            return inf
        if start < self._next_stall:
            return 0.0
        self._next_stall = start + self.profile.stall_every
        return self.profile.stall

    # ------------------------------------------------------------------------------------------ a step ends

    def _end(self, at: float) -> None:
        if self._decodes and self._decoding:
            self._end_decodes(at)
        if self._prefilling:
            self._end_prefills(at)
        self._begin(at)

    def _end_decodes(self, at: float) -> None:
        self._steps += 1
        self._context += len(self._decoding)
        for request in self._ends.pop(self._steps, ()):
            if self._decoding.get(request.key) is request and request.ends == self._steps:
                self._finish(request, 1, at)
        new = tuple.__new__  # what Emission(...) does, without a call in Python for each token
        self._emitted += [new(Emission, (key, 1, False, at)) for key in self._decoding]

    def _end_prefills(self, at: float) -> None:
        for request in tuple(self._prefilling.values()):
            request.pending -= request.chunk
            request.chunk = 0
            if request.pending:
                continue
            if request.left <= 1:
                self._finish(request, request.left, at)
            else:
                self._start_decoding(request)
                self._emitted.append(Emission(request.key, 1, False, at))

    def _start_decoding(self, request: _Request) -> None:
        del self._prefilling[request.key]
        self._decoding[request.key] = request
        self._context += request.tokens
        request.left -= 1
        request.since = self._steps
        request.ends = self._steps + request.left
        self._ends.setdefault(request.ends, []).append(request)
        self._note_growth(request)

    def _note_growth(self, request: _Request) -> None:
        request.grows = request.since + request.blocks * self.profile.block_size - request.tokens
        if request.grows < request.ends:
            self._grows.setdefault(request.grows, []).append(request)

    def _finish(self, request: _Request, tokens: int, at: float) -> None:
        self._release(request)
        self._emitted.append(Emission(request.key, tokens, True, at))
        self.finished += 1

    def _release(self, request: _Request) -> None:
        """Take a request out of the batch; its ``tokens`` and ``left`` become current."""
        del self._running[request.key]
        if self._decoding.pop(request.key, None) is None:
            del self._prefilling[request.key]
        else:
            done = self._steps - request.since
            request.tokens += done
            request.left -= done
            self._context -= request.tokens
            self._publish(request, request.tokens)
        self._blocks.give_back(request.known, request.blocks - len(request.known))
        request.blocks = request.chunk = request.published = 0
        request.known = []
