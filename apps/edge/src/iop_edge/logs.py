"""What the Edge writes to stderr: lines for people or one JSON object a line (`logging` of the config).

A record may carry `extra={"facts": {...}}`: facts about a request, such as `request_id`. Neither form lets a text that
came from outside begin a line of its own, and nothing that is secret is ever handed to a logger (C23).
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping

__all__ = ["set_up"]

# What ends a line or moves a terminal's cursor, each as its escape; a tab is harmless.
_CONTROLS = {number: f"\\x{number:02x}" for number in (*range(9), *range(10, 32), *range(127, 160))}
_CONTROLS |= {0x0A: "\\n", 0x0D: "\\r", 0x2028: "\\u2028", 0x2029: "\\u2029"}
_IN_JSON = {number: f"\\u{number:04x}" for number in (*range(127, 160), 0x2028, 0x2029)}


class _Text(logging.Formatter):
    """`2026-01-31T12:00:00.123Z info iop.edge.nodes: node gpu-a connected`, and the facts as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage().translate(_CONTROLS)
        facts = "".join(
            f" {name}={str(value).translate(_CONTROLS)}" for name, value in _facts(record).items() if value is not None
        )
        text = f"{_stamp(record)} {record.levelname.lower()} {record.name}: {message}{facts}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _Json(logging.Formatter):
    """The same as one JSON object; the facts are members of it."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in _facts(record).items() if name not in fields}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str).translate(_IN_JSON)


def _facts(record: logging.LogRecord) -> Mapping[str, object]:
    facts = getattr(record, "facts", None)
    return facts if isinstance(facts, Mapping) else {}


def _stamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def set_up(level: str, style: str) -> None:
    """Log to stderr from now on. Libraries speak from `warning` up only: their debug lines could hold headers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if style == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("iop").setLevel(level.upper())
