"""Groups, and the line-up of providers that several groups may share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from math import ceil

from iop_pool._outcomes import ProviderReason, Reason
from iop_pool._queue import Lane, Waiter
from iop_pool._select import Index
from iop_pool._slots import Provider
from iop_pool._status import GroupTotals

__all__ = ["Group", "Prospects", "Roster", "moving_average"]

_SERVICE_UNSEEN = 1.0  # seconds that a run is taken to last while none has ended yet
_SERVICE_WEIGHT = 0.2  # of the newest run in the moving average
_RETRY_MS_MIN, _RETRY_MS_MAX = 100, 120_000


class Prospects:
    """What a line-up can promise to a request of one class, now or later (P5-P7); kept until that may have changed.

    `able`: the providers that could ever serve it. `timeouts` counts them by timeout, so that leaving out those that a
    request excludes does not need a look at all the others.
    """

    __slots__ = ("_able", "_bound", "_capacity", "_never", "_timeouts", "epoch")

    def __init__(self, members: Sequence[Provider], long: bool, epoch: int) -> None:
        self.epoch = epoch
        self._able: dict[str, Provider] = {}
        self._never: dict[str, Reason] = {}
        for provider in members:
            never = provider.never(long)
            if never is None:
                self._able[provider.id] = provider
            else:
                self._never[provider.id] = never
        able = self._able.values()
        self._bound = sum(provider.max_queue for provider in able)
        self._capacity = sum(provider.spec.capacity for provider in able)
        self._timeouts = Counter(provider.queue_timeout_ms for provider in able)

    def hopeless(self, exclude: Collection[str]) -> bool:
        """Whether none could ever serve (P5)."""
        return not self._able or (bool(exclude) and len(self._able) == len(self._left_out(exclude)))

    def reasons(self, members: Sequence[Provider], exclude: Collection[str]) -> tuple[ProviderReason, ...]:
        """Why each of those that never could, could not."""
        return tuple(
            ProviderReason(provider.id, Reason.EXCLUDED if provider.id in exclude else self._never[provider.id])
            for provider in members
            if provider.id in exclude or provider.id in self._never
        )

    def bound(self, exclude: Collection[str]) -> int:
        """How many may wait (P6)."""
        return self._bound - sum(provider.max_queue for provider in self._left_out(exclude))

    def capacity(self, exclude: Collection[str]) -> int:
        """How many could run at once."""
        return self._capacity - sum(provider.spec.capacity for provider in self._left_out(exclude))

    def timeout_ms(self, exclude: Collection[str]) -> int | None:
        """How long one may wait: the longest of the providers' timeouts; None, which is the longest, is none (P7)."""
        timeouts = self._timeouts
        if exclude:
            timeouts = timeouts - Counter(provider.queue_timeout_ms for provider in self._left_out(exclude))
        known = [timeout for timeout in timeouts if timeout is not None]
        return max(known) if len(known) == len(timeouts) and known else None

    def _left_out(self, exclude: Collection[str]) -> list[Provider]:
        return [self._able[name] for name in exclude if name in self._able] if exclude else []


class Roster:
    """The providers of a group in config order, with what is the same for every group that lists just these."""

    __slots__ = ("_indexes", "_prospects", "lanes", "members", "position")

    def __init__(self, members: tuple[Provider, ...]) -> None:
        self.members = members
        self.position = {provider.id: position for position, provider in enumerate(members)}
        self.lanes: dict[tuple[bool, frozenset[str]], Lane] = {}
        # By class: [normal, long]. Built when first needed: most groups never see a long request.
        self._indexes: list[Index | None] = [None, None]
        self._prospects: list[Prospects | None] = [None, None]

    def index(self, long: bool) -> Index:
        """The free candidates for one class."""
        index = self._indexes[long]
        if index is None:
            index = self._indexes[long] = Index(self.members, long)
        return index

    def prospects(self, long: bool, epoch: int) -> Prospects:
        """What can be promised; `epoch` rises when a promise may have changed."""
        prospects = self._prospects[long]
        if prospects is None or prospects.epoch != epoch:
            prospects = self._prospects[long] = Prospects(self.members, long, epoch)
        return prospects

    def lane(self, long: bool, exclude: frozenset[str]) -> Lane:
        """The lane for such a waiter, made where there is none."""
        # Excluding what is not here changes nothing, and must not make a lane of its own.
        here = frozenset(name for name in exclude if name in self.position) if exclude else exclude
        lane = self.lanes.get((long, here))
        if lane is None:
            lane = self.lanes[(long, here)] = Lane(self, long, here)
        return lane

    def mask(self, names: Collection[str]) -> int:
        """Those of `names` that are members, as a mask over the config order."""
        mask = 0
        for name in names:
            position = self.position.get(name)
            if position is not None:
                mask |= 1 << position
        return mask

    def names(self, mask: int) -> tuple[str, ...]:
        """The members of a mask, in config order."""
        names = []
        while mask:
            low = mask & -mask
            names.append(self.members[low.bit_length() - 1].id)
            mask ^= low
        return tuple(names)


class Group:
    """What callers ask for. `last` is the position of the provider that it chose last (P2), -1 before the first."""

    __slots__ = (
        "cancelled",
        "granted",
        "id",
        "last",
        "queue_full",
        "queue_timeout",
        "queued",
        "roster",
        "service",
        "unavailable",
        "waiters",
    )

    def __init__(self, identity: str, roster: Roster) -> None:
        self.id = identity
        self.roster = roster
        self.last = -1
        self.waiters: set[Waiter] = set()
        self.service: float | None = None
        self.granted = self.queued = self.cancelled = 0
        self.queue_full = self.queue_timeout = self.unavailable = 0

    def adopt(self, roster: Roster) -> None:
        """Go on with another line-up; the rotation goes on after the same provider where that is still there (P2)."""
        chosen = self.roster.members[self.last].id if self.last >= 0 else None
        self.last = roster.position.get(chosen, -1) if chosen is not None else -1
        self.roster = roster

    def retry_ms(self, prospects: Prospects, exclude: Collection[str]) -> int:
        """When the queue as it is would have been served, from the durations seen; an estimate, within bounds (P6)."""
        service = _SERVICE_UNSEEN if self.service is None else self.service
        rounds = (len(self.waiters) + 1) / max(1, prospects.capacity(exclude))
        return min(_RETRY_MS_MAX, max(_RETRY_MS_MIN, ceil(1000 * service * rounds)))

    @property
    def totals(self) -> GroupTotals:
        """The counters as a value."""
        return GroupTotals(
            granted=self.granted,
            queued=self.queued,
            queue_full=self.queue_full,
            queue_timeout=self.queue_timeout,
            unavailable=self.unavailable,
            cancelled=self.cancelled,
        )


def moving_average(before: float | None, newest: float) -> float:
    """The average of durations so far with `newest` in it; it forgets the old ones by and by."""
    return newest if before is None else before + _SERVICE_WEIGHT * (newest - before)
