"""Slots, who holds them, and the providers that they belong to: the one place that load is derived from (P8)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from attrs import define, field

from iop_pool._health import HealthState
from iop_pool._outcomes import ConnectionState, ContextClass, Health, LeaseState, Outcome, Reason
from iop_pool._spec import HealthPolicy, PoolSpec, ProviderSpec

if TYPE_CHECKING:
    from iop_pool._groups import Group, Roster
    from iop_pool._select import Seat

__all__ = ["CoreLease", "Limits", "Node", "Provider"]

UNCOUNTED = sys.maxsize
"""The limit of long slots where none are counted (C12)."""

# A sort key is tier, in_flight, rank of the priority, packed into one integer: comparing those is what P2 costs.
RANK_BITS = 24
DEGRADED_TIER = 1 << 80


@define(eq=False)
class CoreLease:
    """One owned slot: held, cancelling, then free (P8). For reading only; `PoolCore` changes it.

    `arrival` is the place in line of its request, to be given to a retry; `waited` the seconds in the queue; `load`
    what the provider had in flight when it was chosen.
    """

    id: int
    provider_id: str
    group_id: str
    long: bool
    arrival: int
    granted_at: float
    waited: float
    load: int
    state: LeaseState
    _provider: Provider = field(repr=False)
    _group: Group | None = field(repr=False)
    _roster: Roster | None = field(repr=False)
    _tied: int = field(repr=False)
    _last: int = field(repr=False)

    @property
    def context_class(self) -> ContextClass:
        """The class that it was granted under; a changed threshold does not change it (P3, P9)."""
        return ContextClass.LONG if self.long else ContextClass.NORMAL

    @property
    def tied(self) -> tuple[str, ...]:
        """The equally good candidates among which the rotation chose this one, in config order (P2, P15)."""
        # A mask is an immutable int, so keeping it is free; names are made only for those who ask.
        return self._roster.names(self._tied) if self._roster is not None else ()

    @property
    def after(self) -> str | None:
        """The provider that the group had chosen before (P2); None for its first choice."""
        return self._roster.members[self._last].id if self._roster is not None and self._last >= 0 else None

    def explain(self) -> str:
        """One line: who got the run, and why (P15)."""
        if self._roster is None:
            return f"{self.provider_id}: still stopping, from an earlier session"
        tied = self.tied
        why = f"{self.load} in flight, the best of its group"
        if len(tied) > 1:
            others = ", ".join(name for name in tied if name != self.provider_id)
            why = f"{self.load} in flight, as good as {others}; its turn after {self.after or 'the start'}"
        queued = f", waited {round(self.waited * 1000)} ms" if self.waited else ""
        return f"{self.provider_id} for {self.group_id} ({self.context_class}): {why}{queued}"


@define
class Limits:
    """What counts of a provider whose Node has not acknowledged it (R14)."""

    capacity: int
    long: int | None


class Node:
    """A machine that must be connected for its providers to be used. `wake_at`: the end of the grace (P5)."""

    __slots__ = ("name", "providers", "state", "wake_at")

    def __init__(self, name: str, state: ConnectionState = ConnectionState.DISCONNECTED) -> None:
        self.name = name
        self.state = state
        self.wake_at: float | None = None
        self.providers: list[Provider] = []

    @property
    def awaited(self) -> bool:
        """Whether it is there, or was lost so recently that waiting for it is worth while (P5)."""
        return self.state is not ConnectionState.DISCONNECTED or self.wake_at is not None


class Provider:
    """A provider at run time. Its load is the size of `leases`: there is no counter that could drift (P8).

    `limit` and `long_limit` are what it admits now, all rules considered; `base` is its sort key without the load.
    Whoever changes one of these, or the leases, calls `touch`. `wake_at`: when its backoff is over.
    """

    __slots__ = (
        "base",
        "ended",
        "fresh",
        "granted",
        "health",
        "id",
        "leases",
        "limit",
        "limits",
        "long_leases",
        "long_limit",
        "max_queue",
        "node",
        "queue_timeout_ms",
        "retired",
        "rosters",
        "service",
        "spec",
        "trial",
        "wake_at",
    )

    def __init__(self, spec: ProviderSpec, node: Node, policy: HealthPolicy) -> None:
        self.id = spec.id
        self.spec = spec
        self.node = node
        self.health = HealthState(policy, proof_needed=spec.probe_required)
        self.leases: set[CoreLease] = set()
        self.long_leases: set[CoreLease] = set()
        self.trial: CoreLease | None = None
        self.limits: Limits | None = None
        self.retired = False
        self.limit = self.long_limit = self.base = self.max_queue = 0
        self.queue_timeout_ms: int | None = None
        self.fresh: list[Seat] = []
        self.rosters: list[Roster] = []
        self.wake_at: float | None = None
        self.granted = 0
        self.ended = dict.fromkeys(Outcome, 0)
        self.service: float | None = None

    def adopt(self, spec: ProviderSpec, node: Node, pool: PoolSpec, limits: Limits | None) -> None:
        """Go on under another configuration; leases and health stay (P9)."""
        self.spec, self.node, self.limits = spec, node, limits
        self.max_queue = spec.max_queue(pool.default_max_queue)
        self.queue_timeout_ms = spec.queue_timeout_ms(pool.default_queue_timeout_ms)
        self.health.adopt(pool.health, proof_needed=spec.probe_required)

    @property
    def cancelling(self) -> int:
        """How many of its leases are being stopped."""
        return sum(lease.state is LeaseState.CANCELLING for lease in self.leases)

    @property
    def capacity(self) -> int:
        """The general slots that the configuration and its Node agree on (R14)."""
        capacity = self.spec.capacity
        return capacity if self.limits is None else min(capacity, self.limits.capacity)

    @property
    def long_capacity(self) -> int:
        """The long slots that the configuration and its Node agree on; UNCOUNTED where neither counts."""
        long = self.spec.long_context_capacity
        long = UNCOUNTED if long is None else long
        return long if self.limits is None or self.limits.long is None else min(long, self.limits.long)

    def refresh(self) -> None:
        """Work out anew what it admits and where it sorts, after a change of anything but the leases."""
        health = self.health
        usable = (
            self.spec.enabled
            and not self.retired
            and self.node.state is ConnectionState.CONNECTED
            and health.level is not Health.UNKNOWN
            and (not health.ejected or (health.half_open and self.trial is None))
        )
        self.limit = self.capacity if usable else 0
        self.long_limit = self.long_capacity
        rank = self.base & ((1 << RANK_BITS) - 1)
        self.base = rank | (DEGRADED_TIER if health.level is Health.DEGRADED else 0)
        self.touch()

    def touch(self) -> None:
        """Tell the indexes that were up to date about this provider that they no longer are.

        Each hears of it once, until it has looked again: so a change costs nothing for groups that are not asked.
        """
        for seat in self.fresh:
            seat.stale.append(seat)
        self.fresh.clear()

    def admits(self, long: bool) -> bool:
        """Whether it is a candidate now (P1)."""
        return len(self.leases) < self.limit and (not long or len(self.long_leases) < self.long_limit)

    def never(self, long: bool) -> Reason | None:
        """Why it could not serve even later, as things are (P5); None: it could."""
        if not self.spec.enabled:
            return Reason.DISABLED
        if not self.node.awaited:
            return Reason.DISCONNECTED
        if long and not self.spec.takes_long:
            return Reason.NO_LONG_RUNS
        return None

    def blocked(self, long: bool) -> Reason | None:
        """Why it is no candidate now (P1, P15); None: it is one."""
        never = self.never(long)
        if never is not None:
            return never
        if self.node.state is not ConnectionState.CONNECTED:
            return Reason.SUSPECT if self.node.state is ConnectionState.SUSPECT else Reason.RECONNECTING
        health = self.health
        if health.ejected and not (health.half_open and self.trial is None):
            return Reason.TRIAL_UNDER_WAY if health.half_open else Reason.EJECTED
        if health.level is Health.UNKNOWN:
            return Reason.UNPROVEN
        if len(self.leases) >= self.limit:
            return Reason.FULL if len(self.leases) >= self.spec.capacity else Reason.PENDING
        if long and len(self.long_leases) >= self.long_limit:
            own = self.spec.long_context_capacity
            return Reason.LONG_SLOTS_FULL if own is not None and len(self.long_leases) >= own else Reason.PENDING
        return None
