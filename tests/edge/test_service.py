"""submit_run over the real pool and scripted Nodes: order, failover, slots, records (E1, E7-E10, P8, P9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest
from attrs import evolve

from iop_config import ModelRoute
from iop_edge.auth import Principal
from iop_edge.errors import ApiError
from iop_edge.nodes.run import Chunk, End, EndKind, Head, Operation, RunError
from iop_edge.order import Order, Trace
from iop_pool import ConnectionState
from support.fake_edge_node import (
    CANCELLED,
    COMPLETED,
    JSON_HEAD,
    STREAM_HEAD,
    EdgeRig,
    Script,
    answers,
    config,
    fails,
    hangs,
    model,
    node,
    provider,
    sse,
    stubborn,
)
from support.rules import rule

pytestmark = pytest.mark.anyio
MESSAGES = b'[{"role":"user","content":"hi"}]'


class KeptReply:
    """What the client got, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []
        self.status: int | None = None
        self.gone: Callable[[], None] = lambda: None

    def on_gone(self, callback: Callable[[], None]) -> None:
        self.gone = callback

    async def head(self, status: int, headers: tuple[tuple[str, str], ...]) -> None:
        self.status = status
        self.calls.append(("head", status))

    async def data(self, data: bytes) -> None:
        self.calls.append(("data", data))

    async def finish(self) -> None:
        self.calls.append(("finish", None))

    async def whole(self, status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> None:
        self.status = status
        self.calls.append(("whole", body))


def order(name: str = "m", *, stream: bool = False, request_id: str = "R", **body: Any) -> Order:
    pieces = {"model": f'"{name}"'.encode(), "messages": MESSAGES}
    pieces.update({key: msgspec.json.encode(value) for key, value in body.items()})
    return Order(
        request_id=request_id,
        operation=Operation.CHAT_COMPLETIONS,
        model=name,
        body={key: msgspec.Raw(value) for key, value in pieces.items()},
        streaming=stream,
        principal=Principal("team", "ide", "alias"),
        secret_headers=(("Authorization", "Bearer canary"),),
    )


async def submit(rig: EdgeRig, given: Order | None = None) -> tuple[KeptReply, Trace]:
    reply, trace = KeptReply(), Trace()
    with anyio.fail_after(5):
        await rig.service.submit_run(given or order(), reply, trace)
    return reply, trace


async def refused(rig: EdgeRig, given: Order | None = None) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await submit(rig, given)
    return caught.value


def pair(first: Script, second: Script, **fields: Any) -> EdgeRig:
    """Two Nodes with a provider each; `a` is chosen first."""
    edge = config(node("na", provider("a", **fields)), node("nb", provider("b", priority=1)))
    return EdgeRig(edge, {"na": first, "nb": second})


@rule("E1", "E9", "P3")
async def test_a_run_goes_to_the_chosen_node_and_its_answer_comes_back() -> None:
    rig = EdgeRig(config(node("n", provider("p"))), answers("hello"))
    reply, trace = await submit(rig)
    (run,) = rig.sessions["n"].runs
    spec = run.spec
    assert (spec.run_id, spec.attempt, spec.adapter, spec.target, spec.provider_id) == (
        "R",
        1,
        "p-adapter",
        "served",
        "p",
    )
    assert (spec.generation, spec.streaming, spec.long, spec.deadline_ms) == (5, False, False, 0)
    assert spec.secret_headers == (("Authorization", "Bearer canary"),)
    assert run.body == {"model": "served", "messages": [{"role": "user", "content": "hi"}]}
    assert [call for call, _ in reply.calls] == ["whole"]
    assert (trace.provider, trace.node, trace.attempts, trace.context_class) == ("p", "n", 1, "normal")
    assert rig.in_flight == 0
    (record,) = rig.meter.records
    assert (record.model, record.provider, record.node, record.outcome, record.status) == ("m", "p", "n", "ok", 200)
    assert (record.principal_ref, record.token_ref, record.principal_alias) == ("team", "ide", "alias")
    assert (record.input_tokens, record.output_tokens, record.usage_source) == (7, 3, "runtime")


@rule("C23", "E6")
async def test_no_form_of_an_order_or_a_run_shows_the_callers_token() -> None:
    rig = EdgeRig(config(node("n", provider("p"))), answers())
    given = order()
    await submit(rig, given)
    shown = f"{given} {rig.sessions['n'].runs[0].spec} {rig.meter.records}"
    assert "canary" not in shown


@rule("E1")
async def test_an_unknown_model_is_no_run_and_no_record() -> None:
    rig = EdgeRig(config(node("n", provider("p"))), answers())
    error = await refused(rig, order("nope"))
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert not rig.sessions["n"].runs
    assert not rig.meter.records


@rule("E1", "C16")
async def test_a_routed_model_takes_a_slot_of_the_providers_on_its_adapter() -> None:
    edge = config(
        node("n", provider("p", adapter="shared")),
        model_routes=(ModelRoute(model="legacy", adapter="shared", target="other-name"),),
    )
    rig = EdgeRig(edge, hangs)
    async with anyio.create_task_group() as group:
        group.start_soon(submit, rig, order("legacy", request_id="R1"))
        run = await rig.sessions["n"].run_number(1)
        assert (run.spec.target, run.spec.provider_id, run.body["model"]) == ("other-name", "p", "other-name")
        group.start_soon(submit, rig, order("m", request_id="R2"))
        await anyio.wait_all_tasks_blocked()
        # The provider's one slot is taken by the routed run, whatever name it came by.
        assert len(rig.sessions["n"].runs) == 1
        run.emit(JSON_HEAD, Chunk(b"{}"), COMPLETED)
        (await rig.sessions["n"].run_number(2)).emit(JSON_HEAD, Chunk(b"{}"), COMPLETED)
    assert rig.in_flight == 0


@rule("P3", "E10")
async def test_the_estimate_makes_a_run_long_and_the_lease_says_so() -> None:
    edge = evolve(config(node("n", provider("p", long_context_capacity=1))), long_context_threshold_tokens=100)
    rig = EdgeRig(edge, answers())
    _, trace = await submit(rig, order(tools=["word " * 200]))
    assert trace.context_class == "long"
    assert rig.sessions["n"].runs[0].spec.long
    assert rig.sessions["n"].runs[0].spec.input_tokens_estimate >= 100


@rule("E10", "E13")
@pytest.mark.parametrize(
    ("body", "fits"),
    [
        ({"max_tokens": 1000}, True),
        ({"max_tokens": 1001}, False),
        # The estimate says too long, but a tokenizer may see it otherwise: let the runtime decide.
        ({"tools": ["abcdefgh" * 600]}, True),
        ({"tools": ["word " * 5000]}, False),
    ],
)
async def test_only_what_cannot_possibly_fit_is_refused_before_it_is_sent(body: dict[str, Any], fits: bool) -> None:
    edge = config(node("n", provider("p")), models=[model("m", "p", context_window_tokens=1000)])
    rig = EdgeRig(edge, answers())
    if fits:
        await submit(rig, order(**body))
        return
    error = await refused(rig, order(**body))
    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert "maximum context length is 1000 tokens" in error.message
    assert not rig.sessions["n"].runs


# -- failover -------------------------------------------------------------------------------------------------------

RETRYABLE = {"retryable": True}
BROKEN_STREAM = fails(retryable=True, maybe_executed=True, before=(STREAM_HEAD, Chunk(sse({"x": 1}))))


@rule("E7")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "first",
    [
        fails(upstream_status=500, retryable=True, maybe_executed=True),
        fails(upstream_status=429, retryable=True),
        fails("connect_failed", retryable=True),
        fails("node_draining", retryable=True, outcome="cancelled"),
        fails("node_lost", retryable=True, maybe_executed=True, session_lost=True),
        fails("config_behind", retryable=True, outcome="cancelled"),
        fails("first_event_timeout", retryable=True, maybe_executed=True),
        fails("node_protocol", retryable=True, maybe_executed=True),
        # A head is no byte of the answer yet; and an answer without one is none.
        fails(retryable=True, maybe_executed=True, before=(STREAM_HEAD,)),
        lambda run: run.emit(STREAM_HEAD, COMPLETED) if run.spec.streaming else run.emit(COMPLETED),
        lambda run: run.emit(Head(503), Chunk(b'{"error":"busy"}'), COMPLETED),
    ],
)
async def test_a_retryable_failure_before_the_first_byte_goes_to_the_next(first: Script, stream: bool) -> None:
    rig = pair(first, answers())
    _, trace = await submit(rig, order(stream=stream))
    assert (trace.provider, trace.attempts) == ("b", 2)
    assert [run.spec.attempt for session in rig.sessions.values() for run in session.runs] == [1, 2]
    assert rig.in_flight == 0
    (record,) = rig.meter.records
    assert (record.outcome, record.attempts, record.provider) == ("ok", 2, "b")


