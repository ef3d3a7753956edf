"""What a failed attempt means for client, next candidate and provider (E3, E7, E13, P14, wire §1.2.5, §1.8)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from iop_edge.failures import Failure, context_overflow, failure_of, outcome_of
from iop_edge.nodes.run import End, EndKind, Operation, RunError
from iop_edge.routing import Target
from iop_pool import Outcome
from support.rules import rule

API = Target("p", "n", "a", "vllm", None, "local_inference", "served")
CLI = Target("p", "n", "a", "cli", None, "cli", "sonnet")


def failed(
    code: str = "upstream_error",
    status: int | None = None,
    body: object = b"",
    target: Target = API,
    window: int | None = 8192,
    **fields: Any,
) -> Failure:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    error = RunError(code, fields.pop("message", "it broke"), upstream_status=status, upstream_body=raw, **fields)
    return failure_of(
        End(EndKind.FAILED, error=error), target, operation=Operation.CHAT_COMPLETIONS, window=window, estimate=9000
    )


@rule("E13")
@pytest.mark.parametrize(
    ("status", "body", "window", "asked"),
    [
        (
            400,
            {
                "error": {
                    "code": 400,
                    "type": "exceed_context_size_error",
                    "message": "request (12031 tokens) exceeds the available context size (2048 tokens), try",
                    "n_prompt_tokens": 12031,
                    "n_ctx": 2048,
                }
            },
            2048,
            12031,
        ),
        (
            400,
            {
                "error": {
                    "message": "This model's maximum context length is 1024 tokens. However, you requested 3000 tokens",
                    "type": "BadRequestError",
                    "param": "input_tokens",
                    "code": 400,
                }
            },
            1024,
            3000,
        ),
        (
            400,
            {"error": {"message": "too long", "code": "context_length_exceeded", "type": "invalid_request_error"}},
            8192,
            9000,
        ),
        (
            400,
            {
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "message": "prompt is too long: 210000 tokens > 200000 maximum",
                },
            },
            200000,
            210000,
        ),
        (
            422,
            {"error": "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000", "error_type": "validation"},
            4096,
            9000,
        ),
        (
            500,
            {"error": {"code": 500, "message": "input (700 tokens) is too large to process.", "type": "server_error"}},
            8192,
            700,
        ),
    ],
)
def test_every_runtimes_overflow_becomes_the_one_error(status: int, body: object, window: int, asked: int) -> None:
    failure = failed(status=status, body=body)
    error = failure.error
    assert (error.status, error.code, error.type) == (400, "context_length_exceeded", "invalid_request_error")
    assert error.param == "messages"
    assert f"This model's maximum context length is {window} tokens" in error.message
    assert str(asked) in error.message
    assert "context_length_exceeded" in error.message
    assert error.anthropic_message == f"prompt is too long: {asked} tokens > {window} maximum"
    assert not failure.retry


@rule("E13")
def test_where_only_the_sum_is_too_much_anthropics_clients_get_the_sum() -> None:
    error = context_overflow(window=8192, asked=8000, operation=Operation.MESSAGES, max_tokens=4096)
    assert error.anthropic_message == "input length and `max_tokens` exceed context limit: 8000 + 4096 > 8192"


@rule("E3")
@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, {"error": {"message": "bad n", "type": "x", "param": "n", "code": 400}}, (400, "invalid_request", "n")),
        (422, {"detail": "nope"}, (422, "invalid_request", None)),
        (400, b"<html>", (400, "invalid_request", None)),
        (409, {"error": {"message": "m", "code": "conflict"}}, (409, "conflict", None)),
        (404, {"error": {"message": "model 'x' not found", "code": None}}, (404, "model_not_found", None)),
        (404, {"detail": "Not Found"}, (404, "unsupported_endpoint", None)),
        (404, b"", (404, "unsupported_endpoint", None)),
        (405, {"detail": "Method Not Allowed"}, (404, "unsupported_endpoint", None)),
        (501, {"error": {"message": "no embeddings", "type": "x", "code": 501}}, (404, "unsupported_endpoint", None)),
    ],
)
def test_a_runtimes_4xx_keeps_its_status_in_our_form(
    status: int, body: object, expected: tuple[int, str, str | None]
) -> None:
    error = failed(status=status, body=body).error
    assert (error.status, error.code, error.param) == expected
    assert isinstance(error.code, str)


@rule("C23")
@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_credential_is_never_quoted(status: int) -> None:
    error = failed(status=status, body={"error": {"message": "Incorrect API key provided: sk-canary"}}).error
    assert (error.status, error.type) == (status, "authentication_error")
    assert "canary" not in error.message


@rule("E3", "E7")
@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("upstream_error", 500, (502, "upstream_error")),
        ("upstream_error", None, (502, "upstream_error")),
        ("upstream_error", 503, (502, "upstream_error")),
        ("upstream_error", 429, (429, "upstream_rate_limited")),
        ("internal", None, (502, "upstream_error")),
        ("node_lost", None, (502, "node_lost")),
        ("node_draining", None, (502, "node_lost")),
        ("node_protocol", None, (502, "node_protocol")),
        ("request_timeout", None, (504, "request_timeout")),
        ("first_event_timeout", None, (504, "request_timeout")),
        ("idle_timeout", None, (504, "request_timeout")),
        ("no_capacity", None, (503, "unavailable")),
        ("config_behind", None, (503, "unavailable")),
        ("edge_shutdown", None, (503, "edge_shutdown")),
        ("client_stalled", None, (499, "client_stalled")),
        ("request_too_large", None, (413, "body_too_large")),
        ("unsupported_endpoint", None, (404, "unsupported_endpoint")),
    ],
)
def test_a_nodes_code_has_its_row_in_the_table(code: str, status: int | None, expected: tuple[int, str]) -> None:
    failure = failed(code, status, retryable=True)
    assert (failure.error.status, failure.error.code) == expected
    assert failure.retry


@rule("E3")
def test_a_rate_limit_carries_its_wait_and_a_spent_quota_is_not_worth_a_retry() -> None:
    limited = failed(status=429, retry_after_ms=7000).error
    assert limited.headers() == [(b"retry-after", b"7")]
    spent = failed(status=429, body={"error": {"message": "spent", "code": "insufficient_quota"}}).error
    assert (b"x-should-retry", b"false") in spent.headers()


@rule("E7")
@pytest.mark.parametrize(
    ("target", "retryable", "maybe_executed", "retry", "should_retry"),
    [
        (API, True, False, True, None),
        (API, True, True, True, None),
        (API, False, True, False, None),
        (CLI, True, False, True, None),
        (CLI, True, True, False, False),
        (CLI, False, True, False, False),
    ],
)
def test_a_cli_run_that_may_have_started_is_never_repeated(
    target: Target, retryable: bool, maybe_executed: bool, retry: bool, should_retry: bool | None
) -> None:
    failure = failed("node_lost", target=target, retryable=retryable, maybe_executed=maybe_executed)
    assert (failure.retry, failure.error.should_retry) == (retry, should_retry)


@rule("E7")
@pytest.mark.parametrize(
    "end",
    [
        End(EndKind.FAILED, session_lost=True),
        End(EndKind.CANCELLED),
        End(EndKind.FAILED),
    ],
)
def test_an_end_without_a_reason_is_worded_and_may_go_on(end: End) -> None:
    failure = failure_of(end, API, operation=Operation.CHAT_COMPLETIONS, window=None, estimate=1)
    assert failure.error.status == 502
    assert failure.retry


@rule("P14")
@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (End(EndKind.COMPLETED), Outcome.OK),
        (End(EndKind.CANCELLED), Outcome.CANCELLED),
        (End(EndKind.FAILED), Outcome.BROKEN),
        (End(EndKind.FAILED, error=RunError("x", "y", outcome="client_error")), Outcome.CLIENT_ERROR),
        (End(EndKind.FAILED, error=RunError("x", "y", outcome="busy")), Outcome.BUSY),
        (End(EndKind.FAILED, error=RunError("x", "y", outcome="broken")), Outcome.BROKEN),
        (End(EndKind.FAILED, error=RunError("x", "y", outcome="a newer Node's word")), Outcome.BROKEN),
        # The Node was lost, which says nothing of the runtime behind it.
        (End(EndKind.FAILED, error=RunError("node_lost", "y"), session_lost=True), Outcome.CANCELLED),
    ],
)
def test_what_an_end_says_of_the_providers_health(end: End, outcome: Outcome) -> None:
    assert outcome_of(end) is outcome
