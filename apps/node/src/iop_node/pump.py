"""One stream of the Node while it lasts: moves bytes, keeps the clock, carries out what the session decided."""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from iop_node.backoff import Cause
from iop_node.link import ConfigFault, ConfigOutcome, EndKind, Host, ProviderState, RunEnd, RunError, StoppingAttempt
from iop_node.outbound import OutRun
from iop_node.payload import PayloadError, settings_from
from iop_node.session import (
    CancelRun,
    Configure,
    CreditGranted,
    EdgeDrains,
    Effect,
    NodeSession,
    Over,
    SessionState,
    StartRun,
    Vitals,
    Welcomed,
)
from iop_wire.limits import Timing
from iop_wire.rpc import grpc

log = logging.getLogger("iop.node.link")

_TICK_S = 0.25
_HURRY_S = 1.0
_PAGE = resource.getpagesize()


class RawCall(Protocol):
    """What is used of a grpc.aio stream-stream call, with bytes as messages."""

    def wait_for_connection(self) -> Awaitable[None]: ...

    def initial_metadata(self) -> Awaitable[Iterable[tuple[str, str | bytes]]]: ...

    def code(self) -> Awaitable[grpc.StatusCode]: ...

    def details(self) -> Awaitable[str | None]: ...

    def read(self) -> Awaitable[object]: ...

    def write(self, request: bytes) -> Awaitable[None]: ...

    def done_writing(self) -> Awaitable[None]: ...

    def cancel(self) -> bool: ...


