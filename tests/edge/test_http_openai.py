"""The OpenAI surfaces over a real listener and the real SDK (E2-E4, E8, E11, E14, P15, wire §1.8)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2 as httpx
import openai
import pytest

from iop_config import ModelRoute, PrincipalToken, ProviderAuth
from iop_edge.nodes.run import Chunk, End, EndKind, Operation, RunError
from support.fake_edge_node import (
    CANCELLED,
    COMPLETED,
    JSON_HEAD,
    STREAM_HEAD,
    EdgeRig,
    Script,
    answers,
    chat_chunk,
    config,
    fails,
    hangs,
    in_turn,
    model,
    node,
    provider,
    sse,
    stubborn,
)
from support.rules import rule

pytestmark = pytest.mark.anyio
HI: Any = [{"role": "user", "content": "hi"}]
KEY = "sk-iop-canary"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The loop that the Edge runs on."""
    return "asyncio", {"use_uvloop": True}


def rig_of(script: Script, /, **fields: Any) -> EdgeRig:
    """One Node, one provider, one model `m`; `fields` of the listener."""
    return EdgeRig(config(node("n", provider("p")), **fields), script)


@asynccontextmanager
async def client(rig: EdgeRig, *, key: str = KEY, **deps: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with rig.serving(**deps) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as made:
        with anyio.fail_after(10):
            yield made


@asynccontextmanager
async def raw(rig: EdgeRig, **deps: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with rig.serving(**deps) as url, httpx.AsyncClient(base_url=url, timeout=10) as made:
        yield made


@rule("E1", "E2")
async def test_a_plain_chat_and_a_stream_come_through_the_sdk() -> None:
    rig = rig_of(answers("hello"))
    async with client(rig) as sdk:
        plain = await sdk.chat.completions.create(model="m", messages=HI)
        assert plain.choices[0].message.content == "hello"
        stream = await sdk.chat.completions.create(model="m", messages=HI, stream=True)
        texts = [chunk.choices[0].delta.content async for chunk in stream]
        assert "".join(text or "" for text in texts) == "hello"
    assert [run.spec.streaming for run in rig.sessions["n"].runs] == [False, True]
    assert rig.in_flight == 0


@rule("E2")
async def test_response_bytes_pass_through_untouched_and_upstream_headers_do_not() -> None:
    body = b'{"object" : "chat.completion",\n "x": 1.0}'
    rig = rig_of(lambda run: run.emit(JSON_HEAD, Chunk(body[:9]), Chunk(body[9:]), COMPLETED) and None)
    async with raw(rig) as http:
        answer = await http.post("/v1/chat/completions", json={"model": "m", "messages": HI})
    assert answer.content == body
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(body))
    assert "x-secret-upstream" not in answer.headers
    assert "server" not in answer.headers


@rule("E2", "E14")
async def test_a_streams_bytes_are_the_runtimes_and_its_headers_forbid_buffering() -> None:
    events = [sse(chat_chunk("한국어")), b": upstream comment\n\n", sse("[DONE]")]
    rig = rig_of(lambda run: run.emit(STREAM_HEAD, *map(Chunk, events), COMPLETED) and None)
    async with raw(rig) as http:
        # The choice is the body's, whatever `Accept` says.
        answer = await http.post(
            "/v1/chat/completions",
            json={"model": "m", "messages": HI, "stream": True},
            headers={"accept": "application/json"},
        )
    assert answer.content == b"".join(events)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store, no-transform"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in answer.headers


@rule("E2")
@pytest.mark.parametrize(
    ("path", "body", "operation"),
    [
        ("/v1/chat/completions", {"messages": HI}, Operation.CHAT_COMPLETIONS),
        ("/v1/completions", {"prompt": "x"}, Operation.COMPLETIONS),
        ("/v1/completions", {"prompt": ["x", "y"]}, Operation.COMPLETIONS),
        ("/v1/responses", {"input": "x"}, Operation.RESPONSES),
        ("/v1/responses", {"input": [{"role": "user", "content": "x"}]}, Operation.RESPONSES),
        ("/v1/responses", {"previous_response_id": "r"}, Operation.RESPONSES),
        ("/v1/embeddings", {"input": ["x"]}, Operation.EMBEDDINGS),
        ("/v1/embeddings", {"input": [1, 2]}, Operation.EMBEDDINGS),
        ("/v1/messages", {"messages": HI, "max_tokens": 9}, Operation.MESSAGES),
        ("/v1/messages?beta=true", {"messages": HI, "max_tokens": 9}, Operation.MESSAGES),
        ("/v1/messages/count_tokens", {"messages": HI}, Operation.COUNT_TOKENS),
        ("/v1/chat/completions/", {"messages": HI}, Operation.CHAT_COMPLETIONS),
    ],
)
async def test_each_surface_reaches_the_node_as_its_own_operation(
    path: str, body: dict[str, Any], operation: Operation
) -> None:
    rig = rig_of(lambda run: run.emit(JSON_HEAD, Chunk(b"{}"), COMPLETED) and None)
    async with raw(rig) as http:
        answer = await http.post(path, json={"model": "m", "unknown": {"a": 1}, **body})
    assert answer.status_code == 200
    (run,) = rig.sessions["n"].runs
    assert run.spec.operation is operation
    assert run.body == {"model": "served", "unknown": {"a": 1}, **body}


@rule("E2", "C16")
async def test_the_models_list_has_groups_and_routes_with_their_windows() -> None:
    edge = config(
        node("n", provider("p", adapter="x")),
        models=[model("org/m", "p", context_window_tokens=4096, display_name="M")],
        model_routes=(ModelRoute(model="legacy", adapter="x", target="t"),),
    )
    async with client(EdgeRig(edge, answers())) as sdk:
        listed = await sdk.models.list()
        assert [entry.id for entry in listed.data] == ["org/m", "legacy"]
        one = await sdk.models.retrieve("org/m")
        extra = one.model_extra or {}
        assert (one.object, extra["context_length"], extra["max_model_len"]) == ("model", 4096, 4096)
        with pytest.raises(openai.NotFoundError) as caught:
            await sdk.models.retrieve("nope")
        assert caught.value.code == "model_not_found"


@rule("P15", "E3")
async def test_the_request_id_is_always_there_and_the_decision_when_asked_for() -> None:
    async with raw(rig_of(answers(), response_headers=True)) as http:
        answer = await http.post("/v1/chat/completions", json={"model": "m", "messages": HI})
        assert {name: answer.headers[name] for name in answer.headers if name.startswith("x-iop")} == {
            "x-iop-provider": "p",
            "x-iop-attempts": "1",
            "x-iop-queue-ms": "0",
            "x-iop-context-class": "normal",
        }
        ids = {answer.headers["x-request-id"]}
        for path in ("/v1/models", "/nope", "/healthz", "/readyz"):
            ids.add((await http.get(path)).headers["x-request-id"])
        assert len(ids) == 5
        assert all(len(found) == 26 for found in ids)
    async with raw(rig_of(answers())) as http:
        answer = await http.post("/v1/chat/completions", json={"model": "m", "messages": HI})
        assert not [name for name in answer.headers if name.startswith("x-iop")]


@rule("E7", "P15")
async def test_a_second_attempt_is_told_even_when_the_headers_are_off() -> None:
    edge = config(node("n", provider("p"), provider("q", priority=1)))
    rig = EdgeRig(edge, in_turn(fails(retryable=True, maybe_executed=True), answers()))
    async with raw(rig) as http:
        answer = await http.post("/v1/chat/completions", json={"model": "m", "messages": HI})
    assert (answer.status_code, answer.headers["x-iop-attempts"]) == (200, "2")


# -- errors ---------------------------------------------------------------------------------------------------------


@rule("E3")
@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("/v1/chat/completions", b"", None, "invalid_json"),
        ("/v1/chat/completions", b"{", None, "invalid_json"),
        ("/v1/chat/completions", b"[]", None, "invalid_json"),
        ("/v1/chat/completions", b"{} {}", None, "invalid_json"),
        ("/v1/chat/completions", b'{"model":"m","messages":"\xff"}', None, "invalid_json"),
        ("/v1/chat/completions", b'{"a":' * 100_000, None, "invalid_json"),
        ("/v1/chat/completions", b"{}", "model", "missing_parameter"),
        ("/v1/chat/completions", b'{"model":5}', "model", "invalid_request"),
        ("/v1/chat/completions", b'{"model":null}', "model", "invalid_request"),
        ("/v1/chat/completions", b'{"model":""}', "model", "invalid_request"),
        ("/v1/chat/completions", b'{"model":"m"}', "messages", "missing_parameter"),
        ("/v1/chat/completions", b'{"model":"m","messages":[ ]}', "messages", "invalid_request"),
        ("/v1/chat/completions", b'{"model":"m","messages":"hi"}', "messages", "invalid_request"),
        ("/v1/chat/completions", b'{"model":"m","messages":["hi"]}', "messages", "invalid_request"),
        ("/v1/chat/completions", b'{"model":"m","messages":[{}],"stream":"yes"}', "stream", "invalid_request"),
        (
            "/v1/chat/completions",
            b'{"model":"m","messages":[{}],"stream":true,"stream_options":3}',
            "stream_options",
            "invalid_request",
        ),
        ("/v1/chat/completions", b'{"model":"m","messages":[{}],"max_tokens":"9"}', "max_tokens", "invalid_request"),
        ("/v1/completions", b'{"model":"m"}', "prompt", "missing_parameter"),
        ("/v1/completions", b'{"model":"m","prompt":5}', "prompt", "invalid_request"),
        ("/v1/responses", b'{"model":"m"}', "input", "missing_parameter"),
        ("/v1/embeddings", b'{"model":"m","input":[]}', "input", "invalid_request"),
        ("/v1/embeddings", b'{"model":"m","input":null}', "input", "missing_parameter"),
    ],
)
async def test_a_body_that_cannot_be_served_is_400_and_names_the_field(
    path: str, body: bytes, param: str | None, code: str
) -> None:
    rig = rig_of(answers())
    async with raw(rig) as http:
        answer = await http.post(path, content=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"], error["code"]) == (
        400,
        "invalid_request_error",
        param,
        code,
    )
    assert error["message"][0].islower()
    assert not rig.sessions["n"].runs


