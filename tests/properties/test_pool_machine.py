"""Hypothesis writes stories for the pool; after every step it must agree with the naive one, and I1-I5, I11 must hold.

`IOP_EXAMPLES=10000` makes it a long run; the two machines share what is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from attrs import define, evolve
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from iop_pool import (
    ConnectionState,
    CoreLease,
    Decision,
    Granted,
    GroupSpec,
    Health,
    HealthPolicy,
    LeaseState,
    Outcome,
    PoolCore,
    PoolSpec,
    ProviderSpec,
    Queued,
    QueuePolicy,
    Refused,
    Request,
    Waiter,
)
from support.naive_pool import Answer, NaiveLease, NaivePool, NaiveWaiter
from support.rules import rule as proves

T = TypeVar("T")

NAMES = ("a", "b", "c", "d")
NODES = ("n", "m")
GROUPS = ("g", "h", "i")
TOKENS = (0, 60, 120)  # below, between and above the two thresholds that are used

providers = st.builds(
    ProviderSpec,
    id=st.just("?"),
    node=st.sampled_from((None, None, None, *NODES)),
    capacity=st.integers(1, 3),
    long_context_capacity=st.sampled_from((None, None, 1, 0)),
    priority=st.sampled_from((0, 0, 1)),
    enabled=st.sampled_from((True,) * 5 + (False,)),
    queue=st.sampled_from((QueuePolicy(), QueuePolicy(9), QueuePolicy(2, 1000), QueuePolicy(None, 0))),
    adapter_queue=st.sampled_from((QueuePolicy(), QueuePolicy(None, 3000), QueuePolicy(3, 500))),
    probe_required=st.sampled_from((False,) * 5 + (True,)),
)
OUTCOMES = st.sampled_from((Outcome.OK, Outcome.BROKEN, *Outcome))
line_ups = st.lists(st.sampled_from(NAMES), unique=True, max_size=4).map(tuple)
provider_changes = st.one_of(
    st.integers(1, 3).map(lambda n: {"capacity": n, "long_context_capacity": None}),
    st.integers(0, 1).map(lambda n: {"long_context_capacity": n}),
    st.booleans().map(lambda on: {"enabled": on}),
    st.integers(0, 2).map(lambda n: {"priority": n}),
    st.sampled_from((None, *NODES)).map(lambda node: {"node": node}),
    st.booleans().map(lambda on: {"probe_required": on}),
    st.sampled_from((QueuePolicy(), QueuePolicy(0, 500), QueuePolicy(9, 0))).map(lambda q: {"queue": q}),
)
pool_changes = st.sampled_from(
    (
        {"long_context_threshold_tokens": 50},
        {"long_context_threshold_tokens": 100},
        {"reconnect_grace_ms": 0},
        {"reconnect_grace_ms": 2000},
        {"default_max_queue": 1},
        {"default_queue_timeout_ms": 1500},
        {"health": HealthPolicy(eject_after=1, backoff_ms=500, backoff_max_ms=1500)},
    )
)


@define
class Pair:
    """A slot or a waiter as both pools know it."""

    core: CoreLease
    naive: NaiveLease


class PoolMachine(RuleBasedStateMachine):
    """Every operation, on both pools."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.leases: list[Pair] = []
        self.ended: list[Pair] = []
        self.waiters: dict[Waiter, NaiveWaiter] = {}
        self.gone: list[Waiter] = []
        self.loads: dict[str, int] = {}
        self.occupied = False

    @initialize(
        given=st.lists(providers, min_size=3, max_size=4),
        groups=st.lists(line_ups, min_size=2, max_size=2),
        grace=st.sampled_from((0, 2000)),
        eject_after=st.integers(1, 3),
        default_max_queue=st.sampled_from((9, 2, 0)),
        default_queue_timeout_ms=st.sampled_from((4000, 0)),
    )
    def start(
        self,
        given: list[ProviderSpec],
        groups: list[tuple[str, ...]],
        grace: int,
        eject_after: int,
        default_max_queue: int,
        default_queue_timeout_ms: int,
    ) -> None:
        made = tuple(evolve(one, id=name) for one, name in zip(given, NAMES, strict=False))
        names = [one.id for one in made]
        self.begin(
            PoolSpec(
                providers=made,
                groups=(
                    GroupSpec("g", names),
                    *(
                        GroupSpec(group, tuple(name for name in line_up if name in names))
                        for group, line_up in zip("hi", groups, strict=True)
                    ),
                ),
                long_context_threshold_tokens=100,
                reconnect_grace_ms=grace,
                health=HealthPolicy(eject_after=eject_after, backoff_ms=500, backoff_max_ms=1500),
                default_max_queue=default_max_queue,
                default_queue_timeout_ms=default_queue_timeout_ms,
            )
        )

    def begin(self, spec: PoolSpec) -> None:
        self.spec = spec
        self.core = PoolCore(spec)
        self.naive = NaivePool(spec)
        for name in NODES:
            self.agree(
                self.core.set_connected(name, ConnectionState.CONNECTED, self.now),
                self.naive.set_connected(name, ConnectionState.CONNECTED, self.now),
            )

    # --- requests ---------------------------------------------------------------------------------------------------

    @rule(asked=st.lists(st.tuples(st.sampled_from(GROUPS), st.sampled_from(TOKENS)), min_size=2, max_size=6))
    def submit(self, asked: list[tuple[str, int]]) -> None:
        """Several at a time, as without load there is little to decide."""
        for group, tokens in asked:
            self.ask(Request(group, tokens), None)

    @rule(
        group=st.sampled_from((*GROUPS, "nobody")),
        tokens=st.sampled_from(TOKENS),
        exclude=st.sampled_from((frozenset("a"), frozenset("bx"), frozenset(NAMES))),
        after=st.sampled_from((None, 0.0, 0.5, 2.0)),
    )
    def submit_a_picky_one(self, group: str, tokens: int, exclude: frozenset[str], after: float | None) -> None:
        self.ask(Request(group, tokens, exclude, deadline=None if after is None else self.now + after), None)

    @precondition(lambda self: self.ended)
    @rule(which=st.integers(0, 30), tokens=st.sampled_from(TOKENS))
    def retry_elsewhere(self, which: int, tokens: int) -> None:
        pair = pick(self.ended, which)
        request = Request(pair.core.group_id, tokens, frozenset({pair.core.provider_id}), pair.core.arrival)
        self.ask(request, pair.naive.arrival)

    def ask(self, request: Request, arrival: int | None) -> None:
        foretold = self.core.explain(request.group, request.input_tokens, exclude=request.exclude)
        answer = self.core.submit(request, self.now)
        expected = self.naive.submit(
            request.group, request.input_tokens, request.exclude, arrival, request.deadline, self.now
        )
        if isinstance(answer, Granted):
            assert expected.verdict == "granted", expected
            assert isinstance(expected.who, NaiveLease)
            assert (answer.lease.provider_id, answer.waiter) == (expected.provider, None)
            assert (foretold.verdict, foretold.winner) == ("granted", answer.lease.provider_id)
            assert foretold.tied == answer.lease.tied
            assert answer.lease.after == foretold.after
            self.leases.append(Pair(answer.lease, expected.who))
        elif isinstance(answer, Queued):
            assert expected.verdict == "queued", expected
            assert isinstance(expected.who, NaiveWaiter)
            assert foretold.verdict == "queued"
            self.waiters[answer.waiter] = expected.who
            line = [one for one in self.waiters.values() if one.group == request.group]
            bound = self.naive.bound(request.group, self.naive.is_long(request.input_tokens), request.exclude)
            assert len(line) <= bound, "I5: more wait than may"
        else:
            assert said(answer) == (expected.verdict, expected.reasons)
            assert foretold.verdict in (expected.verdict, "queued" if expected.verdict == "queue_timeout" else None)
            assert (answer.retry_after_ms is not None) is (expected.verdict == "queue_full")
            assert answer.retry_after_ms is None or 100 <= answer.retry_after_ms <= 120_000

    @precondition(lambda self: self.waiters)
    @rule(which=st.integers(0, 30))
    def cancel(self, which: int) -> None:
        waiter = pick(list(self.waiters), which)
        assert self.core.cancel(waiter, self.now) == ()
        self.naive.cancel(self.waiters.pop(waiter))
        self.gone.append(waiter)

    @precondition(lambda self: self.gone)
    @rule(which=st.integers(0, 30))
    def cancel_again(self, which: int) -> None:
        """Of one that was cancelled or refused: nothing; of one that was granted: its slot comes back (P8)."""
        waiter = pick(self.gone, which)
        pair = next((one for one in self.leases if one.core is waiter.lease), None)
        if pair is None:
            assert self.core.cancel(waiter, self.now) == ()
        else:
            self.end(pair, Outcome.CANCELLED, lambda: self.core.cancel(waiter, self.now))

    @precondition(lambda self: self.leases)
    @rule(ends=st.lists(st.tuples(st.integers(0, 30), OUTCOMES), min_size=1, max_size=4))
    def release(self, ends: list[tuple[int, Outcome]]) -> None:
        for which, outcome in ends:
            if self.leases:
                pair = pick(self.leases, which)
                self.end(
                    pair, outcome, lambda pair=pair, outcome=outcome: self.core.release(pair.core, outcome, self.now)
                )

    def end(self, pair: Pair, outcome: Outcome, call: Callable[[], Sequence[Decision]]) -> None:
        self.leases.remove(pair)
        self.ended.append(pair)
        decisions = call()
        assert pair.core.state is LeaseState.FREE
        self.agree(decisions, self.naive.release(pair.naive, outcome, self.now))

    @precondition(lambda self: self.ended)
    @rule(which=st.integers(0, 30), outcome=st.sampled_from(Outcome))
    def release_again(self, which: int, outcome: Outcome) -> None:
        before = self.core.status(self.now)
        assert self.core.release(pick(self.ended, which).core, outcome, self.now) == ()
        assert self.core.status(self.now) == before, "I2: a second release counted"

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 30))
    def begin_cancel(self, which: int) -> None:
        pair = pick(self.leases, which)
        self.core.begin_cancel(pair.core, self.now)
        pair.naive.state = LeaseState.CANCELLING

    @rule(name=st.sampled_from((*NAMES, "z")), long=st.booleans())
    def occupy(self, name: str, long: bool) -> None:
        self.leases.append(Pair(self.core.occupy(name, long, self.now), self.naive.occupy(name, long, self.now)))
        self.occupied = True

    # --- what changes round it --------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), change=provider_changes)
    def change_a_provider(self, name: str, change: dict[str, object]) -> None:
        self.reconfigure(
            evolve(
                self.spec,
                providers=tuple(evolve(one, **change) if one.id == name else one for one in self.spec.providers),
            )
        )

    @rule(name=st.sampled_from(NAMES), one=providers, group=st.sampled_from(GROUPS))
    def remove_a_provider_or_bring_it_back(self, name: str, one: ProviderSpec, group: str) -> None:
        if self.naive.provider(name) is None:
            groups = [evolve(g, providers=(name, *g.providers)) if g.id == group else g for g in self.spec.groups]
            self.reconfigure(evolve(self.spec, providers=(*self.spec.providers, evolve(one, id=name)), groups=groups))
        else:
            groups = [evolve(g, providers=tuple(p for p in g.providers if p != name)) for g in self.spec.groups]
            left = [provider for provider in self.spec.providers if provider.id != name]
            self.reconfigure(evolve(self.spec, providers=left, groups=groups))

    @rule(change=pool_changes | st.tuples(st.sampled_from(GROUPS), st.none() | line_ups))
    def change_a_group_or_the_pool(self, change: dict[str, object] | tuple[str, tuple[str, ...] | None]) -> None:
        """A group is removed, or gets (new or not) another line-up, perhaps the same in another order."""
        if isinstance(change, dict):
            self.reconfigure(evolve(self.spec, **change))
            return
        group, line_up = change
        groups = [one for one in self.spec.groups if one.id != group]
        if line_up is not None:
            groups.insert(0, GroupSpec(group, tuple(name for name in line_up if self.naive.provider(name) is not None)))
        self.reconfigure(evolve(self.spec, groups=groups))

    def reconfigure(self, spec: PoolSpec) -> None:
        self.spec = spec
        decisions = self.core.reconfigure(spec, self.now)
        if spec != self.naive.spec:
            self.agree(decisions, self.naive.reconfigure(spec, self.now))
        assert self.core.spec is spec or self.core.spec == spec
        assert self.core.reconfigure(spec, self.now) == ()

    @rule(node=st.sampled_from((*NODES, "o")), state=st.sampled_from(ConnectionState))
    def set_connected(self, node: str, state: ConnectionState) -> None:
        self.agree(
            self.core.set_connected(node, state, self.now),
            self.naive.set_connected(node, state, self.now),
        )

    @rule(
        name=st.sampled_from((*NAMES, "z")),
        acknowledged=st.booleans(),
        capacity=st.sampled_from((None, 0, 1, 5)),
        long=st.sampled_from((None, None, 0, 1)),
    )
    def set_acknowledged(self, name: str, acknowledged: bool, capacity: int | None, long: int | None) -> None:
        self.agree(
            self.core.set_acknowledged(name, acknowledged, capacity_limit=capacity, long_limit=long, now=self.now),
            self.naive.set_acknowledged(name, acknowledged, capacity, long, self.now),
        )

    @rule(name=st.sampled_from((*NAMES, "z")), health=st.sampled_from(Health))
    def set_health(self, name: str, health: Health) -> None:
        self.agree(
            self.core.set_health(name, health, self.now),
            self.naive.set_health(name, health, self.now),
        )

    @rule(name=st.sampled_from((*NAMES, "z")), outcome=st.sampled_from((Outcome.BROKEN, *Outcome)))
    def report_outcome(self, name: str, outcome: Outcome) -> None:
        self.agree(
            self.core.report_outcome(name, outcome, self.now),
            self.naive.report_outcome(name, outcome, self.now),
        )

    @rule(seconds=st.sampled_from((0.0, 0.5, 1.0, 5.0)))
    def wait(self, seconds: float) -> None:
        """Time passes; the owner may be late, so that several things are due at once."""
        self.now += seconds
        self.agree(self.core.expire(self.now), self.naive.expire(self.now))
        due = self.core.next_deadline()
        assert due is None or due > self.now

    @rule()
    def wait_until_something_is_due(self) -> None:
        due = self.core.next_deadline()
        if due is not None:
            self.now = max(self.now, due)
            self.agree(self.core.expire(self.now), self.naive.expire(self.now))

    @rule(which=st.integers(0, 30))
    def lose_a_lease(self, which: int) -> None:
        """The owner's books miss one lease: an audit finds just that, and the next one sees it again (P8)."""
        live = [pair.core for pair in self.leases]
        lost = [live.pop(which % len(live))] if live else []
        assert list(self.core.audit(live)) == lost
        assert self.core.status(self.now).leaked_slots == len(lost)
        assert self.core.audit([pair.core for pair in self.leases]) == ()

    # --- what must hold ---------------------------------------------------------------------------------------------

    def agree(self, decisions: Sequence[Decision], expected: list[Answer]) -> None:
        """Both pools say the same of the same waiters, and the grants come in the same order."""
        refusals = [one for one in decisions if isinstance(one, Refused)]
        grants = [one for one in decisions if isinstance(one, Granted)]
        assert list(decisions) == [*refusals, *grants]
        refused = {}
        for no in refusals:
            assert no.waiter is not None
            self.gone.append(no.waiter)
            refused[self.waiters.pop(no.waiter).number] = said(no)
        assert refused == {
            one.who.number: (one.verdict, one.reasons) for one in expected if isinstance(one.who, NaiveWaiter)
        }
        granted = [one for one in expected if one.verdict == "granted"]
        assert len(grants) == len(granted), (grants, granted)
        for yes, answer in zip(grants, granted, strict=True):
            assert yes.waiter is not None
            assert yes.waiter.lease is yes.lease
            assert isinstance(answer.who, tuple)
            waiter, lease = answer.who
            assert self.waiters.pop(yes.waiter) is waiter, "I4: another one was first in line"
            assert yes.lease.provider_id == answer.provider
            self.gone.append(yes.waiter)
            self.leases.append(Pair(yes.lease, lease))

    @invariant()
    def it_does_not_contradict_itself(self) -> None:
        self.core.check_invariants()

    @invariant()
    def capacity_is_never_exceeded_but_by_a_cut_and_then_not_rising(self) -> None:
        """I1, also for the long slots, counted by the naive pool and not by the one under test."""
        loads = {}
        for one in self.spec.providers:
            load, long = self.naive.load(one.id), self.naive.long_load(one.id)
            loads[one.id], loads[one.id + " long"] = load, long
            if not self.occupied:
                assert load <= max(one.capacity, self.loads.get(one.id, 0)), "I1"
                if one.long_context_capacity is not None:
                    assert long <= max(one.long_context_capacity, self.loads.get(one.id + " long", 0)), "I1"
        for lease in self.naive.leases:
            loads.setdefault(lease.provider, self.naive.load(lease.provider))
            loads.setdefault(lease.provider + " long", self.naive.long_load(lease.provider))
        self.loads, self.occupied = loads, False

    @invariant()
    def nobody_waits_for_a_slot_that_is_free(self) -> None:
        """I3: no lost wake-up; and with I3 no newcomer can overtake (I4)."""
        for waiter in self.naive.waiters:
            assert not self.naive.candidates(waiter.group, self.naive.is_long(waiter.tokens), waiter.exclude)

    @invariant()
    def the_status_is_what_the_naive_pool_counts(self) -> None:
        naive, status = self.naive, self.core.status(self.now)
        assert (status.leases, status.waiting, status.leaked_slots) == (len(naive.leases), len(naive.waiters), 0)
        assert [one.id for one in status.providers] == [one.id for one in self.spec.providers]
        for seen, one in zip(status.providers, self.spec.providers, strict=True):
            health = naive.health[one.id]
            assert (seen.in_flight, seen.long_in_flight) == (naive.load(one.id), naive.long_load(one.id))
            mine = [lease for lease in naive.leases if lease.provider == one.id]
            assert seen.cancelling == sum(lease.state is LeaseState.CANCELLING for lease in mine)
            assert seen.admits == (naive.capacity(one) if naive.usable(one) else 0)
            assert (seen.blocked is None) is naive.is_candidate(one, False)
            assert (seen.blocked_long is None) is (naive.is_candidate(one, True) and one.takes_long)
            assert seen.half_open is health.half_open
            assert seen.consecutive_failures == health.failures
            assert seen.totals.ejections == health.ejections
            assert seen.totals.granted == naive.granted[one.id]
            if one.enabled:
                assert seen.health == (Health.EJECTED if health.ejected else health.level)
        for group in status.groups:
            line = [waiter for waiter in naive.waiters if waiter.group == group.id]
            assert group.queue_length == len(line)
            assert group.queue_bound == naive.bound(group.id, False, frozenset())
            for long, name in ((False, group.next_normal), (True, group.next_long)):
                chosen = naive.choice(group.id, long, frozenset())
                assert name == (chosen.id if chosen is not None else None)
        known = {one.id for one in self.spec.providers}
        assert {one.id for one in status.retired} == {lease.provider for lease in naive.leases} - known
        assert self.core.next_deadline() == naive.next_deadline()

    def teardown(self) -> None:
        """I11: after all have left, nothing is held, nobody waits, and nothing is remembered of them."""
        if not hasattr(self, "core"):
            return
        for waiter in list(self.waiters):
            self.core.cancel(waiter, self.now)
        for pair in self.leases:
            self.core.release(pair.core, Outcome.OK, self.now)
        self.core.check_invariants()
        status = self.core.status(self.now)
        assert (status.leases, status.waiting, status.leaked_slots, status.retired) == (0, 0, 0, ())
        assert not any(one.in_flight or one.cancelling or one.queue_length for one in status.providers)


