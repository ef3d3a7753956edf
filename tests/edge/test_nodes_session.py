"""The Edge's session machine: exactly one end per attempt, credit, cancel, config pushes, silence (wire §1.2-§1.6)."""

from __future__ import annotations

import pytest

from iop_edge.nodes.run import Chunk, End, EndKind, Head
from iop_edge.nodes.values import LinkState, PushOutcome, PushState, StoppingAttempt
from iop_wire import runtime_pb2 as pb
from iop_wire.limits import INITIAL_CREDIT, KIB
from support.link import Edge, Node, RawNode, Run, chunk_event, joined, payload, spec, terminal_event
from support.rules import rule


@pytest.fixture
def edge() -> Edge:
    return Edge()


@pytest.fixture
def raw(edge: Edge) -> RawNode:
    node = RawNode(edge)
    node.join()
    node.frames()
    return node


def running(raw: RawNode, **kwargs: object) -> Run:
    assert raw.live is not None
    run = Run(raw.live, spec(**kwargs))  # type: ignore[arg-type]
    raw.frames()
    return run


def bodies(raw: RawNode) -> list[str | None]:
    return [frame.WhichOneof("body") for frame in raw.frames()]


# ---------------------------------------------------------------- exactly one end


@rule("P8")
def test_bytes_and_end_come_in_order_and_the_slot_is_given_back_once(raw: RawNode) -> None:
    run = running(raw)
    head = pb.RunEvent(run_id="r1", attempt=1, seq=2, head=pb.Head(status=200))
    raw.send_events(pb.RunEvent(run_id="r1", attempt=1, seq=1, accepted=pb.Accepted()), head)
    raw.send_events(chunk_event(3, b"a"), chunk_event(4, b"b"))
    raw.send_events(chunk_event(5, b"c"), terminal_event(6))
    assert run.take_all() == [Head(200), Chunk(b"abc"), End(EndKind.COMPLETED, started=True)]
    assert run.ends == [End(EndKind.COMPLETED, started=True)]
    assert run.take() == run.ends[0], "after the end: the end again"


@rule("P8")
def test_a_second_terminal_and_late_bytes_change_nothing(raw: RawNode) -> None:
    run = running(raw)
    raw.send_events(terminal_event(1))
    raw.send_events(terminal_event(2), chunk_event(3, b"late"))
    assert len(run.ends) == 1
    assert [type(item) for item in run.take_all()] == [End]
    assert raw.live is not None
    assert raw.live.machine.dropped == 2


def test_events_of_an_attempt_that_was_never_requested_are_counted_and_dropped(raw: RawNode) -> None:
    raw.send_events(chunk_event(1, b"x", run_id="nobody"), terminal_event(2, run_id="nobody"))
    assert raw.live is not None
    assert raw.live.machine.over is None
    assert raw.live.machine.dropped == 2


@rule("P8")
def test_every_attempt_gets_one_made_up_end_when_the_session_breaks(edge: Edge) -> None:
    node = joined(edge)
    sent, unsent = node.start(spec("r1")), None
    node.exchange()
    unsent = node.start(spec("r2"))
    assert node.live is not None
    node.live.close("lost", "the connection broke")  # type: ignore[arg-type]
    assert [len(run.ends) for run in (sent, unsent)] == [1, 1]
    for run, executed in ((sent, True), (unsent, False)):
        (end,) = run.ends
        assert end.session_lost
        assert end.error is not None
        assert (end.error.code, end.error.retryable, end.error.maybe_executed) == ("node_lost", True, executed)
    assert edge.registry.session("n1") is None


@rule("P8")
def test_the_loss_is_told_before_the_slots_come_back(edge: Edge) -> None:
    node = joined(edge)
    order: list[str] = []
    assert node.live is not None
    node.live.start_run(spec("r1"), lambda _end: order.append(f"slot after {edge.fleet.names()[-1]}"))
    node.exchange()
    node.live.close("lost", "the connection broke")  # type: ignore[arg-type]
    assert order == ["slot after lost"]


def test_a_run_on_a_session_that_is_over_ends_at_once(edge: Edge) -> None:
    node = joined(edge)
    assert node.live is not None
    node.live.close("lost", "the connection broke")  # type: ignore[arg-type]
    run = node.start(spec())
    (end,) = run.ends
    assert end.error is not None
    assert (end.error.code, end.error.maybe_executed) == ("node_lost", False)