@rule("E3")
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nope", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("OPTIONS", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/chat/completions", 404, "not_found"),
    ],
)
async def test_a_wrong_path_or_method_gets_the_error_object_too(method: str, path: str, status: int, code: str) -> None:
    async with raw(rig_of(answers())) as http:
        answer = await http.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    if path == "/chat/completions":
        assert "/v1/chat/completions" in answer.json()["error"]["message"]


@rule("E3")
async def test_an_upstream_error_keeps_its_status_and_takes_our_form() -> None:
    script = fails(upstream_status=422, upstream_body=b'{"detail":"no such voice"}', outcome="client_error")
    async with client(rig_of(script)) as sdk:
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            await sdk.chat.completions.create(model="m", messages=HI)
    assert caught.value.body == {
        "message": "no such voice",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_request",
    }


@rule("E13")
async def test_a_prompt_that_is_too_long_is_recognised_by_every_client() -> None:
    script = fails(
        upstream_status=400,
        outcome="client_error",
        upstream_body=b'{"error":{"message":"request (5000 tokens) exceeds the available context size (2048 tokens)"}}',
    )
    async with client(rig_of(script)) as sdk:
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.responses.create(model="m", input="x")
    error = caught.value
    assert (error.code, error.param, error.type) == ("context_length_exceeded", "messages", "invalid_request_error")
    assert "This model's maximum context length is 2048 tokens" in error.message
    assert "5000" in error.message
    assert "context_length_exceeded" in error.message