class TightMachine(PoolMachine):
    """Few slots, long queues, one long slot, two groups that share: what the wide stories seldom come to."""

    @initialize(capacity=st.integers(1, 3), shared=st.booleans())
    def start(self, capacity: int, shared: bool) -> None:  # type: ignore[override]
        self.begin(
            PoolSpec(
                providers=(
                    ProviderSpec("a", capacity=capacity, long_context_capacity=1, queue=QueuePolicy(20, 0)),
                    ProviderSpec("b", node="n", capacity=1, queue=QueuePolicy(20, 4000)),
                ),
                groups=(
                    GroupSpec("g", ("a", "b")),
                    GroupSpec("h", ("b", "a") if shared else ("a",)),
                    GroupSpec("i", ("b",)),
                ),
                long_context_threshold_tokens=100,
                reconnect_grace_ms=2000,
                health=HealthPolicy(eject_after=2, backoff_ms=500, backoff_max_ms=1500),
            )
        )


def pick(many: Sequence[T], which: int) -> T:
    return many[which % len(many)]


def said(no: Refused) -> tuple[str, tuple[object, ...]]:
    return (no.kind.value, tuple((entry.provider, entry.reason) for entry in no.reasons))


EXAMPLES = int(os.environ.get("IOP_EXAMPLES", "500")) // 2
MACHINE = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@proves("P1", "P2", "P4", "P8", "P9")
class TestWide(PoolMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = MACHINE


@proves("P3", "P4", "P5", "P6", "P7", "P10")
class TestTight(TightMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = MACHINE