def test_a_run_for_a_draining_node_is_not_sent(edge: Edge, raw: RawNode) -> None:
    raw.send(draining=pb.Draining(reason="SIGTERM", grace_ms=30_000))
    run = running(raw)
    (end,) = run.ends
    assert end.error is not None
    assert (end.error.code, end.error.retryable, end.error.maybe_executed) == ("node_draining", True, False)
    assert edge.fleet.names()[-1] == "draining"


@pytest.mark.parametrize("kind", [0, 99])
def test_an_unknown_kind_of_end_is_a_failure(raw: RawNode, kind: int) -> None:
    run = running(raw)
    raw.send_events(terminal_event(1, kind=kind))
    (end,) = run.ends
    assert end.kind is EndKind.FAILED
    assert end.error is not None


# ---------------------------------------------------------------- order and credit


@rule("P8")
def test_a_gap_in_the_events_of_one_run_fails_that_run_alone(raw: RawNode) -> None:
    first, second = running(raw, run_id="r1"), running(raw, run_id="r2")
    raw.send_events(chunk_event(1, b"a"), chunk_event(3, b"c"), chunk_event(1, b"z", run_id="r2"))
    (end,) = first.take_all()
    assert isinstance(end, End)
    assert end.error is not None
    assert (end.error.code, end.error.retryable) == ("node_protocol", True)
    assert first.ends == [], "the slot stays taken until the Node confirms"
    assert bodies(raw) == ["cancel_run"]
    raw.send_events(terminal_event(4, kind=3))
    assert [end.error.code for end in first.ends if end.error] == ["node_protocol"]
    assert second.take_all() == [Chunk(b"z")]


def test_a_run_that_overruns_its_credit_fails_alone(raw: RawNode) -> None:
    greedy, other = running(raw, run_id="r1"), running(raw, run_id="r2")
    piece = b"x" * (64 * KIB)
    for seq in range(1, 5):
        raw.send_events(chunk_event(seq, piece))
    assert greedy.attempt.buffered == INITIAL_CREDIT
    raw.send_events(chunk_event(5, b"x"))
    assert greedy.attempt.buffered == 0
    assert [type(item) for item in greedy.take_all()] == [End]
    assert bodies(raw) == ["cancel_run"]
    raw.send_events(chunk_event(1, b"ok", run_id="r2"))
    assert other.take_all() == [Chunk(b"ok")]


def test_credit_is_granted_as_bytes_are_taken_and_not_before(raw: RawNode) -> None:
    run = running(raw)
    for seq in range(1, 5):
        raw.send_events(chunk_event(seq, b"x" * (64 * KIB)))
    assert raw.frames() == []
    run.take_all()
    (frame,) = raw.frames()
    assert frame.run_credit == pb.RunCredit(run_id="r1", attempt=1, bytes=INITIAL_CREDIT)
    raw.send_events(chunk_event(5, b"x" * (64 * KIB)))
    assert [type(item) for item in run.take_all()] == [Chunk]


@rule("P8")
def test_a_reader_that_takes_nothing_for_a_minute_is_cancelled(edge: Edge, raw: RawNode) -> None:
    run = running(raw)
    raw.send_events(chunk_event(1, b"a"))
    alive = lambda: raw.send(heartbeat=pb.Heartbeat(n=1))  # noqa: E731
    edge.pass_time(59, also=alive)
    assert not run.attempt.end
    edge.pass_time(1.5, also=alive)
    (end,) = run.take_all()
    assert isinstance(end, End)
    assert end.error is not None
    assert end.error.code == "client_stalled"
    assert "cancel_run" in bodies(raw)
    assert run.ends == []


def test_a_reader_that_waits_for_bytes_is_never_stalled(edge: Edge, raw: RawNode) -> None:
    run = running(raw)
    edge.pass_time(300, also=lambda: raw.send(heartbeat=pb.Heartbeat(n=1)))
    assert run.attempt.end is None


# ---------------------------------------------------------------- cancel


@rule("P8", "E8")
def test_a_cancelled_run_keeps_its_slot_until_the_node_confirms(raw: RawNode) -> None:
    run = running(raw)
    run.cancel()
    run.cancel()
    (frame,) = raw.frames()
    assert frame.cancel_run == pb.CancelRun(run_id="r1", attempt=1, reason="client_gone")
    assert run.ends == []
    raw.send_events(terminal_event(1, kind=3))
    assert [end.kind for end in run.ends] == [EndKind.CANCELLED]


@rule("P8")
def test_a_run_cancelled_before_it_was_sent_is_never_sent(raw: RawNode) -> None:
    assert raw.live is not None
    run = Run(raw.live, spec())
    run.cancel()
    assert raw.frames() == []
    assert run.ends == [End(EndKind.CANCELLED)]


