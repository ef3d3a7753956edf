"""What the Edge writes to stderr: lines for people or one JSON object a line (`logging` of the config)."""

from __future__ import annotations

import json
import logging
import sys
import time


class _Text(logging.Formatter):
    """`2026-01-31T12:00:00.123Z info iop.edge.nodes: node gpu-a connected`."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_stamp(record)} {record.levelname.lower()} {record.name}: {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _Json(logging.Formatter):
    """The same as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


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