@rule("E3", "P6")
async def test_a_full_queue_is_429_with_retry_after() -> None:
    edge = config(node("n", provider("p", max_queue=0)))
    rig = EdgeRig(edge, hangs)
    async with client(rig) as sdk, anyio.create_task_group() as group:
        group.start_soon(lambda: sdk.chat.completions.create(model="m", messages=HI))
        run = await rig.sessions["n"].run_number(1)
        with pytest.raises(openai.RateLimitError) as caught:
            await sdk.chat.completions.create(model="m", messages=HI)
        assert caught.value.code == "queue_full"
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 120
        answers()(run)


@rule("E3", "P5")
async def test_with_nobody_to_serve_the_answer_is_503_with_reasons() -> None:
    edge = config(node("n", provider("p", enabled=False)), models=[model("m", "p")])
    async with raw(EdgeRig(edge, answers())) as http:
        answer = await http.post("/v1/chat/completions", json={"model": "m", "messages": HI})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        assert answer.json()["error"]["reasons"] == [{"provider": "p", "reason": "disabled"}]
        assert "disabled" in answer.json()["error"]["message"]
        assert "retry-after" in answer.headers
        assert (await http.get("/readyz")).status_code == 503
        assert (await http.get("/healthz")).status_code == 200


@rule("E3", "E7")
async def test_a_lost_cli_run_tells_the_sdk_not_to_run_it_again() -> None:
    edge = config(node("n", provider("p", category="cli", type="cli")))
    script = fails("node_lost", retryable=True, maybe_executed=True, session_lost=True)
    async with raw(EdgeRig(edge, script)) as http:
        answer = await http.post("/v1/chat/completions", json={"model": "m", "messages": HI})
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "node_lost")
    assert answer.headers["x-should-retry"] == "false"