def test_a_cancel_stops_the_rest_of_a_large_body(raw: RawNode) -> None:
    assert raw.live is not None
    run = Run(raw.live, spec(body=b"x" * (1024 * KIB)))
    first = raw.reader.read(raw.live.machine.take_frame() or b"")
    assert first.WhichOneof("body") == "run_request"
    run.cancel()
    assert bodies(raw) == ["cancel_run"]


@rule("P8")
@pytest.mark.parametrize(("kind", "bound"), [("echo", 5.0), ("llama_cpp", 33.0)])
def test_an_unconfirmed_cancel_ends_the_session_and_no_timer_frees_the_slot_alone(
    edge: Edge, kind: str, bound: float
) -> None:
    edge.payload = payload(kind=kind)
    raw = RawNode(edge)
    raw.join()
    raw.frames()
    run = running(raw)
    run.cancel()
    raw.frames()
    alive = lambda: raw.send(heartbeat=pb.Heartbeat(n=1))  # noqa: E731
    edge.pass_time(bound - 0.5, also=alive)
    assert run.ends == []
    edge.pass_time(1.0, also=alive)
    (end,) = run.ends
    assert end.session_lost
    last = raw.frames()[-1]
    assert last.session_end.reason == pb.SESSION_END_REASON_UNRESPONSIVE
    assert edge.registry.session("n1") is None


# ---------------------------------------------------------------- silence


def test_silence_makes_suspect_then_dead_and_any_frame_recovers(edge: Edge) -> None:
    node = joined(edge)
    assert node.live is not None
    run = node.start(spec())
    node.exchange()
    edge.pass_time(7.25)
    assert "suspect" not in edge.fleet.names()
    edge.pass_time(0.5)
    assert edge.fleet.names()[-1] == "suspect"
    assert edge.registry.rows()[0].state is LinkState.SUSPECT
    node.session.provider_status(())
    node.tick()
    node.to_edge()
    assert edge.fleet.names()[-1] == "recovered"
    edge.pass_time(14.5)
    assert run.ends == []
    edge.pass_time(1)
    assert edge.fleet.names()[-1] == "lost"
    assert [end.session_lost for end in run.ends] == [True]


@rule("N6", "P10")
def test_a_draining_node_that_falls_silent_and_speaks_again_is_not_opened_for_runs(edge: Edge, raw: RawNode) -> None:
    raw.send(draining=pb.Draining(reason="SIGTERM"))
    edge.pass_time(8)
    raw.send(heartbeat=pb.Heartbeat(n=1))
    assert edge.fleet.names()[-1] == "draining"
    assert edge.registry.rows()[0].state is LinkState.DRAINING


@rule("N6", "P10")
def test_what_a_silent_node_says_first_counts_before_it_is_back(edge: Edge, raw: RawNode) -> None:
    edge.pass_time(8)
    assert edge.fleet.names()[-1] == "suspect"
    raw.send(draining=pb.Draining(reason="SIGTERM"))
    assert edge.fleet.names()[-2:] == ["suspect", "draining"]


@rule("P10")
@pytest.mark.parametrize("frame", [b"\xff", pb.NodeFrame(goodbye=pb.Goodbye(reason="bye"))], ids=["broken", "goodbye"])
def test_a_silent_node_whose_last_word_ends_the_session_never_comes_back(
    edge: Edge, raw: RawNode, frame: bytes | pb.NodeFrame
) -> None:
    edge.pass_time(8)
    assert raw.live is not None
    raw.live.receive(frame if isinstance(frame, bytes) else raw.writer.seal(frame))
    assert edge.fleet.names()[-2:] == ["suspect", "lost"]


def test_a_stall_of_the_edge_itself_is_not_held_against_the_node(edge: Edge) -> None:
    joined(edge)
    edge.pass_time(2)
    edge.clock.now += 60
    edge.registry.tick()
    assert "lost" not in edge.fleet.names()


# ---------------------------------------------------------------- configuration


@rule("R8", "N2")
def test_the_payload_in_force_comes_with_the_welcome_and_is_acknowledged(edge: Edge) -> None:
    node = joined(edge)
    assert node.effects
    result = edge.fleet.told[-1]
    assert result == ("config_result", "n1", PushOutcome("", PushState.ACKED, version="v1", generation=1))
    assert edge.registry.rows()[0].config_version == "v1"


