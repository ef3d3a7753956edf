"""What a failed attempt means: for the client (E3, E13), the next candidate (E7), the provider's health (P14)."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from attrs import frozen

from iop_edge.errors import ApiError
from iop_edge.nodes.run import End, EndKind, Operation, RunError
from iop_edge.routing import Target
from iop_pool import Outcome, PoolError, QueueFull, QueueTimeout, Unavailable, UnknownModel

__all__ = ["Failure", "context_overflow", "failure_of", "from_refusal", "outcome_of", "unknown_model"]

# Codes that a Node or the session gives, by what the client is told.
_NODE_CODES = {
    "node_lost": "node_lost",
    "node_draining": "node_lost",
    "node_protocol": "node_protocol",
    "credit_overrun": "node_protocol",
    "request_timeout": "request_timeout",
    "first_event_timeout": "request_timeout",
    "idle_timeout": "request_timeout",
    "deadline": "request_timeout",
    "client_stalled": "client_stalled",
    "edge_shutdown": "edge_shutdown",
    "request_too_large": "body_too_large",
    "no_capacity": "unavailable",
    "config_behind": "unavailable",
    "adapter_not_found": "unavailable",
    "provider_not_found": "unavailable",
    "duplicate_attempt": "unavailable",
}
_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|exceeds? the available context size"
    r"|prompt is too long|exceeds? (?:the )?(?:model'?s? )?context (?:length|window|limit|size)"
    r"|input length and `?max_tokens`? exceed|tokens \+ `?max_new_tokens`? must be|too large to process",
    re.IGNORECASE,
)
_WINDOW = re.compile(
    r"(?:maximum context length is|context size \(|context limit: \d+ \+ \d+ >|tokens >|must be <=)\s*(\d+)",
    re.IGNORECASE,
)
_ASKED = re.compile(
    r"request \((\d+) tokens|requested (\d+) tokens|has (\d+) (?:input )?tokens|too long: (\d+) tokens"
    r"|input \((\d+) tokens",
    re.IGNORECASE,
)
_LONGEST_MESSAGE = 4000


@frozen
class Failure:
    """How an attempt failed: what the client would be told, and whether another provider may try (E7)."""

    error: ApiError
    retry: bool


def outcome_of(end: End) -> Outcome:
    """Return what an end says of the provider's health (P14); a lost Node says nothing of the runtime behind it."""
    if end.session_lost or end.kind is EndKind.CANCELLED:
        return Outcome.CANCELLED
    if end.kind is EndKind.COMPLETED:
        return Outcome.OK
    try:
        return Outcome(end.error.outcome) if end.error is not None else Outcome.BROKEN
    except ValueError:
        return Outcome.BROKEN


def failure_of(end: End, target: Target, *, operation: Operation, window: int | None, estimate: int) -> Failure:
    """Word an end that is no answer. A retry needs the Node's word, and never repeats a CLI's run (wire §1.2)."""
    error = end.error
    if error is None:
        error = _unexplained(end)
    repeats = target.category == "cli" and error.maybe_executed
    told = _told(error, operation=operation, window=window, estimate=estimate)
    if repeats and told.status >= 500:
        told.should_retry = False  # the SDKs would run it again by themselves
    return Failure(told, error.retryable and not repeats)


def _unexplained(end: End) -> RunError:
    if end.session_lost:
        return RunError("node_lost", "the node was lost", retryable=True, maybe_executed=end.started)
    if end.kind is EndKind.CANCELLED:
        return RunError("node_lost", "the node stopped the run", retryable=True, maybe_executed=end.started)
    return RunError(
        "upstream_error", "the run failed and the node did not say why", retryable=True, maybe_executed=end.started
    )


def _told(error: RunError, *, operation: Operation, window: int | None, estimate: int) -> ApiError:
    said = _Said.read(error)
    if error.code == "context_length_exceeded" or (
        _client_fault(error) and _OVERFLOW.search(f"{said.text} {said.code} {said.type}")
    ):
        return context_overflow(
            window=_number(_WINDOW, said.text) or said.window or window,
            asked=_number(_ASKED, said.text) or said.asked or estimate,
            operation=operation,
        )
    known = _NODE_CODES.get(error.code)
    if known is not None:
        return ApiError(known, error.message or known, retry_after_ms=error.retry_after_ms)
    status = error.upstream_status
    if error.code == "unsupported_endpoint" or status in (405, 501) or (status == 404 and not said.about_model):
        said_why = f": {said.text}" if said.text and said.structured else ""
        return ApiError("unsupported_endpoint", f"the runtime behind this model has no {operation.value}{said_why}")
    if status == 429:
        quota = "quota" in f"{said.code} {said.type}"
        return ApiError(
            "upstream_rate_limited",
            said.text or "the runtime has no room now",
            retry_after_ms=error.retry_after_ms,
            should_retry=False if quota else None,
        )
    if status in (401, 403):
        # Its own words may quote the key that was sent (C23).
        return ApiError(
            "upstream_error",
            "the runtime refused the credentials of this provider",
            status=status,
            type="authentication_error",
        )
    if status is not None and 400 <= status < 500:
        code = said.code or ("model_not_found" if status == 404 else "invalid_request")
        return ApiError(
            code, said.text or f"the runtime answered {status}", status=status, type=said.type or None, param=said.param
        )
    words = said.text or error.message or "the runtime failed"
    if error.code in ("upstream_error", "internal_error", ""):
        return ApiError("upstream_error", words, retry_after_ms=error.retry_after_ms)
    return ApiError("upstream_error", f"{words} ({error.code})", retry_after_ms=error.retry_after_ms)


