"""The production code with one rule taken out at a time: a simulation that passes these proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import frozen

from iop_edge.fleet import Fleet
from iop_edge.nodes.attempt import Attempt
from iop_edge.nodes.effects import AttemptEnded, NodeDrains, OverReason, Recovered, SessionOver, Suspected
from iop_edge.nodes.live import LiveSession
from iop_edge.nodes.outbound import Outbound as EdgeOutbound
from iop_edge.nodes.outbound import _Outgoing
from iop_edge.nodes.pushes import Pushes
from iop_edge.nodes.registry import NodeRegistry
from iop_edge.nodes.run import End, EndKind
from iop_edge.nodes.session import SessionMachine
from iop_node.outbound import Outbound as NodeOutbound
from iop_node.outbound import OutRun
from iop_node.session import NodeSession
from iop_pool import ConnectionState, PoolCore
from iop_wire import runtime_pb2 as pb
from iop_wire.credit import ReceiveCredit, SendCredit
from iop_wire.framing import FrameReader
from iop_wire.payload import PayloadAssembly
from iop_wire.silence import SilenceWatch

Patch = tuple[type, str, Callable[..., Any]]


@frozen
class Mutant:
    """One rule taken out, and where it stands."""

    name: str
    rule: str
    what: str
    patches: tuple[Patch, ...]

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Run with the rule taken out."""
        kept = [(owner, name, owner.__dict__[name]) for owner, name, _ in self.patches]
        for owner, name, mutated in self.patches:
            setattr(owner, name, mutated)
        try:
            yield
        finally:
            for owner, name, original in kept:
                setattr(owner, name, original)


MUTANTS: list[Mutant] = []