@rule("R9")
def test_a_nack_says_why_and_what_stays_in_force(edge: Edge, raw: RawNode) -> None:
    raw.send(config_result=pb.ConfigResult(push_id="", status=pb.CONFIG_STATUS_APPLIED, applied_version="v1"))
    assert raw.live is not None
    raw.live.machine.push("push-1", payload("v2", 2), edge.clock())
    raw.live.settle()
    (frame,) = raw.frames()
    assert frame.config_refresh.push_id == "push-1"
    error = pb.ConfigError(path="adapters[a]", code="unknown_kind", message="no such kind")
    raw.send(
        config_result=pb.ConfigResult(
            push_id="push-1",
            status=pb.CONFIG_STATUS_REJECTED,
            applied_version="v1",
            applied_generation=1,
            errors=[error],
        )
    )
    _, _, outcome = edge.fleet.told[-1]
    assert isinstance(outcome, PushOutcome)
    assert (outcome.state, outcome.version, outcome.faults[0].message) == (PushState.NACKED, "v1", "no such kind")
    row = edge.registry.rows()[0]
    assert (row.push_state, row.config_version) == (PushState.NACKED, "v1")


@rule("R9")
@pytest.mark.parametrize("status", [0, 77])
def test_an_unknown_status_is_a_nack(edge: Edge, raw: RawNode, status: int) -> None:
    raw.send(config_result=pb.ConfigResult(push_id="", status=status))  # type: ignore[arg-type]
    _, _, outcome = edge.fleet.told[-1]
    assert isinstance(outcome, PushOutcome)
    assert outcome.state is PushState.NACKED


@rule("R9")
def test_one_push_is_under_way_and_a_newer_one_takes_the_place_of_one_that_waits(edge: Edge, raw: RawNode) -> None:
    assert raw.live is not None
    machine = raw.live.machine
    for number in (2, 3, 4):
        machine.push(f"push-{number}", payload(f"v{number}", number), edge.clock())
    raw.live.settle()
    assert raw.frames() == [], "the Welcome's payload is not answered yet"
    raw.send(config_result=pb.ConfigResult(push_id="", status=pb.CONFIG_STATUS_APPLIED))
    (frame,) = raw.frames()
    assert frame.config_refresh.push_id == "push-4"


@rule("R9")
def test_no_answer_in_ten_seconds_is_said_and_a_late_one_still_counts(edge: Edge, raw: RawNode) -> None:
    alive = lambda: raw.send(heartbeat=pb.Heartbeat(n=1))  # noqa: E731
    edge.pass_time(10, also=alive)
    assert edge.fleet.told[-1] == ("config_result", "n1", PushOutcome("", PushState.NO_ANSWER))
    raw.send(config_result=pb.ConfigResult(push_id="", status=pb.CONFIG_STATUS_APPLIED, applied_version="v1"))
    assert edge.registry.rows()[0].push_state is PushState.ACKED
    raw.send(config_result=pb.ConfigResult(push_id="", status=pb.CONFIG_STATUS_APPLIED, applied_version="vX"))
    assert edge.registry.rows()[0].config_version == "v1", "an answer counts once"


@rule("R9")
def test_an_answer_to_a_push_of_another_stream_is_ignored(edge: Edge, raw: RawNode) -> None:
    before = list(edge.fleet.told)
    raw.send(config_result=pb.ConfigResult(push_id="stranger", status=pb.CONFIG_STATUS_APPLIED, applied_version="v9"))
    assert edge.fleet.told == before
    assert edge.registry.rows()[0].config_version == ""


@rule("R9")
def test_a_payload_that_no_frame_can_carry_is_a_nack_and_the_node_stays_connected(edge: Edge) -> None:
    edge.payload = payload()
    edge.payload.adapters[0].cli.args.append("x" * (3 * 1024 * KIB))
    node = joined(edge)
    assert edge.registry.session("n1") is node.live
    row = edge.registry.rows()[0]
    assert (row.push_state, row.push_faults[0].code) == (PushState.NACKED, "payload_too_large")


# ---------------------------------------------------------------- stopping attempts


@rule("P8")
def test_an_attempt_of_an_earlier_session_is_told_at_once_and_when_it_ends(edge: Edge) -> None:
    raw = RawNode(edge)
    raw.hello.stopping_attempts.add(run_id="old", attempt=2, provider_id="p", long=True)
    raw.join()
    old = StoppingAttempt("old", 2, "p", True)
    assert edge.fleet.told[0] == ("connected", "n1", 1, (), (old,))
    raw.send_events(terminal_event(1, run_id="old", attempt=2, kind=3))
    assert edge.fleet.told[-1] == ("stopping_ended", "n1", old)
    raw.send_events(terminal_event(2, run_id="old", attempt=2, kind=3))
    assert edge.fleet.names().count("stopping_ended") == 1


