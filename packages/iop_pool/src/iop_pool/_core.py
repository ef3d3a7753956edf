"""PoolCore: the decisions of the pool as plain method calls; no clock, task, lock or await (P12)."""

from __future__ import annotations

from collections.abc import Collection

from iop_pool._outcomes import ConnectionState, Decisions, Granted, Health, Outcome, Queued, Refused, Request
from iop_pool._queue import Waiter
from iop_pool._slots import CoreLease
from iop_pool._spec import PoolSpec
from iop_pool._status import Explanation, PoolStatus

__all__ = ["PoolCore"]


class PoolCore:
    """Who runs where and who waits (P1-P11).

    `now` is seconds on any clock that does not go back; all calls use the same one. Time passes only by `expire(now)`:
    call it when `next_deadline()` has come. Every call that can change who is served returns the decisions that it
    caused for waiters, as values; the caller delivers them. Providers of a `node` are disconnected until
    `set_connected` says otherwise, and until then not waited for (P5). Not thread-safe.
    """

    def __init__(self, spec: PoolSpec) -> None: ...

    @property
    def spec(self) -> PoolSpec:
        """The generation in force."""
        raise NotImplementedError

    def submit(self, request: Request, now: float) -> Granted | Queued | Refused:
        """Grant the best candidate (P2), else queue (P4), else refuse (P5, P6)."""
        raise NotImplementedError

    def cancel(self, waiter: Waiter, now: float) -> Decisions:
        """Forget `waiter`; a slot it was already granted goes to the next in line (P8). Harmless when repeated."""
        raise NotImplementedError

    def begin_cancel(self, lease: CoreLease, now: float) -> None:
        """The run is being stopped: the slot is `cancelling` and counts until `release` (P8). Repeating is harmless."""
        raise NotImplementedError

    def release(self, lease: CoreLease, outcome: Outcome, now: float) -> Decisions:
        """Return the slot, feed health (P14), hand on to the next waiter. A second release does and counts nothing."""
        raise NotImplementedError

    def occupy(self, provider_id: str, long: bool, now: float) -> CoreLease:
        """A lease in state `cancelling` for a run of an earlier session that is still stopping; capacity cannot
        forbid it. A provider that the pool does not know is counted as retired."""
        raise NotImplementedError

    def reconfigure(self, spec: PoolSpec, now: float) -> Decisions:
        """Put `spec` in force at once; no run ends, waiters are judged again (P9)."""
        raise NotImplementedError

    def set_connected(self, node: str, state: ConnectionState, now: float) -> Decisions:
        """A Node came, fell silent, or was lost; the latter is waited for `reconnect_grace_ms` (P5). A Node that the
        spec does not name is remembered for a later one."""
        raise NotImplementedError

    def set_acknowledged(
        self,
        provider_id: str,
        acknowledged: bool,
        *,
        capacity_limit: int | None = None,
        long_limit: int | None = None,
        now: float,
    ) -> Decisions:
        """Whether the Node has confirmed this provider's settings (R14; the default is yes).

        While not, the smaller of the spec's capacity and `capacity_limit` counts (None: 0, nothing is proven yet), and
        likewise for the long slots with `long_limit` (None: no limit of its own). May be said before the `reconfigure`
        that brings the provider or its new capacity, so that nothing slips through between the two.
        """
        raise NotImplementedError

    def set_health(self, provider_id: str, health: Health, now: float) -> Decisions:
        """What a probe found (P10, N7). `ejected` starts the backoff; `healthy` and `degraded` end an ejection;
        `unknown` is the state before anything was known. An unknown provider is ignored."""
        raise NotImplementedError

    def report_outcome(self, provider_id: str, outcome: Outcome, now: float) -> Decisions:
        """An outcome without a release, e.g. `ok` at the first token, which is proof of life (P14)."""
        raise NotImplementedError

    def expire(self, now: float) -> Decisions:
        """Let time pass: queue timeouts (P7), ended graces (P5), ended backoffs (P10). Early calls do nothing."""
        raise NotImplementedError

    def next_deadline(self) -> float | None:
        """When `expire` has something to do; None: not by time alone."""
        raise NotImplementedError

    def status(self, now: float) -> PoolStatus:
        """All counters (P11)."""
        raise NotImplementedError

    def explain(self, group: str, input_tokens: int = 0, *, exclude: Collection[str] = ()) -> Explanation:
        """What `submit` would do now, provider by provider (P15); changes nothing."""
        raise NotImplementedError

    def audit(self, live: Collection[CoreLease]) -> tuple[CoreLease, ...]:
        """Compare the leases with the runs that the owner knows to be live; the others are the leaked ones (P8),
        which it returns and `status().leaked_slots` counts. Nothing is freed."""
        raise NotImplementedError

    def check_invariants(self) -> None:
        """Raise AssertionError where the pool contradicts itself; for tests, O(everything)."""
        raise NotImplementedError
