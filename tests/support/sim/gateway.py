"""An Edge process over the production registry, sessions, fleet and pool; and the requests it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from iop_edge.failures import failure_of, outcome_of
from iop_edge.fleet import Fleet
from iop_edge.nodes.admission import Refusal
from iop_edge.nodes.effects import OverReason
from iop_edge.nodes.live import LiveSession
from iop_edge.nodes.payload import NodePayload
from iop_edge.nodes.registry import NodeRegistry
from iop_edge.nodes.run import Chunk, EndKind, Head, Operation, RunHandle, RunSpec
from iop_edge.nodes.run import End as RunEnd
from iop_edge.nodes.values import PushOutcome, StoppingAttempt
from iop_pool import (
    CoreLease,
    Decision,
    Decisions,
    Granted,
    Lease,
    LeaseState,
    Outcome,
    Pool,
    PoolSpec,
    Queued,
    Refused,
    Request,
    Waiter,
)
from support.sim.machine import TICK_S, answer_bytes
from support.sim.stream import End, Stream
from support.sim.world import Process, Violation

if TYPE_CHECKING:
    from support.sim.universe import Universe


class SimPool(Pool):
    """The production pool; its waiters are requests of the simulation instead of tasks."""

    def __init__(self, spec: PoolSpec, edge: EdgeProcess) -> None:
        super().__init__(spec, clock=edge.world.clock)
        self.edge = edge
        self.touched = True
        self.waiting: dict[Waiter, Client] = {}
        self.released: dict[int, int] = {}

    def submit(self, request: Request, client: Client) -> Granted | Queued | Refused:
        """Ask for a slot, as `acquire_lease` does."""
        self.expire()
        answer = self.core.submit(request, self._clock())
        self.touched = True
        if isinstance(answer, Queued):
            self.waiting[answer.waiter] = client
            self._nudge()
        elif isinstance(answer, Granted):
            self.edge.universe.checks.granted(self, answer.lease, None)
        return answer

    def withdraw(self, waiter: Waiter) -> None:
        """The one who waits leaves, whether or not a slot was granted meanwhile."""
        self.waiting.pop(waiter, None)
        if waiter.lease is not None:
            self._unclaimed.discard(waiter.lease)
        self._deliver(self.core.cancel(waiter, self._clock()))

    def claim(self, core_lease: CoreLease) -> Lease:
        """The waiter woke up and takes what it was granted."""
        self._unclaimed.discard(core_lease)
        return Lease(self, core_lease)

    def expire(self) -> None:
        """Let time pass."""
        self._expire(self._clock())

    def _deliver(self, decisions: Decisions) -> None:
        self.touched = True
        for decision in decisions:
            assert decision.waiter is not None
            client = self.waiting.pop(decision.waiter)
            if isinstance(decision, Granted):
                self._unclaimed.add(decision.lease)
            self.edge.world.soon(self.edge.enter, client.decided, decision)
        for decision in decisions:
            if isinstance(decision, Granted):
                self.edge.universe.checks.granted(self, decision.lease, decision.waiter)
        self._nudge()

    def _nudge(self) -> None:
        at = self.core.next_deadline()
        if at is not None and (self._armed is None or at < self._armed):
            self._armed = at
            self.edge.world.at(at, self.edge.enter, self._wake)

    def _wake(self) -> None:
        self._armed = None
        self.expire()
        self._nudge()

    def _release(self, core_lease: CoreLease, outcome: Outcome) -> None:
        self.released[core_lease.id] = self.released.get(core_lease.id, 0) + 1
        if self.released[core_lease.id] > 1:
            raise Violation("I2", f"lease {core_lease.id} of {core_lease.provider_id} is given back twice")
        super()._release(core_lease, outcome)


class NotingFleet(Fleet):
    """The production fleet; what it is told goes into the history."""

    def __init__(self, edge: EdgeProcess, spec: PoolSpec, payloads: Mapping[str, NodePayload]) -> None:
        self._note = edge.world.note
        super().__init__(edge.pool, spec, payloads)

    def suspect(self, node_id: str) -> None:
        self._note("suspect", node_id)
        super().suspect(node_id)

    def recovered(self, node_id: str) -> None:
        self._note("recovered", node_id)
        super().recovered(node_id)

    def draining(self, node_id: str) -> None:
        self._note("draining", node_id)
        super().draining(node_id)

    def config_result(self, node_id: str, outcome: PushOutcome) -> None:
        self._note("config", node_id, outcome.state.value, outcome.generation)
        super().config_result(node_id, outcome)

    def stopping_ended(self, node_id: str, attempt: StoppingAttempt) -> None:
        self._note("stopping-ended", node_id, attempt.run_id)
        super().stopping_ended(node_id, attempt)


class EdgeProcess(Process):
    """One process of the Edge, from its start to its death."""

    def __init__(self, universe: Universe, number: int) -> None:
        super().__init__(universe.world, f"edge#{number}")
        self.universe = universe
        plan = universe.plan
        self.pool = SimPool(plan.spec, self)
        self.fleet = NotingFleet(self, plan.spec, plan.payloads)
        self._ids = 0
        self.registry = NodeRegistry(
            self.fleet,
            self._payload_for,
            node_ids=plan.nodes,
            edge_id="edge",
            edge_version="0.1.0",
            clock=self.world.clock,
            new_id=self._new_id,
        )
        self.clients: list[Client] = []
        self.leases: set[Lease] = set()
        self.pushes: list[asyncio.Future[PushOutcome]] = []
        self.later(TICK_S, self._tick)

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self.name}-{self._ids}"

    def _payload_for(self, node_id: str) -> object:
        desired = self.fleet.desired(node_id)
        return desired.message if desired is not None else None

    def _tick(self) -> None:
        self.registry.tick()
        self.later(TICK_S, self._tick)

    # ------------------------------------------------------------ streams

    def accept(self, stream: Stream, node_id: str) -> End:
        """Return the Edge's end of a new stream whose token was good."""
        door = _Door(self, stream, node_id)
        return End(self, door.received, door.closed, door.write)

    # ------------------------------------------------------------ refresh

    def refresh(self, *, final: bool = False) -> None:
        """Put the plan's next configuration in force (R7, R8, R14)."""
        plan = self.universe.plan
        plan.change(final=final)
        changed = self.fleet.swap(plan.spec, plan.payloads)
        self.world.note("refresh", {node: plan.payloads[node].generation for node in plan.nodes}, sorted(changed))
        for node_id in sorted(changed):
            self.pushes.append(self.registry.push(node_id, plan.payloads[node_id].message))

    def die(self) -> None:
        """SIGKILL: its clients lose their connections, its Nodes their streams."""
        self.world.note("edge-kill")
        self.alive = False
        for client in self.clients:
            client.lost_edge()
        for provider in self.pool.core._all_providers():
            for lease in provider.leases:
                # Memory of a dead process: not a leak, so no warning for it.
                lease.state = LeaseState.FREE


