"""Waiters by arrival, passed over but never overtaken (P4)."""

from __future__ import annotations

from attrs import define

__all__ = ["Waiter"]


@define(eq=False)
class Waiter:
    """A request that waits. Its place is its `arrival`; `deadline` None: no timeout. For reading only."""

    group: str
    input_tokens: int
    exclude: frozenset[str]
    arrival: int
    queued_at: float
    deadline: float | None
    long: bool
