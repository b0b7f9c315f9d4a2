"""What holds of the engine whatever is asked of it."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.emulator.engine import Emission, Engine, Profile

LONGEST = 24

profiles = st.builds(
    Profile,
    name=st.just("any"),
    base=st.just(1.0),
    per_sequence=st.sampled_from([0.0, 0.125]),
    per_prefill_token=st.sampled_from([0.0, 0.25]),
    max_num_seqs=st.integers(1, 5),
    max_num_batched_tokens=st.integers(6, 30),
    long_prefill_threshold=st.sampled_from([0, 3]),
    kv_tokens=st.integers(28, 64),
    block_size=st.integers(1, 4),
    max_model_len=st.just(LONGEST),
    prefill_first=st.booleans(),
    max_prefill_seqs=st.integers(1, 3),
    per_request=st.sampled_from([0.0, 0.0, 0.5]),
    stall=st.just(2.0),
    stall_every=st.sampled_from([1000.0, 3.0]),
    wear=st.sampled_from([0.0, 1.0]),
)
requests = st.integers(1, LONGEST).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, LONGEST - p)))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), requests),
        st.tuples(st.just("wait"), st.floats(0.0, 6.0)),
        st.tuples(st.just("abort"), st.integers(0, 20)),
    ),
    max_size=60,
)


class Run:
    """Plays a script and checks the books after every act."""

    def __init__(self, profile: Profile) -> None:
        self.engine = Engine(profile)
        self.now = 0.0
        self.asked: dict[int, tuple[int, int]] = {}
        self.arrived: dict[int, float] = {}
        self.aborted: dict[int, float] = {}
        self.emissions: list[Emission] = []

    def submit(self, request: tuple[int, int]) -> None:
        key = len(self.asked)
        self.asked[key], self.arrived[key] = request, self.now
        assert self.engine.submit(key, *request, self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.emissions += self.engine.advance(self.now)

    def abort(self, key: int) -> None:
        before = self.engine.aborted
        self.engine.abort(key, self.now)
        if self.engine.aborted > before:
            self.aborted[key] = self.now

    def check(self) -> None:
        engine, profile = self.engine, self.engine.profile
        capacity = profile.kv_blocks * profile.block_size
        assert 0 <= engine.kv_tokens <= capacity
        assert 0 <= engine.running <= profile.max_num_seqs
        tokens = {r.key: r.tokens + engine._steps - r.since for r in engine._decoding.values()}
        assert engine._context == sum(tokens.values())
        for request in engine._decoding.values():  # what it has, and at most the block for its next token
            held = request.blocks * profile.block_size
            assert tokens[request.key] <= held < tokens[request.key] + 1 + profile.block_size
        inside = engine.running + engine.waiting + engine.entering
        assert inside + engine.finished + engine.aborted == len(self.asked)
        assert (engine.next_event() is None) <= (inside == 0)  # never idle with work inside

    def finish(self) -> None:
        while (due := self.engine.next_event()) is not None:
            self.now = max(self.now, due)
            self.emissions += self.engine.advance(due)
            self.check()


@given(profiles, steps)
@settings(max_examples=200, deadline=None)
def test_tokens_are_conserved_and_nothing_leaks(profile: Profile, script: list[tuple[str, object]]) -> None:
    run = Run(profile)
    for act, argument in script:
        getattr(run, act)(argument)
        run.check()
    run.finish()
    tokens: Counter[int] = Counter()
    ended: Counter[int] = Counter()
    latest = 0.0
    for emission in run.emissions:
        assert latest <= emission.at
        latest = emission.at
        assert emission.at > run.arrived[emission.key]
        assert emission.at <= run.aborted.get(emission.key, emission.at)
        assert not ended[emission.key]
        tokens[emission.key] += emission.tokens
        ended[emission.key] += emission.finished
    for key, (_, output) in run.asked.items():
        if key in run.aborted:
            assert tokens[key] <= output
            assert not ended[key]
        else:
            assert tokens[key] == output
            assert ended[key] == 1
    engine = run.engine
    assert (engine.running, engine.waiting, engine.entering, engine.kv_tokens) == (0, 0, 0, 0)
    assert engine.next_event() is None


@given(profiles, st.lists(requests, min_size=1, max_size=20))
@settings(max_examples=100, deadline=None)
def test_first_come_first_served(profile: Profile, asked: list[tuple[int, int]]) -> None:
    run = Run(profile)
    for request in asked:
        run.submit(request)
    run.finish()
    if run.engine.preemptions or profile.long_prefill_threshold:
        return  # a short prompt may then overtake a long one
    first: dict[int, float] = {}
    for emission in run.emissions:
        first.setdefault(emission.key, emission.at)
    instants = [first[key] for key in range(len(asked))]
    assert instants == sorted(instants)


@given(st.lists(requests, min_size=1, max_size=12), st.floats(0.1, 3.0))
@settings(max_examples=100, deadline=None)
def test_how_often_it_is_asked_changes_nothing(asked: list[tuple[int, int]], every: float) -> None:
    profile = Profile(
        name="any", base=1.0, per_sequence=0.1, kv_tokens=32, block_size=4, max_model_len=LONGEST, max_num_seqs=4
    )
    exact, coarse = Run(profile), Run(profile)
    for run in (exact, coarse):
        for request in asked:
            run.submit(request)
    exact.finish()
    while coarse.engine.next_event() is not None:
        coarse.wait(every)
    assert coarse.emissions == exact.emissions
