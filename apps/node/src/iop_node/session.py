"""One session of the Node as a machine without I/O: frames in, frames and effects out (wire §1.1, §1.2, §1.6).

Two rules: nothing here waits, reads a clock or touches a stream; and after `over` is set nothing is sent or told any
more. `connection.py` drives it: it feeds `receive` and `tick`, writes what `take_frame` returns and carries out what
`take_effects` returns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum

from attrs import field, frozen

from iop_node.backoff import Cause
from iop_node.convert import head_message, order_from, result_message, state_message, stopping_message, terminal_message
from iop_node.link import ConfigOutcome, EndKind, ProviderState, RunEnd, RunError, RunOrder, StoppingAttempt
from iop_node.outbound import AttemptId, Outbound, OutRun
from iop_wire import runtime_pb2 as pb
from iop_wire.framing import FrameReader, FrameTooLargeError, FrameWriter, WireError
from iop_wire.limits import INITIAL_CREDIT, Timing
from iop_wire.outbox import Lane
from iop_wire.payload import PayloadAssembly, PayloadPartError
from iop_wire.silence import SilenceWatch
from iop_wire.version import CAPABILITIES, PROTOCOL_MAX, PROTOCOL_MIN

_ENDED_KEPT = 4096


@frozen
class Identity:
    """What this process says of itself in every Hello."""

    node_id: str
    instance_id: bytes
    hostname: str
    pid: int
    node_version: str


@frozen
class Vitals:
    """What a heartbeat carries."""

    loop_lag_ms: int = 0
    active_runs: int = 0
    rss_bytes: int = 0


class SessionState(StrEnum):
    HELLO_SENT = "hello_sent"
    CONFIGURING = "configuring"
    READY = "ready"
    DRAINING = "draining"
    OVER = "over"


@frozen
class Welcomed:
    """The Edge took this Node in."""

    session_id: str
    epoch: int
    edge_id: str
    edge_version: str


@frozen
class Configure:
    """Build and swap this payload, then call `configured`; never two at a time."""

    push_id: str
    payload: pb.NodeConfigPayload = field(repr=False)


@frozen
class StartRun:
    """Execute the order; answer through `accepted`, `head`, `chunk`, `end` of its `OutRun`."""

    run: OutRun
    order: RunOrder


@frozen
class CancelRun:
    """Stop a run; its end still comes."""

    run: OutRun
    reason: str


@frozen
class CreditGranted:
    """A run that had no credit may try again (or finds itself muted)."""

    run: OutRun


@frozen
class EdgeDrains:
    """The Edge is about to stop; runs go on until it ends the session."""

    reason: str


@frozen
class Over:
    """The session ended; emitted once. Every run's bytes are swallowed from here on."""

    cause: Cause
    message: str
    retry_after: float = 0.0


Effect = Welcomed | Configure | StartRun | CancelRun | CreditGranted | EdgeDrains | Over

_CAUSES = {
    pb.SESSION_END_REASON_FENCED: Cause.FENCED,
    pb.SESSION_END_REASON_DUPLICATE_NODE: Cause.DUPLICATE,
    pb.SESSION_END_REASON_EDGE_SHUTDOWN: Cause.EDGE_SHUTDOWN,
    pb.SESSION_END_REASON_PROTOCOL_ERROR: Cause.PROTOCOL,
    pb.SESSION_END_REASON_UNRESPONSIVE: Cause.UNRESPONSIVE,
}


class _Incoming:
    """A run whose body is still arriving."""

    __slots__ = ("assembly", "request", "run")

    def __init__(self, run: OutRun, request: pb.RunRequest) -> None:
        self.run = run
        self.request = request
        self.assembly = PayloadAssembly(request.payload_bytes)