@rule("E7", "E11")
async def test_a_plain_answer_that_was_cut_is_asked_for_again_since_nothing_left() -> None:
    rig = pair(fails(retryable=True, maybe_executed=True, before=(JSON_HEAD, Chunk(b'{"choi'))), answers())
    reply, trace = await submit(rig)
    assert trace.attempts == 2
    assert [call for call, _ in reply.calls] == ["whole"]


@rule("E7")
async def test_after_the_first_byte_of_a_stream_nobody_else_is_tried() -> None:
    rig = pair(BROKEN_STREAM, answers())
    reply, trace = KeptReply(), Trace()
    with pytest.raises(ApiError) as caught:
        await rig.service.submit_run(order(stream=True), reply, trace)
    assert (caught.value.status, caught.value.code) == (502, "upstream_error")
    assert [call for call, _ in reply.calls] == ["head", "data"]
    assert not rig.sessions["nb"].runs
    (record,) = rig.meter.records
    # The status that left stays; the outcome tells the rest.
    assert (record.status, record.outcome, record.attempts) == (200, "upstream_error", 1)


@rule("E7")
@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        (fails(upstream_status=400, outcome="client_error"), 400, "invalid_request"),
        (fails(upstream_status=500, retryable=False), 502, "upstream_error"),
        (fails("request_timeout", retryable=False), 504, "request_timeout"),
    ],
)
async def test_what_is_not_retryable_ends_there(script: Script, status: int, code: str) -> None:
    rig = pair(script, answers())
    error = await refused(rig)
    assert (error.status, error.code) == (status, code)
    assert not rig.sessions["nb"].runs


