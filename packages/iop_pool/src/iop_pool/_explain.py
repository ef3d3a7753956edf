"""From the living pool to values that can be looked at: the status (P11) and the explanation of a choice (P15)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from iop_pool._groups import Group, Roster
from iop_pool._outcomes import ConnectionState, ContextClass, Health, Outcome, Reason, RefusalKind
from iop_pool._select import next_in_turn
from iop_pool._slots import Provider
from iop_pool._status import (
    Availability,
    Considered,
    Explanation,
    GroupStatus,
    PoolStatus,
    ProviderStatus,
    ProviderTotals,
    RetiredStatus,
)

__all__ = ["explain", "status"]


class _Line(NamedTuple):
    """How many wait, and since when the one that waits longest does."""

    length: int
    since: float | None

    def __add__(self, other: object) -> _Line:
        assert isinstance(other, _Line)
        known = [since for since in (self.since, other.since) if since is not None]
        return _Line(self.length + other.length, min(known, default=None))

    def oldest_ms(self, now: float) -> int:
        return 0 if self.since is None else max(0, round((now - self.since) * 1000))


_NOBODY = _Line(0, None)


def status(
    providers: Collection[Provider],
    groups: Collection[Group],
    retired: Iterable[Provider],
    epoch: int,
    leaked: int,
    now: float,
) -> PoolStatus:
    """All counters (P11). Costs O(providers + waiters + leases), so it is for those who look, not for the request."""
    lines = _lines_by_provider({id(group.roster): group.roster for group in groups}.values())
    in_flight = dict.fromkeys((group.id for group in groups), 0)
    gone = tuple(RetiredStatus(one.id, len(one.leases), one.cancelling) for one in retired)
    leases = sum(one.in_flight for one in gone)
    for provider in providers:
        leases += len(provider.leases)
        for lease in provider.leases:
            if lease.group_id in in_flight:
                in_flight[lease.group_id] += 1
    return PoolStatus(
        providers=tuple(_provider_status(one, lines.get(one.id, _NOBODY), now) for one in providers),
        groups=tuple(_group_status(one, in_flight[one.id], epoch, now) for one in groups),
        retired=gone,
        leases=leases,
        waiting=sum(len(group.waiters) for group in groups),
        leaked_slots=leaked,
    )


def _lines_by_provider(rosters: Iterable[Roster]) -> dict[str, _Line]:
    """For each provider, the waiters that it could serve, now or later."""
    lines: dict[str, _Line] = {}
    for roster in rosters:
        for lane in roster.lanes.values():
            line = _Line(lane.live, min(waiter.queued_at for waiter in lane.waiters()))
            for provider in roster.members:
                if provider.id not in lane.exclude and provider.never(lane.long) is None:
                    lines[provider.id] = lines.get(provider.id, _NOBODY) + line
    return lines


def _provider_status(provider: Provider, line: _Line, now: float) -> ProviderStatus:
    spec, health = provider.spec, provider.health
    return ProviderStatus(
        id=provider.id,
        node=spec.node,
        status=_availability(provider),
        health=str(health.shown) if spec.enabled else "disabled",
        half_open=health.half_open,
        capacity=spec.capacity if spec.enabled else 0,
        admits=provider.limit,
        in_flight=len(provider.leases),
        cancelling=provider.cancelling,
        long_context_capacity=spec.long_context_capacity if spec.enabled else 0,
        long_in_flight=len(provider.long_leases),
        priority=spec.priority,
        queue_length=line.length,
        oldest_wait_ms=line.oldest_ms(now),
        blocked=provider.blocked(False),
        blocked_long=provider.blocked(True),
        consecutive_failures=health.failures,
        service_ms=None if provider.service is None else round(provider.service * 1000),
        totals=ProviderTotals(
            granted=provider.granted,
            ok=provider.ended[Outcome.OK],
            client_error=provider.ended[Outcome.CLIENT_ERROR],
            busy=provider.ended[Outcome.BUSY],
            broken=provider.ended[Outcome.BROKEN],
            cancelled=provider.ended[Outcome.CANCELLED],
            ejections=health.ejections,
        ),
    )


def _availability(provider: Provider) -> Availability:
    """The most telling word first: what the operator did, then the Node, then the configuration, then health (P11)."""
    if not provider.spec.enabled:
        return Availability.DISABLED
    if provider.node.state is ConnectionState.DISCONNECTED:
        return Availability.DISCONNECTED
    if provider.node.state is ConnectionState.SUSPECT:
        return Availability.UNAVAILABLE
    if provider.limits is not None:
        return Availability.PENDING
    if provider.health.shown in (Health.EJECTED, Health.UNKNOWN):
        return Availability.UNAVAILABLE
    return Availability.AVAILABLE


def _group_status(group: Group, in_flight: int, epoch: int, now: float) -> GroupStatus:
    line = _Line(len(group.waiters), min((waiter.queued_at for waiter in group.waiters), default=None))
    return GroupStatus(
        id=group.id,
        providers=tuple(provider.id for provider in group.roster.members),
        queue_length=line.length,
        queue_bound=group.roster.prospects(False, epoch).bound(()),
        oldest_wait_ms=line.oldest_ms(now),
        in_flight=in_flight,
        next_normal=_next(group, group.roster.index(False).best()),
        next_long=_next(group, group.roster.index(True).best()),
        totals=group.totals,
    )


def _next(group: Group, tied: int) -> str | None:
    return group.roster.members[next_in_turn(tied, group.last)].id if tied else None


def explain(group: Group | None, name: str, long: bool, exclude: frozenset[str], epoch: int) -> Explanation:
    """What `submit` would do, by the same index and the same questions that it asks (P15)."""
    context_class = ContextClass.LONG if long else ContextClass.NORMAL
    if group is None:
        return Explanation(name, context_class, RefusalKind.UNKNOWN_MODEL, None, (), None, (), 0, 0, None, None)
    roster = group.roster
    tied = roster.index(long).best(roster.mask(exclude))
    winner = roster.members[next_in_turn(tied, group.last)] if tied else None
    names = roster.names(tied)
    prospects = roster.prospects(long, epoch)
    bound = prospects.bound(exclude)
    if winner is not None:
        verdict = "granted"
    elif prospects.hopeless(exclude):
        verdict = RefusalKind.UNAVAILABLE.value
    else:
        verdict = "queued" if len(group.waiters) < bound else RefusalKind.QUEUE_FULL.value
    return Explanation(
        group=group.id,
        context_class=context_class,
        verdict=verdict,
        winner=winner.id if winner is not None else None,
        tied=names,
        after=roster.members[group.last].id if group.last >= 0 else None,
        considered=tuple(_considered(one, _reason(one, winner, names, long, exclude)) for one in roster.members),
        queue_length=len(group.waiters),
        queue_bound=bound,
        queue_timeout_ms=prospects.timeout_ms(exclude),
        retry_after_ms=group.retry_ms(prospects, exclude) if verdict == RefusalKind.QUEUE_FULL else None,
    )


def _reason(
    provider: Provider, winner: Provider | None, tied: Collection[str], long: bool, exclude: frozenset[str]
) -> Reason:
    if provider.id in exclude:
        return Reason.EXCLUDED
    blocked = provider.blocked(long)
    if blocked is not None:
        return blocked
    assert winner is not None, f"{provider.id} is a candidate, yet nobody was chosen"
    if provider is winner:
        return Reason.CHOSEN
    if provider.id in tied:
        return Reason.NOT_ITS_TURN
    if provider.health.level is Health.DEGRADED and winner.health.level is not Health.DEGRADED:
        return Reason.DEGRADED
    return Reason.BUSIER if len(provider.leases) > len(winner.leases) else Reason.LOWER_PRIORITY


def _considered(provider: Provider, reason: Reason) -> Considered:
    spec = provider.spec
    return Considered(
        provider=provider.id,
        reason=reason,
        in_flight=len(provider.leases),
        capacity=provider.capacity,
        long_in_flight=len(provider.long_leases),
        long_context_capacity=spec.long_context_capacity,
        priority=spec.priority,
        health=str(provider.health.shown) if spec.enabled else "disabled",
    )
