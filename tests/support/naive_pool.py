"""The pool as the rules say it and as slowly as one likes: lists that are scanned, for comparison with `PoolCore`."""

from __future__ import annotations

from attrs import define, evolve, field, frozen

from iop_pool import ConnectionState, Health, HealthPolicy, LeaseState, Outcome, PoolSpec, ProviderSpec, Reason

CONNECTED, DISCONNECTED = ConnectionState.CONNECTED, ConnectionState.DISCONNECTED


@define(eq=False)
class NaiveLease:
    """A slot that is taken; `arrival` is a plain count of requests."""

    provider: str
    group: str
    long: bool
    arrival: int
    granted_at: float
    state: LeaseState = LeaseState.HELD
    trial: bool = False


@define(eq=False)
class NaiveWaiter:
    """One that waits; `deadline` is that of the generation in force, `inf` for none."""

    number: int
    arrival: int
    group: str
    tokens: int
    exclude: frozenset[str]
    queued_at: float
    latest: float | None
    deadline: float = float("inf")


@frozen
class Answer:
    """What became of a request: `granted` to a provider, `queued`, or the kind of the refusal."""

    verdict: str
    who: object = None
    provider: str | None = None
    reasons: tuple[tuple[str, Reason], ...] = ()


@define
class NaiveHealth:
    """The breaker of one provider, told as its story (P10, P14)."""

    policy: HealthPolicy
    level: Health
    failures: int = 0
    reopens_at: float | None = None
    half_open: bool = False
    spell: int = 0
    well_since: float | None = None
    ejections: int = 0

    @property
    def ejected(self) -> bool:
        return self.reopens_at is not None

    def eject(self, now: float) -> None:
        policy = self.policy
        long_well = self.well_since is not None and now - self.well_since >= policy.backoff_max_ms / 1000
        if not self.ejected and long_well:
            self.spell = 0
        self.reopens_at = now + min(policy.backoff_max_ms, policy.backoff_ms * 2**self.spell) / 1000
        self.spell += 1
        self.ejections += 1
        self.half_open, self.failures = False, 0

    def close(self, now: float) -> None:
        if self.ejected:
            self.well_since = now
        self.failures, self.reopens_at, self.half_open = 0, None, False

    def prove(self, now: float) -> None:
        self.close(now)
        if self.level is Health.UNKNOWN:
            self.level = Health.HEALTHY

    def ended(self, outcome: Outcome, now: float, trial: bool) -> None:
        if outcome is Outcome.BROKEN and not self.ejected:
            self.failures += 1
            if self.failures == self.policy.eject_after or self.failures > self.policy.eject_after:
                self.eject(now)
        elif outcome is Outcome.BROKEN:
            if trial:
                self.eject(now)
        elif outcome is Outcome.OK or (trial and outcome in (Outcome.CLIENT_ERROR, Outcome.BUSY)):
            self.prove(now)
        elif outcome is Outcome.CLIENT_ERROR and not self.ejected:
            self.failures = 0


@define
class NaiveNode:
    state: ConnectionState = DISCONNECTED
    grace_ends: float | None = None


