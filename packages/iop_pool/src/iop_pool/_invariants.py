"""What must hold between any two calls of the core (reliability I1-I4); asked by tests, and by those who doubt."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from iop_pool._groups import Group
from iop_pool._outcomes import Health, LeaseState
from iop_pool._queue import Lane
from iop_pool._slots import CoreLease, Provider

__all__ = ["check"]


def check(
    providers: Mapping[str, Provider],
    retired: Mapping[str, Provider],
    groups: Mapping[str, Group],
    lanes: Collection[Lane],
    leaked: Collection[CoreLease],
) -> None:
    """Raise AssertionError at the first contradiction."""
    leases: set[CoreLease] = set()
    for provider in (*providers.values(), *retired.values()):
        _check_slots(provider)
        leases |= provider.leases
    for provider in retired.values():
        assert provider.leases, f"{provider.id}: retired and idle, yet kept"
        assert provider.id not in providers, f"{provider.id}: in use and retired"
    assert leases.issuperset(leaked), "a released lease counts as leaked"
    waiting = set()
    for lane in lanes:
        found = lane.waiters()
        assert found, "an empty lane was kept"
        assert len(found) == lane.live, f"a lane has {len(found)} waiters and counts {lane.live}"
        assert lane.roster.lanes[(lane.long, lane.exclude)] is lane, "a lane that its roster does not know"
        for waiter in found:
            assert waiter.lease is None, f"{waiter} waits and has a lease"
            assert waiter._lane is lane, f"{waiter} is in another lane than it says"
            assert waiter.wake_at == waiter.deadline, f"{waiter} gives up at another time than it says"
            servers = [one.id for one in lane.roster.members if one.id not in lane.exclude and one.admits(lane.long)]
            assert not servers, f"{waiter} waits though {servers} could serve it"
        waiting |= set(found)
    for group in groups.values():
        assert group.waiters <= waiting, f"{group.id}: counts waiters that are in no lane"
        waiting -= group.waiters
        _check_indexes(group)
    assert not waiting, f"in a lane, but of no group: {waiting}"


def _check_slots(provider: Provider) -> None:
    long = {lease for lease in provider.leases if lease.long}
    assert long == provider.long_leases, f"{provider.id}: long slots {provider.long_leases}, long leases {long}"
    for lease in provider.leases:
        assert lease.state is not LeaseState.FREE, f"{lease} is free and held"
        assert lease._provider is provider, f"{lease} belongs to another provider"
    assert provider.trial is None or provider.trial in provider.leases, f"{provider.id}: its trial run is over"
    assert provider.limit <= provider.spec.capacity, f"{provider.id}: admits {provider.limit}"


def _check_indexes(group: Group) -> None:
    """The index must say what a linear scan says; exactness comes before speed (P2)."""
    members = group.roster.members
    for long in (False, True):
        free = [one for one in members if one.admits(long)]
        best = min((_rank(one) for one in free), default=None)
        expected = tuple(one.id for one in free if _rank(one) == best)
        found = group.roster.names(group.roster.index(long).best())
        assert found == expected, f"{group.id}: the index says {found}, the scan {expected}"


def _rank(provider: Provider) -> tuple[bool, int, int]:
    return (provider.health.level is Health.DEGRADED, len(provider.leases), provider.spec.priority)
