"""The Node's session machine: what it answers, refuses and keeps to itself (wire §1.1-§1.7)."""

from __future__ import annotations

import pytest

from iop_node.backoff import Cause
from iop_node.link import ConfigFault, ConfigOutcome, EndKind, Health, ProviderState, RunEnd, RunError, StoppingAttempt
from iop_node.outbound import OutRun
from iop_node.session import (
    CancelRun,
    Configure,
    CreditGranted,
    Effect,
    Identity,
    NodeSession,
    Over,
    SessionState,
    StartRun,
    Vitals,
    Welcomed,
)
from iop_wire import runtime_pb2 as pb
from iop_wire.framing import FrameReader, FrameWriter
from iop_wire.limits import KIB, MIB
from support.rules import rule

DONE = RunEnd(EndKind.COMPLETED, started=True)
STOPPED = RunEnd(EndKind.CANCELLED, started=True)


class Link:
    """A Node's session with a hand-made Edge on the other side."""

    def __init__(self, stopping: tuple[StoppingAttempt, ...] = (), generation: int = 0) -> None:
        self.now = 100.0
        self.session = NodeSession(
            Identity("n1", b"A" * 16, "host", 7, "0.1.0"),
            applied_version="v0" if generation else "",
            applied_generation=generation,
            providers=(ProviderState("p", Health.HEALTHY),),
            stopping=stopping,
            now=self.now,
        )
        self.writer: FrameWriter[pb.EdgeFrame] = FrameWriter()
        self.reader: FrameReader[pb.NodeFrame] = FrameReader(pb.NodeFrame)

    def send(self, **body: object) -> list[Effect]:
        self.session.receive(self.writer.seal(pb.EdgeFrame(**body)), self.now)  # type: ignore[arg-type]
        return self.session.take_effects()

    def frames(self) -> list[pb.NodeFrame]:
        frames = []
        while (data := self.session.take_frame()) is not None:
            assert len(data) <= 256 * KIB
            frames.append(self.reader.read(data))
        return frames

    def bodies(self) -> list[str | None]:
        return [frame.WhichOneof("body") for frame in self.frames()]

    def events(self) -> list[pb.RunEvent]:
        return [event for frame in self.frames() for event in frame.run_events.events]

    def welcome(self, config: bool = True, **fields: object) -> None:
        message = pb.Welcome(protocol=1, session_id="s1", epoch=1, **fields)  # type: ignore[arg-type]
        if config:
            message.config.config_version = "v1"
            message.config.generation = 5
        effects = self.send(welcome=message)
        if config:
            assert isinstance(effects[-1], Configure)
            self.session.configured("", ConfigOutcome(True, "v1", 5))
        self.frames()

    def request(self, run_id: str = "r1", attempt: int = 1, **fields: object) -> OutRun | None:
        message = pb.RunRequest(run_id=run_id, attempt=attempt, adapter="a", **fields)  # type: ignore[arg-type]
        for effect in self.send(run_request=message):
            if isinstance(effect, StartRun):
                return effect.run
        return None

    def tick(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.25)):
            self.now += 0.25
            self.session.tick(self.now, Vitals)


@pytest.fixture
def link() -> Link:
    made = Link()
    made.welcome()
    return made


# ---------------------------------------------------------------- hello and configuration


@rule("N2")
def test_hello_comes_first_and_says_everything() -> None:
    link = Link(stopping=(StoppingAttempt("old", 3, "p", True),), generation=4)
    (frame,) = link.frames()
    assert frame.frame_seq == 1
    hello = frame.hello
    assert (hello.node_id, hello.instance_id, hello.hostname, hello.pid) == ("n1", b"A" * 16, "host", 7)
    assert (hello.protocol_min, hello.protocol_max) == (1, 1)
    assert (hello.applied_config_version, hello.applied_generation) == ("v0", 4)
    assert hello.stopping_attempts[0] == pb.AttemptKey(run_id="old", attempt=3, provider_id="p", long=True)
    assert hello.provider_status[0].health == pb.PROVIDER_HEALTH_HEALTHY