@rule("E7")
async def test_nobody_is_tried_twice_and_the_last_failure_is_told() -> None:
    rig = pair(
        fails(upstream_status=500, message="first", retryable=True),
        fails("first_event_timeout", "second", retryable=True, maybe_executed=True),
    )
    error = await refused(rig)
    assert (error.status, error.code, error.message) == (504, "request_timeout", "second")
    assert [len(session.runs) for session in rig.sessions.values()] == [1, 1]
    assert rig.in_flight == 0


@rule("E7")
async def test_a_cli_run_that_may_have_started_is_not_repeated() -> None:
    lost = fails("node_lost", retryable=True, maybe_executed=True, session_lost=True)
    rig = pair(lost, answers(), category="cli", type="cli")
    error = await refused(rig)
    assert (error.status, error.code, error.should_retry) == (502, "node_lost", False)
    assert not rig.sessions["nb"].runs


@rule("E7")
async def test_a_node_that_is_gone_before_the_run_is_sent_costs_an_attempt_elsewhere() -> None:
    rig = pair(answers(), answers())
    del rig.sessions["na"]
    _, trace = await submit(rig)
    assert (trace.provider, trace.attempts) == ("b", 1)
    assert rig.in_flight == 0


@rule("E7")
async def test_the_deadline_covers_all_attempts_and_is_told_to_each_node() -> None:
    now = [100.0]

    def slow(run: Any) -> None:
        now[0] += 40.0
        fails(retryable=True)(run)

    rig = pair(slow, answers(), request_timeout_ms=60_000)
    rig.service.clock = lambda: now[0]
    await submit(rig)
    specs = [run.spec for session in rig.sessions.values() for run in session.runs]
    assert [spec.deadline_ms for spec in specs] == [60_000, 20_000]


@rule("E7", "E12")
async def test_a_node_that_misses_the_deadline_is_cancelled_and_the_client_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("iop_edge.service._DEADLINE_SLACK", 0.01)
    rig = pair(stubborn, answers(), request_timeout_ms=20)
    error = await refused(rig)
    assert (error.status, error.code) == (504, "request_timeout")
    (run,) = rig.sessions["na"].runs
    assert run.cancelled == ["request_timeout"]
    # The runtime may still be busy: the slot is free when the Node says so, and the record comes then (P8, E9).
    assert rig.in_flight == 1
    assert not rig.meter.records
    run.emit(CANCELLED)
    assert rig.in_flight == 0
    assert rig.meter.records[0].outcome == "request_timeout"


# -- slots, cancellation, refresh -----------------------------------------------------------------------------------