# ---------------------------------------------------------------- broken protocol


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff garbage",
        b"",
        pb.NodeFrame(frame_seq=3, heartbeat=pb.Heartbeat(n=1)).SerializeToString(),
        pb.NodeFrame(frame_seq=1, heartbeat=pb.Heartbeat(n=1)).SerializeToString(),
        pb.NodeFrame(frame_seq=2, hello=pb.Hello(node_id="n1")).SerializeToString(),
        pb.NodeFrame(
            frame_seq=2, run_events=pb.RunEvents(events=[chunk_event(1, b"x" * (257 * KIB))])
        ).SerializeToString(),
    ],
    ids=["garbage", "empty", "gap", "repeated", "second-hello", "oversize"],
)
def test_a_broken_frame_ends_the_session_and_says_so_without_its_content(edge: Edge, raw: RawNode, data: bytes) -> None:
    run = running(raw)
    assert raw.live is not None
    raw.live.receive(data)
    (frame,) = raw.frames()
    assert frame.session_end.reason == pb.SESSION_END_REASON_PROTOCOL_ERROR
    assert "garbage" not in frame.session_end.message
    (end,) = run.ends
    assert end.error is not None
    assert (end.error.code, end.session_lost) == ("node_protocol", True)
    assert edge.registry.session("n1") is None


def test_an_unknown_member_is_counted_and_ignored(raw: RawNode) -> None:
    assert raw.live is not None
    future = pb.NodeFrame(frame_seq=2).SerializeToString() + bytes([0xFA, 0x06, 0x01, 0x00])
    raw.live.receive(future)
    assert raw.live.machine.over is None
    assert raw.live.machine.dropped == 1


def test_a_goodbye_ends_the_session_without_an_answer(edge: Edge, raw: RawNode) -> None:
    raw.send(goodbye=pb.Goodbye(reason="SIGTERM"))
    assert raw.frames() == []
    assert edge.fleet.told[-1] == ("lost", "n1", "SIGTERM")


def test_request_headers_that_no_frame_can_carry_fail_that_run_alone(edge: Edge) -> None:
    node = joined(edge)
    from attrs import evolve

    run = node.start(evolve(spec(), headers=(("x-large", "y" * (300 * KIB)),)))
    node.exchange()
    (end,) = run.ends
    assert end.error is not None
    assert end.error.code == "request_too_large"
    assert node.over is None


def test_the_highest_priority_leaves_first(edge: Edge, raw: RawNode) -> None:
    assert raw.live is not None
    first = running(raw, run_id="r1")
    for seq in range(1, 5):
        raw.send_events(chunk_event(seq, b"x" * (64 * KIB)))
    Run(raw.live, spec("r2"))
    first.take_all()
    first.cancel()
    raw.send(heartbeat=pb.Heartbeat(n=5))
    assert bodies(raw) == ["heartbeat_ack", "cancel_run", "run_credit", "run_request"]


def test_large_bodies_take_turns_with_other_requests(edge: Edge) -> None:
    node = joined(edge)
    body = bytes(range(256)) * 4096
    node.start(spec("big", body=body))
    node.start(spec("small"))
    assert node.live is not None
    kinds = []
    while (data := node.live.machine.take_frame()) is not None:
        assert len(data) <= 256 * KIB
        kinds.append(pb.EdgeFrame.FromString(data).WhichOneof("body"))
        node.session.receive(data, edge.clock())
    assert kinds[:2] == ["run_request", "run_request"]
    node.exchange()
    assert [(order.run_id, len(order.body)) for order in node.orders] == [("small", 2), ("big", len(body))]
    assert node.orders[1].body == body


def test_rows_show_every_configured_node(edge: Edge) -> None:
    joined(edge)
    row, absent = edge.registry.rows()
    assert (row.node_id, row.connected, row.hostname, row.pid, row.epoch) == ("n1", True, "host-A", 7, 1)
    assert (absent.node_id, absent.connected, absent.state) == ("n2", False, LinkState.DISCONNECTED)


def test_a_node_without_configuration_here_is_welcomed_with_none(edge: Edge) -> None:
    edge.payload = None
    node = Node(edge)
    node.exchange()
    assert edge.registry.rows()[0].push_state is None
    assert edge.fleet.names() == ["connected"]