@rule("E3")
async def test_a_fault_of_the_edge_is_a_plain_500(caplog: pytest.LogCaptureFixture) -> None:
    def explodes(run: Any) -> None:
        raise RuntimeError("canary-detail")

    async with raw(rig_of(explodes)) as http:
        answer = await http.post("/v1/chat/completions", json={"model": "m", "messages": HI})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (500, "internal_error")
    assert answer.headers["x-request-id"] in error["message"]
    assert "canary" not in answer.text
    (logged,) = [entry for entry in caplog.records if entry.name == "iop.edge.http"]
    assert vars(logged)["facts"] == {"request_id": answer.headers["x-request-id"]}


@rule("E3")
@pytest.mark.parametrize(
    ("end", "code"),
    [
        (End(EndKind.FAILED, error=RunError("node_lost", "gone"), session_lost=True), "node_lost"),
        (End(EndKind.FAILED, error=RunError("upstream_error", "cut", retryable=True)), "upstream_error"),
        (End(EndKind.FAILED, error=RunError("idle_timeout", "silent", retryable=True)), "request_timeout"),
        (End(EndKind.FAILED, error=RunError("node_protocol", "garbage", retryable=True)), "node_protocol"),
        (End(EndKind.FAILED, error=RunError("edge_shutdown", "bye")), "edge_shutdown"),
    ],
)
async def test_after_the_first_byte_an_error_is_one_event_without_done(end: End, code: str) -> None:
    rig = rig_of(lambda run: run.emit(STREAM_HEAD, Chunk(sse(chat_chunk("a"))), end) and None)
    async with raw(rig) as http:
        answer = await http.post("/v1/chat/completions", json={"model": "m", "messages": HI, "stream": True})
    assert answer.status_code == 200
    events = answer.content.removeprefix(sse(chat_chunk("a")))
    assert events.startswith(b'data: {"error":')
    assert events.endswith(b"}\n\n")
    assert json.loads(events[6:])["error"]["code"] == code
    assert b"[DONE]" not in answer.content


@rule("E3")
async def test_the_sdk_sees_an_error_event_as_an_error() -> None:
    end = End(EndKind.FAILED, error=RunError("upstream_error", "the runtime died", retryable=True))
    async with client(rig_of(lambda run: run.emit(STREAM_HEAD, Chunk(sse(chat_chunk("a"))), end) and None)) as sdk:
        stream = await sdk.chat.completions.create(model="m", messages=HI, stream=True)
        with pytest.raises(openai.APIError) as caught:
            async for _ in stream:
                pass
    assert (caught.value.code, caught.value.message) == ("upstream_error", "the runtime died")


