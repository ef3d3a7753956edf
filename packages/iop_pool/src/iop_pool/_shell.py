"""Pool and Lease: the async face of the core, on asyncio and trio; the only importer of anyio."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager

from iop_pool._core import PoolCore
from iop_pool._outcomes import ConnectionState, ContextClass, Health, LeaseState, Outcome
from iop_pool._spec import PoolSpec
from iop_pool._status import Explanation, PoolStatus

__all__ = ["Lease", "Pool"]


class Lease:
    """A slot that the caller holds. `release` and `begin_cancel` are synchronous and may be called twice (P8)."""

    provider: str
    group: str
    long: bool
    context_class: ContextClass
    queue_ms: int
    arrival: int
    state: LeaseState

    def begin_cancel(self) -> None:
        """The run is being stopped; the slot counts until `release` (P8)."""
        raise NotImplementedError

    def release(self, outcome: Outcome = Outcome.OK) -> None:
        """Return the slot; the next waiter has it before this returns."""
        raise NotImplementedError

    def explain(self) -> str:
        """One line: why this provider (P15)."""
        raise NotImplementedError


class Pool:
    """The pool for async programs: no background task, no lock; one event loop (P12).

    `clock` gives seconds (default `time.monotonic`); with a virtual clock pass the loop's, e.g. `anyio.current_time`.
    `broken_on`: exceptions that, leaving an `acquire` block, count as the provider's failure (P14).
    """

    core: PoolCore

    def __init__(
        self,
        spec: PoolSpec,
        *,
        clock: Callable[[], float] | None = None,
        broken_on: tuple[type[Exception], ...] = (ConnectionError, TimeoutError),
    ) -> None: ...

    def acquire(
        self,
        model: str,
        *,
        input_tokens: int = 0,
        exclude: Collection[str] = (),
        arrival: int | None = None,
        deadline: float | None = None,
    ) -> AbstractAsyncContextManager[Lease]:
        """`async with pool.acquire(model) as lease:` a slot for the block, released at its end.

        Raises QueueFull, QueueTimeout, Unavailable or UnknownModel.
        """
        raise NotImplementedError

    async def acquire_lease(
        self,
        model: str,
        *,
        input_tokens: int = 0,
        exclude: Collection[str] = (),
        arrival: int | None = None,
        deadline: float | None = None,
    ) -> Lease:
        """The same without a block: the caller must `release` the lease, whenever and wherever the run ends."""
        raise NotImplementedError

    def occupy(self, provider_id: str, *, long: bool = False) -> Lease:
        """See `PoolCore.occupy`."""
        raise NotImplementedError

    def reconfigure(self, spec: PoolSpec) -> None:
        """See `PoolCore.reconfigure`."""
        raise NotImplementedError

    def set_connected(self, node: str, state: ConnectionState) -> None:
        """See `PoolCore.set_connected`."""
        raise NotImplementedError

    def set_acknowledged(
        self,
        provider_id: str,
        acknowledged: bool,
        *,
        capacity_limit: int | None = None,
        long_limit: int | None = None,
    ) -> None:
        """See `PoolCore.set_acknowledged`."""
        raise NotImplementedError

    def set_health(self, provider_id: str, health: Health) -> None:
        """See `PoolCore.set_health`."""
        raise NotImplementedError

    def report_outcome(self, provider_id: str, outcome: Outcome) -> None:
        """See `PoolCore.report_outcome`."""
        raise NotImplementedError

    def status(self) -> PoolStatus:
        """See `PoolCore.status`."""
        raise NotImplementedError

    def explain(self, model: str, input_tokens: int = 0, *, exclude: Collection[str] = ()) -> Explanation:
        """See `PoolCore.explain`."""
        raise NotImplementedError

    def audit(self, live: Collection[Lease]) -> tuple[Lease, ...]:
        """See `PoolCore.audit`; leases that waiters have not picked up yet count as live."""
        raise NotImplementedError
