"""Slots and who holds them: the one place that load is derived from (P8)."""

from __future__ import annotations

from attrs import define

from iop_pool._outcomes import LeaseState

__all__ = ["CoreLease"]


@define(eq=False)
class CoreLease:
    """One owned slot: held, cancelling, then free. For reading only; `PoolCore` changes it."""

    id: int
    provider_id: str
    group_id: str
    long: bool
    arrival: int
    granted_at: float
    waited: float
    state: LeaseState