class NodeSession:
    """The Node's end of one stream, from its Hello on."""

    def __init__(
        self,
        identity: Identity,
        *,
        applied_version: str,
        applied_generation: int,
        providers: tuple[ProviderState, ...],
        stopping: tuple[StoppingAttempt, ...],
        now: float,
        timing: Timing | None = None,
    ) -> None:
        self.over: Over | None = None
        self.state = SessionState.HELLO_SENT
        self.dropped = 0
        """Frames for unknown or ended attempts (normal where cancel and completion cross) and unknown members."""
        self._timing = timing or Timing()
        self._heartbeat = self._timing.heartbeat
        self._dead = self._timing.dead
        self._reader: FrameReader[pb.EdgeFrame] = FrameReader(pb.EdgeFrame)
        self._writer: FrameWriter[pb.NodeFrame] = FrameWriter()
        self._out = Outbound()
        self._effects: list[Effect] = []
        self._silence = SilenceWatch(now)
        self._started_at = now
        self._beat_at = now
        self._beats = 0
        self._draining = False
        self._goodbye = False
        self._generation = applied_generation
        self._runs: dict[AttemptId, OutRun] = {}
        self._incoming: dict[AttemptId, _Incoming] = {}
        self._stopping = {(attempt.run_id, attempt.attempt) for attempt in stopping}
        self._duplicates: set[AttemptId] = set()
        self._ended: OrderedDict[AttemptId, None] = OrderedDict()
        self._configuring: str | None = None
        self._next_config: Configure | None = None
        hello = pb.Hello(
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            node_id=identity.node_id,
            instance_id=identity.instance_id,
            hostname=identity.hostname,
            pid=identity.pid,
            node_version=identity.node_version,
            capabilities=CAPABILITIES,
            applied_config_version=applied_version,
            applied_generation=applied_generation,
            provider_status=[state_message(state) for state in providers],
            stopping_attempts=[stopping_message(attempt) for attempt in stopping],
        )
        self._out.put(Lane.CONTROL, pb.NodeFrame(hello=hello))

    # ------------------------------------------------------------ what the shell asks

    @property
    def active_runs(self) -> int:
        """Attempts of this session that have not ended, those whose body still arrives included."""
        return len(self._runs)

    @property
    def goodbye_sent(self) -> bool:
        """The last frame was taken: close this side of the stream."""
        return self._goodbye

    @property
    def flushed(self) -> bool:
        """Whether no event of a run waits to be sent."""
        return not self._out.events_waiting

    def take_effects(self) -> list[Effect]:
        """Return what happened since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def take_frame(self) -> bytes | None:
        """Return the next frame to write: all that is ready, nothing is waited for; None when there is nothing."""
        while self.over is None and not self._goodbye:
            frame = self._out.next()
            if frame is None:
                return None
            for event in frame.run_events.events if frame.HasField("run_events") else ():
                if event.HasField("terminal"):
                    self._forget((event.run_id, event.attempt))
            self._goodbye = frame.HasField("goodbye")
            try:
                return self._writer.seal(frame)
            except FrameTooLargeError as error:
                # Only a status or a result of absurd size gets here; without it the session is of more use than none.
                if error.body == "hello":
                    self._end(Over(Cause.PROTOCOL, f"own Hello cannot be sent: {error}"))
                self.dropped += 1
        return None

    def receive(self, data: bytes, now: float) -> None:
        """Take the bytes of one frame."""
        if self.over is not None:
            return
        try:
            frame = self._reader.read(data)
            self._silence.heard(now)
            self._dispatch(frame)
        except WireError as error:
            self._end(Over(Cause.PROTOCOL, f"the Edge broke the protocol: {error}"))

    def tick(self, now: float, vitals: Callable[[], Vitals]) -> None:
        """Look at the clock, several times a second: heartbeat due, Edge silent, no Welcome (wire §1.3)."""
        if self.over is not None:
            return
        silent = self._silence.look(now)
        if self.state is SessionState.HELLO_SENT:
            if now - self._started_at >= self._timing.welcome:
                self._end(Over(Cause.SILENT, f"no Welcome within {self._timing.welcome:.0f} s"))
            return
        if silent >= self._dead:
            self._end(Over(Cause.SILENT, f"the Edge was silent for {silent:.0f} s"))
            return
        if now - self._beat_at >= self._heartbeat:
            self._beat_at = now
            self._beats += 1
            seen = vitals()
            beat = pb.Heartbeat(
                n=self._beats,
                loop_lag_ms=seen.loop_lag_ms,
                active_runs=seen.active_runs,
                rss_bytes=seen.rss_bytes,
            )
            self._out.put(Lane.HEARTBEAT, pb.NodeFrame(heartbeat=beat))

    def stream_ended(self, cause: Cause, message: str) -> None:
        """The stream broke or was closed; a SessionEnd that came before has the say (G8)."""
        self._end(Over(cause, message))

    # ------------------------------------------------------------ what the host answers

    def configured(self, push_id: str, outcome: ConfigOutcome) -> None:
        """The payload was built and swapped, or refused (R9); the next one that waits follows."""
        if self.over is not None or self._configuring != push_id:
            return
        self._configuring = None
        self._generation = outcome.applied_generation
        self._out.put(Lane.CONTROL, pb.NodeFrame(config_result=result_message(push_id, outcome)))
        if self._next_config is not None:
            waiting, self._next_config = self._next_config, None
            self._configure(waiting)
        if self.state is SessionState.CONFIGURING:
            self.state = SessionState.READY

    def provider_status(self, states: tuple[ProviderState, ...]) -> None:
        """Tell the Edge about providers whose state changed (N7)."""
        if self.over is None and states:
            message = pb.ProviderStatus(providers=[state_message(state) for state in states])
            self._out.put(Lane.CONTROL, pb.NodeFrame(provider_status=message))

    def stopping_ended(self, attempt: StoppingAttempt, end: RunEnd) -> None:
        """An attempt of an earlier session released its runtime: its Terminal goes through this session (§1.6)."""
        key = (attempt.run_id, attempt.attempt)
        if self.over is None and key in self._stopping:
            self._stopping.discard(key)
            self._answer(OutRun(key, INITIAL_CREDIT), end)

    def accepted(self, run: OutRun) -> None:
        """The adapter took the run."""
        if self._speaks(run):
            self._out.put_event(run, pb.Accepted())

    def head(self, run: OutRun, status: int, headers: tuple[tuple[str, str], ...]) -> None:
        """The runtime answered."""
        if self._speaks(run):
            self._out.put_event(run, head_message(status, headers))

    def chunk(self, run: OutRun, data: bytes) -> bool:
        """Queue at most `run.credit.piece_max` bytes; False while the run has no credit for them. Muted: swallowed."""
        if run.muted or not self._speaks(run):
            return True
        if not run.credit.spend(len(data)):
            return False
        self._out.put_event(run, data)
        return True

    def end(self, run: OutRun, end: RunEnd) -> None:
        """Queue the one Terminal of the attempt; a second one is dropped (§1.2.2)."""
        if not self._speaks(run):
            return
        if run.key in self._duplicates:
            self._duplicates.discard(run.key)
            end = _refusal("duplicate_attempt", "the same attempt was requested twice; it was stopped", end)
        self._answer(run, end)

    # ------------------------------------------------------------ shutdown (§1.7)

    def drain(self, reason: str, grace: float) -> None:
        """Tell the Edge that this Node stops: no new runs from here on, heartbeats go on."""
        if self.over is None and not self._draining:
            self._draining = True
            self.state = SessionState.DRAINING
            # A run whose body still arrives has not begun: it is of more use elsewhere.
            for incoming in self._incoming.values():
                self._refuse(incoming.run, "node_draining", "the Node is shutting down")
            self._incoming.clear()
            message = pb.Draining(reason=reason, grace_ms=round(grace * 1000))
            self._out.put(Lane.CONTROL, pb.NodeFrame(draining=message))

    def say_goodbye(self, reason: str) -> None:
        """Queue the last frame: after everything else that waits."""
        if self.over is None:
            self._out.put(Lane.LAST, pb.NodeFrame(goodbye=pb.Goodbye(reason=reason)))

    # ------------------------------------------------------------ inside

    def _speaks(self, run: OutRun) -> bool:
        return self.over is None and not run.ended

    def _end(self, over: Over) -> None:
        if self.over is not None:
            return
        self.over = over
        self.state = SessionState.OVER
        self._out.clear()
        for run in self._runs.values():
            run.mute()
            self._effects.append(CreditGranted(run))
        self._runs.clear()
        self._incoming.clear()
        self._effects.append(over)

    def _forget(self, key: AttemptId) -> None:
        self._runs.pop(key, None)
        self._ended[key] = None
        while len(self._ended) > _ENDED_KEPT:
            self._ended.popitem(last=False)

    def _answer(self, run: OutRun, end: RunEnd) -> None:
        run.ended = True
        self._out.put_event(run, terminal_message(end))

    def _dispatch(self, frame: pb.EdgeFrame) -> None:
        body = frame.WhichOneof("body")
        if self.state is SessionState.HELLO_SENT and body not in ("welcome", "session_end"):
            raise WireError(f"{body or 'an unknown frame'} before Welcome")
        if body == "run_credit":
            self._on_credit(frame.run_credit)
        elif body == "run_request":
            self._on_request(frame.run_request)
        elif body == "run_payload":
            self._on_payload(frame.run_payload)
        elif body == "cancel_run":
            self._on_cancel(frame.cancel_run)
        elif body == "heartbeat_ack":
            pass
        elif body == "config_refresh":
            self._configure(Configure(frame.config_refresh.push_id, frame.config_refresh.payload))
        elif body == "welcome":
            self._on_welcome(frame.welcome)
        elif body == "session_end":
            end = frame.session_end
            cause = _CAUSES.get(end.reason, Cause.LOST)
            self._end(Over(cause, end.message, end.retry_after_ms / 1000))
        elif body == "drain_request":
            self._effects.append(EdgeDrains(frame.drain_request.reason))
        else:
            self.dropped += 1

    def _on_welcome(self, welcome: pb.Welcome) -> None:
        if self.state is not SessionState.HELLO_SENT:
            raise WireError("a second Welcome")
        if not PROTOCOL_MIN <= welcome.protocol <= PROTOCOL_MAX:
            message = f"the Edge chose protocol {welcome.protocol}; this Node speaks {PROTOCOL_MIN}-{PROTOCOL_MAX}"
            self._end(Over(Cause.VERSION, message))
            return
        self._heartbeat = welcome.heartbeat_ms / 1000 or self._timing.heartbeat
        self._dead = welcome.dead_after_ms / 1000 or self._timing.dead
        self.state = SessionState.READY
        self._effects.append(Welcomed(welcome.session_id, welcome.epoch, welcome.edge_id, welcome.edge_version))
        if welcome.HasField("config"):
            self.state = SessionState.CONFIGURING
            self._configure(Configure("", welcome.config))
        if self._draining:
            self.state = SessionState.DRAINING

    def _configure(self, effect: Configure) -> None:
        if self._configuring is None:
            self._configuring = effect.push_id
            self._effects.append(effect)
            return
        if (passed := self._next_config) is not None:
            result = pb.ConfigResult(push_id=passed.push_id, status=pb.CONFIG_STATUS_SUPERSEDED)
            self._out.put(Lane.CONTROL, pb.NodeFrame(config_result=result))
        self._next_config = effect

    def _on_request(self, request: pb.RunRequest) -> None:
        key = (request.run_id, request.attempt)
        if (running := self._runs.get(key)) is not None:
            # One attempt has one Terminal: the first request is stopped and its Terminal says why.
            if not running.ended:
                self._duplicates.add(key)
                self._stop(running, "duplicate_attempt")
            return
        run = OutRun(key, request.credit_bytes or INITIAL_CREDIT)
        if key in self._ended or key in self._stopping:
            self._refuse(run, "duplicate_attempt", "this attempt was requested before; it is not executed again")
        elif self._draining:
            self._refuse(run, "node_draining", "the Node is shutting down")
        elif request.generation > self._generation:
            text = f"the run is of generation {request.generation}, in force here is {self._generation}"
            self._refuse(run, "config_behind", text)
        elif not request.payload_bytes:
            self._runs[key] = run
            self._effects.append(StartRun(run, order_from(request, request.payload)))
        else:
            try:
                self._incoming[key] = _Incoming(run, request)
            except PayloadPartError as error:
                self._refuse(run, "bad_payload", str(error))
            else:
                self._runs[key] = run

    def _on_payload(self, part: pb.RunPayload) -> None:
        key = (part.run_id, part.attempt)
        incoming = self._incoming.get(key)
        if incoming is None:
            self.dropped += 1
            return
        try:
            body = incoming.assembly.add(part.offset, part.data, part.last)
        except PayloadPartError as error:
            del self._incoming[key]
            self._refuse(incoming.run, "bad_payload", str(error))
            return
        if body is not None:
            del self._incoming[key]
            self._effects.append(StartRun(incoming.run, order_from(incoming.request, body)))

    def _on_credit(self, credit: pb.RunCredit) -> None:
        run = self._runs.get((credit.run_id, credit.attempt))
        if run is None:
            self.dropped += 1
            return
        run.credit.grant(credit.bytes)
        self._effects.append(CreditGranted(run))

    def _on_cancel(self, cancel: pb.CancelRun) -> None:
        run = self._runs.get((cancel.run_id, cancel.attempt))
        if run is None or run.ended:
            self.dropped += 1
            return
        self._stop(run, cancel.reason)

    def _stop(self, run: OutRun, reason: str) -> None:
        if run.ended:
            return
        run.mute()
        if self._incoming.pop(run.key, None) is not None:
            # Its body had not arrived: there is nothing to stop.
            self.end(run, RunEnd(EndKind.CANCELLED))
            return
        self._effects.append(CreditGranted(run))
        self._effects.append(CancelRun(run, reason))

    def _refuse(self, run: OutRun, code: str, message: str) -> None:
        # At once, not when its Terminal leaves: the same attempt once more must not be executed meanwhile.
        self._forget(run.key)
        self._answer(run, _refusal(code, message))


def _refusal(code: str, message: str, after: RunEnd | None = None) -> RunEnd:
    """Return the end of a run that was not executed; `after` is how an execution that was stopped for it ended."""
    executed = after is not None and after.started
    error = RunError(code=code, message=message, retryable=not executed, maybe_executed=executed, outcome="cancelled")
    return RunEnd(EndKind.FAILED, usage=after.usage if after else None, error=error, started=executed)