def mutant(rule: str, what: str, *places: tuple[type, str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a mutant: the decorated function takes the place of each of `places`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        patches = tuple((owner, name, function) for owner, name in places)
        MUTANTS.append(Mutant(function.__name__.replace("_", "-"), rule, what, patches))
        return function

    return register


def _original(owner: type, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = owner.__dict__[name]
    return found


_connected = _original(Fleet, "connected")
_say_acknowledged = _original(Fleet, "_say_acknowledged")
_dispatch_edge = _original(SessionMachine, "_dispatch")
_close = _original(SessionMachine, "close")
_tick_edge = _original(SessionMachine, "tick")
_cancel = _original(SessionMachine, "cancel")
_request = _original(NodeSession, "_on_request")
_tick_node = _original(NodeSession, "tick")
_node_end = _original(NodeSession, "end")
_registry_over = _original(NodeRegistry, "_session_over")
_release = _original(PoolCore, "release")


# ---------------------------------------------------------------- whose slot it is (§1.6, P8)


@mutant("§1.6, P8", "the Edge forgets the attempts that a Hello says are still stopping", (Fleet, "connected"))
def stopping_attempts_ignored(self: Fleet, node_id: str, epoch: int, states: Any, stopping: Any) -> None:
    _connected(self, node_id, epoch, states, ())


@mutant("§1.6", "the Node does not tell the end of an attempt of an earlier session", (NodeSession, "stopping_ended"))
def stopping_end_not_told(self: NodeSession, attempt: Any, end: Any) -> None:
    return


@mutant("§1.6", "the Edge does not see that an earlier attempt has ended", (SessionMachine, "_on_stranger"))
def stopping_end_not_seen(self: SessionMachine, key: Any, kind: Any) -> None:
    self.dropped += 1


@mutant("P8", "a cancel gives the slot back at once", (SessionMachine, "cancel"))
def slot_freed_by_the_cancel(self: SessionMachine, attempt: Attempt, reason: str, now: float) -> None:
    sent = attempt.sent and not attempt.ended
    _cancel(self, attempt, reason, now)
    if sent and self.over is None and not attempt.ended:
        self._finish(attempt, End(EndKind.CANCELLED))


@mutant(
    "P8, §1.3",
    "an unconfirmed cancel frees its slot by a timer instead of ending the session",
    (SessionMachine, "tick"),
)
def slot_freed_by_a_timer(self: SessionMachine, now: float) -> None:
    for attempt in list(self._cancelling.values()):
        if attempt.cancel_due is not None and now >= attempt.cancel_due:
            self._finish(attempt, End(EndKind.CANCELLED))
    _tick_edge(self, now)


@mutant("P8", "a lost session gives no slot back", (SessionMachine, "close"))
def lost_runs_never_end(self: SessionMachine, reason: OverReason, message: str, retry_after: float = 0.0) -> None:
    attempts, self.attempts = self.attempts, {}
    _close(self, reason, message, retry_after)
    self.attempts = attempts


@mutant(
    "§1.2.2", "an attempt that ended is not forgotten, and ends once more with its session", (SessionMachine, "_finish")
)
def attempt_ends_twice(self: SessionMachine, attempt: Attempt, end: End) -> None:
    self._cancelling.pop(attempt.key, None)
    self._out.withdraw(attempt)
    self._effects.append(AttemptEnded(attempt, attempt.finish(end)))


@mutant(
    "§1.2.2",
    "the Terminal is told twice by the Node and counted twice by the Edge",
    (NodeSession, "end"),
)
def two_terminals(self: NodeSession, run: OutRun, end: Any) -> None:
    _node_end(self, run, end)
    if self.over is None:
        run._pending.append(pb.Chunk() and b"after the end")


@mutant("P8", "the ends of its runs are told before the loss of their Node", (SessionMachine, "close"))
def slots_come_back_before_the_loss(
    self: SessionMachine, reason: OverReason, message: str, retry_after: float = 0.0
) -> None:
    _close(self, reason, message, retry_after)
    self._effects.sort(key=lambda effect: isinstance(effect, SessionOver))


# ---------------------------------------------------------------- who has the session (§1.5, §1.2.1)


@mutant("§1.5", "a second session of the same Node does not end the first", (NodeRegistry, "_fence"))
def no_fence(self: NodeRegistry, current: LiveSession, info: Any) -> None:
    return


@mutant("§1.2.1", "a session that ends takes the Node's newer one with it", (NodeRegistry, "_session_over"))
def removed_by_node_id(self: NodeRegistry, session: LiveSession, over: SessionOver) -> None:
    _registry_over(self, session, over)
    self._sessions.pop(session.node_id, None)


@mutant("§1.5", "frames of a session that is over still count on the Edge", (SessionMachine, "receive"))
def stale_frames_count(self: SessionMachine, data: bytes, now: float) -> None:
    try:
        self._dispatch(self._reader.read(data), now)
    except Exception:
        self.close(OverReason.PROTOCOL, "broken")
    self.heard_at = now
    self._silence.heard(now)
    self._recover()


@mutant("§1.1", "a gap or a repeat in the numbers of the frames is not noticed", (FrameReader, "read"))
def frame_numbers_not_checked(self: FrameReader[Any], data: bytes) -> Any:
    return self._type.FromString(data)


# ---------------------------------------------------------------- silence (§1.3)


@mutant("§1.3", "the Edge gives new runs to a Node that is silent", (Fleet, "suspect"))
def suspect_node_gets_runs(self: Fleet, node_id: str) -> None:
    return


@mutant("§1.3", "a Node that spoke again stays without runs", (Fleet, "recovered"))
def suspect_for_ever(self: Fleet, node_id: str) -> None:
    return


@mutant("§1.3", "the Edge's own standstill counts as the silence of its Nodes", (SilenceWatch, "look"))
def own_stall_is_silence(self: SilenceWatch, now: float) -> float:
    self._looked_at = now
    return now - self._heard_at


@mutant("§1.3", "the Edge never calls a silent Node dead", (SessionMachine, "tick"))
def edge_waits_for_the_silent(self: SessionMachine, now: float) -> None:
    kept, self._silence = self._silence, SilenceWatch(now)
    _tick_edge(self, now)
    self._silence = kept


@mutant("§1.3", "the Node never leaves a silent Edge", (NodeSession, "tick"))
def node_waits_for_the_silent(self: NodeSession, now: float, vitals: Any) -> None:
    self._silence.heard(now)
    _tick_node(self, now, vitals)


@mutant("§1.3", "the Node sends no heartbeat", (NodeSession, "tick"))
def no_heartbeat(self: NodeSession, now: float, vitals: Any) -> None:
    self._beat_at = now
    _tick_node(self, now, vitals)


# ---------------------------------------------------------------- drain (§1.7)


@mutant("§1.7, N6", "a Node that drains is given new runs", (SessionMachine, "_dispatch"))
def draining_not_told(self: SessionMachine, frame: pb.NodeFrame, now: float) -> None:
    _dispatch_edge(self, frame, now)
    self._effects = [effect for effect in self._effects if not isinstance(effect, NodeDrains)]


@mutant("§1.7, N6", "a Node that drains starts the runs that crossed its Draining", (NodeSession, "_on_request"))
def crossing_run_started(self: NodeSession, request: pb.RunRequest) -> None:
    draining, self._draining = self._draining, False
    _request(self, request)
    self._draining = draining


@mutant("§1.7, P10", "a silent Node that drains is opened again when it speaks", (SessionMachine, "_recover"))
def draining_node_recovers(self: SessionMachine) -> None:
    if self.suspect and self.over is None:
        self.suspect = False
        self._effects.append(Suspected())
        self._effects.append(Recovered())


# ---------------------------------------------------------------- bytes (§1.2.3, §1.2.4)


@mutant("§1.2.4", "the Node sends without credit", (SendCredit, "spend"))
def credit_ignored(self: SendCredit, size: int) -> bool:
    return True


@mutant("§1.2.4", "the Edge never grants new credit", (ReceiveCredit, "taken"))
def credit_never_granted(self: ReceiveCredit, size: int) -> int:
    return 0


@mutant("§1.2.3", "the Terminal overtakes the bytes of its run", (NodeOutbound, "put_event"))
def terminal_overtakes(self: NodeOutbound, run: OutRun, item: Any) -> None:
    if isinstance(item, pb.Terminal):
        run._pending.appendleft(item)
        self._running.remove(run.key)
        self._ending.add(run.key, run)
    else:
        run.push(item)
        self._running.add(run.key, run)


@mutant("§1.2", "joined bytes change their order", (OutRun, "_join"))
def bytes_out_of_order(self: OutRun, first: bytes, room: int) -> bytes:
    if self._pending and isinstance(second := self._pending[0], bytes) and len(first) + len(second) <= room:
        self._pending.popleft()
        return second + first
    return first


@mutant("§1.1", "the last part of a body is sent first", (_Outgoing, "next"))
def parts_out_of_order(self: _Outgoing) -> tuple[pb.EdgeFrame, bool]:
    if self.parts is not None and isinstance(self.parts, list):
        part = self.parts.pop()
        spec = self.attempt.spec
        payload = pb.RunPayload(
            run_id=spec.run_id, attempt=spec.attempt, offset=part.offset, data=part.data, last=part.last
        )
        return pb.EdgeFrame(run_payload=payload), not self.parts
    frame, last = _outgoing_next(self)
    if not last and self.parts is not None:
        self.parts = list(self.parts)  # type: ignore[assignment]
    return frame, last


@mutant("§1.1", "a body with a part missing is taken for complete", (PayloadAssembly, "add"))
def body_cut_short(self: PayloadAssembly, offset: int, data: bytes, last: bool) -> bytes | None:
    return data if last else None


@mutant("§1.2.3", "a cancelled run's request that was not sent yet is sent all the same", (EdgeOutbound, "withdraw"))
def cancelled_request_sent(self: EdgeOutbound, attempt: Attempt) -> None:
    return


_outgoing_next = _original(_Outgoing, "next")


# ---------------------------------------------------------------- configuration (§1.1, R8, R14)


@mutant(
    "§1.2.7, R14", "runs go under the newest generation instead of the acknowledged one", (Fleet, "acked_generation")
)
def run_of_the_newest_generation(self: Fleet, node_id: str) -> int:
    node = self._nodes[node_id]
    return node.desired.generation if node.connected else 0


@mutant("R14", "a raised capacity counts before its Node has acknowledged it", (Fleet, "_say_acknowledged"))
def capacity_counts_at_once(self: Fleet, node_id: str, *, opening: bool = True) -> None:
    for provider in self._providers(node_id):
        self._pool.set_acknowledged(provider.id, True)


@mutant("R14", "only the newest and the confirmed configuration count, not those between", (Fleet, "_limit"))
def taken_back_cut_forgotten(self: Fleet, node: Any, provider: Any) -> int:
    if node.acknowledged is None:
        return 0
    for entry in node.acknowledged.message.providers:
        if entry.id == provider.id:
            return entry.capacity if entry.enabled else 0
    return int(provider.capacity)


@mutant("R14", "limits are lifted before the pool has the new capacities", (Fleet, "_say_acknowledged"))
def limits_lifted_first(self: Fleet, node_id: str, *, opening: bool = True) -> None:
    _say_acknowledged(self, node_id)


@mutant("R8", "a Node that comes back is not given what is in force", (NodeRegistry, "_welcome"))
def welcome_without_payload(self: NodeRegistry, info: Any, protocol: int) -> pb.Welcome:
    message = _welcome(self, info, protocol)
    if message.epoch > 1:
        message.ClearField("config")
    return message


_welcome = _original(NodeRegistry, "_welcome")


@mutant("§1.1", "an answer to a push that comes late does not count", (Pushes, "answered"))
def late_answer_dropped(self: Pushes, outcome: Any) -> bool | None:
    self._unanswered.clear()
    return _answered(self, outcome)


_answered = _original(Pushes, "answered")


@mutant("R9", "a push that breaks off with its session has no outcome", (Pushes, "abandon"))
def push_without_outcome(self: Pushes) -> list[Any]:
    return []


@mutant("§1.1", "a push that waits for its turn is forgotten", (Pushes, "next"))
def waiting_push_forgotten(self: Pushes, now: float) -> Any:
    sending = _push_next(self, now)
    if sending is None:
        self._waiting = None
    return sending


_push_next = _original(Pushes, "next")


# ---------------------------------------------------------------- the pool, as the sessions drive it (P4, P5)


@mutant("P4", "a slot that comes back is given to nobody", (PoolCore, "release"))
def released_slot_not_offered(self: PoolCore, lease: Any, outcome: Any, now: float) -> Any:
    lanes, self._lanes = self._lanes, set()
    try:
        return _release(self, lease, outcome, now)
    finally:
        self._lanes = lanes


@mutant("P5, N4", "a lost Node stays in the pool", (Fleet, "lost"))
def lost_node_stays(self: Fleet, node_id: str, reason: str) -> None:
    node = self._nodes[node_id]
    node.connected, node.acked_generation = False, 0
    self._free_stopping(node)
    self._pool.set_connected(node_id, ConnectionState.CONNECTED)