@rule("E3")
async def test_a_responses_stream_fails_inside_its_response() -> None:
    events = sse({"type": "response.created"}, {"type": "response.in_progress"})
    end = End(EndKind.FAILED, error=RunError("upstream_error", "the runtime died"))
    async with raw(rig_of(lambda run: run.emit(STREAM_HEAD, Chunk(events), end) and None)) as http:
        answer = await http.post("/v1/responses", json={"model": "m", "input": "x", "stream": True})
    last = answer.content.removeprefix(events)
    name, data = last.removesuffix(b"\n\n").split(b"\n")
    assert name == b"event: response.failed"
    failed = json.loads(data[6:])
    assert (failed["type"], failed["sequence_number"], failed["response"]["status"]) == ("response.failed", 2, "failed")
    assert failed["response"]["error"]["code"] == "upstream_error"


@rule("E11")
async def test_a_long_plain_answer_that_is_cut_never_looks_complete() -> None:
    big = b" " * (1024 * 1024 + 1)
    end = End(EndKind.FAILED, error=RunError("upstream_error", "cut", retryable=True))
    rig = rig_of(lambda run: run.emit(JSON_HEAD, Chunk(big), end) and None)
    async with raw(rig) as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await http.post("/v1/chat/completions", json={"model": "m", "messages": HI})
    assert rig.meter.records[0].outcome == "upstream_error"


# -- keys -----------------------------------------------------------------------------------------------------------

TOKENS = (
    PrincipalToken(token_ref="ide", token_hash_sha256=hashlib.sha256(KEY.encode()).hexdigest(), principal_ref="team"),
)


@rule("E4", "E9", "C23")
async def test_a_key_lets_in_and_names_the_usage_and_is_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    rig = rig_of(answers(), principal_tokens=TOKENS)
    async with client(rig) as sdk:
        await sdk.chat.completions.create(model="m", messages=HI)
        await sdk.models.list()
    async with client(rig, key="sk-wrong-canary") as sdk:
        for call in (sdk.models.list, lambda: sdk.chat.completions.create(model="m", messages=HI)):
            with pytest.raises(openai.AuthenticationError) as caught:
                await call()
            assert "canary" not in str(caught.value)
    (record,) = rig.meter.records
    assert (record.principal_ref, record.token_ref) == ("team", "ide")
    ours = [entry.getMessage() for entry in caplog.records if entry.name.startswith(("iop", "uvicorn"))]
    assert "canary" not in "\n".join(ours)


@rule("E4")
async def test_x_api_key_is_as_good_and_health_needs_none() -> None:
    async with raw(rig_of(answers(), principal_tokens=TOKENS)) as http:
        body = {"model": "m", "messages": HI}
        assert (await http.post("/v1/chat/completions", json=body, headers={"x-api-key": KEY})).status_code == 200
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 401
        assert (await http.get("/v1/models")).status_code == 401
        assert [(await http.get(path)).status_code for path in ("/healthz", "/readyz", "/")] == [200, 200, 200]
        assert (await http.head("/")).status_code == 200


