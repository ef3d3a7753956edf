"""What time alone will change: one heap of due times, whose entries may die unnoticed."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Protocol

__all__ = ["Timed", "Timers"]


class Timed(Protocol):
    """Something that wants to be woken; `wake_at` is written by `Timers` alone, and an entry that differs is dead."""

    wake_at: float | None


class Timers:
    """At most one due time per object; setting, clearing and taking cost O(log n), amortised."""

    __slots__ = ("_heap", "_live", "_made")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timed]] = []
        self._live = 0
        self._made = 0

    def set(self, timed: Timed, at: float) -> None:
        """Wake `timed` at `at`, and no longer when it was to be woken before."""
        if timed.wake_at == at:
            return
        self.clear(timed)
        timed.wake_at = at
        self._live += 1
        self._made += 1
        heappush(self._heap, (at, self._made, timed))

    def clear(self, timed: Timed) -> None:
        """Do not wake it."""
        if timed.wake_at is None:
            return
        timed.wake_at = None
        self._live -= 1
        # Most waiters are served long before their deadline; without this their entries would pile up until then.
        if len(self._heap) > 2 * self._live + 32:
            self._heap = [entry for entry in self._heap if entry[2].wake_at == entry[0]]
            heapify(self._heap)

    def next(self) -> float | None:
        """The earliest due time."""
        heap = self._heap
        while heap and heap[0][2].wake_at != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def take_due(self, now: float) -> list[Timed]:
        """Those that are due, earliest first; they are no longer set."""
        due: list[Timed] = []
        while (at := self.next()) is not None and at <= now:
            timed = heappop(self._heap)[2]
            timed.wake_at = None
            self._live -= 1
            due.append(timed)
        return due