class Sink:
    """Where one run sends what happens to it (`link.RunSink`)."""

    __slots__ = ("_pump", "_run", "_waiter")

    def __init__(self, pump: Pump, run: OutRun) -> None:
        self._pump = pump
        self._run = run
        self._waiter: asyncio.Future[None] | None = None

    def accepted(self) -> None:
        """See `link.RunSink`."""
        self._pump.session.accepted(self._run)
        self._pump.wake()

    def head(self, status: int, headers: tuple[tuple[str, str], ...]) -> None:
        """See `link.RunSink`."""
        self._pump.session.head(self._run, status, headers)
        self._pump.wake()

    async def chunk(self, data: bytes) -> None:
        """See `link.RunSink`. A piece that is larger than what goes in one event is cut."""
        piece_max = self._run.credit.piece_max
        if len(data) <= piece_max:
            await self._piece(data)
            return
        for start in range(0, len(data), piece_max):
            await self._piece(data[start : start + piece_max])

    async def _piece(self, data: bytes) -> None:
        while not self._pump.session.chunk(self._run, data):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._pump.wake()

    def end(self, end: RunEnd) -> None:
        """See `link.RunSink`."""
        self._pump.session.end(self._run, end)
        self._pump.ended(self._run)

    def try_again(self) -> None:
        """Credit came, or the bytes are no longer wanted."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Pump:
    """Runs one session on one call."""

    def __init__(
        self,
        call: RawCall,
        session: NodeSession,
        host: Host,
        configuring: asyncio.Lock,
        timing: Timing,
        changed: Callable[[SessionState, Welcomed | None], None],
    ) -> None:
        self.session = session
        self.welcomed = False
        self._call = call
        self._host = host
        self._configuring = configuring
        self._timing = timing
        self._changed = changed
        self._sinks: dict[tuple[str, int], Sink] = {}
        self._ready = asyncio.Event()
        self._over = asyncio.Event()
        self._quiet = asyncio.Event()
        self._written_out = asyncio.Event()
        self._builds: set[asyncio.Task[None]] = set()
        self._lag = 0.0

    async def run(self) -> Over:
        """Serve until the session is over; return why."""
        self._host.watch_stopping(self._stopping_ended)
        self._host.watch_health(self._health_changed)
        tasks = [asyncio.ensure_future(work) for work in (self._read(), self._write(), self._tick())]
        self._changed(self.session.state, None)
        try:
            await self._over.wait()
        finally:
            self.session.stream_ended(Cause.LOST, "the connection to the Edge broke")
            self.carry_out()
            # From outside, once nothing is wanted of it any more: it ends the reader and the writer (G9, G10).
            self._call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert self.session.over is not None
        return self.session.over

    def wake(self) -> None:
        """Frames may be ready."""
        self._ready.set()

    def ended(self, run: OutRun) -> None:
        """A run told its end."""
        self._sinks.pop(run.key, None)
        self._ready.set()

    def carry_out(self) -> None:
        """Do what the session decided."""
        while effects := self.session.take_effects():
            for effect in effects:
                self._do(effect)
        self._ready.set()

    # ------------------------------------------------------------ shutdown (§1.7)

    def stop_before_start(self) -> None:
        """The process was told to stop while it was dialling."""
        self.session.stream_ended(Cause.LOST, "the Node is shutting down")
        self.carry_out()

    async def drain(self, reason: str, grace: float, hurry: asyncio.Event) -> None:
        """See `Connection.drain`."""
        if not self.welcomed:
            self.stop_before_start()
            return
        self.session.drain(reason, grace)
        self._changed(self.session.state, None)
        self._check_quiet()
        self.wake()
        await _first_of(grace, self._quiet, self._over, hurry)
        if not self._quiet.is_set() and not self._over.is_set():
            for run_id, attempt in list(self._sinks):
                self._host.cancel(run_id, attempt, "node_draining")
            bound = _HURRY_S if hurry.is_set() else self._timing.cancel_confirm + _HURRY_S
            await _first_of(bound, self._quiet, self._over)
        self.session.say_goodbye(reason)
        self.wake()
        await _first_of(self._timing.goodbye, self._written_out, self._over)
        await _first_of(self._timing.goodbye, self._over)
        self.session.stream_ended(Cause.LOST, "closed")
        self.carry_out()

    def _check_quiet(self) -> None:
        if self.session.active_runs == 0 and self.session.flushed:
            self._quiet.set()
        else:
            self._quiet.clear()

    # ------------------------------------------------------------ the three tasks

    async def _read(self) -> None:
        try:
            while isinstance(data := await self._call.read(), bytes):
                self.session.receive(data, time.monotonic())
                self.carry_out()
        except asyncio.CancelledError:
            # Ours, or gRPC's for a call that broke: either way this stream is done (G10).
            pass
        except Exception as error:
            log.debug("reader ended: %s", type(error).__name__)
        self.session.stream_ended(Cause.LOST, "the connection to the Edge broke")
        self.carry_out()

    async def _write(self) -> None:
        try:
            while True:
                self._ready.clear()
                while (frame := self.session.take_frame()) is not None:
                    await self._call.write(frame)
                self._check_quiet()
                if self.session.goodbye_sent:
                    await self._call.done_writing()
                    self._written_out.set()
                    return
                await self._ready.wait()
        except asyncio.CancelledError:
            pass
        except Exception as error:
            # The reader learns the status of the call; this end only stops.
            log.debug("writer ended: %s", type(error).__name__)

    async def _tick(self) -> None:
        while True:
            due = time.monotonic() + _TICK_S
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            self._lag = max(self._lag, now - due)
            self.session.tick(now, self._vitals)
            self.carry_out()

    def _vitals(self) -> Vitals:
        lag, self._lag = self._lag, 0.0
        return Vitals(round(lag * 1000), self._host.active_runs, resident_bytes())

    # ------------------------------------------------------------ effects

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, CreditGranted):
            sink = self._sinks.get(effect.run.key)
            if sink is not None:
                sink.try_again()
        elif isinstance(effect, StartRun):
            sink = Sink(self, effect.run)
            self._sinks[effect.run.key] = sink
            self._quiet.clear()
            try:
                self._host.start(effect.order, sink)
            except Exception:
                log.exception("run %s could not be started", effect.order.run_id)
                error = RunError("internal", "the Node failed to start the run; its log has the details")
                sink.end(RunEnd(EndKind.FAILED, error=error))
        elif isinstance(effect, CancelRun):
            self._host.cancel(*effect.run.key, effect.reason)
        elif isinstance(effect, Configure):
            # Not a part of this stream's life: a half-built registry is finished even if the stream breaks.
            task = asyncio.ensure_future(self._configure(effect))
            self._builds.add(task)
            task.add_done_callback(self._builds.discard)
        elif isinstance(effect, Welcomed):
            self.welcomed = True
            self._changed(self.session.state, effect)
        elif isinstance(effect, EdgeDrains):
            log.info("the Edge drains: %s", effect.reason)
        elif isinstance(effect, Over):
            self._session_over()

    def _session_over(self) -> None:
        self._over.set()
        # Nobody can be told any more: everything is cancelled, and freed as fast as it stops (§1.6).
        self._host.session_lost()
        for sink in self._sinks.values():
            sink.try_again()
        self._sinks.clear()

    async def _configure(self, effect: Configure) -> None:
        async with self._configuring:
            try:
                outcome = await self._host.configure(settings_from(effect.payload))
            except PayloadError as error:
                outcome = self._refused(tuple(error.faults))
            except Exception:
                log.exception("the configuration could not be applied")
                fault = ConfigFault("", "internal", "the Node failed to build it; its log has the details")
                outcome = self._refused((fault,))
        self.session.configured(effect.push_id, outcome)
        self._changed(self.session.state, None)
        self.carry_out()

    def _refused(self, faults: tuple[ConfigFault, ...]) -> ConfigOutcome:
        return ConfigOutcome(False, self._host.applied_version, self._host.applied_generation, faults)

    def _stopping_ended(self, attempt: StoppingAttempt, end: RunEnd) -> None:
        self.session.stopping_ended(attempt, end)
        self.wake()

    def _health_changed(self, states: tuple[ProviderState, ...]) -> None:
        self.session.provider_status(states)
        self.wake()


async def _first_of(timeout: float, *events: asyncio.Event) -> None:
    """Wait until one of the events is set, at most `timeout` seconds."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def resident_bytes() -> int:
    """Return this process's memory, 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