@rule("E6")
async def test_the_callers_provider_token_reaches_the_run_and_its_absence_is_401() -> None:
    rig = rig_of(answers(), provider_auth=ProviderAuth(enabled=True))
    async with raw(rig) as http:
        body = {"model": "m", "messages": HI}
        refused = await http.post("/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "missing_provider_auth")
        token = {"x-iop-provider-authorization": "tok-canary", "authorization": "Bearer of-the-edge"}
        await http.post("/v1/chat/completions", json=body, headers=token)
    (run,) = rig.sessions["n"].runs
    assert run.spec.secret_headers == (("Authorization", "Bearer tok-canary"),)
    assert run.spec.headers == ()


@rule("E2")
async def test_only_named_headers_go_on_to_the_runtime() -> None:
    rig = rig_of(answers())
    async with raw(rig) as http:
        sent = {"anthropic-beta": "a,b", "openai-beta": "x", "cookie": "c", "authorization": "Bearer s", "x-title": "t"}
        await http.post("/v1/chat/completions", json={"model": "m", "messages": HI}, headers=sent)
    assert set(rig.sessions["n"].runs[0].spec.headers) == {("anthropic-beta", "a,b"), ("openai-beta", "x")}


# -- disconnects, holds, comments -----------------------------------------------------------------------------------


@rule("E8", "P8")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("size", [10, 300_000])
async def test_a_client_that_leaves_is_seen_at_once_and_its_slot_waits_for_the_node(stream: bool, size: int) -> None:
    rig = rig_of(stubborn)
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * size}], "stream": stream}
    async with raw(rig) as http:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: http.post("/v1/chat/completions", json=body))
            run = await rig.sessions["n"].run_number(1)
            group.cancel_scope.cancel()
        with anyio.fail_after(1):
            while not run.cancelled:  # noqa: ASYNC110
                await anyio.sleep(0.001)
        assert run.cancelled == ["client_gone"]
        assert rig.in_flight == 1
        run.emit(CANCELLED)
        assert rig.in_flight == 0
    assert rig.meter.records[0].outcome == "client_gone"