class _Door:
    """One stream as the Edge's shell serves it (`nodes/stream.py`)."""

    def __init__(self, edge: EdgeProcess, stream: Stream, node_id: str) -> None:
        self.edge = edge
        self.stream = stream
        self.node_id = node_id
        self.live: LiveSession | None = None
        self.refused: bytes | None = None
        self.done = False
        self._ending = False

    def received(self, data: bytes) -> None:
        live = self.live
        if self.done:
            return
        if live is None:
            self._first(data)
            return
        stale = live.machine.over is not None
        before = self.edge.universe.checks.fingerprint() if stale else None
        live.receive(data)
        if stale and self.edge.universe.checks.fingerprint() != before:
            raise Violation("I10", f"a frame of a session of {self.node_id} that is over changed something")

    def _first(self, hello: bytes) -> None:
        answer = self.edge.registry.admit(self.node_id, hello, "127.0.0.1:1")
        if isinstance(answer, Refusal):
            self.edge.world.note("refused", self.node_id, answer.message[:40])
            self.done = True
            if answer.reason is not None:
                self.stream.down.put(answer.frame())
            self.stream.edge_closed()
            return
        self.live = answer
        self.edge.universe.streams_of[id(answer)] = self.stream
        self.edge.world.note("session", self.node_id, answer.epoch)
        answer.wake = self._wake
        self._wake()

    def _wake(self) -> None:
        self.edge.world.soon(self.edge.enter, self.write)

    def write(self) -> None:
        live = self.live
        if live is None or self.done:
            return
        while self.stream.down.room and (frame := live.machine.take_frame()) is not None:
            self.stream.down.put(frame)
        live.carry_out()
        if live.machine.over is not None and not self._ending:
            # The last frame has a moment to leave; then the handler returns and the call is over.
            self._ending = True
            self.edge.universe.checks.session_over(live, self.stream)
            self.edge.later(self.edge.registry.timing.end_flush, self._end)

    def _end(self) -> None:
        self.done = True
        self.stream.edge_closed()

    def closed(self) -> None:
        if self.live is not None:
            self.live.close(OverReason.LOST, "the connection broke")
            if not self._ending:
                self._ending = True
                self.edge.universe.checks.session_over(self.live, self.stream)
        self.done = True


