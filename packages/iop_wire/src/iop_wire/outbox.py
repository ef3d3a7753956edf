"""What waits to be sent on one stream: whole frames by priority, and a fair turn for each run (wire §1.2.3)."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from enum import IntEnum
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Lane(IntEnum):
    """The order in which whole frames leave; runs' own data goes between CREDIT and LAST."""

    HEARTBEAT = 0
    CONTROL = 1
    CREDIT = 2
    LAST = 3
    """Goodbye: when nothing else is left."""


class Lanes(Generic[T]):
    """Frames that are sent whole, by priority and within one priority in order."""

    __slots__ = ("_credit", "_urgent", "last")

    def __init__(self) -> None:
        # Of two heartbeats that wait only the newer says anything.
        self._urgent: tuple[deque[T], deque[T]] = (deque(maxlen=1), deque())
        self._credit: deque[T] = deque()
        self.last: deque[T] = deque()

    def put(self, lane: Lane, frame: T) -> None:
        """Queue a frame."""
        if lane is Lane.CREDIT:
            self._credit.append(frame)
        elif lane is Lane.LAST:
            self.last.append(frame)
        else:
            self._urgent[lane].append(frame)

    def pop_urgent(self) -> T | None:
        """Return the next heartbeat or control frame."""
        for queue in self._urgent:
            if queue:
                return queue.popleft()
        return None

    def pop_credit(self) -> T | None:
        """Return the next credit frame."""
        return self._credit.popleft() if self._credit else None

    def pop_last(self) -> T | None:
        """Return the frame that ends the stream."""
        return self.last.popleft() if self.last else None

    def clear(self) -> None:
        """Forget everything."""
        for queue in (*self._urgent, self._credit, self.last):
            queue.clear()


class Turns(Generic[K, T]):
    """Runs that have something to send, each with its own queue; `current` moves on round-robin."""

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: OrderedDict[K, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, key: K) -> bool:
        return key in self._queues

    def add(self, key: K, queue: T) -> None:
        """Give the run a turn at the end of the line; one that already waits keeps its place."""
        self._queues.setdefault(key, queue)

    def remove(self, key: K) -> T | None:
        """Take the run out of the line."""
        return self._queues.pop(key, None)

    def first(self) -> tuple[K, T] | None:
        """Return the run whose turn it is."""
        for item in self._queues.items():
            return item
        return None

    def rotate(self, key: K) -> None:
        """Move the run to the end of the line after its turn."""
        self._queues.move_to_end(key)

    def clear(self) -> None:
        """Forget everything."""
        self._queues.clear()