@rule("N2", "R9")
def test_the_welcomes_payload_is_applied_and_acknowledged_then_ready() -> None:
    link = Link()
    link.frames()
    message = pb.Welcome(protocol=1, session_id="s1", epoch=3, config=pb.NodeConfigPayload(config_version="v1"))
    welcomed, configure = link.send(welcome=message)
    assert isinstance(welcomed, Welcomed)
    assert isinstance(configure, Configure)
    assert link.session.state is SessionState.CONFIGURING
    link.session.configured("", ConfigOutcome(True, "v1", 1, carried_over=("a",)))
    assert link.session.state is SessionState.READY
    (frame,) = link.frames()
    assert frame.config_result.status == pb.CONFIG_STATUS_APPLIED
    assert (frame.config_result.applied_version, list(frame.config_result.carried_over)) == ("v1", ["a"])


@rule("R9", "N3")
def test_a_payload_that_cannot_be_built_is_refused_with_every_fault(link: Link) -> None:
    link.send(config_refresh=pb.NodeConfigRefreshRequest(push_id="x", payload=pb.NodeConfigPayload()))
    link.session.configured("x", ConfigOutcome(False, "v1", 5, (ConfigFault("adapters[a]", "kind", "no such kind"),)))
    (frame,) = link.frames()
    result = frame.config_result
    assert (result.status, result.applied_version) == (pb.CONFIG_STATUS_REJECTED, "v1")
    assert result.errors[0].message == "no such kind"
    assert link.session.state is SessionState.READY


@rule("R9")
def test_payloads_are_built_one_at_a_time_and_one_that_waits_is_superseded(link: Link) -> None:
    starts = [
        link.send(config_refresh=pb.NodeConfigRefreshRequest(push_id=push_id, payload=pb.NodeConfigPayload()))
        for push_id in ("1", "2", "3")
    ]
    assert [len(effects) for effects in starts] == [1, 0, 0]
    (frame,) = link.frames()
    assert (frame.config_result.push_id, frame.config_result.status) == ("2", pb.CONFIG_STATUS_SUPERSEDED)
    link.session.configured("1", ConfigOutcome(True, "v1", 6))
    (effect,) = link.session.take_effects()
    assert isinstance(effect, Configure)
    assert effect.push_id == "3"


def test_anything_before_the_welcome_breaks_the_protocol() -> None:
    link = Link()
    (over,) = link.send(heartbeat_ack=pb.HeartbeatAck(n=1))
    assert isinstance(over, Over)
    assert over.cause is Cause.PROTOCOL


@rule("N4")
def test_a_protocol_that_this_node_does_not_speak_is_named() -> None:
    (over,) = Link().send(welcome=pb.Welcome(protocol=4))
    assert isinstance(over, Over)
    assert over.cause is Cause.VERSION
    assert "protocol 4; this Node speaks 1-1" in over.message


# ---------------------------------------------------------------- runs


def test_events_are_numbered_and_the_terminal_is_last(link: Link) -> None:
    run = link.request(payload=b"{}")
    assert run is not None
    link.session.accepted(run)
    link.session.head(run, 200, (("content-type", "text/event-stream"),))
    assert link.session.chunk(run, b"a")
    assert link.session.chunk(run, b"b")
    link.session.end(run, DONE)
    events = link.events()
    assert [event.WhichOneof("event") for event in events] == ["accepted", "head", "chunk", "terminal"]
    assert [event.seq for event in events] == [1, 2, 3, 4]
    assert events[2].chunk.data == b"ab", "what is ready is joined"
    assert events[3].terminal.last_seq == 4


@rule("P8")
def test_nothing_follows_the_terminal(link: Link) -> None:
    run = link.request()
    assert run is not None
    link.session.end(run, DONE)
    link.session.end(run, RunEnd(EndKind.FAILED))
    link.session.accepted(run)
    assert link.session.chunk(run, b"late")
    assert [event.WhichOneof("event") for event in link.events()] == ["terminal"]
    assert link.session.active_runs == 0


def test_without_credit_nothing_is_sent_until_more_is_granted(link: Link) -> None:
    run = link.request(credit_bytes=100)
    assert run is not None
    assert run.credit.piece_max == 50
    assert link.session.chunk(run, b"x" * 50)
    assert link.session.chunk(run, b"x" * 50)
    assert not link.session.chunk(run, b"y")
    (effect,) = link.send(run_credit=pb.RunCredit(run_id="r1", attempt=1, bytes=50))
    assert effect == CreditGranted(run)
    assert link.session.chunk(run, b"y")


