"""Counters to look at (P11) and the explanation of a decision (P15); plain frozen values."""

from __future__ import annotations

from enum import StrEnum

from attrs import frozen

from iop_pool._outcomes import ContextClass, Reason

__all__ = [
    "Availability",
    "Considered",
    "Explanation",
    "GroupStatus",
    "GroupTotals",
    "PoolStatus",
    "ProviderStatus",
    "ProviderTotals",
    "RetiredStatus",
]


class Availability(StrEnum):
    """The `status` of a provider (P11)."""

    AVAILABLE = "available"
    DISABLED = "disabled"
    DISCONNECTED = "disconnected"
    UNAVAILABLE = "unavailable"
    PENDING = "pending"


@frozen
class ProviderTotals:
    """What happened at a provider since it came into the pool: slots granted, runs ended by outcome, ejections."""

    granted: int = 0
    ok: int = 0
    client_error: int = 0
    busy: int = 0
    broken: int = 0
    cancelled: int = 0
    ejections: int = 0


@frozen
class GroupTotals:
    """What happened to the requests of a group since it came into the pool.

    `queued` counts those that had to wait, whatever became of them; `cancelled` those that left while they waited.
    """

    granted: int = 0
    queued: int = 0
    queue_full: int = 0
    queue_timeout: int = 0
    unavailable: int = 0
    cancelled: int = 0


@frozen
class ProviderStatus:
    """One provider. `capacity` is the desired one (0 when disabled); `admits` what counts now (R14: the smaller one
    while its Node has not acknowledged; 0 when it takes no new run). `blocked` and `blocked_long` say why it is no
    candidate for a normal and a long run, None when it is one. `queue_length`: waiters that it could serve.
    """

    id: str
    node: str | None
    status: Availability
    health: str
    half_open: bool
    capacity: int
    admits: int
    in_flight: int
    cancelling: int
    long_context_capacity: int | None
    long_in_flight: int
    priority: int
    queue_length: int
    oldest_wait_ms: int
    blocked: Reason | None
    blocked_long: Reason | None
    consecutive_failures: int
    service_ms: int | None
    totals: ProviderTotals


@frozen
class GroupStatus:
    """One group: who waits, how many may, and whom a normal and a long run would get now (None: nobody)."""

    id: str
    providers: tuple[str, ...]
    queue_length: int
    queue_bound: int
    oldest_wait_ms: int
    in_flight: int
    next_normal: str | None
    next_long: str | None
    totals: GroupTotals


@frozen
class RetiredStatus:
    """A provider that the configuration no longer has, whose last runs have not ended (P9)."""

    id: str
    in_flight: int
    cancelling: int


@frozen
class PoolStatus:
    """The whole pool at one instant (P11); `leaked_slots` must stay 0 (P8)."""

    providers: tuple[ProviderStatus, ...]
    groups: tuple[GroupStatus, ...]
    retired: tuple[RetiredStatus, ...]
    leases: int
    waiting: int
    leaked_slots: int


@frozen
class Considered:
    """One provider of the group as the decision saw it."""

    provider: str
    reason: Reason
    in_flight: int
    capacity: int
    long_in_flight: int
    long_context_capacity: int | None
    priority: int
    health: str


@frozen
class Explanation:
    """What the pool would do with a request now, and why (P15).

    `verdict`: `granted`, `queued`, or the kind of the refusal. `tied`: the candidates among which the rotation chose;
    `after`: the provider that this group chose last. `queue_timeout_ms` None: no timeout.
    """

    group: str
    context_class: ContextClass
    verdict: str
    winner: str | None
    tied: tuple[str, ...]
    after: str | None
    considered: tuple[Considered, ...]
    queue_length: int
    queue_bound: int
    queue_timeout_ms: int | None
    retry_after_ms: int | None

    def __str__(self) -> str:
        """Several lines for a terminal: the verdict, then a line per provider."""
        head = f"{self.group} ({self.context_class}): {self.verdict}"
        lines = [f"{head} to {self.winner}" if self.winner else head]
        for seen in self.considered:
            load = f"{seen.in_flight}/{seen.capacity}"
            if seen.long_context_capacity is not None:
                load += f", long {seen.long_in_flight}/{seen.long_context_capacity}"
            lines.append(f"  {seen.provider} [{load}, priority {seen.priority}, {seen.health}]: {seen.reason.words}")
        if self.winner is None and self.verdict in ("queued", "queue_full"):
            patience = "no timeout" if self.queue_timeout_ms is None else f"for at most {self.queue_timeout_ms} ms"
            lines.append(f"  queue {self.queue_length} of {self.queue_bound}, {patience}")
        return "\n".join(lines)
