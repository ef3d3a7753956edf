"""PoolCore: the decisions of the pool as plain method calls; no clock, task, lock or await (P12)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heapreplace

from iop_pool._explain import explain, status
from iop_pool._groups import Group, Prospects, Roster, moving_average
from iop_pool._invariants import check
from iop_pool._outcomes import (
    ConnectionState,
    Decision,
    Decisions,
    Granted,
    Health,
    LeaseState,
    Outcome,
    Queued,
    RefusalKind,
    Refused,
    Request,
)
from iop_pool._queue import Lane, Waiter
from iop_pool._select import next_in_turn
from iop_pool._slots import CoreLease, Limits, Node, Provider
from iop_pool._spec import PoolSpec, ProviderSpec
from iop_pool._status import Explanation, PoolStatus
from iop_pool._timers import Timers

__all__ = ["PoolCore"]


class PoolCore:
    """Who runs where and who waits (P1-P11).

    `now` is seconds on any clock that does not go back; all calls use the same one. Time passes only by `expire(now)`:
    call it when `next_deadline()` has come. Every call that can change who is served returns the decisions that it
    caused for waiters, as values; the caller delivers them. Providers of a `node` are disconnected until
    `set_connected` says otherwise, and until then not waited for (P5). Not thread-safe.

    What holds between any two calls: no waiter stands beside a slot that it could have (so a newcomer who finds a free
    candidate overtakes nobody), and load is the number of live leases.
    """

    def __init__(self, spec: PoolSpec) -> None:
        self._spec = PoolSpec(providers=(), groups=())
        self._providers: dict[str, Provider] = {}
        self._retired: dict[str, Provider] = {}
        self._groups: dict[str, Group] = {}
        self._nodes: dict[str, Node] = {}
        self._everywhere = Node("", ConnectionState.CONNECTED)
        self._limits: dict[str, Limits] = {}
        self._lanes: set[Lane] = set()
        self._timers = Timers()
        self._leaked: set[CoreLease] = set()
        self._numbers = 0
        self._epoch = 0
        self._threshold = 0
        self._install(spec)

    @property
    def spec(self) -> PoolSpec:
        """The generation in force."""
        return self._spec

    # --- requests ---------------------------------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> Granted | Queued | Refused:
        """Grant, queue or refuse:

        1. There is no such group: refused, `unknown_model` (P5).
        2. A candidate is free: granted, the best of them in turn (P2). Nobody is overtaken, see above.
        3. No provider that is not excluded could ever serve: refused, `unavailable`, with the reasons (P5).
        4. As many wait as may: refused, `queue_full`, with an estimate of when to try again (P6).
        5. Its own deadline is over: refused, `queue_timeout`. Else queued (P4, P7).
        """
        group = self._groups.get(request.group)
        if group is None:
            return Refused(RefusalKind.UNKNOWN_MODEL, request.group)
        long = request.input_tokens >= self._threshold
        roster = group.roster
        exclude = request.exclude
        tied = roster.index(long).best(roster.mask(exclude) if exclude else 0)
        self._numbers = number = self._numbers + 1
        arrival = number if request.arrival is None else request.arrival
        if tied:
            return Granted(self._grant(group, tied, long, arrival, now, 0.0))
        prospects = roster.prospects(long, self._epoch)
        if prospects.hopeless(exclude):
            group.unavailable += 1
            return Refused(RefusalKind.UNAVAILABLE, group.id, prospects.reasons(roster.members, exclude))
        if len(group.waiters) >= prospects.bound(exclude):
            group.queue_full += 1
            return Refused(RefusalKind.QUEUE_FULL, group.id, retry_after_ms=group.retry_ms(prospects, exclude))
        if request.deadline is not None and request.deadline <= now:
            group.queue_timeout += 1
            return Refused(RefusalKind.QUEUE_TIMEOUT, group.id)
        waiter = Waiter(number, group.id, request.input_tokens, exclude, arrival, now, request.deadline, long)
        group.queued += 1
        self._enter(waiter, group, prospects)
        return Queued(waiter)

    def cancel(self, waiter: Waiter, now: float) -> Decisions:
        """Forget `waiter`; a slot it was already granted goes to the next in line (P8). Harmless when repeated.

        Once the lease of a `Granted` is in use, `release` it instead.
        """
        if waiter.lease is not None:
            return self.release(waiter.lease, Outcome.CANCELLED, now)
        if waiter.waiting:
            self._leave(waiter).cancelled += 1
        return ()

    def begin_cancel(self, lease: CoreLease, now: float) -> None:
        """The run is being stopped: the slot is `cancelling` and counts until `release` (P8). Repeating is harmless."""
        if lease.state is LeaseState.HELD:
            lease.state = LeaseState.CANCELLING

    def release(self, lease: CoreLease, outcome: Outcome, now: float) -> Decisions:
        """Return the slot, feed health (P14), hand on to the next waiter. A second release does and counts nothing."""
        if lease.state is LeaseState.FREE:
            return ()
        lease.state = LeaseState.FREE
        provider = lease._provider
        provider.leases.remove(lease)
        if lease.long:
            provider.long_leases.remove(lease)
        if provider.fresh:
            provider.touch()
        if self._leaked:
            self._leaked.discard(lease)
        if outcome is Outcome.OK:
            took = now - lease.granted_at
            provider.service = moving_average(provider.service, took)
            if lease._group is not None:
                lease._group.service = moving_average(lease._group.service, took)
        provider.ended[outcome] += 1
        if provider.trial is lease or not (outcome is Outcome.OK and provider.health.steady):
            self._feed(provider, outcome, now, lease)
        if provider.retired and not provider.leases:
            self._retired.pop(provider.id, None)
        return self._offer(provider, now) if self._lanes else ()

    def occupy(self, provider_id: str, long: bool, now: float) -> CoreLease:
        """A lease in state `cancelling` for a run of an earlier session that is still stopping; capacity cannot
        forbid it. A provider that the pool does not know is counted as retired."""
        provider = self._providers.get(provider_id) or self._retired.get(provider_id)
        if provider is None:
            provider = Provider(ProviderSpec(provider_id), self._everywhere, self._spec.health)
            provider.retired = True
            self._retired[provider_id] = provider
        self._numbers += 1
        load = len(provider.leases)
        lease = CoreLease(
            self._numbers, provider_id, "", long, self._numbers, now, 0.0, load, LeaseState.CANCELLING,
            provider, None, None, 0, -1,
        )  # fmt: skip
        self._hold(provider, lease)
        return lease

    # --- what changes round it --------------------------------------------------------------------------------------

    def reconfigure(self, spec: PoolSpec, now: float) -> Decisions:
        """Put `spec` in force at once; no run ends, waiters are judged again (P9).

        Waiters keep their arrival and are never evicted by a lower `max_queue`; their class and their timeout (from
        when they began to wait) are those of the new generation. A provider that comes back while runs of its earlier
        life have not ended starts with those. The rotation goes on after the provider that was chosen last.
        """
        if spec == self._spec:
            return ()
        waiters = sorted((waiter for lane in self._lanes for waiter in lane.waiters()), key=lambda one: one.order)
        self._install(spec)
        decisions: list[Decision] = []
        for waiter in waiters:
            group = self._groups.get(waiter.group)
            if group is None:
                self._dismiss(waiter)
                decisions.append(Refused(RefusalKind.UNKNOWN_MODEL, waiter.group, waiter=waiter))
                continue
            waiter.long = waiter.input_tokens >= self._threshold
            prospects = group.roster.prospects(waiter.long, self._epoch)
            self._enter(waiter, group, prospects)
            if prospects.hopeless(waiter.exclude):
                decisions.append(self._refuse_hopeless(waiter))
        decisions += self._dispatch(now)
        return tuple(decisions)

    def set_connected(self, node: str, state: ConnectionState, now: float) -> Decisions:
        """A Node came, fell silent, or was lost; the latter is waited for `reconnect_grace_ms` (P5). A Node that the
        spec does not name is remembered for a later one."""
        known = self._nodes.get(node)
        if known is None:
            known = self._nodes[node] = Node(node)
        if known.state is state:
            return ()
        was_awaited = known.awaited
        known.state = state
        self._timers.clear(known)
        if state is ConnectionState.DISCONNECTED and self._spec.reconnect_grace_ms:
            self._timers.set(known, now + self._spec.reconnect_grace_ms / 1000)
        if known.awaited != was_awaited:
            self._epoch += 1
        for provider in known.providers:
            provider.refresh()
        return (*(() if known.awaited else self._refuse_all_hopeless()), *self._dispatch(now))

    def set_acknowledged(
        self,
        provider_id: str,
        acknowledged: bool,
        *,
        capacity_limit: int | None = None,
        long_limit: int | None = None,
        now: float,
    ) -> Decisions:
        """Whether the Node has confirmed this provider's settings (R14; the default is yes).

        While not, the smaller of the spec's capacity and `capacity_limit` counts (None: 0, nothing is proven yet), and
        likewise for the long slots with `long_limit` (None: no limit of its own). May be said before the `reconfigure`
        that brings the provider or its new capacity, so that nothing slips through between the two.
        """
        if acknowledged:
            self._limits.pop(provider_id, None)
        else:
            self._limits[provider_id] = Limits(capacity_limit or 0, long_limit)
        provider = self._providers.get(provider_id)
        if provider is None:
            return ()
        provider.limits = self._limits.get(provider_id)
        provider.refresh()
        return self._offer(provider, now)

    def set_health(self, provider_id: str, health: Health, now: float) -> Decisions:
        """What a probe found (P10, N7). `ejected` starts the backoff; `healthy` and `degraded` end an ejection;
        `unknown` is the state before anything was known. A provider that the pool does not know is ignored."""
        provider = self._providers.get(provider_id)
        if provider is None:
            return ()
        provider.health.probed(health, now, proof_needed=provider.spec.probe_required)
        self._health_changed(provider)
        return self._offer(provider, now)

    def report_outcome(self, provider_id: str, outcome: Outcome, now: float) -> Decisions:
        """An outcome without a release, e.g. `ok` at the first token, which is proof of life (P14)."""
        provider = self._providers.get(provider_id)
        if provider is None:
            return ()
        self._feed(provider, outcome, now, None)
        return self._offer(provider, now)

    # --- time -------------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> Decisions:
        """Let time pass: queue timeouts (P7), then ended graces (P5) and backoffs (P10). Early calls do nothing."""
        due = self._timers.take_due(now)
        if not due:
            return ()
        decisions: list[Decision] = []
        grace_ended = False
        for timed in due:
            if isinstance(timed, Waiter):
                self._leave(timed).queue_timeout += 1
                decisions.append(Refused(RefusalKind.QUEUE_TIMEOUT, timed.group, waiter=timed))
            elif isinstance(timed, Provider):
                timed.health.reopen(now)
                timed.refresh()
            else:
                grace_ended = True
        if grace_ended:
            self._epoch += 1
            decisions += self._refuse_all_hopeless()
        decisions += self._dispatch(now)
        return tuple(decisions)

    def next_deadline(self) -> float | None:
        """When `expire` has something to do; None: not by time alone."""
        return self._timers.next()

    # --- looking at it ----------------------------------------------------------------------------------------------

    def status(self, now: float) -> PoolStatus:
        """All counters (P11)."""
        leaked = len(self._leaked)
        return status(self._providers.values(), self._groups.values(), self._retired.values(), self._epoch, leaked, now)

    def explain(self, group: str, input_tokens: int = 0, *, exclude: Collection[str] = ()) -> Explanation:
        """What `submit` would do now, provider by provider (P15); changes nothing."""
        long = input_tokens >= self._threshold
        return explain(self._groups.get(group), group, long, frozenset(exclude), self._epoch)

    def mark_leaked(self, lease: CoreLease) -> None:
        """The owner lost this lease without releasing it; counted in `leaked_slots` until it is released (P8)."""
        if lease.state is not LeaseState.FREE:
            self._leaked.add(lease)

    def audit(self, live: Collection[CoreLease]) -> tuple[CoreLease, ...]:
        """Compare the leases with the runs that the owner knows to be live; the others are the leaked ones (P8),
        which it returns and `status().leaked_slots` counts. Nothing is freed."""
        owned = set(live)
        held = (lease for provider in self._all_providers() for lease in provider.leases)
        self._leaked = {lease for lease in held if lease not in owned}
        return tuple(sorted(self._leaked, key=lambda lease: lease.id))

    def check_invariants(self) -> None:
        """Raise AssertionError where the pool contradicts itself; for tests, O(everything)."""
        check(self._providers, self._retired, self._groups, self._lanes, self._leaked)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _grant(self, group: Group, tied: int, long: bool, arrival: int, now: float, waited: float) -> CoreLease:
        """Give the one of `tied` whose turn it is to `group`."""
        roster, last = group.roster, group.last
        group.last = position = next_in_turn(tied, last)
        provider = roster.members[position]
        load = len(provider.leases)
        # The place where one run too many would begin (P1, P9).
        assert load < provider.limit, (provider.id, load, provider.limit)
        self._numbers = number = self._numbers + 1
        lease = CoreLease(
            number, provider.id, group.id, long, arrival, now, waited, load, LeaseState.HELD,
            provider, group, roster, tied, last,
        )  # fmt: skip
        self._hold(provider, lease)
        group.granted += 1
        provider.granted += 1
        if provider.health.half_open:
            provider.trial = lease
            provider.refresh()
        return lease

    def _hold(self, provider: Provider, lease: CoreLease) -> None:
        provider.leases.add(lease)
        if lease.long:
            provider.long_leases.add(lease)
        if provider.fresh:
            provider.touch()

    def _grant_waiter(self, waiter: Waiter, tied: int, now: float) -> Granted:
        """Hand a slot to a waiter before it wakes, so that no newcomer can slip in (P4)."""
        group = self._leave(waiter)
        waited = max(0.0, now - waiter.queued_at)
        waiter.lease = self._grant(group, tied, waiter.long, waiter.arrival, now, waited)
        return Granted(waiter.lease, waiter)

    def _offer(self, provider: Provider, now: float) -> Decisions:
        """Give what is free at one provider to those who may have it, the first to arrive first (P4).

        Between calls no waiter could be served, so this provider is the only candidate of each that it can serve.
        """
        decisions: list[Decision] = []
        while self._lanes and len(provider.leases) < provider.limit:
            long_free = len(provider.long_leases) < provider.long_limit
            first: Waiter | None = None
            for lane in self._lanes_of(provider):
                if (lane.long and not long_free) or provider.id in lane.exclude:
                    continue
                waiter = lane.first()
                if first is None or waiter.order < first.order:
                    first = waiter
            if first is None:
                break
            assert first._group is not None
            bit = 1 << first._group.roster.position[provider.id]
            decisions.append(self._grant_waiter(first, bit, now))
        return tuple(decisions)

    def _lanes_of(self, provider: Provider) -> Iterable[Lane]:
        """The lanes that hold anyone whom this provider serves: by way of all lanes or of its rosters, the fewer."""
        if len(self._lanes) <= len(provider.rosters):
            return [lane for lane in self._lanes if provider.id in lane.roster.position]
        return [lane for roster in provider.rosters for lane in roster.lanes.values()]

    def _dispatch(self, now: float) -> list[Decision]:
        """After a change of several providers: the first to arrive of all lanes chooses by P2, and so on."""
        decisions: list[Decision] = []
        lanes = [(lane.first().order, lane) for lane in self._lanes]
        heapify(lanes)
        while lanes:
            lane = lanes[0][1]
            tied = lane.roster.index(lane.long).best(lane.without)
            if not tied:
                heappop(lanes)  # grants only take candidates away, so this lane need not be asked again
                continue
            decisions.append(self._grant_waiter(lane.first(), tied, now))
            if lane.live:
                heapreplace(lanes, (lane.first().order, lane))
            else:
                heappop(lanes)
        return decisions

    def _enter(self, waiter: Waiter, group: Group, prospects: Prospects) -> None:
        """Put a waiter in its lane, and set when it gives up (P7)."""
        lane = group.roster.lane(waiter.long, waiter.exclude)
        waiter._group, waiter._lane = group, lane
        lane.add(waiter)
        self._lanes.add(lane)
        group.waiters.add(waiter)
        timeout_ms = prospects.timeout_ms(waiter.exclude)
        ends = [] if timeout_ms is None else [waiter.queued_at + timeout_ms / 1000]
        if waiter.latest is not None:
            ends.append(waiter.latest)
        waiter.deadline = min(ends, default=None)
        if waiter.deadline is None:
            self._timers.clear(waiter)
        else:
            self._timers.set(waiter, waiter.deadline)

    def _leave(self, waiter: Waiter) -> Group:
        """Take a waiter out of its lane, whatever it leaves for; returns its group, to count that."""
        group, lane = waiter._group, waiter._lane
        assert group is not None
        assert lane is not None
        self._dismiss(waiter)
        lane.remove(waiter)
        group.waiters.remove(waiter)
        if not lane.live:
            self._lanes.remove(lane)
            del lane.roster.lanes[(lane.long, lane.exclude)]
        return group

    def _dismiss(self, waiter: Waiter) -> None:
        waiter.waiting = False
        self._timers.clear(waiter)

    def _refuse_hopeless(self, waiter: Waiter) -> Refused:
        group = self._leave(waiter)
        group.unavailable += 1
        prospects = group.roster.prospects(waiter.long, self._epoch)
        reasons = prospects.reasons(group.roster.members, waiter.exclude)
        return Refused(RefusalKind.UNAVAILABLE, group.id, reasons, waiter=waiter)

    def _refuse_all_hopeless(self) -> list[Decision]:
        """Refuse the waiters that nobody can serve any more, by arrival (P5)."""
        hopeless: list[Waiter] = []
        for lane in self._lanes:
            if lane.roster.prospects(lane.long, self._epoch).hopeless(lane.exclude):
                hopeless += lane.waiters()
        return [self._refuse_hopeless(waiter) for waiter in sorted(hopeless, key=lambda one: one.order)]

    def _feed(self, provider: Provider, outcome: Outcome, now: float, lease: CoreLease | None) -> None:
        """Let an outcome count for the provider's health (P14)."""
        trial = lease is not None and provider.trial is lease
        if trial:
            provider.trial = None
        provider.health.ended(outcome, now, trial=trial)
        self._health_changed(provider)

    def _health_changed(self, provider: Provider) -> None:
        health = provider.health
        if not health.ejected:
            provider.trial = None  # decided already, e.g. by its first token: it must not stand in a later one's way
        if health.ejected and not health.half_open and not provider.retired:
            self._timers.set(provider, health.reopens_at)
        else:
            self._timers.clear(provider)
        provider.refresh()

    def _install(self, spec: PoolSpec) -> None:
        """Build everything that follows from the spec anew; leases, health, totals and the rotation are carried over.

        Lanes are dropped: the caller has their waiters.
        """
        self._spec = spec
        self._threshold = spec.long_context_threshold_tokens
        self._epoch += 1
        self._lanes.clear()
        # A Node without providers that is simply not there is the same as one never heard of.
        self._nodes = {name: node for name, node in self._nodes.items() if node.providers or node.awaited}
        for node in (self._everywhere, *self._nodes.values()):
            node.providers = []
        before, self._providers = self._providers, {}
        ranks = {priority: rank for rank, priority in enumerate(sorted({one.priority for one in spec.providers}))}
        for one in spec.providers:
            node = self._everywhere if one.node is None else self._nodes.setdefault(one.node, Node(one.node))
            provider = before.pop(one.id, None) or self._revive(one, node)
            provider.adopt(one, node, spec, self._limits.get(one.id))
            provider.base = ranks[one.priority]
            provider.rosters, provider.fresh = [], []
            provider.refresh()
            node.providers.append(provider)
            self._providers[one.id] = provider
        for gone in before.values():
            self._retire(gone)
        rosters: dict[tuple[str, ...], Roster] = {}
        groups, self._groups = self._groups, {}
        for wanted in spec.groups:
            roster = rosters.get(wanted.providers)
            if roster is None:
                roster = rosters[wanted.providers] = Roster(tuple(self._providers[name] for name in wanted.providers))
                for provider in roster.members:
                    provider.rosters.append(roster)
            group = groups.get(wanted.id)
            if group is None:
                group = Group(wanted.id, roster)
            else:
                group.adopt(roster)
                group.waiters.clear()
            self._groups[wanted.id] = group

    def _revive(self, spec: ProviderSpec, node: Node) -> Provider:
        """A new provider; where an earlier one of this id still has runs, they are its load from the start (P9)."""
        provider = Provider(spec, node, self._spec.health)
        earlier = self._retired.pop(spec.id, None)
        if earlier is not None:
            provider.leases, provider.long_leases = earlier.leases, earlier.long_leases
            for lease in provider.leases:
                lease._provider = provider
        return provider

    def _retire(self, provider: Provider) -> None:
        """It is in no group any more; what still runs there goes on, and is counted until it ends (P9)."""
        provider.retired = True
        provider.rosters, provider.fresh = [], []
        provider.trial = None
        provider.refresh()
        self._timers.clear(provider)
        self._limits.pop(provider.id, None)
        if provider.leases:
            self._retired[provider.id] = provider

    def _all_providers(self) -> Iterable[Provider]:
        yield from self._providers.values()
        yield from self._retired.values()
