"""How much may run at a provider while its Node may have any of several configurations (R14)."""

from __future__ import annotations

from iop_edge.fleet import Fleet
from iop_edge.nodes.payload import NodePayload
from iop_edge.nodes.values import PushOutcome, PushState
from iop_pool import GroupSpec, Lease, Pool, PoolSpec, ProviderSpec, Queued, Request
from iop_wire import runtime_pb2 as pb
from support.rules import rule


class Edge:
    """One Node with one provider; each refresh changes its capacity."""

    def __init__(self, capacity: int) -> None:
        self.generation = 0
        self.spec, self.payload = self._next(capacity)
        self.pool = Pool(self.spec, clock=lambda: 0.0)
        self.fleet = Fleet(self.pool, self.spec, {"n": self.payload})
        self.leases: list[Lease] = []

    def _next(self, capacity: int) -> tuple[PoolSpec, NodePayload]:
        self.generation += 1
        message = pb.NodeConfigPayload(config_version=f"capacity {capacity}", generation=self.generation)
        message.providers.add(id="p", enabled=True, capacity=capacity)
        spec = PoolSpec(providers=[ProviderSpec("p", node="n", capacity=capacity)], groups=[GroupSpec("m", ["p"])])
        return spec, NodePayload("n", message.config_version, self.generation, message)

    def connect(self) -> None:
        self.fleet.connected("n", 1, (), ())

    def refresh(self, capacity: int) -> NodePayload:
        self.spec, self.payload = self._next(capacity)
        self.fleet.swap(self.spec, {"n": self.payload})
        return self.payload

    def answer(self, payload: NodePayload, state: PushState = PushState.ACKED) -> None:
        self.fleet.config_result("n", PushOutcome("id", state, payload.version, payload.generation))

    @property
    def admits(self) -> int:
        return self.pool.status().providers[0].admits


def acknowledged(capacity: int) -> Edge:
    edge = Edge(capacity)
    edge.connect()
    edge.answer(edge.payload)
    assert edge.admits == capacity
    return edge


@rule("R14")
def test_nothing_runs_before_the_first_answer() -> None:
    edge = Edge(4)
    edge.connect()
    assert edge.admits == 0
    edge.answer(edge.payload)
    assert edge.admits == 4


@rule("R14")
def test_the_smaller_capacity_counts_until_the_node_has_the_newer_one() -> None:
    edge = acknowledged(2)
    raised = edge.refresh(4)
    assert edge.admits == 2
    edge.answer(raised)
    assert edge.admits == 4
    edge.refresh(1)
    assert edge.admits == 1


@rule("R14")
def test_a_cut_that_was_taken_back_may_be_in_force_until_the_node_says_otherwise() -> None:
    edge = acknowledged(4)
    cut = edge.refresh(1)
    back = edge.refresh(4)
    assert edge.admits == 1, "the Node may have the cut by now, and would refuse a second run"
    edge.answer(cut)
    assert edge.admits == 1
    edge.answer(back)
    assert edge.admits == 4


@rule("R14")
def test_the_answer_to_the_first_of_two_equal_contents_is_not_the_answer_to_the_second() -> None:
    edge = Edge(4)
    edge.connect()
    first = edge.payload
    edge.refresh(1)
    again = edge.refresh(4)
    assert first.version == again.version
    edge.answer(first)
    assert edge.fleet.acked_generation("n") == first.generation, "a run must not ask for more than the Node has"
    assert edge.admits == 1
    edge.answer(again)
    assert edge.fleet.acked_generation("n") == again.generation
    assert edge.admits == 4


@rule("R14")
def test_a_refused_payload_leaves_the_confirmed_one_in_force() -> None:
    edge = acknowledged(3)
    edge.refresh(2)
    edge.answer(Edge(3).payload, PushState.NACKED)
    assert edge.admits == 2
    assert edge.fleet.acked_generation("n") == 1


@rule("R14")
def test_a_node_that_already_had_the_content_from_an_earlier_edge_is_settled() -> None:
    edge = Edge(2)
    edge.connect()
    edge.fleet.config_result("n", PushOutcome("", PushState.ACKED, edge.payload.version, 17))
    assert edge.fleet.acked_generation("n") == 1
    assert edge.admits == 2


@rule("R14", "P1")
def test_a_swap_never_opens_a_limit_before_the_capacity_that_goes_with_it() -> None:
    edge = acknowledged(1)
    edge.refresh(2)
    first = edge.pool.core.submit(Request("m"), 0.0)
    waiter = edge.pool.core.submit(Request("m"), 0.0)
    assert isinstance(waiter, Queued)
    edge.refresh(1)
    assert waiter.waiter.waiting, f"granted beside {first}, above the capacity of 1"
