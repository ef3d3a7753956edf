"""`/v1/messages` in Anthropic's own shapes (E2, E3, E13, backends §3, §4)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import pytest

from iop_edge.nodes.run import Chunk, End, EndKind, Operation, RunError
from support.fake_edge_node import (
    COMPLETED,
    JSON_HEAD,
    STREAM_HEAD,
    EdgeRig,
    Script,
    answers,
    config,
    fails,
    model,
    node,
    provider,
)
from support.rules import rule

pytestmark = pytest.mark.anyio
BODY: dict[str, Any] = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}]}
EVENT = b'event: message_start\ndata: {"type":"message_start"}\n\n'


@asynccontextmanager
async def raw(script: Script, **fields: Any) -> AsyncIterator[tuple[httpx.AsyncClient, EdgeRig]]:
    rig = EdgeRig(config(node("n", provider("p")), models=[model("m", "p", **fields)]), script)
    async with rig.serving() as url, httpx.AsyncClient(base_url=url, timeout=10) as made:
        yield made, rig


@rule("E2", "E3")
async def test_an_answer_has_both_names_of_the_request_id() -> None:
    async with raw(lambda run: run.emit(JSON_HEAD, Chunk(b'{"type":"message"}'), COMPLETED) and None) as (http, rig):
        answer = await http.post("/v1/messages", json=BODY, headers={"anthropic-version": "2023-06-01"})
    assert answer.json() == {"type": "message"}
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert rig.sessions["n"].runs[0].spec.headers == (("anthropic-version", "2023-06-01"),)


@rule("E2")
async def test_what_claude_code_sends_goes_on_as_it_is() -> None:
    sent = {
        **BODY,
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": []},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "u"},
    }
    async with raw(lambda run: run.emit(JSON_HEAD, Chunk(b"{}"), COMPLETED) and None) as (http, rig):
        assert (await http.head("/")).status_code == 200
        assert (await http.post("/v1/messages?beta=true", json=sent)).status_code == 200
    assert rig.sessions["n"].runs[0].body == {**sent, "model": "served"}


@rule("E3")
@pytest.mark.parametrize(
    ("script", "body", "status", "kind"),
    [
        (answers(), {**BODY, "model": "nope"}, 404, "not_found_error"),
        (answers(), {**BODY, "messages": []}, 400, "invalid_request_error"),
        (fails(upstream_status=429), BODY, 429, "rate_limit_error"),
        (fails(upstream_status=529), BODY, 502, "api_error"),
        (fails(upstream_status=500), BODY, 502, "api_error"),
        (fails("no_capacity"), BODY, 503, "overloaded_error"),
        (fails("request_timeout"), BODY, 504, "timeout_error"),
        (fails(upstream_status=404), BODY, 404, "not_found_error"),
        (fails(upstream_status=422, upstream_body=b'{"error":"bad"}'), BODY, 422, "invalid_request_error"),
    ],
)
async def test_an_error_is_anthropics_object(script: Script, body: dict[str, Any], status: int, kind: str) -> None:
    async with raw(script) as (http, _):
        answer = await http.post("/v1/messages", json=body)
    made = answer.json()
    assert (answer.status_code, made["type"], made["error"]["type"]) == (status, "error", kind)
    assert made["request_id"] == answer.headers["request-id"]
    assert set(made["error"]) == {"type", "message"}


@rule("E3")
async def test_an_error_in_a_stream_is_an_error_event() -> None:
    end = End(EndKind.FAILED, error=RunError("node_lost", "gone"), session_lost=True)
    async with raw(lambda run: run.emit(STREAM_HEAD, Chunk(EVENT), end) and None) as (http, _):
        answer = await http.post("/v1/messages", json={**BODY, "stream": True})
    name, data = answer.content.removeprefix(EVENT).removesuffix(b"\n\n").split(b"\n")
    assert name == b"event: error"
    assert json.loads(data[6:])["error"] == {"type": "api_error", "message": "gone"}


@rule("E13")
async def test_a_prompt_that_is_too_long_is_told_in_anthropics_words() -> None:
    script = fails(
        upstream_status=400,
        upstream_body=b'{"error":{"code":400,"type":"exceed_context_size_error","message":"m","n_prompt_tokens":5000,'
        b'"n_ctx":2048}}',
    )
    async with raw(script) as (http, _):
        answer = await http.post("/v1/messages", json=BODY)
    assert answer.json()["error"] == {
        "type": "invalid_request_error",
        "message": "prompt is too long: 5000 tokens > 2048 maximum",
    }


@rule("E13", "E5")
async def test_where_only_the_sum_is_too_much_the_sum_is_told() -> None:
    async with raw(answers(), context_window_tokens=2000) as (http, rig):
        answer = await http.post("/v1/messages", json={**BODY, "max_tokens": 1999, "system": "word " * 40})
        assert not rig.sessions["n"].runs
    assert answer.json()["error"]["message"].startswith("input length and `max_tokens` exceed context limit: ")
    assert answer.json()["error"]["message"].endswith(" + 1999 > 2000")


@rule("E2")
async def test_a_runtime_without_the_surface_is_404_unsupported_endpoint() -> None:
    async with raw(fails(upstream_status=404, upstream_body=b'{"detail":"Not Found"}')) as (http, rig):
        answer = await http.post("/v1/messages/count_tokens", json=BODY)
        assert rig.sessions["n"].runs[0].spec.operation is Operation.COUNT_TOKENS
        plain = await http.post("/v1/embeddings", json={"model": "m", "input": "x"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
    assert (plain.status_code, plain.json()["error"]["code"]) == (404, "unsupported_endpoint")
