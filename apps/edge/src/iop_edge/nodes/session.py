"""The Edge's end of one Node's stream as a machine without I/O: frames in, frames and effects out (wire §1).

Nothing here waits, reads a clock or touches a stream. `registry.py` and `stream.py` drive it: they feed `receive` and
`tick`, write what `take_frame` returns and carry out what `take_effects` returns. Once `over` is set, nothing that
arrives counts any more and at most one frame, the SessionEnd, still leaves.
"""

from __future__ import annotations

from collections.abc import Callable

from iop_edge.nodes.attempt import Attempt
from iop_edge.nodes.convert import NodeInfo, end_from, head_from, outcome_from, state_from
from iop_edge.nodes.effects import (
    AttemptEnded,
    AttemptReady,
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
from iop_edge.nodes.outbound import Outbound
from iop_edge.nodes.pushes import Pushes
from iop_edge.nodes.run import Chunk, End, EndKind, Head, RunError, RunSpec
from iop_edge.nodes.values import LinkState, PushFault, PushOutcome, PushState
from iop_wire import runtime_pb2 as pb
from iop_wire.framing import FrameReader, FrameTooLargeError, FrameWriter, WireError
from iop_wire.limits import CONFIG_FRAME_MAX, KIB, Timing
from iop_wire.outbox import Lane
from iop_wire.silence import SilenceWatch

_WELCOME_REST = KIB
"""What a Welcome holds beside its payload, at most."""
_LOST_CODE = {OverReason.EDGE_SHUTDOWN: "edge_shutdown", OverReason.PROTOCOL: "node_protocol"}
_END_REASON = {
    OverReason.FENCED: pb.SESSION_END_REASON_FENCED,
    OverReason.PROTOCOL: pb.SESSION_END_REASON_PROTOCOL_ERROR,
    OverReason.UNRESPONSIVE: pb.SESSION_END_REASON_UNRESPONSIVE,
    OverReason.SILENT: pb.SESSION_END_REASON_UNRESPONSIVE,
    OverReason.EDGE_SHUTDOWN: pb.SESSION_END_REASON_EDGE_SHUTDOWN,
}


class SessionMachine:
    """One welcomed session. `epoch` rises with each session of the Node; whatever is removed, is removed by session."""

    def __init__(
        self,
        info: NodeInfo,
        welcome: pb.Welcome,
        reader: FrameReader[pb.NodeFrame],
        *,
        now: float,
        timing: Timing,
    ) -> None:
        self.info = info
        self.session_id = welcome.session_id
        self.epoch = welcome.epoch
        self.over: SessionOver | None = None
        self.suspect = False
        self.draining = False
        self.heartbeat = pb.Heartbeat()
        self.heard_at = now
        self.applied_version = info.applied_version
        self.applied_generation = info.applied_generation
        self.dropped = 0
        """Events of unknown or ended attempts (normal where cancel and completion cross) and unknown members."""
        self.attempts: dict[tuple[str, int], Attempt] = {}
        self.pushes = Pushes(timing.push_answer)
        self._timing = timing
        self._reader = reader
        self._writer: FrameWriter[pb.EdgeFrame] = FrameWriter()
        self._out = Outbound()
        self._effects: list[Effect] = []
        self._silence = SilenceWatch(now)
        self._stopping = {(attempt.run_id, attempt.attempt): attempt for attempt in info.stopping}
        self._cancelling: dict[tuple[str, int], Attempt] = {}
        self._adapter_kinds: dict[str, str] = {}
        if welcome.HasField("config"):
            self._learn_adapters(welcome.config)
            self.pushes.welcomed(now)
        if (size := welcome.ByteSize()) > CONFIG_FRAME_MAX - _WELCOME_REST:
            # Connected and of no use, but shown with the fault: like a Node that refused its first payload.
            welcome.ClearField("config")
            self._unsendable("", f"a payload of {size} bytes is above {CONFIG_FRAME_MAX - _WELCOME_REST}")
        self._out.put(Lane.CONTROL, pb.EdgeFrame(welcome=welcome))

    # ------------------------------------------------------------ what the shell asks

    @property
    def state(self) -> LinkState:
        """For the status."""
        if self.over is not None:
            return LinkState.DISCONNECTED
        if self.draining:
            return LinkState.DRAINING
        return LinkState.SUSPECT if self.suspect else LinkState.CONNECTED

    def take_effects(self) -> list[Effect]:
        """Return what happened since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def take_frame(self) -> bytes | None:
        """Return the next frame to write; None when nothing is ready (or, once over, nothing will be)."""
        while (frame := self._out.next()) is not None:
            try:
                return self._writer.seal(frame)
            except FrameTooLargeError as error:
                self._too_large(frame, error)
        return None

    def receive(self, data: bytes, now: float) -> None:
        """Take the bytes of one frame after the Hello."""
        if self.over is not None:
            return
        self.heard_at = now
        self._silence.heard(now)
        try:
            frame = self._reader.read(data)
            self._dispatch(frame, now)
        except WireError as error:
            self.close(OverReason.PROTOCOL, f"the Node broke the protocol: {error}")
        self._recover()

    def _recover(self) -> None:
        """A suspect Node spoke. After what it said: Draining or a Goodbye must not open it for one run first."""
        if self.suspect and self.over is None:
            self.suspect = False
            if not self.draining:
                self._effects.append(Recovered())

    def tick(self, now: float) -> None:
        """Look at the clock, several times a second: silence, unanswered cancels and pushes, stalled readers."""
        if self.over is not None:
            return
        silent = self._silence.look(now)
        if silent >= self._timing.dead:
            self.close(OverReason.SILENT, f"the Node was silent for {silent:.0f} s")
            return
        if silent >= self._timing.suspect and not self.suspect:
            self.suspect = True
            if not self.draining:
                self._effects.append(Suspected())
        for attempt in self._cancelling.values():
            if attempt.cancel_due is not None and now >= attempt.cancel_due:
                text = f"the Node did not confirm the end of cancelled run {attempt.spec.run_id}"
                self.close(OverReason.UNRESPONSIVE, text)
                return
        for outcome in self.pushes.expire(now):
            self._effects.append(PushDone(outcome))
            self._send_push(now)
        stalled = [
            attempt
            for attempt in self.attempts.values()
            if attempt.buffered and now - attempt.taken_at >= self._timing.client_stalled
        ]
        for attempt in stalled:
            text = f"the client took nothing for {self._timing.client_stalled:.0f} s"
            error = RunError("client_stalled", text, maybe_executed=True, outcome="cancelled")
            self._give_up(attempt, End(EndKind.CANCELLED, error=error, started=True), "client_stalled", now)

    # ------------------------------------------------------------ runs

    def start(self, spec: RunSpec, on_end: Callable[[End], None], now: float) -> Attempt:
        """Queue the attempt. On a session that is over or draining it ends at once, never having been sent."""
        attempt = Attempt(spec, on_end, now)
        if self.over is not None:
            self._finish(attempt, self._lost_end(attempt, self.over.reason, self.over.message))
        elif self.draining:
            error = RunError("node_draining", "the Node is shutting down", retryable=True, outcome="cancelled")
            self._finish(attempt, End(EndKind.FAILED, error=error))
        elif attempt.key in self.attempts:
            error = RunError("duplicate_attempt", "this attempt is already running", outcome="cancelled")
            self._finish(attempt, End(EndKind.FAILED, error=error))
        else:
            self.attempts[attempt.key] = attempt
            self._out.put_request(attempt)
        return attempt

    def take(self, attempt: Attempt, now: float) -> Head | Chunk | End | None:
        """Return the attempt's next item and grant its bytes as new credit; None when nothing has arrived."""
        item = attempt.take(now)
        if isinstance(item, Chunk) and not attempt.ended and self.over is None:
            granted = attempt.credit.taken(len(item.data))
            if granted:
                run_id, number = attempt.key
                credit = pb.RunCredit(run_id=run_id, attempt=number, bytes=granted)
                self._out.put(Lane.CREDIT, pb.EdgeFrame(run_credit=credit))
        return item

    def cancel(self, attempt: Attempt, reason: str, now: float) -> None:
        """Ask the Node to stop the run; one that was not sent yet ends at once. Harmless when repeated or too late."""
        if attempt.ended or attempt.cancel_due is not None or self.over is not None:
            return
        self._out.withdraw(attempt)
        if not attempt.sent:
            # Its cancel would overtake it and the Node would then execute it.
            self._finish(attempt, End(EndKind.CANCELLED))
            return
        bound = self._timing.cancel_bound(self._adapter_kinds.get(attempt.spec.adapter, ""))
        attempt.cancel_due = now + bound + self._timing.cancel_margin
        self._cancelling[attempt.key] = attempt
        run_id, number = attempt.key
        message = pb.CancelRun(run_id=run_id, attempt=number, reason=reason)
        self._out.put(Lane.CONTROL, pb.EdgeFrame(cancel_run=message))

    # ------------------------------------------------------------ configuration

    def push(self, push_id: str, payload: pb.NodeConfigPayload, now: float) -> None:
        """Send a new configuration, or let it wait for the answer to the one under way; a newer one takes its place."""
        if self.over is not None:
            self._effects.append(PushDone(PushOutcome(push_id, PushState.DISCONNECTED)))
            return
        superseded = self.pushes.queue(push_id, payload)
        if superseded is not None:
            self._effects.append(PushDone(superseded))
        self._send_push(now)

    def _send_push(self, now: float) -> None:
        sending = self.pushes.next(now)
        if sending is not None:
            self._learn_adapters(sending.payload)
            self._out.put(Lane.CONTROL, pb.EdgeFrame(config_refresh=sending))

    def _unsendable(self, push_id: str, why: str) -> None:
        outcome = PushOutcome(
            push_id,
            PushState.NACKED,
            version=self.applied_version,
            generation=self.applied_generation,
            faults=(PushFault("", "payload_too_large", why),),
        )
        self.pushes.answered(outcome)
        self._effects.append(PushDone(outcome))

    def _learn_adapters(self, payload: pb.NodeConfigPayload) -> None:
        self._adapter_kinds.update((adapter.key, adapter.kind) for adapter in payload.adapters)

    # ------------------------------------------------------------ the end of the session

    def request_drain(self, reason: str, grace: float) -> None:
        """Tell the Node that the Edge is about to stop."""
        if self.over is None:
            message = pb.DrainRequest(reason=reason, grace_ms=round(grace * 1000))
            self._out.put(Lane.CONTROL, pb.EdgeFrame(drain_request=message))

    def close(self, reason: OverReason, message: str, retry_after: float = 0.0) -> None:
        """End the session: a SessionEnd leaves where the Node can still hear it, every attempt gets its one end."""
        if self.over is not None:
            return
        over = SessionOver(reason, message)
        self.over = over
        self._out.clear()
        if reason in _END_REASON:
            end = pb.SessionEnd(reason=_END_REASON[reason], message=message, retry_after_ms=round(retry_after * 1000))
            self._out.put(Lane.CONTROL, pb.EdgeFrame(session_end=end))
        # First, so that no slot which the ends below give back is granted on this Node again.
        self._effects.append(over)
        for attempt in list(self.attempts.values()):
            self._finish(attempt, self._lost_end(attempt, reason, message))
        self._effects.extend(PushDone(outcome) for outcome in self.pushes.abandon())

    def _lost_end(self, attempt: Attempt, reason: OverReason, message: str) -> End:
        error = RunError(
            code=_LOST_CODE.get(reason, "node_lost"),
            message=f"{self.info.node_id}: {message}",
            retryable=reason is not OverReason.EDGE_SHUTDOWN,
            maybe_executed=attempt.sent,
            outcome="cancelled",
        )
        return End(EndKind.FAILED, error=error, started=attempt.accepted, session_lost=True)

    # ------------------------------------------------------------ inside

    def _finish(self, attempt: Attempt, end: End) -> None:
        if self.attempts.get(attempt.key) is attempt:
            del self.attempts[attempt.key]
        self._cancelling.pop(attempt.key, None)
        self._out.withdraw(attempt)
        end = attempt.finish(end)
        self._effects.append(AttemptEnded(attempt, end))

    def _give_up(self, attempt: Attempt, end: End, reason: str, now: float) -> None:
        """The reader learns the end now; the slot stays occupied until the Node confirms it (P8)."""
        attempt.give_up(end)
        self._effects.append(AttemptReady(attempt))
        self.cancel(attempt, reason, now)

    def _broke(self, attempt: Attempt, what: str, now: float) -> None:
        if attempt.end is not None:
            return
        error = RunError(
            "node_protocol", f"{self.info.node_id}: {what}", retryable=True, maybe_executed=True, outcome="broken"
        )
        self._give_up(attempt, End(EndKind.FAILED, error=error, started=True), "node_protocol", now)

    def _too_large(self, frame: pb.EdgeFrame, error: FrameTooLargeError) -> None:
        if error.body == "run_request":
            request = frame.run_request
            attempt = self.attempts.get((request.run_id, request.attempt))
            if attempt is not None:
                attempt.sent = False
                fault = RunError("request_too_large", "the request's headers are too large", outcome="client_error")
                self._finish(attempt, End(EndKind.FAILED, error=fault))
        elif error.body == "config_refresh":
            self._unsendable(frame.config_refresh.push_id, str(error))

    def _dispatch(self, frame: pb.NodeFrame, now: float) -> None:
        body = frame.WhichOneof("body")
        if body == "run_events":
            touched: dict[int, Attempt] = {}
            for event in frame.run_events.events:
                self._on_event(event, touched, now)
            self._effects.extend(AttemptReady(attempt) for attempt in touched.values() if not attempt.ended)
        elif body == "heartbeat":
            self.heartbeat = frame.heartbeat
            ack = pb.HeartbeatAck(n=frame.heartbeat.n)
            self._out.put(Lane.HEARTBEAT, pb.EdgeFrame(heartbeat_ack=ack))
        elif body == "config_result":
            self._on_config_result(frame.config_result, now)
        elif body == "provider_status":
            states = tuple(state_from(state) for state in frame.provider_status.providers)
            self._effects.append(HealthChanged(states))
        elif body == "draining":
            if not self.draining:
                self.draining = True
                self._effects.append(NodeDrains(frame.draining.reason))
        elif body == "goodbye":
            self.close(OverReason.GOODBYE, frame.goodbye.reason or "the Node said goodbye")
        elif body == "hello":
            raise WireError("a second Hello")
        else:
            self.dropped += 1

    def _on_event(self, event: pb.RunEvent, touched: dict[int, Attempt], now: float) -> None:
        key = (event.run_id, event.attempt)
        attempt = self.attempts.get(key)
        kind = event.WhichOneof("event")
        if attempt is None or not attempt.sent:
            self._on_stranger(key, kind)
            return
        if event.seq != attempt.seq + 1:
            self._broke(attempt, f"event {event.seq} after event {attempt.seq} of one run", now)
        attempt.seq = event.seq
        if kind == "chunk":
            data = event.chunk.data
            if not attempt.credit.received(len(data)):
                self._broke(attempt, "more bytes than the run had credit for", now)
            attempt.put_chunk(data, now)
        elif kind == "terminal":
            self._finish(attempt, end_from(event.terminal))
        elif kind == "head":
            attempt.put_head(head_from(event.head))
        elif kind == "accepted":
            attempt.accepted = True
            return
        else:
            self.dropped += 1
            return
        touched[id(attempt)] = attempt

    def _on_stranger(self, key: tuple[str, int], kind: str | None) -> None:
        stopping = self._stopping.get(key)
        if stopping is not None and kind == "terminal":
            del self._stopping[key]
            self._effects.append(StoppingEnded(stopping))
        else:
            self.dropped += 1

    def _on_config_result(self, message: pb.ConfigResult, now: float) -> None:
        outcome = outcome_from(message)
        late = self.pushes.answered(outcome)
        if late is None:
            # Of another stream, or said twice.
            self.dropped += 1
            return
        if outcome.state is not PushState.SUPERSEDED:
            self.applied_version = outcome.version
            self.applied_generation = outcome.generation
        self._effects.append(PushDone(outcome, late=late))
        self._send_push(now)