def _client_fault(error: RunError) -> bool:
    # llama.cpp answers 500 to an embedding input that is too long (backends §5.2): the client's fault all the same.
    return error.upstream_status is not None and error.upstream_status not in (401, 403, 429, 502, 503, 504)


@frozen
class _Said:
    """What a runtime said in its own error form (backends §1.3), as far as one could be found."""

    text: str = ""
    code: str = ""
    type: str = ""
    param: str | None = None
    window: int | None = None
    asked: int | None = None
    structured: bool = False

    @property
    def about_model(self) -> bool:
        """Whether a 404 means the served model and not the path."""
        return self.structured and "model" in f"{self.text} {self.code} {self.type}".lower()

    @classmethod
    def read(cls, error: RunError) -> _Said:
        try:
            body: Any = msgspec.json.decode(error.upstream_body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return cls(text=error.message[:_LONGEST_MESSAGE])
        if not isinstance(body, dict):
            return cls(text=error.message[:_LONGEST_MESSAGE])
        inner = body.get("error", body.get("detail", body))
        if isinstance(inner, str):
            return cls(text=inner[:_LONGEST_MESSAGE], structured="error" in body)
        if not isinstance(inner, dict):
            return cls(text=error.message[:_LONGEST_MESSAGE])
        message = inner.get("message")
        return cls(
            text=(message if isinstance(message, str) else error.message)[:_LONGEST_MESSAGE],
            code=_word(inner.get("code")),
            type=_word(inner.get("type")),
            param=_word(inner.get("param")) or None,
            window=_count(inner.get("n_ctx")),
            asked=_count(inner.get("n_prompt_tokens")),
            structured=isinstance(message, str),
        )


def _word(value: object) -> str:
    # Runtimes put a number or null where the code should be; a number there defeats clients (backends §1.3).
    return value[:200] if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    if found is None:
        return None
    digits = next(group for group in found.groups() if group)
    return int(digits) if len(digits) < 16 else None


def context_overflow(
    *, window: int | None, asked: int, operation: Operation, max_tokens: int | None = None
) -> ApiError:
    """Return the one error that every known client takes for "too long" (E13, backends §4.3).

    `asked`: input tokens; with `max_tokens` only the sum is too much.
    """
    limit = window if window is not None else max(1, asked - 1)
    total = asked + (max_tokens or 0)
    parts = f" ({asked} of input and {max_tokens} of output)" if max_tokens else ""
    if max_tokens and asked <= limit:
        anthropic = f"input length and `max_tokens` exceed context limit: {asked} + {max_tokens} > {limit}"
    else:
        anthropic = f"prompt is too long: {asked} tokens > {limit} maximum"
    return ApiError(
        "context_length_exceeded",
        f"This model's maximum context length is {limit} tokens. However, your request has {total} tokens{parts}. "
        "Please shorten it (context_length_exceeded).",
        param="messages",
        anthropic_message=anthropic,
    )


def unknown_model(model: str) -> ApiError:
    """Return the error for a model that this Edge does not have (E1)."""
    return ApiError(
        "model_not_found", f"there is no model {model[:200]!r} here; GET /v1/models lists those that are", param="model"
    )


def from_refusal(refusal: PoolError) -> ApiError:
    """Word the pool's no (P5-P7)."""
    if isinstance(refusal, QueueFull):
        return ApiError("queue_full", str(refusal), retry_after_ms=refusal.retry_after_ms or None)
    if isinstance(refusal, QueueTimeout):
        return ApiError("queue_timeout", str(refusal))
    if isinstance(refusal, UnknownModel):
        return unknown_model(refusal.model)
    if isinstance(refusal, Unavailable):
        reasons = tuple((entry.provider, entry.reason.value) for entry in refusal.reasons)
        return ApiError("unavailable", str(refusal), reasons=reasons)
    return ApiError("unavailable", str(refusal))