def test_a_finished_run_goes_before_the_bytes_of_others_but_never_before_its_own(link: Link) -> None:
    busy, short = link.request("busy"), link.request("short")
    assert busy is not None
    assert short is not None
    for _ in range(4):
        assert link.session.chunk(busy, b"x" * (64 * KIB))
    assert link.session.chunk(short, b"s")
    link.session.end(short, DONE)
    first = link.session.take_frame()
    assert first is not None
    events = pb.NodeFrame.FromString(first).run_events.events
    assert [(event.run_id, event.WhichOneof("event")) for event in events][:2] == [
        ("short", "chunk"),
        ("short", "terminal"),
    ]


def test_ready_events_of_many_runs_travel_in_one_frame(link: Link) -> None:
    runs = [link.request(f"r{number}") for number in range(64)]
    for run in runs:
        assert run is not None
        assert link.session.chunk(run, b"data: token\n\n")
    (frame,) = link.frames()
    assert len(frame.run_events.events) == 64


@rule("P8")
def test_the_same_attempt_is_never_executed_twice(link: Link) -> None:
    run = link.request()
    assert run is not None
    link.session.end(run, DONE)
    link.frames()
    assert link.request() is None
    (event,) = link.events()
    assert event.terminal.error.code == "duplicate_attempt"
    assert not event.terminal.error.maybe_executed


@rule("P8")
def test_an_attempt_that_was_refused_is_not_executed_when_it_is_asked_for_again_at_once(link: Link) -> None:
    assert link.request(generation=6) is None
    assert link.request(generation=5) is None
    (event,) = link.events()
    assert event.terminal.error.code == "config_behind"


@rule("P8")
def test_a_duplicate_of_a_running_attempt_stops_it_and_there_is_one_terminal(link: Link) -> None:
    run = link.request()
    assert run is not None
    effects = link.send(run_request=pb.RunRequest(run_id="r1", attempt=1))
    assert CancelRun(run, "duplicate_attempt") in effects
    assert link.events() == []
    link.session.end(run, STOPPED)
    (event,) = link.events()
    assert event.terminal.error.code == "duplicate_attempt"
    assert event.terminal.error.maybe_executed


@rule("R14")
def test_a_run_of_a_newer_generation_is_refused_and_not_executed(link: Link) -> None:
    assert link.request(generation=6) is None
    (event,) = link.events()
    error = event.terminal.error
    assert (error.code, error.retryable, error.maybe_executed) == ("config_behind", True, False)
    assert link.request("r2", generation=5) is not None


# ---------------------------------------------------------------- bodies in parts


def test_a_body_in_parts_starts_the_run_when_it_is_whole(link: Link) -> None:
    assert link.request(payload_bytes=6) is None
    assert link.send(run_payload=pb.RunPayload(run_id="r1", attempt=1, offset=0, data=b"abc")) == []
    (effect,) = link.send(run_payload=pb.RunPayload(run_id="r1", attempt=1, offset=3, data=b"def", last=True))
    assert isinstance(effect, StartRun)
    assert effect.order.body == b"abcdef"


@pytest.mark.parametrize(
    "part",
    [
        pb.RunPayload(run_id="r1", attempt=1, offset=1, data=b"abc"),
        pb.RunPayload(run_id="r1", attempt=1, offset=0, data=b"abcdefg", last=True),
        pb.RunPayload(run_id="r1", attempt=1, offset=0, data=b"abc", last=True),
        pb.RunPayload(run_id="r1", attempt=1, offset=0, data=b"", last=False),
        pb.RunPayload(run_id="r1", attempt=1, offset=0, data=b"abcdef", last=False),
    ],
    ids=["gap", "too-long", "too-short", "empty", "not-last"],
)
def test_parts_that_do_not_fit_fail_that_run_alone(link: Link, part: pb.RunPayload) -> None:
    link.request(payload_bytes=6)
    link.send(run_payload=part)
    (event,) = link.events()
    assert event.terminal.error.code == "bad_payload"
    assert link.session.over is None


def test_a_body_above_64_mib_is_refused_before_any_of_it(link: Link) -> None:
    assert link.request(payload_bytes=64 * MIB + 1) is None
    assert link.events()[0].terminal.error.code == "bad_payload"