@define
class NaivePool:
    """All operations of `PoolCore`; each returns the answers that it caused: refusals first, then grants in order."""

    spec: PoolSpec
    nodes: dict[str, NaiveNode] = field(factory=dict)
    health: dict[str, NaiveHealth] = field(factory=dict)
    limits: dict[str, tuple[int, int | None]] = field(factory=dict)
    leases: list[NaiveLease] = field(factory=list)
    waiters: list[NaiveWaiter] = field(factory=list)
    last: dict[str, str] = field(factory=dict)
    count: int = 0
    granted: dict[str, int] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._adopt(self.spec)

    # --- questions --------------------------------------------------------------------------------------------------

    def provider(self, name: str) -> ProviderSpec | None:
        return next((one for one in self.spec.providers if one.id == name), None)

    def members(self, group: str) -> list[ProviderSpec]:
        (names,) = [one.providers for one in self.spec.groups if one.id == group]
        return [one for name in names for one in self.spec.providers if one.id == name]

    def has_group(self, group: str) -> bool:
        return any(one.id == group for one in self.spec.groups)

    def is_long(self, tokens: int) -> bool:
        return tokens >= self.spec.long_context_threshold_tokens

    def load(self, name: str) -> int:
        return sum(lease.provider == name for lease in self.leases)

    def long_load(self, name: str) -> int:
        return sum(lease.provider == name and lease.long for lease in self.leases)

    def node(self, one: ProviderSpec) -> NaiveNode:
        return NaiveNode(CONNECTED) if one.node is None else self.nodes.get(one.node, NaiveNode())

    def trial(self, name: str) -> bool:
        return any(lease.trial for lease in self.leases if lease.provider == name)

    def capacity(self, one: ProviderSpec) -> int:
        return min(one.capacity, self.limits[one.id][0]) if one.id in self.limits else one.capacity

    def usable(self, one: ProviderSpec) -> bool:
        health = self.health[one.id]
        if not one.enabled or self.node(one).state is not CONNECTED or health.level is Health.UNKNOWN:
            return False
        return not health.ejected or (health.half_open and not self.trial(one.id))

    def is_candidate(self, one: ProviderSpec, long: bool) -> bool:
        if not self.usable(one) or self.load(one.id) >= self.capacity(one):
            return False
        bounds = [one.long_context_capacity, self.limits[one.id][1] if one.id in self.limits else None]
        return not long or all(bound is None or self.long_load(one.id) < bound for bound in bounds)

    def never(self, one: ProviderSpec, long: bool, exclude: frozenset[str]) -> Reason | None:
        node = self.node(one)
        if one.id in exclude:
            return Reason.EXCLUDED
        if not one.enabled:
            return Reason.DISABLED
        if node.state is DISCONNECTED and node.grace_ends is None:
            return Reason.DISCONNECTED
        return Reason.NO_LONG_RUNS if long and one.long_context_capacity == 0 else None

    def able(self, group: str, long: bool, exclude: frozenset[str]) -> list[ProviderSpec]:
        return [one for one in self.members(group) if self.never(one, long, exclude) is None]

    def candidates(self, group: str, long: bool, exclude: frozenset[str]) -> list[ProviderSpec]:
        return [one for one in self.members(group) if one.id not in exclude and self.is_candidate(one, long)]

    def choice(self, group: str, long: bool, exclude: frozenset[str]) -> ProviderSpec | None:
        """P2 in its own words: the best rank, then the next in config order after the one chosen last."""
        candidates = self.candidates(group, long, exclude)
        if not candidates:
            return None
        best = min(self._rank(one) for one in candidates)
        tied = [one.id for one in candidates if self._rank(one) == best]
        order = [one.id for one in self.members(group)]
        if group in self.last:
            cut = order.index(self.last[group]) + 1
            order = order[cut:] + order[:cut]
        return self.provider(next(name for name in order if name in tied))

    def _rank(self, one: ProviderSpec) -> tuple[bool, int, int]:
        return (self.health[one.id].level is Health.DEGRADED, self.load(one.id), one.priority)

    def bound(self, group: str, long: bool, exclude: frozenset[str]) -> int:
        total = 0
        for one in self.able(group, long, exclude):
            own, adapter = one.queue.max_queue, one.adapter_queue.max_queue
            total += own if own is not None else adapter if adapter is not None else self.spec.default_max_queue
        return total

    def patience(self, group: str, long: bool, exclude: frozenset[str]) -> float:
        """Seconds, `inf` for no timeout (P7)."""
        longest = 0.0
        for one in self.able(group, long, exclude):
            policies = (one.queue, one.adapter_queue)
            said = [policy.queue_timeout_ms for policy in policies if policy.queue_timeout_ms is not None]
            if said:
                milliseconds = said[0]
            elif any(policy.max_queue is not None for policy in policies):
                milliseconds = 0
            else:
                milliseconds = self.spec.default_queue_timeout_ms
            longest = max(longest, milliseconds / 1000 if milliseconds else float("inf"))
        return longest

    def judge_patience(self, waiter: NaiveWaiter) -> None:
        """Set when it gives up: judged as it enters and by each new generation, not when a Node comes or goes."""
        ends = waiter.queued_at + self.patience(waiter.group, self.is_long(waiter.tokens), waiter.exclude)
        waiter.deadline = ends if waiter.latest is None else min(ends, waiter.latest)

    def next_deadline(self) -> float | None:
        times = [waiter.deadline for waiter in self.waiters]
        times += [node.grace_ends for node in self.nodes.values() if node.grace_ends is not None]
        times += [h.reopens_at for h in self.health.values() if h.reopens_at is not None and not h.half_open]
        return min((time for time in times if time != float("inf")), default=None)

    # --- operations -------------------------------------------------------------------------------------------------

    def submit(
        self, group: str, tokens: int, exclude: frozenset[str], arrival: int | None, latest: float | None, now: float
    ) -> Answer:
        if not self.has_group(group):
            return Answer("unknown_model")
        long = self.is_long(tokens)
        self.count += 1
        arrival = self.count if arrival is None else arrival
        chosen = self.choice(group, long, exclude)
        if chosen is not None:
            return self._grant(group, long, arrival, chosen, now)
        if not self.able(group, long, exclude):
            return Answer("unavailable", reasons=self._reasons(group, long, exclude))
        if sum(waiter.group == group for waiter in self.waiters) >= self.bound(group, long, exclude):
            return Answer("queue_full")
        if latest is not None and latest <= now:
            return Answer("queue_timeout")
        waiter = NaiveWaiter(self.count, arrival, group, tokens, exclude, now, latest)
        self.judge_patience(waiter)
        self.waiters.append(waiter)
        return Answer("queued", waiter)

    def _grant(self, group: str, long: bool, arrival: int, one: ProviderSpec, now: float) -> Answer:
        lease = NaiveLease(one.id, group, long, arrival, now, trial=self.health[one.id].half_open)
        self.leases.append(lease)
        self.last[group] = one.id
        self.granted[one.id] = self.granted.get(one.id, 0) + 1
        return Answer("granted", lease, one.id)

    def _reasons(self, group: str, long: bool, exclude: frozenset[str]) -> tuple[tuple[str, Reason], ...]:
        found = ((one.id, self.never(one, long, exclude)) for one in self.members(group))
        return tuple((name, reason) for name, reason in found if reason is not None)

    def cancel(self, waiter: NaiveWaiter) -> None:
        self.waiters = [one for one in self.waiters if one is not waiter]

    def release(self, lease: NaiveLease, outcome: Outcome, now: float) -> list[Answer]:
        if lease not in self.leases:
            return []
        self.leases.remove(lease)
        lease.state = LeaseState.FREE
        if lease.provider in self.health:
            self._ended(lease.provider, outcome, now, trial=lease.trial)
        return self.settle(now)

    def _ended(self, name: str, outcome: Outcome, now: float, trial: bool) -> None:
        health = self.health[name]
        health.ended(outcome, now, trial=trial and health.half_open)
        self._end_trials(name)

    def _end_trials(self, name: str) -> None:
        """A run is a trial only while its provider is half-open."""
        if not self.health[name].ejected:
            for lease in self.leases:
                if lease.provider == name:
                    lease.trial = False

    def occupy(self, name: str, long: bool, now: float) -> NaiveLease:
        self.leases.append(NaiveLease(name, "", long, 0, now, LeaseState.CANCELLING))
        return self.leases[-1]

    def reconfigure(self, spec: PoolSpec, now: float) -> list[Answer]:
        self._adopt(spec)
        answers = []
        for waiter in list(self.waiters):
            if not self.has_group(waiter.group):
                self.cancel(waiter)
                answers.append(Answer("unknown_model", waiter))
            else:
                self.judge_patience(waiter)
        return answers + self.settle(now)

    def _adopt(self, spec: PoolSpec) -> None:
        self.spec = spec
        health, self.health = self.health, {}
        for one in spec.providers:
            found = health.get(one.id)
            if found is None:
                found = NaiveHealth(spec.health, Health.UNKNOWN if one.probe_required else Health.HEALTHY)
                self.granted[one.id] = 0
            elif found.level is Health.UNKNOWN and not one.probe_required:
                found.level = Health.HEALTHY
            found.policy = spec.health
            self.health[one.id] = found
        for name in health.keys() - self.health.keys():
            self.limits.pop(name, None)
            for lease in self.leases:
                if lease.provider == name:
                    lease.trial = False
        known = {group.id: group.providers for group in spec.groups}
        self.last = {group: name for group, name in self.last.items() if name in known.get(group, ())}

    def set_connected(self, name: str, state: ConnectionState, now: float) -> list[Answer]:
        node = self.nodes.setdefault(name, NaiveNode())
        if node.state is state:
            return []
        node.state = state
        lost = state is DISCONNECTED and self.spec.reconnect_grace_ms > 0
        node.grace_ends = now + self.spec.reconnect_grace_ms / 1000 if lost else None
        return self.settle(now)

    def set_acknowledged(
        self, name: str, acknowledged: bool, capacity: int | None, long: int | None, now: float
    ) -> list[Answer]:
        self.limits.pop(name, None)
        if not acknowledged:
            self.limits[name] = (capacity or 0, long)
        return self.settle(now)

    def set_health(self, name: str, level: Health, now: float) -> list[Answer]:
        one = self.provider(name)
        if one is None:
            return []
        health = self.health[name]
        if level is Health.EJECTED:
            if not health.ejected or health.half_open:
                health.eject(now)
        else:
            health.close(now)
            health.level = Health.HEALTHY if level is Health.UNKNOWN and not one.probe_required else level
        self._end_trials(name)
        return self.settle(now)

    def report_outcome(self, name: str, outcome: Outcome, now: float) -> list[Answer]:
        if name in self.health:
            self._ended(name, outcome, now, trial=False)
        return self.settle(now)

    def expire(self, now: float) -> list[Answer]:
        answers = []
        for waiter in list(self.waiters):
            if waiter.deadline <= now:
                self.cancel(waiter)
                answers.append(Answer("queue_timeout", waiter))
        for node in self.nodes.values():
            if node.grace_ends is not None and node.grace_ends <= now:
                node.grace_ends = None
        for health in self.health.values():
            if health.reopens_at is not None and health.reopens_at <= now:
                health.half_open = True
        return answers + self.settle(now)

    def settle(self, now: float) -> list[Answer]:
        """Refuse whom nobody can ever serve, then let the first to arrive of the others choose (P4, P5)."""
        answers = []
        for waiter in sorted(self.waiters, key=lambda one: (one.arrival, one.number)):
            long = self.is_long(waiter.tokens)
            if not self.able(waiter.group, long, waiter.exclude):
                self.cancel(waiter)
                reasons = self._reasons(waiter.group, long, waiter.exclude)
                answers.append(Answer("unavailable", waiter, reasons=reasons))
        # A grant takes candidates away and brings none, so one pass in order of arrival is the whole story.
        for waiter in sorted(self.waiters, key=lambda one: (one.arrival, one.number)):
            long = self.is_long(waiter.tokens)
            chosen = self.choice(waiter.group, long, waiter.exclude)
            if chosen is not None:
                self.cancel(waiter)
                answer = self._grant(waiter.group, long, waiter.arrival, chosen, now)
                answers.append(evolve(answer, who=(waiter, answer.who)))
        return answers
