"""The order among free candidates (P2), kept as an index that is brought up to date when it is asked (P13)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from iop_pool._slots import RANK_BITS, Provider

__all__ = ["Index", "Seat", "next_in_turn"]

_NOWHERE = -1


class Seat:
    """The place of one provider in one index: its bit, and the bucket that it was last put into."""

    __slots__ = ("bit", "key", "provider", "stale")

    def __init__(self, provider: Provider, position: int, stale: list[Seat]) -> None:
        self.provider = provider
        self.bit = 1 << position
        self.key = _NOWHERE
        self.stale = stale


class Index:
    """The free candidates among `members` for one context class, in buckets of equally good ones.

    A bucket is a bit mask over the config order, so "the next in turn" is exact and is found by shifting, without a
    look at its members. A heap, or buckets in order of arrival, would be as fast and break the rotation.

    An index is lazy: `Provider.touch` puts a seat on the stale list, `best` first moves the stale ones. A provider of
    fifty groups costs only the groups that are asked, and a slot that was taken and returned in between costs nothing.
    """

    __slots__ = ("_buckets", "_keys", "_long", "_stale")

    def __init__(self, members: Sequence[Provider], long: bool) -> None:
        self._long = long
        self._buckets: dict[int, int] = {}
        self._keys: list[int] = []
        self._stale: list[Seat] = []
        self._stale += [Seat(provider, position, self._stale) for position, provider in enumerate(members)]

    def best(self, without: int = 0) -> int:
        """The equally good best candidates as a mask, those of the mask `without` left out; 0: nobody is free."""
        if self._stale:
            self._catch_up()
        for key in self._keys:
            found = self._buckets[key] & ~without if without else self._buckets[key]
            if found:
                return found
        return 0

    def _catch_up(self) -> None:
        buckets, keys, long = self._buckets, self._keys, self._long
        for seat in self._stale:
            provider = seat.provider
            load = len(provider.leases)
            if load < provider.limit and (not long or len(provider.long_leases) < provider.long_limit):
                key = provider.base + (load << RANK_BITS)
            else:
                key = _NOWHERE
            before = seat.key
            if key != before:
                if before != _NOWHERE:
                    left = buckets[before] ^ seat.bit
                    if left:
                        buckets[before] = left
                    else:
                        del buckets[before], keys[bisect_left(keys, before)]
                if key != _NOWHERE:
                    there = buckets.get(key, 0)
                    if not there:
                        insort(keys, key)
                    buckets[key] = there | seat.bit
                seat.key = key
            provider.fresh.append(seat)
        self._stale.clear()


def next_in_turn(mask: int, last: int) -> int:
    """The position in `mask` that comes next after `last` in config order, round the end (P2); `mask` is not 0."""
    ahead = mask >> (last + 1)
    if ahead:
        return last + (ahead & -ahead).bit_length()
    return (mask & -mask).bit_length() - 1
