"""The one table of errors that a client can see: code → status, type and headers (E3, wire §1.8), in both shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from attrs import frozen

__all__ = ["TABLE", "ApiError", "Kind", "anthropic_body", "openai_body", "openai_error", "retry_after_seconds"]


@frozen
class Kind:
    """What a code means on each surface. `retry_after`: seconds to advise where nothing better is known."""

    status: int
    type: str
    anthropic: str
    retry_after: int | None = None
    retry: bool | None = None
    """What `x-should-retry` says; None: the header is absent and the SDK decides by the status."""


def _client(status: int, anthropic: str = "invalid_request_error") -> Kind:
    return Kind(status, "invalid_request_error", anthropic)


TABLE: Mapping[str, Kind] = {
    "invalid_request": _client(400),
    "invalid_json": _client(400),
    "missing_parameter": _client(400),
    "context_length_exceeded": _client(400),
    "invalid_api_key": Kind(401, "authentication_error", "authentication_error"),
    "missing_api_key": Kind(401, "authentication_error", "authentication_error"),
    "missing_provider_auth": Kind(401, "authentication_error", "authentication_error"),
    "forbidden": Kind(403, "permission_error", "permission_error"),
    "model_not_found": _client(404, "not_found_error"),
    "not_found": _client(404, "not_found_error"),
    "unsupported_endpoint": _client(404, "not_found_error"),
    "method_not_allowed": _client(405),
    # The client itself was too slow: its SDK may send the same again, which has not been executed.
    "body_timeout": _client(408),
    "head_timeout": _client(408),
    "body_too_large": _client(413, "request_too_large"),
    "head_too_large": _client(431),
    "queue_full": Kind(429, "rate_limit_error", "rate_limit_error", 1),
    "upstream_rate_limited": Kind(429, "rate_limit_error", "rate_limit_error", 1),
    # Nobody reads these two: they name the outcome in records and metrics.
    "client_gone": _client(499),
    "client_stalled": _client(499),
    "internal_error": Kind(500, "server_error", "api_error"),
    "upstream_error": Kind(502, "server_error", "api_error"),
    "node_lost": Kind(502, "server_error", "api_error"),
    "node_protocol": Kind(502, "server_error", "api_error"),
    "unavailable": Kind(503, "server_error", "overloaded_error", 2),
    "edge_shutdown": Kind(503, "server_error", "overloaded_error", 2),
    "too_many_connections": Kind(503, "server_error", "overloaded_error", 1),
    "queue_timeout": Kind(504, "server_error", "timeout_error", 1),
    "request_timeout": Kind(504, "server_error", "timeout_error"),
}
"""Every code that the Edge makes up itself. What a runtime said of a request keeps the runtime's code and status."""

_BY_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class ApiError(Exception):
    """A request's end that is not an answer. Carries data; `openai_body` and `anthropic_body` make the words a body.

    `code` is stable. `status` and `type` come from the table unless a runtime's own are kept. `retry_after_ms` beats
    the table's advice. `should_retry` false tells the SDKs that a retry could run something twice. `anthropic_message`
    is for the surface whose clients look for other words (E13).
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        status: int | None = None,
        type: str | None = None,  # noqa: A002 -- the error object's own word
        retry_after_ms: int | None = None,
        should_retry: bool | None = None,
        reasons: tuple[tuple[str, str], ...] = (),
        anthropic_message: str | None = None,
    ) -> None:
        super().__init__(message)
        kind = TABLE.get(code)
        self.code = code
        self.message = message
        self.param = param
        self.status = status if status is not None else (kind.status if kind else 500)
        if type is not None:
            self.type = type
        elif kind is not None:
            self.type = kind.type
        else:
            self.type = "server_error" if self.status >= 500 else "invalid_request_error"
        self.retry_after_ms = retry_after_ms
        self.should_retry = should_retry
        self.reasons = reasons
        self.anthropic_message = anthropic_message

    @property
    def outcome(self) -> str:
        """The bounded label for records and metrics: the code if it is ours, else `upstream_error` (E9)."""
        return self.code if self.code in TABLE else "upstream_error"

    @property
    def anthropic_type(self) -> str:
        """The error type on `/v1/messages`."""
        kind = TABLE.get(self.code)
        if kind is not None and kind.status == self.status:
            return kind.anthropic
        return _BY_STATUS.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")

    def headers(self) -> list[tuple[bytes, bytes]]:
        """`retry-after`, `retry-after-ms` and `x-should-retry`, where they say something."""
        found: list[tuple[bytes, bytes]] = []
        kind = TABLE.get(self.code)
        wait_ms = self.retry_after_ms
        if wait_ms is None and kind is not None and kind.retry_after is not None:
            wait_ms = kind.retry_after * 1000
        if wait_ms is not None:
            found.append((b"retry-after", b"%d" % retry_after_seconds(wait_ms)))
        if self.should_retry is not None:
            found.append((b"x-should-retry", b"true" if self.should_retry else b"false"))
        return found


def retry_after_seconds(wait_ms: int) -> int:
    """Whole seconds from 1 to 120: less is no wait, and above it the SDKs give up (backends §4.2)."""
    return min(120, max(1, math.ceil(wait_ms / 1000)))


def openai_error(error: ApiError) -> dict[str, object]:
    """Return the OpenAI error object itself: `code` is a string, never a number (backends §1.3)."""
    made: dict[str, object] = {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    if error.reasons:
        made["reasons"] = [{"provider": provider, "reason": reason} for provider, reason in error.reasons]
    return made


def openai_body(error: ApiError) -> bytes:
    """Return the JSON body of the OpenAI surfaces: `{"error": {…}}`."""
    return msgspec.json.encode({"error": openai_error(error)})


def anthropic_body(error: ApiError, request_id: str) -> bytes:
    """Return the JSON body of `/v1/messages`: `{"type": "error", "error": {…}, "request_id": …}`."""
    return msgspec.json.encode(
        {
            "type": "error",
            "error": {"type": error.anthropic_type, "message": error.anthropic_message or error.message},
            "request_id": request_id,
        }
    )
