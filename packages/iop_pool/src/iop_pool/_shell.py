"""Pool and Lease: the async face of the core, on asyncio and trio; the only importer of anyio."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from types import TracebackType

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from iop_pool._core import PoolCore
from iop_pool._outcomes import (
    ConnectionState,
    ContextClass,
    Decision,
    Decisions,
    Granted,
    Health,
    LeaseState,
    Outcome,
    Queued,
    Refused,
    Request,
    error_from,
)
from iop_pool._queue import Waiter
from iop_pool._slots import CoreLease
from iop_pool._spec import PoolSpec
from iop_pool._status import Explanation, PoolStatus

__all__ = ["Lease", "Pool"]


class Lease:
    """A slot that the caller holds. `release` and `begin_cancel` are synchronous and may be called twice (P8).

    `outcome`: set it inside an `acquire` block to say how the run ended; else the block says it (see `Pool.acquire`).
    A lease that is forgotten without a release keeps its slot and counts in `status().leaked_slots`.
    """

    __slots__ = ("_pool", "core_lease", "outcome")

    def __init__(self, pool: Pool, core_lease: CoreLease) -> None:
        self._pool = pool
        self.core_lease = core_lease
        self.outcome: Outcome | None = None

    @property
    def provider(self) -> str:
        """The id of the provider that runs it."""
        return self.core_lease.provider_id

    @property
    def group(self) -> str:
        """The model that was asked for; empty for an occupied slot."""
        return self.core_lease.group_id

    @property
    def long(self) -> bool:
        """Whether it holds a long slot too (P3)."""
        return self.core_lease.long

    @property
    def context_class(self) -> ContextClass:
        """`normal` or `long`, as it was when granted (P3)."""
        return self.core_lease.context_class

    @property
    def queue_ms(self) -> int:
        """How long the request waited."""
        return round(self.core_lease.waited * 1000)

    @property
    def arrival(self) -> int:
        """The place in line; give it to the `acquire` of a retry (E7)."""
        return self.core_lease.arrival

    @property
    def tied(self) -> tuple[str, ...]:
        """The equally good candidates that the rotation chose from (P2)."""
        return self.core_lease.tied

    @property
    def state(self) -> LeaseState:
        """`held`, `cancelling` or `free` (P8)."""
        return self.core_lease.state

    def begin_cancel(self) -> None:
        """The run is being stopped; the slot counts until `release` (P8)."""
        self._pool._begin_cancel(self.core_lease)

    def release(self, outcome: Outcome = Outcome.OK) -> None:
        """Return the slot; the next waiter has it before this returns. Only the first call counts."""
        self._pool._release(self.core_lease, outcome)

    def explain(self) -> str:
        """One line: who got the run, and why (P15)."""
        return self.core_lease.explain()

    def __repr__(self) -> str:
        return f"<Lease {self.core_lease.id} of {self.provider} for {self.group or '(occupied)'}, {self.state}>"

    def __del__(self) -> None:
        core_lease = self.core_lease
        if core_lease.state is not LeaseState.FREE:
            # Counted, not repaired: only the end of the run may free the slot (P8).
            self._pool.core.mark_leaked(core_lease)
            warnings.warn(f"a lease of {core_lease.provider_id!r} was never released", ResourceWarning, stacklevel=2)


class Pool:
    """The pool for async programs: no background task, no lock; one event loop, not thread-safe (P12).

    `clock` gives seconds (default `time.monotonic`); with a virtual clock pass the loop's, e.g. `anyio.current_time`.
    `broken_on`: exceptions that, leaving an `acquire` block, count as the provider's failure (P14).

    Time is kept by whoever waits: one of the waiting tasks sleeps until the core's next deadline and hands that duty
    on when it leaves. So nothing polls, and a pool that nobody waits for needs no timer at all.
    """

    def __init__(
        self,
        spec: PoolSpec,
        *,
        clock: Callable[[], float] = time.monotonic,
        broken_on: tuple[type[Exception], ...] = (ConnectionError, TimeoutError),
    ) -> None:
        self.core = PoolCore(spec)
        self._clock = clock
        self._broken_on = broken_on
        self._waits: dict[Waiter, _Wait] = {}
        self._unclaimed: set[CoreLease] = set()
        self._keeper: _Wait | None = None
        self._armed: float | None = None

    # --- runs -------------------------------------------------------------------------------------------------------

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

        Raises QueueFull, QueueTimeout, Unavailable or UnknownModel. The outcome is `lease.outcome` if the block set
        it; else `ok` after a normal end, `broken` after one of the `broken_on` exceptions, and `cancelled`, which says
        nothing about the provider, after any other.
        """
        return _Acquisition(self, Request(model, input_tokens, frozenset(exclude), arrival, deadline))

    async def acquire_lease(
        self,
        model: str,
        *,
        input_tokens: int = 0,
        exclude: Collection[str] = (),
        arrival: int | None = None,
        deadline: float | None = None,
    ) -> Lease:
        """The same without a block: the caller must `release` the lease, whenever and wherever the run ends.

        Cancelled at any instant it leaves no slot behind (P8). `deadline` is on the pool's clock.
        """
        return await self._acquire(Request(model, input_tokens, frozenset(exclude), arrival, deadline))

    def occupy(self, provider_id: str, *, long: bool = False) -> Lease:
        """See `PoolCore.occupy`."""
        return Lease(self, self.core.occupy(provider_id, long, self._clock()))

    # --- what changes round it --------------------------------------------------------------------------------------

    def reconfigure(self, spec: PoolSpec) -> None:
        """See `PoolCore.reconfigure`; waiters that it serves or refuses wake up."""
        self._deliver(self.core.reconfigure(spec, self._clock()))

    def set_connected(self, node: str, state: ConnectionState) -> None:
        """See `PoolCore.set_connected`."""
        self._deliver(self.core.set_connected(node, state, self._clock()))

    def set_acknowledged(
        self,
        provider_id: str,
        acknowledged: bool,
        *,
        capacity_limit: int | None = None,
        long_limit: int | None = None,
    ) -> None:
        """See `PoolCore.set_acknowledged`."""
        now = self._clock()
        self._deliver(
            self.core.set_acknowledged(
                provider_id, acknowledged, capacity_limit=capacity_limit, long_limit=long_limit, now=now
            )
        )

    def set_health(self, provider_id: str, health: Health) -> None:
        """See `PoolCore.set_health`."""
        self._deliver(self.core.set_health(provider_id, health, self._clock()))

    def report_outcome(self, provider_id: str, outcome: Outcome) -> None:
        """See `PoolCore.report_outcome`."""
        self._deliver(self.core.report_outcome(provider_id, outcome, self._clock()))

    # --- looking at it ----------------------------------------------------------------------------------------------

    def status(self) -> PoolStatus:
        """See `PoolCore.status`."""
        now = self._clock()
        self._expire(now)
        return self.core.status(now)

    def explain(self, model: str, input_tokens: int = 0, *, exclude: Collection[str] = ()) -> Explanation:
        """See `PoolCore.explain`."""
        self._expire(self._clock())
        return self.core.explain(model, input_tokens, exclude=exclude)

    def audit(self, live: Collection[Lease]) -> tuple[CoreLease, ...]:
        """See `PoolCore.audit`; leases that waiters have not picked up yet count as live."""
        return self.core.audit({lease.core_lease for lease in live} | self._unclaimed)

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _acquire(self, request: Request) -> Lease:
        await checkpoint_if_cancelled()
        now = self._clock()
        self._expire(now)
        answer = self.core.submit(request, now)
        if isinstance(answer, Granted):
            return Lease(self, answer.lease)
        if isinstance(answer, Refused):
            raise error_from(answer)
        return await self._wait(answer)

    async def _wait(self, queued: Queued) -> Lease:
        waiter = queued.waiter
        wait = self._waits[waiter] = _Wait()
        self._nudge()
        try:
            while wait.decision is None:
                if self._keeper is None:
                    self._keeper = wait
                if self._keeper is wait:
                    await self._keep_time(wait)
                else:
                    await wait.event.wait()
                wait.event = anyio.Event()
        except BaseException:
            # A cancel that met a grant gives the slot on; the core knows which of the two it was (P8).
            self._waits.pop(waiter, None)
            if waiter.lease is not None:
                self._unclaimed.discard(waiter.lease)
            self._deliver(self.core.cancel(waiter, self._clock()))
            raise
        finally:
            if self._keeper is wait:
                self._appoint_keeper()
        if isinstance(wait.decision, Refused):
            raise error_from(wait.decision)
        self._unclaimed.discard(wait.decision.lease)
        return Lease(self, wait.decision.lease)

    async def _keep_time(self, wait: _Wait) -> None:
        """Wait like the others, but no longer than to the core's next deadline, and then let it expire."""
        self._armed = at = self.core.next_deadline()
        if at is None:
            await wait.event.wait()
            return
        with anyio.move_on_after(max(0.0, at - self._clock())):
            await wait.event.wait()
        self._expire(self._clock())

    def _appoint_keeper(self) -> None:
        """Hand the duty to the newest waiter: it will be there for longest, so the duty moves least often."""
        self._keeper = None
        if self._waits:
            # popitem, not next(reversed(…)): that would step over every removed entry each time.
            waiter, wait = self._waits.popitem()
            self._waits[waiter] = self._keeper = wait
            wait.event.set()

    def _nudge(self) -> None:
        """Wake the keeper when it would sleep too long."""
        if self._keeper is not None:
            at = self.core.next_deadline()
            if at is not None and (self._armed is None or at < self._armed):
                self._keeper.event.set()

    def _expire(self, now: float) -> None:
        at = self.core.next_deadline()
        if at is not None and at <= now:
            self._deliver(self.core.expire(now))

    def _deliver(self, decisions: Decisions) -> None:
        """Wake those whom a call has decided about; their slots are theirs already."""
        for decision in decisions:
            wait = self._waits.pop(decision.waiter, None) if decision.waiter is not None else None
            if wait is not None:
                wait.decision = decision
                wait.event.set()
                if isinstance(decision, Granted):
                    self._unclaimed.add(decision.lease)
        self._nudge()

    def _begin_cancel(self, core_lease: CoreLease) -> None:
        self.core.begin_cancel(core_lease, self._clock())

    def _release(self, core_lease: CoreLease, outcome: Outcome) -> None:
        self._deliver(self.core.release(core_lease, outcome, self._clock()))

    def _outcome_of(self, lease: Lease, error: BaseException | None) -> Outcome:
        if lease.outcome is not None:
            return lease.outcome
        if error is None:
            return Outcome.OK
        if isinstance(error, BaseExceptionGroup):
            return Outcome.BROKEN if error.subgroup(self._broken_on) is not None else Outcome.CANCELLED
        return Outcome.BROKEN if isinstance(error, self._broken_on) else Outcome.CANCELLED


class _Wait:
    """One task that waits: what it sleeps on, and the decision that was made for it meanwhile."""

    __slots__ = ("decision", "event")

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.decision: Decision | None = None


class _Acquisition(AbstractAsyncContextManager[Lease]):
    """The block form of `acquire`. A class, as a generator would cost twice as much per run."""

    __slots__ = ("_lease", "_pool", "_request")

    def __init__(self, pool: Pool, request: Request) -> None:
        self._pool = pool
        self._request = request
        self._lease: Lease | None = None

    async def __aenter__(self) -> Lease:
        self._lease = lease = await self._pool._acquire(self._request)
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease, self._lease = self._lease, None
        assert lease is not None
        lease.release(self._pool._outcome_of(lease, error))
