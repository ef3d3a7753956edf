"""Who gets the session: fencing, the flap guard, versions, the first frame, tokens (wire §1.5, §1.2.6, §3; N4)."""

from __future__ import annotations

import hashlib

import pytest

from iop_edge.nodes.admission import Refusal
from iop_edge.nodes.auth import FailureLimit, NodeAuth
from iop_edge.nodes.values import LinkState
from iop_node.backoff import Cause
from iop_wire import runtime_pb2 as pb
from support.link import Edge, Node, RawNode, chunk_event, joined, spec, terminal_event
from support.rules import rule


@pytest.fixture
def edge() -> Edge:
    return Edge()


@rule("N4")
def test_a_second_session_of_the_same_id_fences_the_first(edge: Edge) -> None:
    first = joined(edge, instance=b"A" * 16)
    run = first.start(spec())
    first.exchange()
    second = joined(edge, instance=b"B" * 16)
    assert edge.registry.session("n1") is second.live
    assert second.live is not None
    assert second.live.epoch == 2
    (end,) = run.ends
    assert end.session_lost
    first.exchange()
    assert first.over is not None
    assert first.over.cause is Cause.FENCED
    names = [name for name in edge.fleet.names() if name != "config_result"]
    assert names == ["connected", "lost", "connected"]


@rule("N4")
def test_frames_of_a_fenced_session_change_nothing(edge: Edge) -> None:
    first = RawNode(edge, instance=b"A" * 16)
    old = first.join()
    second = joined(edge, instance=b"B" * 16)
    run = second.start(spec())
    second.exchange()
    before = list(edge.fleet.told)
    first.send_events(chunk_event(1, b"stale"), terminal_event(2))
    old.close("lost", "its connection broke at last")  # type: ignore[arg-type]
    assert edge.fleet.told == before
    assert run.ends == []
    assert edge.registry.session("n1") is second.live


@rule("N4")
def test_the_same_process_may_come_back_as_often_as_its_network_fails(edge: Edge) -> None:
    for _ in range(10):
        node = joined(edge, instance=b"A" * 16)
        edge.pass_time(1)
    assert edge.registry.session("n1") is node.live


@rule("N4")
def test_two_processes_with_one_id_do_not_fence_each_other_for_ever(edge: Edge) -> None:
    nodes = []
    for number in range(4):
        nodes.append(joined(edge, instance=b"AB"[number % 2 : number % 2 + 1] * 16))
        edge.pass_time(7)
    refused = Node(edge, instance=b"A" * 16)
    refused.exchange()
    assert refused.over is not None
    assert refused.over.cause is Cause.DUPLICATE
    for name in ("host-A (pid 7)", "host-B (pid 7)"):
        assert name in refused.over.message
    assert edge.registry.session("n1") is nodes[-1].live


@rule("N4")
def test_the_guard_forgets_after_two_minutes(edge: Edge) -> None:
    for number in range(4):
        joined(edge, instance=b"AB"[number % 2 : number % 2 + 1] * 16)
    edge.clock.now += 121
    late = joined(edge, instance=b"A" * 16)
    assert edge.registry.session("n1") is late.live


def test_restarts_after_a_crash_are_no_flapping(edge: Edge) -> None:
    for number in range(8):
        node = joined(edge, instance=bytes([65 + number]) * 16)
        edge.pass_time(1)
    assert edge.registry.session("n1") is node.live


@pytest.mark.parametrize(("spoken", "upgrade"), [((2, 3), "the Edge"), ((0, 0), "the Node")])
@rule("N4")
def test_no_common_protocol_names_both_ranges_and_who_to_upgrade(
    edge: Edge, spoken: tuple[int, int], upgrade: str
) -> None:
    raw = RawNode(edge)
    raw.hello.protocol_min, raw.hello.protocol_max = spoken
    answer = edge.registry.admit("n1", raw.writer.seal(pb.NodeFrame(hello=raw.hello)), "127.0.0.1:6")
    assert isinstance(answer, Refusal)
    assert answer.reason is None
    assert f"speaks 1-1, the Node {spoken[0]}-{spoken[1]}; upgrade {upgrade}" in answer.message
    assert edge.fleet.told == []


def test_the_highest_common_protocol_is_chosen(edge: Edge) -> None:
    raw = RawNode(edge)
    raw.hello.protocol_min, raw.hello.protocol_max = 1, 9
    raw.join()
    assert raw.frames()[0].welcome.protocol == 1


@pytest.mark.parametrize(
    "first",
    [
        pb.NodeFrame(frame_seq=1, heartbeat=pb.Heartbeat(n=1)),
        pb.NodeFrame(frame_seq=2, hello=pb.Hello(node_id="n1", protocol_min=1, protocol_max=1)),
        pb.NodeFrame(frame_seq=1, hello=pb.Hello(node_id="n2", protocol_min=1, protocol_max=1)),
        pb.NodeFrame(frame_seq=1),
    ],
    ids=["no-hello", "wrong-number", "other-node", "empty"],
)
def test_a_wrong_first_frame_is_refused_and_nothing_happens(edge: Edge, first: pb.NodeFrame) -> None:
    answer = edge.registry.admit("n1", first.SerializeToString(), "127.0.0.1:6")
    assert isinstance(answer, Refusal)
    end = pb.EdgeFrame.FromString(answer.frame()).session_end
    assert end.reason == pb.SESSION_END_REASON_PROTOCOL_ERROR
    assert edge.fleet.told == []


def test_a_closing_edge_ends_sessions_and_refuses_new_ones_with_a_time_to_retry(edge: Edge) -> None:
    node = joined(edge)
    run = node.start(spec())
    node.exchange()
    edge.registry.close()
    node.exchange()
    (end,) = run.ends
    assert end.error is not None
    assert (end.error.code, end.error.retryable) == ("edge_shutdown", False)
    assert node.over is not None
    assert (node.over.cause, node.over.retry_after) == (Cause.EDGE_SHUTDOWN, 5.0)
    late = Node(edge)
    late.exchange()
    assert late.over is not None
    assert late.over.cause is Cause.EDGE_SHUTDOWN
    assert edge.registry.rows()[0].state is LinkState.DISCONNECTED


# ---------------------------------------------------------------- tokens


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def test_current_and_previous_token_are_both_good_and_nothing_else() -> None:
    auth = NodeAuth({"n1": (digest("new").upper(), digest("old")), "n2": (digest("two"),)})
    assert auth.check("n1", "new")
    assert auth.check("n1", "old")
    for node_id, token in (("n1", "two"), ("n1", ""), ("n3", "new"), ("", ""), ("n3", "no node has this token")):
        assert not auth.check(node_id, token), (node_id, token)


def test_tokens_are_swapped_as_a_whole() -> None:
    auth = NodeAuth({"n1": (digest("a"),)})
    auth.replace({"n2": (digest("b"),)})
    assert not auth.check("n1", "a")
    assert auth.check("n2", "b")


def test_failures_are_counted_per_address_for_a_minute() -> None:
    limit = FailureLimit()
    assert [limit.failed("10.0.0.1", 0.0) for _ in range(11)] == [False] * 10 + [True]
    assert not limit.failed("10.0.0.2", 0.0)
    assert not limit.failed("10.0.0.1", 61.0)
    assert limit.total == 13
