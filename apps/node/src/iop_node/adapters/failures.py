"""What a runtime's refusal or broken answer means: for another try, for the provider's health (E7, E12, P14)."""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from iop_node.adapters.base import RunFailedError
from iop_node.link import RunError, RunOrder

__all__ = ["broken", "by_status", "in_band", "retry_after_ms"]

# Some runtimes answer 500 to an input that is too long; another one of the same kind would do the same (E13).
_TOO_LONG = re.compile(rb"context.{0,10}(?:length|size|window)|too large to process|prompt is too long", re.IGNORECASE)
_BUSY = frozenset({429, 503, 529})
# The runtime has no such surface: not its fault, not the client's, and another provider may have it (E2).
_NO_SURFACE = frozenset({404, 405, 501})
_WAIT_MAX_S = 3600.0


def broken(text: str) -> RunFailedError:
    """The failure of a run that reached the runtime and got no answer, or half of one."""
    return RunFailedError(RunError("upstream_error", text, retryable=True, maybe_executed=True))


def by_status(status: int, body: bytes, order: RunOrder, wait_ms: int | None = None) -> RunError:
    """Judge an answer with an error status."""
    if status in _BUSY:
        outcome, retryable = "busy", True
    elif status in (401, 403) and not order.secret_headers:
        # Not the caller's key but the instance's: nobody can be served here until it is set right.
        outcome, retryable = "broken", True
    elif status in _NO_SURFACE or status == 408:
        outcome, retryable = "client_error", True
    elif status < 500 or (status == 500 and _TOO_LONG.search(body)):
        outcome, retryable = "client_error", False
    else:
        outcome, retryable = "broken", True
    return RunError(
        "upstream_error",
        f"the runtime answered {status}",
        upstream_status=status,
        upstream_body=body,
        retry_after_ms=wait_ms,
        retryable=retryable,
        maybe_executed=status >= 500 and status not in (501, 503, 529),
        outcome=outcome,
    )


def in_band(error: bytes, order: RunOrder) -> RunFailedError:
    """Judge an error object inside a 200: by the status in it, by its type, else as a fault of the runtime."""
    try:
        inner: Any = msgspec.json.decode(error)["error"]
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError):
        inner = None
    return RunFailedError(by_status(_status_in(inner), error, order))


def _status_in(error: object) -> int:
    if not isinstance(error, dict):
        return 500
    for name in ("code", "status", "status_code"):
        value = error.get(name)
        if isinstance(value, str) and value.isdecimal() and len(value) == 3:
            value = int(value)
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    kind = f"{error.get('type')} {error.get('code')}".lower()
    if "rate_limit" in kind or "queue" in kind:
        return 429
    if "overloaded" in kind or "unavailable" in kind:
        return 503
    if "invalid_request" in kind or "badrequest" in kind or "context_length" in kind or "exceed_context" in kind:
        return 400
    return 500


def retry_after_ms(value: str | None) -> int | None:
    """Read a `Retry-After`, seconds or a date, an hour at most; None for neither."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    if not 0 <= seconds <= _WAIT_MAX_S:
        seconds = 0.0 if not seconds > 0 else _WAIT_MAX_S
    return round(seconds * 1000)