def test_a_cancel_before_the_body_is_whole_ends_the_run_unstarted(link: Link) -> None:
    link.request(payload_bytes=6)
    link.send(cancel_run=pb.CancelRun(run_id="r1", attempt=1))
    (event,) = link.events()
    assert (event.terminal.kind, event.terminal.started) == (pb.TERMINAL_KIND_CANCELLED, False)
    link.send(run_payload=pb.RunPayload(run_id="r1", attempt=1, offset=0, data=b"abcdef", last=True))
    assert link.events() == []


# ---------------------------------------------------------------- cancel, loss, stopping


@rule("P8", "E8")
def test_a_cancel_drops_the_bytes_that_wait_and_the_end_still_comes(link: Link) -> None:
    run = link.request()
    assert run is not None
    link.session.chunk(run, b"unwanted")
    effects = link.send(cancel_run=pb.CancelRun(run_id="r1", attempt=1, reason="client_gone"))
    assert effects == [CreditGranted(run), CancelRun(run, "client_gone")]
    assert link.session.chunk(run, b"x" * MIB), "swallowed"
    link.session.end(run, STOPPED)
    assert [event.WhichOneof("event") for event in link.events()] == ["terminal"]


def test_a_cancel_that_crosses_the_end_is_harmless(link: Link) -> None:
    run = link.request()
    assert run is not None
    link.session.end(run, DONE)
    assert link.send(cancel_run=pb.CancelRun(run_id="r1", attempt=1)) == []
    assert link.send(cancel_run=pb.CancelRun(run_id="never", attempt=1)) == []
    assert len(link.events()) == 1


@rule("P8")
def test_after_the_session_nothing_is_sent_and_nobody_waits_for_credit(link: Link) -> None:
    run = link.request(credit_bytes=100)
    assert run is not None
    while link.session.chunk(run, b"x" * 50):
        pass
    link.session.stream_ended(Cause.LOST, "broke")
    link.session.stream_ended(Cause.SILENT, "again")
    effects = link.session.take_effects()
    assert effects == [CreditGranted(run), Over(Cause.LOST, "broke")]
    assert link.session.chunk(run, b"x" * 50)
    link.session.end(run, DONE)
    assert link.frames() == []


@rule("P8")
def test_an_attempt_of_an_earlier_session_ends_through_this_one_exactly_once() -> None:
    old = StoppingAttempt("old", 1, "p", False)
    link = Link(stopping=(old,))
    link.welcome()
    link.session.stopping_ended(old, STOPPED)
    link.session.stopping_ended(old, STOPPED)
    link.session.stopping_ended(StoppingAttempt("other", 1, "p", False), STOPPED)
    (event,) = link.events()
    assert (event.run_id, event.seq, event.terminal.kind) == ("old", 1, pb.TERMINAL_KIND_CANCELLED)


def test_an_attempt_that_still_stops_is_not_taken_again() -> None:
    link = Link(stopping=(StoppingAttempt("r1", 1, "p", False),))
    link.welcome()
    assert link.request() is None
    assert link.events()[0].terminal.error.code == "duplicate_attempt"


# ---------------------------------------------------------------- drain


@rule("N6")
def test_a_draining_node_refuses_runs_that_cross_and_goes_after_its_last_event(link: Link) -> None:
    run = link.request()
    assert run is not None
    link.session.drain("SIGTERM", 30)
    link.session.drain("SIGTERM", 30)
    assert link.request("r2") is None
    link.session.chunk(run, b"x")
    link.session.end(run, DONE)
    link.session.say_goodbye("SIGTERM")
    frames = link.frames()
    assert [frame.WhichOneof("body") for frame in frames] == ["draining", "run_events", "goodbye"]
    assert frames[0].draining.grace_ms == 30_000
    errors = {event.run_id: event.terminal.error.code for event in frames[1].run_events.events}
    assert errors == {"r2": "node_draining", "r1": ""}
    assert link.session.goodbye_sent
    link.session.provider_status((ProviderState("p", Health.HEALTHY),))
    assert link.frames() == [], "nothing after the goodbye"