@rule("E8", "P8", "E9")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_left_cancels_its_run_and_the_slot_waits_for_the_end(stream: bool) -> None:
    rig = EdgeRig(config(node("n", provider("p"))), stubborn)
    reply = KeptReply()
    async with anyio.create_task_group() as group:

        async def client() -> None:
            with pytest.raises(ApiError) as caught:
                await rig.service.submit_run(order(stream=stream), reply, Trace())
            assert caught.value.code == "client_gone"

        group.start_soon(client)
        run = await rig.sessions["n"].run_number(1)
        if stream:
            run.emit(STREAM_HEAD, Chunk(sse({"x": 1})))
            await anyio.wait_all_tasks_blocked()
        reply.gone()
    assert run.cancelled == ["client_gone"]
    (row,) = rig.pool.status().providers
    assert (row.in_flight, row.cancelling) == (1, 1)
    assert not rig.meter.records
    run.emit(CANCELLED)
    assert rig.in_flight == 0
    (record,) = rig.meter.records
    assert (record.outcome, record.status) == ("client_gone", 200 if stream else 499)
    # The Node counted as it went (E9).
    assert (record.input_tokens, record.output_tokens) == (7, 1)


@rule("E8", "P8")
async def test_a_waiter_that_left_is_never_sent_and_still_recorded() -> None:
    rig = EdgeRig(config(node("n", provider("p"))), hangs)
    reply = KeptReply()
    async with anyio.create_task_group() as group:
        group.start_soon(submit, rig, order(request_id="R1"))
        first = await rig.sessions["n"].run_number(1)

        async def waiter() -> None:
            with pytest.raises(ApiError):
                await rig.service.submit_run(order(request_id="R2"), reply, Trace())

        group.start_soon(waiter)
        await anyio.wait_all_tasks_blocked()
        reply.gone()
        record = await rig.meter.number(1)
        first.emit(JSON_HEAD, Chunk(b"{}"), COMPLETED)
    assert (record.request_id, record.outcome, record.status, record.attempts) == ("R2", "client_gone", 499, 0)
    assert len(rig.sessions["n"].runs) == 1
    assert rig.in_flight == 0


@rule("P8")
async def test_a_lost_session_gives_the_slot_back_once() -> None:
    rig = EdgeRig(config(node("n", provider("p"))), hangs)
    async with anyio.create_task_group() as group:

        async def client() -> None:
            assert (await refused(rig)).code == "node_lost"

        group.start_soon(client)
        run = await rig.sessions["n"].run_number(1)
        run.emit(End(EndKind.FAILED, error=RunError("node_lost", "gone"), session_lost=True))
    assert rig.in_flight == 0
    assert not rig.service.live_leases


@rule("P8")
async def test_every_taken_slot_has_a_live_run_behind_it() -> None:
    rig = EdgeRig(config(node("n", provider("p", capacity=3))), stubborn)
    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(submit, rig, order(request_id=f"R{number}"))
        await rig.sessions["n"].run_number(3)
        assert len(rig.service.live_leases) == 3
        assert rig.pool.audit(rig.service.live_leases) == ()
        for run in rig.sessions["n"].runs:
            run.emit(JSON_HEAD, Chunk(b"{}"), COMPLETED)
    assert rig.pool.audit(rig.service.live_leases) == ()


@rule("P5")
async def test_with_nobody_to_serve_it_the_reasons_are_told_and_nothing_is_recorded() -> None:
    rig = EdgeRig(config(node("n", provider("p", enabled=False), provider("q"))), answers())
    rig.pool.set_connected("n", ConnectionState.CONNECTED)
    rig.refresh(config(node("n", provider("p", enabled=False), provider("q", enabled=False))))
    error = await refused(rig)
    assert (error.status, error.code) == (503, "unavailable")
    assert error.reasons == (("p", "disabled"), ("q", "disabled"))
    assert not rig.meter.records


@rule("P6")
async def test_a_full_queue_says_when_to_come_back() -> None:
    rig = EdgeRig(config(node("n", provider("p", max_queue=0))), hangs)
    async with anyio.create_task_group() as group:
        group.start_soon(submit, rig, order())
        run = await rig.sessions["n"].run_number(1)
        error = await refused(rig)
        assert (error.status, error.code) == (429, "queue_full")
        assert error.headers()[0][0] == b"retry-after"
        run.emit(JSON_HEAD, Chunk(b"{}"), COMPLETED)


@rule("P7", "E9")
async def test_a_queue_timeout_is_504_and_recorded() -> None:
    rig = EdgeRig(config(node("n", provider("p", queue_timeout_ms=10))), hangs)
    async with anyio.create_task_group() as group:
        group.start_soon(submit, rig, order())
        run = await rig.sessions["n"].run_number(1)
        error = await refused(rig, order(request_id="R2"))
        assert (error.status, error.code) == (504, "queue_timeout")
        run.emit(JSON_HEAD, Chunk(b"{}"), COMPLETED)
    records = {record.request_id: record for record in rig.meter.records}
    assert (records["R2"].outcome, records["R2"].status, records["R2"].provider) == ("queue_timeout", 504, None)
    assert records["R2"].queue_ms >= 9


