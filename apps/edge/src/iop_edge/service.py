"""submit_run, the only place that knows the order: route, policy, pool, Node, relay, release, failover (E1, E7)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime

import anyio
import msgspec

from iop_edge.errors import ApiError
from iop_edge.estimate import estimate_tokens, fewest_tokens
from iop_edge.failures import Failure, context_overflow, from_refusal, outcome_of, unknown_model
from iop_edge.metering import Meter, RunRecord
from iop_edge.nodes.run import End, NodeSession, Operation, RunHandle, RunSpec
from iop_edge.order import Generation, Order, Reply, Trace
from iop_edge.policy import Limits, apply_policy, output_limit, read_limits
from iop_edge.relay import Relay
from iop_edge.routing import Catalog, ModelEntry, Target
from iop_pool import Availability, Lease, Outcome, Pool, PoolError, Unavailable

__all__ = ["RunService"]

log = logging.getLogger("iop.edge.requests")

# The Node ends a run at its deadline and says why; only when it does not, the Edge does.
_DEADLINE_SLACK = 1.0
_TEXT_KEYS = ("messages", "system", "prompt", "suffix", "input", "instructions", "tools", "functions", "documents")
_WINDOWED = frozenset((Operation.CHAT_COMPLETIONS, Operation.COMPLETIONS, Operation.RESPONSES, Operation.MESSAGES))


class RunService:
    """Takes runs for every client surface; one per Edge, on one event loop.

    `snapshot` gives the generation in force; `session` the live session of a Node; `generation_of` what that Node has
    acknowledged (`RunSpec.generation`). `clock` counts monotonic seconds.
    """

    def __init__(
        self,
        *,
        snapshot: Callable[[], Generation],
        pool: Pool,
        session: Callable[[str], NodeSession | None],
        generation_of: Callable[[str], int],
        meter: Meter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.snapshot = snapshot
        self.pool = pool
        self.session = session
        self.generation_of = generation_of
        self.meter = meter
        self.clock = clock
        self._runs: set[_Run] = set()
        self._leases: set[Lease] = set()
        self._closing = False
        self._idle: anyio.Event | None = None

    @property
    def catalog(self) -> Catalog:
        """The catalog in force, for `GET /v1/models`."""
        return self.snapshot().catalog

    @property
    def live_leases(self) -> Collection[Lease]:
        """The leases that a run still stands behind: what `Pool.audit` compares with (P8)."""
        return self._leases

    @property
    def ready(self) -> bool:
        """Whether at least one model can be served: some provider is available and no shutdown has begun."""
        if self._closing:
            return False
        status = self.pool.status()
        served = {provider for group in status.groups for provider in group.providers}
        return any(row.status is Availability.AVAILABLE and row.id in served for row in status.providers)

    async def submit_run(self, order: Order, reply: Reply, trace: Trace) -> None:
        """Run `order` on the best provider and give the answer to `reply`; `trace` is kept up to date on the way.

        Raises ApiError where it ends otherwise. On cancellation, or when the client is gone, the run is cancelled on
        its Node; its slot comes back when the Node confirms the end (P8, E8). The request's deadline (E7) is the
        provider's `request_timeout_ms`, counted from the first grant: waiting has its own timeout (P7).
        """
        run = _Run(self, order, reply, trace)
        self._runs.add(run)
        try:
            await run.execute()
        finally:
            self._runs.discard(run)
            if self._idle is not None and not self._runs:
                self._idle.set()

    def begin_shutdown(self) -> None:
        """Refuse newcomers and waiters with 503 `edge_shutdown`; running runs go on."""
        if not self._closing:
            self._closing = True
            self.pool.reconfigure(self.pool.core.spec.all_disabled())

    @property
    def closing(self) -> bool:
        """Whether a shutdown has begun."""
        return self._closing

    async def wait_idle(self) -> None:
        """Return when no request is running."""
        if self._runs:
            self._idle = anyio.Event()
            await self._idle.wait()

    def abort_all(self) -> None:
        """End what still runs: the clients get `edge_shutdown`, the Nodes a cancel (wire §1.7)."""
        for run in tuple(self._runs):
            run.abort(_shutdown_error())

    def hold(self, lease: Lease) -> None:
        """Count a lease as backed by a run."""
        self._leases.add(lease)

    def free(self, lease: Lease, outcome: Outcome) -> None:
        """Give a lease back; the next waiter has its slot before this returns."""
        self._leases.discard(lease)
        lease.release(outcome)


def _shutdown_error() -> ApiError:
    return ApiError("edge_shutdown", "this edge is shutting down; try again")


class _Attempt:
    """One try on one provider: owns the lease until the end comes, whoever still listens (P8)."""

    __slots__ = ("_run", "end", "handle", "lease", "target")

    def __init__(self, run: _Run, lease: Lease, target: Target) -> None:
        self._run = run
        self.lease = lease
        self.target = target
        self.handle: RunHandle | None = None
        self.end: End | None = None

    def on_end(self, end: End) -> None:
        """The session's word that the attempt is over: the one place where its slot becomes free."""
        self.end = end
        outcome = outcome_of(end)
        service = self._run.service
        service.meter.attempt(self.target.provider_id, outcome.value)
        service.free(self.lease, outcome)
        self._run.attempt_ended()

    def cancel(self, reason: str) -> None:
        """Ask the Node to stop; the slot stays taken until it has."""
        if self.end is None and self.handle is not None:
            self.lease.begin_cancel()
            self.handle.cancel(reason)


