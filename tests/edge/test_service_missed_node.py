"""A slot granted before its Node was lost and picked up after: nothing was sent, nothing is lost (P5, E7)."""

from __future__ import annotations

import anyio
import pytest

from iop_edge.auth import Principal
from iop_edge.errors import ApiError
from iop_edge.nodes.run import Operation
from iop_edge.order import Order, Trace
from support.fake_edge_node import EdgeRig, answers, config, node, provider
from support.rules import rule

pytestmark = pytest.mark.anyio


class Reply:
    """Keeps the whole answer."""

    def __init__(self) -> None:
        self.body = b""
        self.status: int | None = None

    def on_gone(self, callback: object) -> None:
        pass

    async def head(self, status: int, headers: tuple[tuple[str, str], ...]) -> None:
        raise AssertionError("a small plain answer is given whole")

    data = finish = head

    async def whole(self, status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> None:
        self.body += body


async def _submit(rig: EdgeRig) -> tuple[Reply, Trace]:
    reply, trace = Reply(), Trace()
    order = Order(
        request_id="R",
        operation=Operation.CHAT_COMPLETIONS,
        model="m",
        body={},
        streaming=False,
        principal=Principal("team", "ide", "alias"),
    )
    with anyio.fail_after(5):
        await rig.service.submit_run(order, reply, trace)  # type: ignore[arg-type]
    return reply, trace


def _generations(rig: EdgeRig, *said: int) -> list[str]:
    """Let the Node have acknowledged these generations, one at each look."""
    looks: list[str] = []

    def generation_of(node_id: str) -> int:
        looks.append(node_id)
        return said[min(len(looks), len(said)) - 1]

    rig.service.generation_of = generation_of
    return looks


@rule("P5", "E7")
async def test_a_node_that_is_back_and_has_not_acknowledged_yet_is_waited_for_not_given_up() -> None:
    rig = EdgeRig(config(node("n", provider("p"))), answers("hello"))
    _generations(rig, 0, 7)
    reply, trace = await _submit(rig)
    assert b"hello" in reply.body
    assert trace.attempts == 1
    (run,) = rig.sessions["n"].runs
    assert run.spec.generation == 7
    assert rig.in_flight == 0


@rule("P5", "E7")
async def test_it_is_missed_once_and_then_left_out() -> None:
    rig = EdgeRig(config(node("n", provider("p"))), answers("hello"))
    looks = _generations(rig, 0)
    with pytest.raises(ApiError) as caught:
        await _submit(rig)
    assert caught.value.code == "node_lost"
    assert len(looks) == 2
    assert rig.sessions["n"].runs == []
    assert rig.in_flight == 0
    assert not rig.service.live_leases
