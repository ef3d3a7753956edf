"""The table of errors, in both shapes (E3)."""

from __future__ import annotations

import json

import pytest

from iop_edge.errors import TABLE, ApiError, anthropic_body, openai_body, retry_after_seconds
from support.rules import rule


@rule("E3")
def test_the_error_object_has_all_four_fields_and_a_code_that_is_a_string() -> None:
    body = json.loads(openai_body(ApiError("queue_full", "later", retry_after_ms=1500)))
    assert body == {"error": {"message": "later", "type": "rate_limit_error", "param": None, "code": "queue_full"}}


@rule("E3")
def test_the_anthropic_shape_carries_the_request_id() -> None:
    body = json.loads(anthropic_body(ApiError("unavailable", "nobody"), "R1"))
    assert body == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "nobody"},
        "request_id": "R1",
    }


@rule("E3")
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("invalid_request", 400),
        ("context_length_exceeded", 400),
        ("invalid_api_key", 401),
        ("forbidden", 403),
        ("model_not_found", 404),
        ("unsupported_endpoint", 404),
        ("body_timeout", 408),
        ("body_too_large", 413),
        ("queue_full", 429),
        ("head_too_large", 431),
        ("client_gone", 499),
        ("upstream_error", 502),
        ("node_lost", 502),
        ("node_protocol", 502),
        ("unavailable", 503),
        ("edge_shutdown", 503),
        ("queue_timeout", 504),
        ("request_timeout", 504),
    ],
)
def test_each_code_has_its_status(code: str, status: int) -> None:
    assert ApiError(code, "x").status == status == TABLE[code].status


@rule("E3")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ApiError("queue_full", "x", retry_after_ms=1500), [(b"retry-after", b"2")]),
        (ApiError("unavailable", "x"), [(b"retry-after", b"2")]),
        (ApiError("edge_shutdown", "x"), [(b"retry-after", b"2")]),
        (ApiError("node_lost", "x", should_retry=False), [(b"x-should-retry", b"false")]),
        (ApiError("invalid_request", "x"), []),
    ],
)
def test_the_headers_say_when_to_come_back_and_whether(error: ApiError, expected: list[tuple[bytes, bytes]]) -> None:
    assert error.headers() == expected


@rule("E3")
@pytest.mark.parametrize(("wait_ms", "seconds"), [(0, 1), (1, 1), (1001, 2), (10**9, 120)])
def test_retry_after_stays_where_the_sdks_obey_it(wait_ms: int, seconds: int) -> None:
    assert retry_after_seconds(wait_ms) == seconds


@rule("E3", "E9")
def test_a_runtimes_own_code_is_shown_but_is_no_label() -> None:
    error = ApiError("weird_upstream_code", "x", status=422)
    assert (error.status, error.type, error.outcome) == (422, "invalid_request_error", "upstream_error")
    assert error.anthropic_type == "invalid_request_error"