class _Run:
    """The life of one request, from its route to its usage record."""

    def __init__(self, service: RunService, order: Order, reply: Reply, trace: Trace) -> None:
        self.service = service
        self._order = order
        self._reply = reply
        self._trace = trace
        self._started = service.clock()
        self._time = datetime.now(UTC)
        self._waiting_since: float | None = None
        self._admitted = False
        self._relay = Relay(order, reply, service.clock)
        self._attempt: _Attempt | None = None
        self._estimate = 0
        self._limits = Limits()
        self._scope = anyio.CancelScope()
        self._aborted: ApiError | None = None
        self._record: RunRecord | None = None

    # -- the order of things ------------------------------------------------------------------------------------

    async def execute(self) -> None:
        """Run to the end; see `RunService.submit_run`."""
        try:
            entry = self._enter()
            with self._scope:
                self._reply.on_gone(self._gone)
                await self._try_providers(entry)
            if self._aborted is not None and self._scope.cancelled_caught:
                raise self._aborted
        except ApiError as error:
            self._settle(error.outcome, error.status)
            raise
        except Exception:
            self._settle("internal_error", 500)
            raise
        except BaseException:
            # Cancelled from outside: the listener ends its own tasks only when the Edge stops.
            self._settle("edge_shutdown", 503)
            raise
        else:
            self._settle("ok", 200)

    def abort(self, error: ApiError) -> None:
        """End the run from outside with this error."""
        if self._aborted is None:
            self._aborted = error
            self._scope.cancel()

    def _gone(self) -> None:
        self.abort(ApiError("client_gone", "the client is gone"))

    def _enter(self) -> ModelEntry:
        """Route, limits and size, before the pool hears of the request (E1, E5, E10)."""
        if self.service.closing:
            raise _shutdown_error()
        order = self._order
        entry = self.service.snapshot().catalog.find(order.model)
        if entry is None:
            raise unknown_model(order.model)
        self._limits = read_limits(order.operation, order.body)
        texts = [order.body[key] for key in _TEXT_KEYS if key in order.body]
        self._estimate = estimate_tokens(texts)
        window = entry.context_window_tokens
        if window is not None and order.operation in _WINDOWED:
            self._check_window(window, texts, output_limit(self._limits, entry.policy) or 0)
        return entry

    def _check_window(self, window: int, texts: list[msgspec.Raw], output: int) -> None:
        if self._estimate + output <= window:
            return
        fewest = fewest_tokens(texts, max(0, window - output))
        if fewest + output > window:
            # What is told is the estimate, unless that would contradict the refusal.
            raise context_overflow(
                window=window,
                asked=max(fewest, self._estimate),
                operation=self._order.operation,
                max_tokens=output or None,
            )

    async def _try_providers(self, entry: ModelEntry) -> None:
        """Attempt after attempt until one is an answer, or nobody is left (E7)."""
        tried: frozenset[str] = frozenset()
        missed: frozenset[str] = frozenset()
        arrival: int | None = None
        deadline: float | None = None
        failure: Failure | None = None
        while True:
            lease = await self._acquire(entry, tried, arrival, deadline, failure)
            target = entry.targets.get(lease.provider)
            if target is None:
                # While it waited a refresh gave the group this provider: take that generation whole, nothing was sent.
                newer = self.service.snapshot().catalog.find(entry.id)
                target = newer.targets.get(lease.provider) if newer is not None else None
                if newer is not None and target is not None:
                    entry = newer
            arrival = lease.arrival if arrival is None else arrival
            session = self.service.session(target.node_id) if target is not None else None
            if target is None or session is None or not self.service.generation_of(target.node_id):
                # Between the grant and its pick-up the Node was lost, or came back and has not acknowledged anything
                # yet. Nothing was sent, so the provider may be had once more: the pool knows how long to wait (P5).
                self.service.free(lease, Outcome.CANCELLED)
                tried |= missed & {lease.provider}
                missed |= {lease.provider}
                failure = Failure(ApiError("node_lost", "the node was lost before the run was sent"), retry=True)
                continue
            tried |= {lease.provider}
            if deadline is None and target.request_timeout_ms is not None:
                deadline = self.service.clock() + target.request_timeout_ms / 1000
            failure = await self._try(entry, target, session, lease, deadline)
            if failure is None:
                return
            if not failure.retry or self._relay.forwarded:
                raise failure.error
            # The code alone: a runtime's own words may quote what it was sent.
            facts = {"request_id": self._order.request_id, "provider": lease.provider, "code": failure.error.code}
            log.info("attempt %d failed, another provider may try", self._trace.attempts, extra={"facts": facts})

    async def _acquire(
        self,
        entry: ModelEntry,
        tried: frozenset[str],
        arrival: int | None,
        deadline: float | None,
        failure: Failure | None,
    ) -> Lease:
        self._waiting_since = self.service.clock()
        try:
            lease = await self.service.pool.acquire_lease(
                entry.id, input_tokens=self._estimate, exclude=tried, arrival=arrival, deadline=deadline
            )
        except PoolError as refusal:
            # `waiter` is there where the request had been queued: only then it was admitted (E9).
            self._admitted = self._admitted or refusal.refused.waiter is not None
            raise self._refused(refusal, failure) from None
        except BaseException:
            self._admitted = True  # left while it waited
            raise
        self.service.hold(lease)
        self._admitted = True
        self._waiting_since = None
        self._trace.queue_ms += lease.queue_ms
        self._trace.context_class = lease.context_class.value
        return lease

    def _refused(self, refusal: PoolError, failure: Failure | None) -> ApiError:
        if self.service.closing and isinstance(refusal, Unavailable):
            return _shutdown_error()
        # After an attempt its failure says more than "nobody is left".
        return failure.error if failure is not None else from_refusal(refusal)

    # -- one attempt --------------------------------------------------------------------------------------------

    async def _try(
        self, entry: ModelEntry, target: Target, session: NodeSession, lease: Lease, deadline: float | None
    ) -> Failure | None:
        """Send the run and relay its answer; None when the answer is complete."""
        order, trace = self._order, self._trace
        attempt = _Attempt(self, lease, target)
        trace.attempts += 1
        trace.provider, trace.node = target.provider_id, target.node_id
        left = 0.0 if deadline is None else max(0.0, deadline - self.service.clock())
        try:
            spec = RunSpec(
                run_id=order.request_id,
                attempt=trace.attempts,
                adapter=target.adapter,
                target=target.name,
                operation=order.operation,
                body=apply_policy(order.operation, order.body, self._limits, entry.policy, target),
                streaming=order.streaming,
                generation=self.service.generation_of(target.node_id),
                provider_id=target.provider_id if target.owned else "",
                long=lease.long,
                include_usage=order.include_usage,
                deadline_ms=0 if deadline is None else max(1, int(left * 1000)),
                input_tokens_estimate=self._estimate,
                headers=order.headers,
                secret_headers=order.secret_headers,
            )
            self._attempt = attempt
            handle = attempt.handle = session.start_run(spec, attempt.on_end)
        except BaseException:
            # Nothing was sent, so no end will come.
            self._attempt = None
            self.service.free(lease, Outcome.CANCELLED)
            raise
        answer = self._relay.answer(
            handle,
            target,
            window=entry.context_window_tokens,
            estimate=self._estimate,
            alive=lambda: self.service.pool.report_outcome(lease.provider, Outcome.OK),
        )
        try:
            if deadline is None:
                return await answer
            with anyio.move_on_after(left + _DEADLINE_SLACK):
                return await answer
        finally:
            attempt.cancel(self._aborted.code if self._aborted is not None else "request_timeout")
        raise ApiError("request_timeout", f"the run took longer than {target.request_timeout_ms} ms")

    # -- the record ---------------------------------------------------------------------------------------------

    def _settle(self, outcome: str, status: int) -> None:
        """The client's side is over: make the record, and let it go once the attempt has ended too (E9)."""
        if not self._admitted:
            self.service.meter.refused(outcome)
            return
        order, trace, now = self._order, self._trace, self.service.clock()
        if self._waiting_since is not None:
            trace.queue_ms += _ms(now - self._waiting_since)
        principal = order.principal
        sent = self._reply.status
        first = self._relay.first_event
        self._record = RunRecord(
            time=self._time,
            request_id=order.request_id,
            surface=order.operation.value,
            model=order.model,
            provider=trace.provider,
            node=trace.node,
            principal_ref=principal.principal_ref if principal else None,
            principal_alias=principal.principal_alias if principal else None,
            token_ref=principal.token_ref if principal else None,
            context_class=trace.context_class,
            stream=order.streaming,
            outcome=outcome,
            status=sent if sent is not None else status,
            attempts=trace.attempts,
            queue_ms=trace.queue_ms,
            first_event_ms=None if first is None else _ms(first - self._started),
            duration_ms=_ms(now - self._started),
            input_tokens=self._estimate if trace.attempts else 0,
        )
        self._emit()

    def attempt_ended(self) -> None:
        """The Node's side of the last attempt is over."""
        self._emit()

    def _emit(self) -> None:
        record, attempt = self._record, self._attempt
        if record is None or (attempt is not None and attempt.end is None):
            return
        self._record = None
        end = attempt.end if attempt is not None else None
        if end is not None and end.usage is not None:
            record.input_tokens = end.usage.input_tokens
            record.output_tokens = end.usage.output_tokens
            record.usage_source = end.usage.source.value
        self.service.meter.record(record)


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
