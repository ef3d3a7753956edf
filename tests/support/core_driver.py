"""A `PoolCore` with its own time, for tests that read as stories; it doubts the pool after every call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import evolve

from iop_pool import (
    Considered,
    CoreLease,
    Decisions,
    Explanation,
    Granted,
    GroupSpec,
    GroupStatus,
    Outcome,
    PoolCore,
    PoolSpec,
    ProviderSpec,
    ProviderStatus,
    Queued,
    Reason,
    Refused,
    Request,
    Waiter,
)

LONG = 1000
"""Tokens of a long request; the threshold of the driver's pools is just that."""


class CoreDriver:
    """`served` and `refused` hold what became of waiters, in the order in which it was decided."""

    def __init__(self, spec: PoolSpec) -> None:
        self.core = PoolCore(spec)
        self.now = 0.0
        self.served: list[Waiter] = []
        self.refused: list[Refused] = []

    def take(self, decisions: Decisions) -> list[Waiter]:
        """Note what a call decided; those who were granted by it."""
        granted = []
        for decision in decisions:
            assert decision.waiter is not None
            if isinstance(decision, Granted):
                granted.append(decision.waiter)
            else:
                self.refused.append(decision)
        self.served += granted
        self.core.check_invariants()
        return granted

    def ask(
        self,
        group: str = "m",
        *,
        long: bool = False,
        tokens: int | None = None,
        exclude: Iterable[str] = (),
        arrival: int | None = None,
        deadline: float | None = None,
    ) -> Granted | Queued | Refused:
        """Submit a request, whatever comes of it."""
        tokens = (LONG if long else 0) if tokens is None else tokens
        answer = self.core.submit(Request(group, tokens, frozenset(exclude), arrival, deadline), self.now)
        self.core.check_invariants()
        return answer

    def get(
        self, group: str = "m", *, long: bool = False, exclude: Iterable[str] = (), arrival: int | None = None
    ) -> CoreLease:
        """A lease at once."""
        answer = self.ask(group, long=long, exclude=exclude, arrival=arrival)
        assert isinstance(answer, Granted), answer
        return answer.lease

    def fill(self, count: int, group: str = "m", *, long: bool = False) -> list[CoreLease]:
        """So many leases at once."""
        return [self.get(group, long=long) for _ in range(count)]

    def line_up(
        self,
        group: str = "m",
        *,
        long: bool = False,
        tokens: int | None = None,
        exclude: Iterable[str] = (),
        arrival: int | None = None,
        deadline: float | None = None,
    ) -> Waiter:
        """A waiter, as nothing is free."""
        answer = self.ask(group, long=long, tokens=tokens, exclude=exclude, arrival=arrival, deadline=deadline)
        assert isinstance(answer, Queued), answer
        return answer.waiter

    def no(self, group: str = "m", *, long: bool = False, exclude: Iterable[str] = ()) -> Refused:
        """A refusal at once."""
        answer = self.ask(group, long=long, exclude=exclude)
        assert isinstance(answer, Refused), answer
        return answer

    def end(self, lease: CoreLease, outcome: Outcome = Outcome.OK) -> list[Waiter]:
        """The run is over."""
        return self.take(self.core.release(lease, outcome, self.now))

    def tick(self, seconds: float) -> list[Waiter]:
        """Time passes."""
        self.now += seconds
        return self.take(self.core.expire(self.now))

    def change(self, *providers: ProviderSpec, groups: Mapping[str, str] | None = None, **pool: object) -> list[Waiter]:
        """Put a spec in force that differs in these providers (by id), these groups, or these numbers."""
        spec = self.core.spec
        new = {one.id: one for one in providers}
        kept = tuple(new.pop(one.id, one) for one in spec.providers)
        if groups is not None:
            pool["groups"] = line_ups(groups)
        return self.take(self.core.reconfigure(evolve(spec, providers=(*kept, *new.values()), **pool), self.now))

    def spec_of(self, name: str, **changes: object) -> ProviderSpec:
        """The provider's spec in force, with changes."""
        (found,) = [one for one in self.core.spec.providers if one.id == name]
        return evolve(found, **changes)

    def of(self, name: str) -> ProviderStatus:
        """The status of one provider."""
        (found,) = [one for one in self.core.status(self.now).providers if one.id == name]
        return found

    def of_group(self, name: str = "m") -> GroupStatus:
        """The status of one group."""
        (found,) = [one for one in self.core.status(self.now).groups if one.id == name]
        return found

    def explain(self, group: str = "m", *, long: bool = False, exclude: Iterable[str] = ()) -> Explanation:
        """What the pool would do with such a request."""
        return self.core.explain(group, LONG if long else 0, exclude=frozenset(exclude))

    def reasons(self, group: str = "m", *, long: bool = False, exclude: Iterable[str] = ()) -> dict[str, Reason]:
        """Why each provider was chosen or passed over."""
        considered: tuple[Considered, ...] = self.explain(group, long=long, exclude=exclude).considered
        return {one.provider: one.reason for one in considered}


def line_ups(groups: Mapping[str, str]) -> tuple[GroupSpec, ...]:
    """`{"m": "a b"}` as specs."""
    return tuple(GroupSpec(group, tuple(names.split())) for group, names in groups.items())


def pool(*providers: ProviderSpec, groups: Mapping[str, str] | None = None, **pool: object) -> CoreDriver:
    """A driven pool; without `groups`, all providers serve the group `m`."""
    groups = {"m": " ".join(one.id for one in providers)} if groups is None else groups
    pool.setdefault("long_context_threshold_tokens", LONG)
    return CoreDriver(PoolSpec(providers, line_ups(groups), **pool))  # type: ignore[arg-type]
