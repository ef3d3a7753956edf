"""A Node's inside for tests of the link: runs that answer, flood, hang or stop slowly, by the target they ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from iop_node.link import (
    ConfigFault,
    ConfigOutcome,
    EndKind,
    Health,
    ProviderState,
    RunEnd,
    RunOrder,
    RunSink,
    StoppingAttempt,
    Usage,
)

if TYPE_CHECKING:
    from iop_node.settings import NodeSettings


class FakeHost:
    """Implements `link.Host`. Targets: `echo` (the body), `count:N` (chunks), `gate` (waits), `flood`, `hang`."""

    def __init__(self) -> None:
        self.settings: list[NodeSettings] = []
        self.refuse_config: tuple[ConfigFault, ...] = ()
        self.orders: list[RunOrder] = []
        self.cancelled: list[tuple[str, str]] = []
        self.lost = 0
        self.sent_bytes = 0
        self.gate = asyncio.Event()
        self.stop_gate: asyncio.Event | None = None
        """While set and not open, a cancelled run goes on occupying its runtime."""
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._orders: dict[tuple[str, int], RunOrder] = {}
        self._sessionless: set[tuple[str, int]] = set()
        self._on_stopped: Callable[[StoppingAttempt, RunEnd], None] | None = None
        self._announced: set[tuple[str, int]] = set()
        self.report: Callable[[tuple[ProviderState, ...]], None] | None = None

    @property
    def applied_version(self) -> str:
        return self.settings[-1].version if self.settings else ""

    @property
    def applied_generation(self) -> int:
        return self.settings[-1].generation if self.settings else 0

    @property
    def active_runs(self) -> int:
        return len(self._tasks)

    def provider_states(self) -> tuple[ProviderState, ...]:
        return (ProviderState("p", Health.HEALTHY),)

    def stopping_attempts(self) -> tuple[StoppingAttempt, ...]:
        self._announced = set(self._sessionless)
        return tuple(self._stopping(key) for key in self._sessionless)

    def _stopping(self, key: tuple[str, int]) -> StoppingAttempt:
        return StoppingAttempt(key[0], key[1], self._orders[key].provider_id, self._orders[key].long)

    def watch_stopping(self, on_end: Callable[[StoppingAttempt, RunEnd], None]) -> None:
        self._on_stopped = on_end

    async def configure(self, settings: NodeSettings) -> ConfigOutcome:
        if self.refuse_config:
            return ConfigOutcome(False, self.applied_version, self.applied_generation, self.refuse_config)
        self.settings.append(settings)
        return ConfigOutcome(True, settings.version, settings.generation)

    def start(self, order: RunOrder, sink: RunSink) -> None:
        key = (order.run_id, order.attempt)
        self.orders.append(order)
        self._orders[key] = order
        self._tasks[key] = asyncio.ensure_future(self._run(key, order, sink))

    def cancel(self, run_id: str, attempt: int, reason: str) -> None:
        self.cancelled.append((run_id, reason))
        task = self._tasks.get((run_id, attempt))
        if task is not None:
            task.cancel()

    def session_lost(self) -> None:
        self.lost += 1
        for key, task in self._tasks.items():
            self._sessionless.add(key)
            task.cancel()

    def watch_health(self, report: Callable[[tuple[ProviderState, ...]], None]) -> None:
        self.report = report

    async def _run(self, key: tuple[str, int], order: RunOrder, sink: RunSink) -> None:
        end = RunEnd(EndKind.COMPLETED, usage=Usage(1, 2, from_runtime=True), started=True)
        try:
            sink.accepted()
            sink.head(200, (("content-type", "text/event-stream"),))
            await self._answer(order, sink)
        except asyncio.CancelledError:
            end = RunEnd(EndKind.CANCELLED, started=True)
            if self.stop_gate is not None:
                await self.stop_gate.wait()
        finally:
            del self._tasks[key]
            sink.end(end)
            if key in self._sessionless:
                self._sessionless.discard(key)
                if key in self._announced and self._on_stopped is not None:
                    self._on_stopped(self._stopping(key), end)

    async def _answer(self, order: RunOrder, sink: RunSink) -> None:
        if order.target == "echo":
            await sink.chunk(order.body)
        elif order.target.startswith("count:"):
            for number in range(int(order.target.removeprefix("count:"))):
                await sink.chunk(f"data: {number}\n\n".encode())
                if number % 10 == 0:
                    await asyncio.sleep(0)
        elif order.target == "gate":
            await self.gate.wait()
            await sink.chunk(b"data: last\n\n")
        elif order.target == "flood":
            while True:
                await sink.chunk(b"x" * 5000)
                self.sent_bytes += 5000
                await asyncio.sleep(0)
        else:
            await asyncio.Event().wait()