class Client:
    """One request, from its arrival to its one end; decides like `service.py`, step by step, without a task."""

    def __init__(self, edge: EdgeProcess, number: int) -> None:
        universe = edge.universe
        rng, faults = edge.world.rng, universe.faults
        self.edge = edge
        self.world = edge.world
        self.id = f"r{number}"
        self.group = rng.choice(universe.plan.groups).id
        self.tokens = rng.choice((10, 700, 1200, 5000))
        self.streaming = rng.random() < 0.5
        size = rng.choice((2, 2, 70_000, 300_000)) if faults.has("big_body") else 2
        self.body = universe.bodies[self.id] = answer_bytes(self.id, 0, 0, size)
        self.pause = rng.choice((0.0, 0.0, 0.5, 70.0)) if faults.has("slow_reader") else 0.0
        self.tried: frozenset[str] = frozenset()
        self.missed: frozenset[str] = frozenset()
        self.arrival: int | None = None
        self.attempts = 0
        self.waiter: Waiter | None = None
        self.granted: Granted | None = None
        self.handle: RunHandle | None = None
        self.lease: Lease | None = None
        self.got = 0
        self.forwarded = False
        self.status = 0
        self.ended: str | None = None
        self.failure: str | None = None
        self._reading = False
        edge.clients.append(self)
        self.world.note("invoke", self.id, self.group)
        if faults.has("leave") and rng.random() < 0.4:
            edge.later(rng.choice((0.0, 0.05, 1.0, 8.0)) * rng.random(), self.leave)
        # Every run has a deadline in the end, as a provider's request_timeout_ms gives it one.
        edge.later(rng.uniform(20.0, 45.0), self.time_out)
        self.acquire()

    # ------------------------------------------------------------ the slot

    def acquire(self) -> None:
        request = Request(self.group, self.tokens, self.tried, self.arrival)
        answer = self.edge.pool.submit(request, self)
        if isinstance(answer, Queued):
            self.waiter = answer.waiter
            self.world.note("queued", self.id)
        elif isinstance(answer, Granted):
            self.run_on(Lease(self.edge.pool, answer.lease))
        else:
            self.refused(answer)

    def decided(self, decision: Decision) -> None:
        """The pool decided about this waiter, who now wakes up."""
        if self.waiter is not decision.waiter:
            return
        self.waiter = None
        if isinstance(decision, Granted):
            self.run_on(self.edge.pool.claim(decision.lease))
        else:
            self.refused(decision)

    def refused(self, refusal: Refused) -> None:
        self.finish(self.failure or refusal.kind.value)

    # ------------------------------------------------------------ an attempt

    def run_on(self, lease: Lease) -> None:
        edge, plan = self.edge, self.edge.universe.plan
        self.edge.leases.add(lease)
        target = plan.targets[lease.provider]
        self.arrival = lease.arrival if self.arrival is None else self.arrival
        session = edge.registry.session(target.node_id)
        self.world.note("grant", self.id, lease.provider, lease.core_lease.id)
        if session is None or not edge.fleet.acked_generation(target.node_id):
            self.edge.leases.discard(lease)
            lease.release(Outcome.CANCELLED)
            self.tried |= self.missed & {lease.provider}
            self.missed |= {lease.provider}
            self.failure = "node_lost"
            self.acquire()
            return
        self.tried |= {lease.provider}
        self.attempts += 1
        self.got, self.status = 0, 0
        self.lease = lease
        number = self.attempts
        spec = RunSpec(
            run_id=self.id,
            attempt=number,
            adapter=target.adapter,
            target=target.name,
            operation=Operation.CHAT_COMPLETIONS,
            body=self.body,
            streaming=self.streaming,
            generation=edge.fleet.acked_generation(target.node_id),
            provider_id=lease.provider,
            long=lease.long,
        )
        self.world.note("send", self.id, number, lease.provider)
        ends = 0

        def on_end(end: RunEnd) -> None:
            nonlocal ends
            ends += 1
            if ends > 1:
                raise Violation("I2", f"attempt {number} of {self.id} ended {ends} times")
            code = end.error.code if end.error is not None else ""
            self.world.note("end", self.id, number, code or end.kind.value)
            edge.leases.discard(lease)
            lease.release(outcome_of(end))

        handle = self.handle = session.start_run(spec, on_end)
        attempt = handle._attempt  # type: ignore[attr-defined]
        attempt.notify = lambda: self._wake(handle)
        self._wake(handle)

    def _wake(self, handle: RunHandle) -> None:
        if not self._reading:
            self._reading = True
            self.world.soon(self.edge.enter, self.read, handle)

    def read(self, handle: RunHandle) -> None:
        """Take what has come, like the relay."""
        self._reading = False
        if handle is not self.handle or self.ended is not None:
            return
        live: LiveSession = handle._session  # type: ignore[attr-defined]
        while (item := live.take(handle._attempt)) is not None:  # type: ignore[attr-defined]
            if isinstance(item, Head):
                self.status = item.status
            elif isinstance(item, Chunk):
                self._data(item.data)
                if self.pause:
                    self._reading = True
                    self.edge.later(self.pause, self.read, handle)
                    return
            else:
                self._attempt_over(item)
                return

    def _data(self, data: bytes) -> None:
        offset = 0
        while offset < len(data):
            piece = min(len(data) - offset, 50_000)
            if answer_bytes(self.id, self.attempts, self.got, piece) != data[offset : offset + piece]:
                raise Violation("I9", f"{self.id} got other bytes than its runtime sent, from {self.got} on")
            self.got += piece
            offset += piece
        if self.streaming and not self.forwarded:
            self.forwarded = True
            self.world.note("first-byte", self.id, self.attempts)

    def _attempt_over(self, end: RunEnd) -> None:
        edge = self.edge
        lease, self.handle = self.lease, None
        assert lease is not None
        if end.kind is EndKind.COMPLETED:
            if end.usage is None or end.usage.output_tokens != self.got or self.status != 200:
                raise Violation("I9", f"{self.id} is complete with {self.got} bytes, status {self.status}: {end.usage}")
            self.finish("ok")
            return
        code = end.error.code if end.error is not None else end.kind.value
        if code == "node_protocol" and not end.session_lost:
            raise Violation("I9", f"{self.id}: {end.error.message if end.error is not None else ''}")
        if code in ("config_behind", "no_capacity", "adapter_not_found", "duplicate_attempt", "bad_payload"):
            raise Violation("I7", f"{self.id} failed with {code}: Edge and Node did not agree")
        target = edge.universe.plan.targets[lease.provider]
        failure = failure_of(end, target, operation=Operation.CHAT_COMPLETIONS, window=None, estimate=self.tokens)
        self.failure = failure.error.code
        if failure.retry and not self.forwarded:
            self.acquire()
        else:
            self.finish(self.failure)

    # ------------------------------------------------------------ its end

    def finish(self, how: str) -> None:
        """The one thing that the client is told."""
        if self.ended is not None:
            raise Violation("I6", f"{self.id} ended as {self.ended} and then as {how}")
        self.ended = how
        self.world.note("terminal", self.id, how, self.attempts)
        self.edge.clients.remove(self)

    def leave(self) -> None:
        """The client goes away."""
        self._abandon("client_gone")

    def time_out(self) -> None:
        """The deadline of the request is over."""
        self._abandon("request_timeout")

    def _abandon(self, how: str) -> None:
        if self.ended is not None:
            return
        if self.waiter is not None:
            waiter, self.waiter = self.waiter, None
            self.edge.pool.withdraw(waiter)
        if self.handle is not None and self.lease is not None:
            handle, self.handle = self.handle, None
            self.lease.begin_cancel()
            handle.cancel(how)
        self.finish(how)

    def lost_edge(self) -> None:
        """The process that served it is dead; nobody tells anything any more."""
        if self.ended is None:
            self.ended = "edge_died"
            self.world.note("terminal", self.id, "edge_died", self.attempts)
