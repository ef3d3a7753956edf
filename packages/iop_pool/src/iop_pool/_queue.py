"""Waiters by arrival, passed over but never overtaken (P4)."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from iop_pool._groups import Group, Roster
    from iop_pool._slots import CoreLease

__all__ = ["Lane", "Waiter"]


@define(eq=False)
class Waiter:
    """A request that waits. For reading only; `PoolCore` changes it.

    Its place is its `arrival`; `deadline` None: no timeout (P7). `lease` is set once it was granted, and no longer
    `waiting` and without a lease it was refused or cancelled.
    """

    id: int
    group: str
    input_tokens: int
    exclude: frozenset[str]
    arrival: int
    queued_at: float
    latest: float | None
    long: bool
    waiting: bool = True
    lease: CoreLease | None = None
    deadline: float | None = None
    wake_at: float | None = field(default=None, repr=False)
    _group: Group | None = field(default=None, init=False, repr=False)
    _lane: Lane | None = field(default=None, init=False, repr=False)

    @property
    def order(self) -> tuple[int, int]:
        """By arrival; a retry that brings an old one comes before those who came later (E7)."""
        return (self.arrival, self.id)


class Lane:
    """The waiters that exactly the same providers could serve: same members, same class, same exclusions.

    Because they are alike, a freed slot need only look at each lane's first. A heap, not a plain line: a retry enters
    at its old place. Who left stays in the heap as a husk until it surfaces, or until husks are the majority.
    """

    __slots__ = ("_heap", "exclude", "live", "long", "roster", "without")

    def __init__(self, roster: Roster, long: bool, exclude: frozenset[str]) -> None:
        self.roster = roster
        self.long = long
        self.exclude = exclude
        self.without = roster.mask(exclude)
        self.live = 0
        self._heap: list[tuple[tuple[int, int], Waiter]] = []

    def add(self, waiter: Waiter) -> None:
        """Put it in at the place of its arrival."""
        heappush(self._heap, (waiter.order, waiter))
        self.live += 1

    def remove(self, waiter: Waiter) -> None:
        """It no longer waits; `waiter.waiting` is False already."""
        assert not waiter.waiting, waiter
        self.live -= 1
        if len(self._heap) > 2 * self.live + 32:
            self._heap = [entry for entry in self._heap if entry[1].waiting]
            heapify(self._heap)

    def first(self) -> Waiter:
        """The one that arrived first; the lane is not empty."""
        heap = self._heap
        while not heap[0][1].waiting:
            heappop(heap)
        return heap[0][1]

    def waiters(self) -> list[Waiter]:
        """All of them, by arrival."""
        return [waiter for _, waiter in sorted(self._heap) if waiter.waiting]