@rule("N6")
def test_a_run_whose_body_has_not_arrived_when_the_node_drains_is_refused_and_not_begun(link: Link) -> None:
    link.request(payload_bytes=6)
    link.send(run_payload=pb.RunPayload(run_id="r1", attempt=1, offset=0, data=b"abc"))
    link.session.drain("SIGTERM", 30.0)
    (event,) = link.events()
    assert event.terminal.error.code == "node_draining"
    assert event.terminal.error.retryable
    assert not event.terminal.error.maybe_executed
    assert link.session.active_runs == 0
    effects = link.send(run_payload=pb.RunPayload(run_id="r1", attempt=1, offset=3, data=b"def", last=True))
    assert effects == []
    assert link.events() == []


def test_heartbeats_go_on_while_draining(link: Link) -> None:
    link.session.drain("SIGTERM", 30)
    link.frames()
    link.tick(5.0)
    assert link.bodies() == ["heartbeat"]


# ---------------------------------------------------------------- time


@rule("N4")
def test_heartbeats_every_five_seconds_and_only_the_newest_waits(link: Link) -> None:
    link.tick(4.75)
    assert link.bodies() == []
    link.tick(0.25)
    (frame,) = link.frames()
    assert frame.heartbeat.n == 1
    link.tick(9.75)
    (frame,) = link.frames()
    assert frame.heartbeat.n == 2
    for _ in range(3):
        link.send(heartbeat_ack=pb.HeartbeatAck(n=1))
        link.tick(5)
    (frame,) = link.frames()
    assert frame.heartbeat.n == 5


@rule("N4")
def test_an_edge_that_is_silent_for_fifteen_seconds_is_left(link: Link) -> None:
    link.tick(14.75)
    assert link.session.over is None
    link.tick(0.5)
    assert link.session.over is not None
    assert link.session.over.cause is Cause.SILENT


@rule("N4")
def test_no_welcome_within_ten_seconds_is_the_end() -> None:
    link = Link()
    link.tick(10)
    assert link.session.over is not None
    assert link.session.over.cause is Cause.SILENT


def test_the_edge_decides_the_heartbeat() -> None:
    link = Link()
    link.welcome(heartbeat_ms=1000, dead_after_ms=3000)
    link.tick(1)
    assert link.bodies() == ["heartbeat"]
    link.tick(2)
    assert link.session.over is not None


# ---------------------------------------------------------------- the end, by frame


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        (pb.SESSION_END_REASON_FENCED, Cause.FENCED),
        (pb.SESSION_END_REASON_DUPLICATE_NODE, Cause.DUPLICATE),
        (pb.SESSION_END_REASON_EDGE_SHUTDOWN, Cause.EDGE_SHUTDOWN),
        (pb.SESSION_END_REASON_PROTOCOL_ERROR, Cause.PROTOCOL),
        (pb.SESSION_END_REASON_UNRESPONSIVE, Cause.UNRESPONSIVE),
        (99, Cause.LOST),
    ],
)
@rule("N4")
def test_a_session_end_says_why_and_when_to_come_back(link: Link, reason: int, cause: Cause) -> None:
    end = pb.SessionEnd(reason=reason, message="text", retry_after_ms=2500)  # type: ignore[arg-type]
    (over,) = link.send(session_end=end)
    assert over == Over(cause, "text", 2.5)


@pytest.mark.parametrize("data", [b"\xff garbage", pb.EdgeFrame(frame_seq=9).SerializeToString()])
def test_a_broken_frame_ends_the_session(link: Link, data: bytes) -> None:
    link.session.receive(data, link.now)
    assert link.session.over is not None
    assert link.session.over.cause is Cause.PROTOCOL


def test_an_unknown_member_is_counted_and_ignored(link: Link) -> None:
    assert link.send() == []
    assert link.session.over is None
    assert link.session.dropped == 1


def test_long_texts_are_cut_to_what_a_frame_may_carry(link: Link) -> None:
    run = link.request()
    assert run is not None
    link.session.head(run, 200, tuple((f"x-{number}", "v" * 1000) for number in range(200)))
    error = RunError("upstream_error", "m" * MIB, upstream_status=500, upstream_body=b"b" * MIB)
    link.session.end(run, RunEnd(EndKind.FAILED, error=error, started=True))
    head, terminal = link.events()
    assert 20 < len(head.head.headers) < 40
    assert len(terminal.terminal.error.upstream_body) == 64 * KIB
