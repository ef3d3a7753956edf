"""Active runs: start, watch for silence, stream, cancel; what occupies a runtime after its session (N6, N8, E12)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping

from iop_node.adapters.base import RunFailedError
from iop_node.link import EndKind, RunEnd, RunError, RunOrder, RunSink, StoppingAttempt, Usage
from iop_node.registry import Registry, Running
from iop_node.settings import ProviderSettings
from iop_wire.limits import Timing

__all__ = ["Runs"]

log = logging.getLogger("iop.node.runs")

_Key = tuple[str, int]
_ON_THE_WAY = 5.0
"""Seconds for which a replaced configuration still vouches for runs: those that were admitted under it and then crossed
the push on the wire, or waited for a writer behind it. Without this, lowering a capacity would cost runs (R11)."""


class Runs:
    """Every attempt on this Node, until its adapter has let go of the runtime."""

    def __init__(self, timing: Timing | None = None) -> None:
        self._timing = timing or Timing()
        self._active: dict[_Key, _Run] = {}
        self._on_stopped: Callable[[StoppingAttempt, RunEnd], None] | None = None
        self._announced: set[_Key] = set()
        self._replaced: deque[tuple[float, Mapping[str, ProviderSettings]]] = deque()

    @property
    def active(self) -> int:
        """How many attempts occupy a runtime, or may do so."""
        return len(self._active)

    def occupied(self, provider_id: str) -> int:
        """The same, of one provider."""
        return sum(run.order.provider_id == provider_id for run in self._active.values())

    def replaced(self, old: Registry) -> None:
        """Another registry is in force now: what this one allowed is still on its way."""
        now = asyncio.get_running_loop().time()
        self._forget_replaced(now)  # here too: refreshes may come where runs do not
        self._replaced.append((now + _ON_THE_WAY, old.providers))

    def _forget_replaced(self, now: float) -> None:
        while self._replaced and self._replaced[0][0] <= now:
            self._replaced.popleft()

    def start(self, order: RunOrder, sink: RunSink, registry: Registry) -> None:
        """Execute the order; everything that happens ends in `sink.end`."""
        refusal = self._refusal(order, registry)
        running = registry.adapters.get(order.adapter)
        if refusal is None and running is None:
            refusal = RunError(
                "adapter_not_found", f'this Node has no enabled adapter instance "{order.adapter}"', retryable=True,
                outcome="cancelled",
            )  # fmt: skip
        if refusal is not None or running is None:
            sink.end(RunEnd(EndKind.FAILED, error=refusal))
            return
        run = _Run(self, order, sink, running, registry)
        self._active[order.run_id, order.attempt] = run
        sink.accepted()
        run.begin()

    def _refusal(self, order: RunOrder, registry: Registry) -> RunError | None:
        """What is refused before the runtime hears of it (backends §0.7); the pool has judged all this already."""
        if not order.provider_id:
            return None  # a model route
        refusal = self._judge(order, registry.providers)
        if refusal is None:
            return None
        self._forget_replaced(asyncio.get_running_loop().time())
        if any(self._judge(order, providers) is None for _, providers in self._replaced):
            return None
        return refusal

    def _judge(self, order: RunOrder, providers: Mapping[str, ProviderSettings]) -> RunError | None:
        provider = providers.get(order.provider_id)
        if provider is None or not provider.enabled:
            text = f'this Node has no enabled provider "{order.provider_id}"'
            return RunError("provider_not_found", text, retryable=True, outcome="cancelled")
        if order.target not in provider.models:
            text = f'provider "{provider.id}" does not serve "{order.target}"'
            return RunError("provider_not_found", text, retryable=True, outcome="cancelled")
        if self.occupied(provider.id) >= provider.capacity:
            text = f'provider "{provider.id}" already runs {provider.capacity}'
            return RunError("no_capacity", text, retryable=True, outcome="busy")
        return None

    def cancel(self, run_id: str, attempt: int, reason: str) -> None:
        """Stop a run. Unknown or ended: harmless."""
        run = self._active.get((run_id, attempt))
        if run is not None:
            run.stop(reason)

    # -- a session that is gone -----------------------------------------------------------------------------------

    def session_lost(self) -> None:
        """Cancel everything: nobody can be told. What does not end at once is told to the next session (§1.6)."""
        for run in list(self._active.values()):
            run.orphaned = True
            run.stop("session_lost")

    def stopping_attempts(self) -> tuple[StoppingAttempt, ...]:
        """The attempts of earlier sessions that have not ended."""
        orphans = {key: run for key, run in self._active.items() if run.orphaned}
        self._announced = set(orphans)
        return tuple(run.stopping for run in orphans.values())

    def watch_stopping(self, on_end: Callable[[StoppingAttempt, RunEnd], None]) -> None:
        """Tell the new session when those end."""
        self._on_stopped = on_end

    def ended(self, run: _Run, end: RunEnd) -> None:
        """An attempt is over, the runtime free: tell whoever has to know, once."""
        key = (run.order.run_id, run.order.attempt)
        del self._active[key]
        if not run.orphaned:
            run.sink.end(end)
        elif key in self._announced:
            self._announced.discard(key)
            if self._on_stopped is not None:
                self._on_stopped(run.stopping, end)

    async def close(self) -> None:
        """Stop what runs and wait for it, within the bound of a cancel."""
        tasks = [run.task for run in self._active.values() if run.task is not None]
        self.session_lost()
        if tasks:
            await asyncio.wait(tasks, timeout=self._timing.cancel_confirm)

    def cancel_bound(self, kind: str) -> float:
        """How long a cancelled run of this kind may take to let go (§1.3)."""
        return self._timing.cancel_bound(kind)


class _Run:
    """One attempt; also the `RunOutput` that its adapter writes to."""

    def __init__(self, runs: Runs, order: RunOrder, sink: RunSink, running: Running, registry: Registry) -> None:
        self.order = order
        self.sink = sink
        self.orphaned = False
        self.task: asyncio.Task[None] | None = None
        self._runs = runs
        self._running = running
        self._loop = asyncio.get_running_loop()
        self._was_started = False
        self._headed = False
        self.usage: Usage | None = None
        self._stopped: str | None = None  # why it was told to stop
        self._overdue: RunError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._abandon: asyncio.TimerHandle | None = None
        self._over = False
        settings = running.settings
        provider = registry.providers.get(order.provider_id)
        total = provider.request_timeout if provider is not None else None
        total = settings.request_timeout if total is None else total
        bounds = [bound for bound in (total, order.deadline_ms / 1000 or None) if bound is not None]
        self._total = min(bounds) if bounds else None
        self._first = settings.first_event_timeout
        self._idle = settings.idle_timeout
        now = self._loop.time()
        self._deadline = now + self._total if self._total is not None else None
        self._heard = now  # the runtime said something, or we were not listening
        self._listening = True

    @property
    def stopping(self) -> StoppingAttempt:
        """How a later session names this attempt."""
        return StoppingAttempt(self.order.run_id, self.order.attempt, self.order.provider_id, self.order.long)

    def begin(self) -> None:
        """Start the task."""
        self._running.enter()
        self.task = self._loop.create_task(self._execute())
        # A task that is cancelled before its first step never takes one, so its end is looked for from outside too.
        self.task.add_done_callback(lambda _: self._finish(self._cancelled()))
        self._watch()

    async def _execute(self) -> None:
        end: RunEnd
        try:
            await self._running.adapter.run(self.order, self)
            end = RunEnd(EndKind.COMPLETED, started=self._was_started)
        except RunFailedError as failure:
            end = RunEnd(EndKind.FAILED, error=failure.error, started=self._was_started)
        except asyncio.CancelledError:
            end = self._cancelled()
        except Exception:
            log.exception("run %s: the %s adapter failed", self.order.run_id, self._running.settings.kind)
            text = "the adapter failed; the Node's log has the details"
            error = RunError("internal_error", text, maybe_executed=self._was_started)
            end = RunEnd(EndKind.FAILED, error=error, started=self._was_started)
        self._finish(end)

    def _finish(self, end: RunEnd) -> None:
        if self._over:
            return
        self._over = True
        for timer in (self._timer, self._abandon):
            if timer is not None:
                timer.cancel()
        self._running.leave()
        if self._overdue is not None and end.kind is not EndKind.COMPLETED:
            end = RunEnd(EndKind.FAILED, error=self._overdue, started=self._was_started)
        elif self._stopped is not None and end.kind is EndKind.FAILED:
            # Torn down by us: what the runtime's end of the connection made of it says nothing.
            end = self._cancelled()
        if end.usage is None:
            end = RunEnd(end.kind, self._counted(), end.error, end.started)
        if end.kind is EndKind.COMPLETED:
            self._running.proven(self._loop.time())
        self._runs.ended(self, end)

    def _counted(self) -> Usage:
        if self.usage is not None:
            return self.usage
        return Usage(self.order.input_tokens_estimate if self._was_started else 0)

    # -- ending early -------------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Cancel the adapter's work; after a bound the run is over whatever the adapter does (§1.3)."""
        if self._over or self._stopped is not None:
            return
        self._stopped = reason
        if self._timer is not None:
            self._timer.cancel()
        if self.task is not None:
            self.task.cancel()
        self._abandon = self._loop.call_later(self._runs.cancel_bound(self._running.settings.kind), self._give_up)

    def _give_up(self) -> None:
        log.warning("run %s did not stop in time; its adapter is left to itself", self.order.run_id)
        self._finish(self._cancelled())
        if self.task is not None:
            self.task.cancel()

    def _cancelled(self) -> RunEnd:
        error = None
        if self._stopped == "node_draining":
            # Not the client's wish: whoever has no byte of it yet may run it elsewhere (E7).
            text = "the Node shut down before the run was complete"
            started = self._was_started
            error = RunError("node_draining", text, retryable=True, maybe_executed=started, outcome="cancelled")
        return RunEnd(EndKind.CANCELLED, error=error, started=self._was_started)

    # -- the watch (E12) ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look at the clock when the next bound could be reached: one timer, moved when it rings and at the head."""
        if self._timer is not None:
            self._timer.cancel()
        due = [at for at in (self._deadline, self._silence_ends()) if at is not None]
        if due:
            self._timer = self._loop.call_at(min(due), self._ring)

    def _silence_ends(self) -> float | None:
        limit = self._idle if self._headed else self._first
        # While the Edge takes nothing it is not the runtime that is silent.
        if limit is None:
            return None
        return (self._heard if self._listening else self._loop.time()) + limit

    def _ring(self) -> None:
        now = self._loop.time()
        if self._deadline is not None and now >= self._deadline:
            text = f"the run took longer than {self._total:g} s"
            # A runtime that was producing is slow, not broken; one that never said a word is.
            outcome = "cancelled" if self._headed else "broken"
            self._expire(RunError("request_timeout", text, maybe_executed=True, outcome=outcome))
            return
        ends = self._silence_ends()
        if ends is not None and now >= ends:
            code = "idle_timeout" if self._headed else "first_event_timeout"
            limit = self._idle if self._headed else self._first
            text = f"the runtime said nothing for {limit:g} s"
            self._expire(RunError(code, text, retryable=not self._headed, maybe_executed=True))
            return
        self._watch()

    def _expire(self, error: RunError) -> None:
        self._overdue = error
        self.stop("deadline")

    # -- RunOutput ----------------------------------------------------------------------------------------------------

    def contacted(self) -> None:
        """See `RunOutput`."""
        self._was_started = True

    def alive(self) -> None:
        """See `RunOutput`."""
        if self._headed:
            self._heard = self._loop.time()

    def head(self, status: int, headers: tuple[tuple[str, str], ...]) -> None:
        """See `RunOutput`."""
        if not self._headed and not self._over:
            self._headed = True
            self._heard = self._loop.time()
            if self._idle is not None and self._stopped is None:
                # From here on another bound holds, and it may be the sooner one.
                self._watch()
            if not self.orphaned:
                self.sink.head(status, headers)

    async def data(self, data: bytes) -> None:
        """See `RunOutput`."""
        if self._over or self.orphaned:
            return
        self._listening = False
        try:
            await self.sink.chunk(data)
        finally:
            self._listening = True
            self._heard = self._loop.time()
        self._running.proven(self._heard)
