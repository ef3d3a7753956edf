"""A Node process over the production session: it dials, builds what it is told, and its runtimes do the work."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from iop_node.backoff import Backoff, Cause
from iop_node.link import (
    ConfigFault,
    ConfigOutcome,
    EndKind,
    Health,
    ProviderState,
    RunEnd,
    RunError,
    RunOrder,
    StoppingAttempt,
    Usage,
)
from iop_node.outbound import OutRun
from iop_node.session import (
    CancelRun,
    Configure,
    CreditGranted,
    Identity,
    NodeSession,
    Over,
    SessionState,
    StartRun,
    Vitals,
    Welcomed,
)
from iop_wire import runtime_pb2 as pb
from support.sim.stream import End, Stream
from support.sim.world import Process, Violation

if TYPE_CHECKING:
    from support.sim.universe import Universe

TICK_S = 0.5
PATTERN = bytes(range(251)) * 1200


def answer_bytes(run_id: str, attempt: int, offset: int, size: int) -> bytes:
    """Return what a runtime says for this attempt from `offset` on: another text for each attempt."""
    start = (hash_of(run_id) + 7919 * attempt + offset) % 251
    return PATTERN[start : start + size]


def hash_of(run_id: str) -> int:
    """Return a number for a run id that is the same in every process."""
    return sum(byte * (index + 1) for index, byte in enumerate(run_id.encode()))


class State(Enum):
    RUNNING = auto()
    STOPPING = auto()


class Work:
    """One attempt that occupies a runtime."""

    def __init__(self, node: NodeProcess, order: RunOrder, run: OutRun, session: NodeSession) -> None:
        rng = node.world.rng
        self.node = node
        self.order = order
        self.run = run
        self.session = session
        self.key = (order.run_id, order.attempt)
        self.provider = order.provider_id
        self.state = State.RUNNING
        self.sent = 0
        self.waiting: bytes | None = None
        """Bytes that wait for credit."""
        faults = node.universe.faults
        self.hangs = faults.has("runtime_hang") and rng.random() < 0.1
        self.fails_at: int | None = None
        if faults.has("runtime_error") and rng.random() < 0.25:
            self.fails_at = rng.choice((0, 0, 1, 3))
        self.pieces = rng.choice((1, 2, 5, 12))
        self.size = rng.choice((20, 900, 60_000))
        self.pace = rng.choice((0.0, 0.02, 0.4))
        self.done = 0

    @property
    def total(self) -> int:
        return self.pieces * self.size


class NodeProcess(Process):
    """One process of a Node, from its start to its death."""

    def __init__(self, universe: Universe, node_id: str, number: int) -> None:
        super().__init__(universe.world, f"{node_id}#{number}")
        rng = self.world.rng
        self.universe = universe
        self.node_id = node_id
        self.identity = Identity(node_id, rng.randbytes(16), f"host{number}", number, "0.1.0")
        self.backoff = Backoff(rng)
        self.session: NodeSession | None = None
        self.stream: Stream | None = None
        self.applied_version = ""
        self.applied_generation = 0
        self.capacities: dict[str, int] = {}
        self.work: dict[tuple[str, int], Work] = {}
        self.orphans: set[tuple[str, int]] = set()
        """Attempts whose session is over and which still occupy their runtime."""
        self.announced: set[tuple[str, int]] = set()
        self.ready_at: float | None = None
        self.draining = False
        self.leaving = False
        self.dialling = False
        self.last_cause: Cause | None = None
        self.building: Configure | None = None
        self.to_build: list[tuple[NodeSession, Configure]] = []
        self.health = dict.fromkeys((one.id for one in universe.plan.settings if one.node == node_id), Health.HEALTHY)
        self.later(rng.uniform(0.0, 0.3), self.dial)

    # ------------------------------------------------------------ the connection

    def dial(self) -> None:
        """Open a stream and say Hello; fails when nobody listens."""
        edge = self.universe.edge
        if self.session is not None or self.leaving:
            return
        if edge is None or not edge.alive:
            self.world.note("unreachable", self.name)
            self.redial(Cause.UNREACHABLE)
            return
        stream = self.stream = Stream(self.world, self.universe.faults)
        self.universe.streams.append(stream)
        self.announced = set(self.orphans)
        stopping = tuple(self._stopping(self.work[key]) for key in sorted(self.orphans))
        session = self.session = NodeSession(
            self.identity,
            applied_version=self.applied_version,
            applied_generation=self.applied_generation,
            providers=tuple(ProviderState(one, health) for one, health in self.health.items()),
            stopping=stopping,
            now=self.world.now,
        )
        self.ready_at = None
        node_end = End(
            self,
            lambda data: self._received(stream, session, data),
            lambda: self._stream_closed(session),
            lambda: self._write(stream, session),
        )
        stream.connect(node_end, edge.accept(stream, self.node_id))
        self.world.note("dial", self.name, [attempt.run_id for attempt in stopping])
        self._write(stream, session)
        self.later(TICK_S, self._tick, session)

    def redial(self, cause: Cause, retry_after: float = 0.0) -> None:
        self.last_cause = cause
        if self.ready_at is not None:
            self.backoff.ready_for(self.world.now - self.ready_at)
            self.ready_at = None
        self.later(self.backoff.delay(cause, retry_after), self.dial)

    def _received(self, stream: Stream, session: NodeSession, data: bytes) -> None:
        session.receive(data, self.world.now)
        self._carry_out(stream, session)

    def _stream_closed(self, session: NodeSession) -> None:
        session.stream_ended(Cause.LOST, "the connection to the Edge broke")
        if self.stream is not None:
            self._carry_out(self.stream, session)

    def _tick(self, session: NodeSession) -> None:
        if session is not self.session or self.stream is None:
            return
        session.tick(self.world.now, Vitals)
        self._carry_out(self.stream, session)
        self.later(TICK_S, self._tick, session)

    def _write(self, stream: Stream, session: NodeSession) -> None:
        while stream.up.room and (frame := session.take_frame()) is not None:
            stream.up.put(frame)
        if session.goodbye_sent:
            stream.node_closed()

    def _carry_out(self, stream: Stream, session: NodeSession) -> None:
        while effects := session.take_effects():
            for effect in effects:
                if isinstance(effect, StartRun):
                    self._start(effect.order, effect.run, session)
                elif isinstance(effect, CancelRun):
                    self.stop(effect.run.key)
                elif isinstance(effect, CreditGranted):
                    self._credit(effect.run)
                elif isinstance(effect, Configure):
                    self.to_build.append((session, effect))
                    self._build_next()
                elif isinstance(effect, Welcomed):
                    self.world.note("welcomed", self.name, effect.epoch)
                elif isinstance(effect, Over):
                    self._session_over(stream, session, effect)
        self._write(stream, session)

    def _session_over(self, stream: Stream, session: NodeSession, over: Over) -> None:
        if session is not self.session:
            return
        self.world.note("node-over", self.name, over.cause.value)
        self.session = self.stream = None
        stream.node_closed()
        for work in list(self.work.values()):
            self.orphans.add(work.key)
            self.stop(work.key)
        if not self.leaving:
            self.redial(over.cause, over.retry_after)

    # ------------------------------------------------------------ configuration

    def _build_next(self) -> None:
        if self.building is None and self.to_build:
            session, self.building = self.to_build.pop(0)
            delay = self.world.between(0.0, 0.3)
            if self.universe.faults.has("slow_build") and self.world.chance(0.3):
                delay = self.world.between(9.0, 14.0)
            same = self.building.payload.config_version == self.applied_version
            self.later(0.0 if same else delay, self._built, session, self.building)

    def _built(self, session: NodeSession, effect: Configure) -> None:
        self.building = None
        payload = effect.payload
        if any(adapter.key == "cannot-be-built" for adapter in payload.adapters):
            fault = ConfigFault("adapters[cannot-be-built]", "not_found", "no such command")
            outcome = ConfigOutcome(False, self.applied_version, self.applied_generation, (fault,))
        else:
            self._swap(payload)
            outcome = ConfigOutcome(True, self.applied_version, self.applied_generation)
        self.world.note("built", self.name, outcome.applied, outcome.applied_generation)
        session.configured(effect.push_id, outcome)
        if session is self.session and self.stream is not None:
            if session.state is SessionState.READY and self.ready_at is None:
                self.ready_at = self.world.now
            self._carry_out(self.stream, session)
        self._build_next()

    def _swap(self, payload: pb.NodeConfigPayload) -> None:
        self.applied_version, self.applied_generation = payload.config_version, payload.generation
        self.capacities = {one.id: one.capacity if one.enabled else 0 for one in payload.providers}

    # ------------------------------------------------------------ runs

    def _start(self, order: RunOrder, run: OutRun, session: NodeSession) -> None:
        key = (order.run_id, order.attempt)
        provider = order.provider_id
        self.universe.executing(self, order)
        if key in self.work:
            raise Violation("I8", f"{key} is executed twice at once on {self.name}")
        busy = sum(one.provider == provider for one in self.work.values())
        if order.generation == self.applied_generation and busy >= self.capacities.get(provider, 0):
            # The second lock on the same door: when it has to hold, the first one did not (I1, I7). A run of an older
            # generation was granted before the cut that has overtaken it.
            capacity = self.capacities.get(provider, 0)
            raise Violation("I1", f"run {key} reached {provider}, which has {busy} of {capacity} slots in use")
        work = self.work[key] = Work(self, order, run, session)
        session.accepted(run)
        self.later(self.world.between(0.0, 0.3), self._head, work)
        self._flush(work)

    def _head(self, work: Work) -> None:
        if work.state is not State.RUNNING or work.hangs:
            return
        if work.fails_at == 0:
            self._fail(work)
            return
        work.session.head(work.run, 200, ())
        self._flush(work)
        self._next_piece(work)

    def _next_piece(self, work: Work) -> None:
        self.later(work.pace * self.world.rng.random() * 2, self._piece, work)

    def _piece(self, work: Work) -> None:
        if work.state is not State.RUNNING:
            return
        if work.done == work.pieces:
            self.end(work, RunEnd(EndKind.COMPLETED, usage=Usage(1, work.total, from_runtime=True), started=True))
        elif work.fails_at == work.done:
            self._fail(work)
        else:
            work.waiting = answer_bytes(*work.key, work.sent, work.size)
            self._send(work)

    def _send(self, work: Work) -> None:
        data = work.waiting
        if data is None:
            return
        if not work.session.chunk(work.run, data):
            self.world.note("no-credit", self.name, work.key)
            return
        work.waiting = None
        work.sent += len(data)
        work.done += 1
        self._flush(work)
        self._next_piece(work)

    def _credit(self, run: OutRun) -> None:
        work = self.work.get(run.key)
        if work is not None and work.run is run and work.state is State.RUNNING:
            self._send(work)

    def _fail(self, work: Work) -> None:
        status = self.world.rng.choice((500, 503, 400))
        error = RunError(
            "upstream_error",
            f"the runtime answered {status}",
            upstream_status=status,
            retryable=status != 400 and work.sent == 0,
            maybe_executed=True,
            outcome={500: "broken", 503: "busy", 400: "client_error"}[status],
        )
        self.end(work, RunEnd(EndKind.FAILED, error=error, started=True))

    def stop(self, key: tuple[str, int]) -> None:
        """Stop an attempt; it goes on occupying its runtime until that has let go of it."""
        work = self.work.get(key)
        if work is None or work.state is State.STOPPING:
            return
        work.state = State.STOPPING
        delay = self.world.between(0.0, 1.5)
        if self.universe.faults.has("slow_stop") and self.world.chance(0.2):
            delay = self.world.between(2.0, 12.0)
        self.later(delay, self.end, work, RunEnd(EndKind.CANCELLED, started=True))

    def end(self, work: Work, end: RunEnd) -> None:
        """The runtime is free; tell whoever still listens."""
        if self.work.get(work.key) is not work:
            return
        del self.work[work.key]
        self.world.note("exec-end", self.name, work.key, end.kind.value)
        orphan = work.key in self.orphans
        self.orphans.discard(work.key)
        work.session.end(work.run, end)
        if orphan and work.key in self.announced and self.session is not None and self.stream is not None:
            self.announced.discard(work.key)
            self.session.stopping_ended(self._stopping(work), end)
            self._write(self.stream, self.session)
        self._flush(work)
        self._quiet()

    def _flush(self, work: Work) -> None:
        if self.stream is not None and work.session is self.session:
            # A writer task runs in a turn of its own: what is ready until then travels together.
            self.world.soon(self.enter, self._write, self.stream, work.session)

    def _stopping(self, work: Work) -> StoppingAttempt:
        return StoppingAttempt(work.order.run_id, work.order.attempt, work.provider, work.order.long)

    # ------------------------------------------------------------ its end

    def kill(self) -> None:
        """SIGKILL: the runtimes see their connections close and are free at once."""
        self.world.note("kill", self.name, sorted(self.work))
        self.alive = False
        for work in self.work.values():
            self.world.note("exec-end", self.name, work.key, "killed")
        self.work.clear()
        if self.stream is not None:
            self.stream.node_died()

    def drain(self, grace: float) -> None:
        """SIGTERM (N6)."""
        if self.leaving:
            return
        self.leaving = self.draining = True
        self.world.note("drain", self.name)
        session, stream = self.session, self.stream
        if session is None or stream is None or session.state is SessionState.HELLO_SENT:
            if session is not None:
                self._stream_closed(session)
            self._exit_when_free()
            return
        session.drain("SIGTERM", grace)
        self._write(stream, session)
        self.later(grace, self._cancel_all)
        self._quiet()

    def _cancel_all(self) -> None:
        for key in list(self.work):
            self.stop(key)

    def _quiet(self) -> None:
        """Say goodbye once nothing runs and everything was told."""
        session, stream = self.session, self.stream
        if not self.draining:
            return
        if session is None or stream is None:
            self._exit_when_free()
        elif session.active_runs == 0 and session.flushed and not self.work:
            session.say_goodbye("SIGTERM")
            self._write(stream, session)
            self.later(2.0, self._exit_when_free)
        else:
            self.later(0.25, self._quiet)

    def _exit_when_free(self) -> None:
        if self.work:
            self.later(0.25, self._exit_when_free)
        elif self.alive:
            self.world.note("exit", self.name)
            self.alive = False
            if self.stream is not None:
                self.stream.node_died()

    # ------------------------------------------------------------ health

    def get_well_or_ill(self) -> None:
        """A probe found something new about one provider (N7)."""
        provider = self.world.rng.choice(sorted(self.health))
        health = self.world.rng.choice((Health.HEALTHY, Health.HEALTHY, Health.DEGRADED, Health.UNHEALTHY))
        self.report({provider: health})

    def report(self, states: dict[str, Health]) -> None:
        self.health.update(states)
        if self.session is not None and self.stream is not None:
            self.session.provider_status(tuple(ProviderState(one, health) for one, health in states.items()))
            self._write(self.stream, self.session)