@rule("E8")
async def test_a_client_that_leaves_in_mid_stream_is_seen_too() -> None:
    rig = rig_of(lambda run: run.emit(STREAM_HEAD, Chunk(sse(chat_chunk("a")))) and None)
    async with raw(rig) as http:
        body = {"model": "m", "messages": HI, "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for _ in answer.aiter_bytes():
                break
        await rig.settled()
    (run,) = rig.sessions["n"].runs
    assert run.cancelled == ["client_gone"]
    assert rig.meter.records[0].output_tokens == 1


@rule("E11")
async def test_the_status_line_waits_for_the_first_event_so_that_errors_keep_their_status() -> None:
    rig = rig_of(hangs, stream_hold_ms=5000)
    async with client(rig) as sdk, anyio.create_task_group() as group:

        async def fail() -> None:
            (await rig.sessions["n"].run_number(1)).emit(
                STREAM_HEAD, End(EndKind.FAILED, error=RunError("upstream_error", "no", upstream_status=400))
            )

        group.start_soon(fail)
        with pytest.raises(openai.BadRequestError):
            await sdk.chat.completions.create(model="m", messages=HI, stream=True)


@rule("E11", "E14", "E7")
async def test_after_the_hold_the_stream_waits_with_comments_and_may_still_fail_over() -> None:
    edge = config(
        node("n", provider("p"), provider("q", priority=1)),
        stream_hold_ms=20,
        keep_alive_ms=20,
        response_headers=True,
    )
    rig = EdgeRig(edge, hangs)
    lines: list[str] = []
    async with raw(rig) as http:
        body = {"model": "m", "messages": HI, "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            assert answer.headers["x-iop-attempts"] == "1"
            async for line in answer.aiter_lines():
                lines.append(line)
                if lines == [": keep-alive"] * 2:
                    run = await rig.sessions["n"].run_number(1)
                    run.emit(STREAM_HEAD, End(EndKind.FAILED, error=RunError("upstream_error", "x", retryable=True)))
                    answers("late")(await rig.sessions["n"].run_number(2))
    text = "\n".join(lines)
    assert lines[:2] == [": keep-alive"] * 2
    # A comment is one line without a blank line after it, and never inside an event.
    assert ": keep-alive\n\n" not in text
    assert "late" in text
    assert "[DONE]" in text
    assert rig.meter.records[0].attempts == 2


@rule("E11", "E14")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_after_the_hold_an_error_is_an_event(path: str) -> None:
    rig = rig_of(hangs, stream_hold_ms=0, keep_alive_ms=5)
    async with raw(rig) as http:
        body = {"model": "m", "messages": HI, "input": "x", "stream": True}
        async with http.stream("POST", path, json=body) as answer:
            text = b""
            async for piece in answer.aiter_bytes():
                if not text:
                    run = await rig.sessions["n"].run_number(1)
                    run.emit(End(EndKind.FAILED, error=RunError("upstream_error", "broke", upstream_status=500)))
                text += piece
    assert answer.status_code == 200
    assert b'"broke"' in text
    assert text.startswith(b": keep-alive\n")
    assert b"[DONE]" not in text


@rule("E14")
async def test_a_silence_in_mid_stream_is_filled() -> None:
    first, rest = sse(chat_chunk("a")), sse(chat_chunk("b"), "[DONE]")
    rig = rig_of(lambda run: run.emit(STREAM_HEAD, Chunk(first)) and None, stream_hold_ms=5000, keep_alive_ms=10)
    text = b""
    async with raw(rig) as http:
        body = {"model": "m", "messages": HI, "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for piece in answer.aiter_bytes():
                text += piece
                if text == first + b": keep-alive\n":
                    rig.sessions["n"].runs[0].emit(Chunk(rest), COMPLETED)
    assert text.replace(b": keep-alive\n", b"") == first + rest
    assert text.startswith(first + b": keep-alive\n")


@rule("E14")
async def test_the_sdk_does_not_mind_such_a_comment() -> None:
    pieces = (sse(chat_chunk("a")), b": keep-alive\n", sse(chat_chunk("b")), b": keep-alive\n", sse("[DONE]"))
    rig = rig_of(lambda run: run.emit(STREAM_HEAD, *map(Chunk, pieces), COMPLETED) and None)
    async with client(rig) as sdk:
        stream = await sdk.chat.completions.create(model="m", messages=HI, stream=True)
        assert [chunk.choices[0].delta.content async for chunk in stream] == ["a", "b"]


@rule("E14")
async def test_a_busy_stream_gets_no_comments() -> None:
    rig = rig_of(answers(), stream_hold_ms=0, keep_alive_ms=1000)
    async with raw(rig) as http:
        answer = await http.post("/v1/chat/completions", json={"model": "m", "messages": HI, "stream": True})
    assert b": keep-alive" not in answer.content


@rule("E2")
@pytest.mark.parametrize(("options", "asked"), [(None, False), ({"include_usage": True}, True), ({}, False)])
async def test_the_node_is_told_whether_the_client_wants_the_usage_chunk(options: Any, asked: bool) -> None:
    rig = rig_of(answers())
    async with raw(rig) as http:
        await http.post(
            "/v1/chat/completions",
            json={"model": "m", "messages": HI, "stream": True, "stream_options": options},
        )
    assert rig.sessions["n"].runs[0].spec.include_usage is asked


# -- CORS -----------------------------------------------------------------------------------------------------------

PAGE = "https://page.example"


@rule("E14")
async def test_cors_is_off_by_default() -> None:
    async with raw(rig_of(answers())) as http:
        answer = await http.get("/v1/models", headers={"origin": PAGE})
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert (await http.options("/v1/models", headers={"origin": PAGE})).status_code == 405


@rule("E14")
async def test_cors_answers_the_listed_origins_and_no_other() -> None:
    async with raw(rig_of(answers(), cors_origins=(PAGE,))) as http:
        asked = "authorization,x-stainless-lang,anthropic-beta,x-evil"
        answer = await http.options(
            "/v1/chat/completions", headers={"origin": PAGE, "access-control-request-headers": asked}
        )
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-allow-headers"] == "authorization, x-stainless-lang, anthropic-beta"
        assert "POST" in answer.headers["access-control-allow-methods"]
        answer = await http.get("/v1/models", headers={"origin": PAGE})
        assert (answer.headers["access-control-allow-origin"], answer.headers["vary"]) == (PAGE, "origin")
        foreign = {"origin": "https://evil.example"}
        assert (await http.options("/v1/models", headers=foreign)).status_code == 403
        answer = await http.get("/v1/models", headers=foreign)
        assert "access-control-allow-origin" not in answer.headers