@rule("P9", "R7")
async def test_a_waiter_may_be_served_by_a_provider_that_a_refresh_brought() -> None:
    edge = config(node("na", provider("a")), node("nb", provider("b")), models=[model("m", "a")])
    rig = EdgeRig(edge, {"na": hangs, "nb": answers("from b")})
    async with anyio.create_task_group() as group:
        group.start_soon(submit, rig, order(request_id="R1"))
        run = await rig.sessions["na"].run_number(1)
        group.start_soon(submit, rig, order(request_id="R2"))
        await anyio.wait_all_tasks_blocked()
        rig.refresh_models(model("m", "a", "b"))
        await rig.meter.number(1)
        run.emit(JSON_HEAD, Chunk(b"{}"), COMPLETED)
    assert {record.request_id: record.provider for record in rig.meter.records} == {"R1": "a", "R2": "b"}


@rule("P9")
async def test_a_waiter_whose_model_was_removed_gets_model_not_found() -> None:
    edge = config(node("n", provider("p")), models=[model("m", "p"), model("k", "p")])
    rig = EdgeRig(edge, hangs)
    async with anyio.create_task_group() as group:
        group.start_soon(submit, rig, order(request_id="R1"))
        run = await rig.sessions["n"].run_number(1)

        async def waiter() -> None:
            error = await refused(rig, order("k", request_id="R2"))
            assert (error.status, error.code) == (404, "model_not_found")

        group.start_soon(waiter)
        await anyio.wait_all_tasks_blocked()
        rig.refresh_models(model("m", "p"))
        assert (await rig.meter.number(1)).outcome == "model_not_found"
        run.emit(JSON_HEAD, Chunk(b"{}"), COMPLETED)


@rule("R7")
async def test_a_running_request_keeps_the_generation_that_it_began_with() -> None:
    edge = config(node("n", provider("p"), provider("q", priority=1)), models=[model("m", "p", "q", min_max_tokens=10)])
    rig = EdgeRig(edge, hangs)
    async with anyio.create_task_group() as group:
        group.start_soon(submit, rig, order(max_tokens=1))
        run = await rig.sessions["n"].run_number(1)
        rig.refresh_models(model("m", "p", "q", min_max_tokens=99))
        run.emit(End(EndKind.FAILED, error=RunError("upstream_error", "x", retryable=True)))
        second = await rig.sessions["n"].run_number(2)
        assert second.body["max_tokens"] == 10
        second.emit(JSON_HEAD, Chunk(b"{}"), COMPLETED)


@rule("E3")
async def test_a_shutdown_refuses_newcomers_and_waiters_and_lets_runs_end() -> None:
    rig = EdgeRig(config(node("n", provider("p"))), hangs)
    async with anyio.create_task_group() as group:
        group.start_soon(submit, rig, order(request_id="R1"))
        run = await rig.sessions["n"].run_number(1)
        codes: list[str] = []

        async def late() -> None:
            codes.append((await refused(rig, order(request_id="R2"))).code)

        group.start_soon(late)
        await anyio.wait_all_tasks_blocked()
        assert rig.service.ready
        rig.service.begin_shutdown()
        assert not rig.service.ready
        await late()
        group.start_soon(rig.service.wait_idle)
        await anyio.wait_all_tasks_blocked()
        assert codes == ["edge_shutdown", "edge_shutdown"]
        run.emit(JSON_HEAD, Chunk(b"{}"), COMPLETED)


@rule("E3")
async def test_what_outlives_the_grace_is_aborted_with_the_same_word() -> None:
    rig = EdgeRig(config(node("n", provider("p"))), hangs)
    async with anyio.create_task_group() as group:

        async def client() -> None:
            assert (await refused(rig)).code == "edge_shutdown"

        group.start_soon(client)
        run = await rig.sessions["n"].run_number(1)
        rig.service.begin_shutdown()
        rig.service.abort_all()
        with anyio.fail_after(5):
            await rig.service.wait_idle()
    assert run.cancelled == ["edge_shutdown"]
    assert rig.in_flight == 0


@rule("P8")
async def test_a_session_that_cannot_start_the_run_costs_no_slot() -> None:
    def explodes(run: Any) -> None:
        raise RuntimeError("a fault")

    rig = EdgeRig(config(node("n", provider("p"))), explodes)
    with pytest.raises(RuntimeError):
        await submit(rig)
    assert rig.in_flight == 0
    assert rig.meter.records[0].outcome == "internal_error"
