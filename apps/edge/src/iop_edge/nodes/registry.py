"""Who is connected: one session per Node, the push of configuration, rows for the status (R8, R9, N4)."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from typing import Protocol

from iop_edge.nodes.admission import FlapGuard, Refusal, read_hello, who
from iop_edge.nodes.convert import NodeInfo
from iop_edge.nodes.effects import (
    Effect,
    HealthChanged,
    NodeDrains,
    OverReason,
    PushDone,
    Recovered,
    SessionOver,
    StoppingEnded,
    Suspected,
)
from iop_edge.nodes.live import LiveSession
from iop_edge.nodes.run import NodeSession
from iop_edge.nodes.session import SessionMachine
from iop_edge.nodes.values import LinkState, NodeRow, ProviderState, PushOutcome, PushState, StoppingAttempt
from iop_wire import runtime_pb2 as pb
from iop_wire.framing import FrameReader
from iop_wire.limits import FRAME_MAX, PAYLOAD_MAX, Timing
from iop_wire.version import CAPABILITIES

log = logging.getLogger("iop.edge.nodes")

_SHUTDOWN_RETRY_S = 5.0


class FleetEvents(Protocol):
    """Where the registry tells what happens to the Nodes. Every call is synchronous and must not block or raise.

    When a session ends, `lost` comes first and the `on_end` of its attempts after it, so that a slot which they give
    back is never granted on the Node that just left. With a fence, `connected` of the new session follows in the same
    step.
    """

    def connected(
        self,
        node_id: str,
        epoch: int,
        provider_states: tuple[ProviderState, ...],
        stopping_attempts: tuple[StoppingAttempt, ...],
    ) -> None:
        """A session is up. `provider_states` is complete; the stopping attempts keep their slots occupied (§1.6)."""

    def suspect(self, node_id: str) -> None:
        """Silent for 7.5 s: no new runs, please; the running ones go on."""

    def recovered(self, node_id: str) -> None:
        """A suspect Node spoke again."""

    def draining(self, node_id: str) -> None:
        """The Node is shutting down: no new runs for the rest of this session."""

    def lost(self, node_id: str, reason: str) -> None:
        """The session is over (its stopping attempts with it); `reason` in words for the log and the status."""

    def provider_health(self, node_id: str, states: tuple[ProviderState, ...]) -> None:
        """Providers whose state changed."""

    def config_result(self, node_id: str, outcome: PushOutcome) -> None:
        """A push (or the payload of the Welcome: `push_id` "") was acked, nacked, or not answered in time."""

    def stopping_ended(self, node_id: str, attempt: StoppingAttempt) -> None:
        """An attempt of an earlier session released its runtime."""


PayloadFor = Callable[[str], pb.NodeConfigPayload | None]
"""The payload in force for a Node id, asked at each Welcome; None: the Node has no configuration here."""


class NodeRegistry:
    """Every Node of the config and its session, if any.

    Synchronous and without a clock of its own: `server.py` calls `tick` several times a second. `node_ids` are the
    Nodes of the config (rows of absent ones say disconnected).
    """

    def __init__(
        self,
        events: FleetEvents,
        payload_for: PayloadFor,
        *,
        node_ids: tuple[str, ...],
        edge_id: str,
        edge_version: str,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self.timing = timing or Timing()
        self.clock = clock
        self._events = events
        self._payload_for = payload_for
        self._node_ids = node_ids
        self._edge_id = edge_id
        self._edge_version = edge_version
        self._new_id = new_id
        self._sessions: dict[str, LiveSession] = {}
        self._epochs: dict[str, int] = {}
        self._guard = FlapGuard()
        self._last_end: dict[str, str] = {}
        self._pushing: dict[str, asyncio.Future[PushOutcome]] = {}
        self._closing = False

    def session(self, node_id: str) -> NodeSession | None:
        """Return the live session of a Node, suspect and draining ones included; None while disconnected."""
        return self._sessions.get(node_id)

    def push(self, node_id: str, payload: pb.NodeConfigPayload) -> asyncio.Future[PushOutcome]:
        """Send a Node its new configuration (R8); the future always gets a result.

        One push is in flight per Node; a newer one takes the place of one that still waits (§1.1). Without an answer
        in 10 s the result is `no_answer`; what the Node says later is told through `config_result`.
        """
        future: asyncio.Future[PushOutcome] = asyncio.get_running_loop().create_future()
        push_id = self._new_id()
        session = self._sessions.get(node_id)
        if session is None:
            future.set_result(PushOutcome(push_id, PushState.DISCONNECTED))
            return future
        self._pushing[push_id] = future
        session.machine.push(push_id, payload, self.clock())
        session.settle()
        return future

    def rows(self) -> tuple[NodeRow, ...]:
        """Return a row per Node, in the order of `node_ids`."""
        now = self.clock()
        return tuple(self._row(node_id, now) for node_id in self._node_ids)

    # ------------------------------------------------------------ what the streams ask

    def admit(self, node_id: str, hello: bytes, peer: str) -> LiveSession | Refusal:
        """Judge the first frame of a stream whose token belongs to `node_id`; a valid one always wins (§1.5)."""
        reader: FrameReader[pb.NodeFrame] = FrameReader(pb.NodeFrame)
        greeting = read_hello(reader, hello, node_id)
        if isinstance(greeting, Refusal):
            log.warning("node %s from %s refused: %s", node_id, peer, greeting.message)
            return greeting
        if self._closing:
            text = "the Edge is shutting down"
            return Refusal(text, pb.SESSION_END_REASON_EDGE_SHUTDOWN, round(_SHUTDOWN_RETRY_S * 1000))
        info, now = greeting.info, self.clock()
        current = self._sessions.get(node_id)
        if current is not None:
            refusal = self._guard.judge(info, current.machine.info, now)
            if refusal is not None:
                log.error("%s", refusal.message)
                return refusal
            self._fence(current, info)
        machine = SessionMachine(info, self._welcome(info, greeting.protocol), reader, now=now, timing=self.timing)
        session = LiveSession(machine, peer, self.clock, self._told)
        self._sessions[node_id] = session
        log.info("node %s connected: %s from %s, epoch %d", node_id, who(info), peer, machine.epoch)
        self._events.connected(node_id, machine.epoch, info.providers, info.stopping)
        session.settle()
        return session

    def tick(self) -> None:
        """Look at the clock for every session."""
        for session in list(self._sessions.values()):
            session.tick()

    def request_drain(self, grace: float) -> None:
        """Tell every Node that the Edge is about to stop; runs go on."""
        for session in self._sessions.values():
            session.machine.request_drain("the Edge is shutting down", grace)
            session.settle()

    def close(self) -> None:
        """End every session as EDGE_SHUTDOWN and refuse new ones."""
        self._closing = True
        for session in list(self._sessions.values()):
            session.close(OverReason.EDGE_SHUTDOWN, "the Edge is shutting down", _SHUTDOWN_RETRY_S)

    # ------------------------------------------------------------ inside

    def _welcome(self, info: NodeInfo, protocol: int) -> pb.Welcome:
        epoch = self._epochs.get(info.node_id, 0) + 1
        self._epochs[info.node_id] = epoch
        return pb.Welcome(
            protocol=protocol,
            session_id=self._new_id(),
            epoch=epoch,
            edge_id=self._edge_id,
            edge_version=self._edge_version,
            capabilities=CAPABILITIES,
            heartbeat_ms=round(self.timing.heartbeat * 1000),
            dead_after_ms=round(self.timing.dead * 1000),
            max_frame_bytes=FRAME_MAX,
            max_payload_bytes=PAYLOAD_MAX,
            config=self._payload_for(info.node_id),
        )

    def _fence(self, current: LiveSession, info: NodeInfo) -> None:
        if info.instance_id == current.machine.info.instance_id:
            text = "the Node dialled again"
        else:
            text = f"{who(info)} took the place of {who(current.machine.info)} with the same id and token"
            log.warning("node %s: %s", info.node_id, text)
        current.close(OverReason.FENCED, text)

    def _told(self, session: LiveSession, effect: Effect) -> None:
        node_id = session.node_id
        if isinstance(effect, PushDone):
            self._push_done(node_id, effect.outcome)
        elif isinstance(effect, HealthChanged):
            self._events.provider_health(node_id, effect.states)
        elif isinstance(effect, StoppingEnded):
            self._events.stopping_ended(node_id, effect.attempt)
        elif isinstance(effect, Suspected):
            log.warning("node %s suspect: silent for %.1f s", node_id, self.timing.suspect)
            self._events.suspect(node_id)
        elif isinstance(effect, Recovered):
            log.info("node %s recovered", node_id)
            self._events.recovered(node_id)
        elif isinstance(effect, NodeDrains):
            log.info("node %s drains: %s", node_id, effect.reason)
            self._events.draining(node_id)
        elif isinstance(effect, SessionOver):
            self._session_over(session, effect)

    def _session_over(self, session: LiveSession, over: SessionOver) -> None:
        node_id = session.node_id
        # Compare and remove: by the session, never by the id (§1.2.1).
        if self._sessions.get(node_id) is session:
            del self._sessions[node_id]
        self._last_end[node_id] = over.message
        quiet = over.reason in (OverReason.GOODBYE, OverReason.EDGE_SHUTDOWN, OverReason.FENCED)
        level = logging.INFO if quiet else logging.WARNING
        log.log(level, "node %s disconnected (%s): %s", node_id, over.reason, over.message)
        self._events.lost(node_id, over.message)

    def _push_done(self, node_id: str, outcome: PushOutcome) -> None:
        if outcome.state in (PushState.ACKED, PushState.NACKED, PushState.NO_ANSWER):
            level = logging.INFO if outcome.state is PushState.ACKED else logging.WARNING
            faults = "; ".join(f"{fault.path}: {fault.message}" for fault in outcome.faults)
            log.log(
                level, "node %s config %s %s%s", node_id, outcome.state, outcome.version, f": {faults}" * bool(faults)
            )
            self._events.config_result(node_id, outcome)
        future = self._pushing.pop(outcome.push_id, None)
        if future is not None and not future.done():
            future.set_result(outcome)

    def _row(self, node_id: str, now: float) -> NodeRow:
        session = self._sessions.get(node_id)
        if session is None:
            state, end = LinkState.DISCONNECTED, self._last_end.get(node_id, "")
            return NodeRow(node_id=node_id, state=state, connected=False, last_end=end)
        machine = session.machine
        info, beat, push = machine.info, machine.heartbeat, machine.pushes.last
        return NodeRow(
            node_id=node_id,
            state=machine.state,
            connected=True,
            session_id=machine.session_id,
            epoch=machine.epoch,
            connected_for=now - session.since,
            last_frame_age=now - machine.heard_at,
            loop_lag_ms=beat.loop_lag_ms,
            active_runs=beat.active_runs,
            runs=len(machine.attempts),
            rss_bytes=beat.rss_bytes,
            hostname=info.hostname,
            pid=info.pid,
            node_version=info.node_version,
            instance=info.instance_id.hex(),
            peer=session.peer,
            config_version=machine.applied_version,
            generation=machine.applied_generation,
            push_state=push.state if push is not None else None,
            push_faults=push.faults if push is not None else (),
            last_end=self._last_end.get(node_id, ""),
            dropped_frames=machine.dropped,
        )
