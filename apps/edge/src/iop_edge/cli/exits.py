"""Exit codes of the commands that talk to a running Edge, and how they report that it cannot be done (R13)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from enum import IntEnum
from typing import NoReturn

import click


class Exit(IntEnum):
    """What a script sees; 2 (usage) is click's own."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    RESTART_REQUIRED = 3
    REJECTED = 4
    GUARD_FAILED = 5
    NOT_ACKNOWLEDGED = 6
    UNREACHABLE = 7
    LIVE_CHANGES = 10


def exit_of(result: Mapping[str, object], *, detailed: bool) -> Exit:
    """Choose the code of a refresh result; where several hold: 5, 4, 3, 6, 10, 0 in this order."""
    status, dry_run = result["status"], result["dry_run"]
    if status == "rejected":
        return Exit.GUARD_FAILED if _codes(result) == ["conflict"] else Exit.REJECTED
    if status == "restart_required":
        return Exit.RESTART_REQUIRED
    if status != "applied":
        return Exit.INTERNAL
    if not dry_run and any(node["state"] in ("pending", "nacked", "no_answer") for node in _rows(result, "nodes")):
        # A disconnected Node is shown and does not count: it gets the config when it comes back.
        return Exit.NOT_ACKNOWLEDGED
    if detailed and dry_run and result["changed"]:
        return Exit.LIVE_CHANGES
    return Exit.OK


def _codes(result: Mapping[str, object]) -> list[object]:
    return [problem["code"] for problem in _rows(result, "problems")]


def _rows(result: Mapping[str, object], name: str) -> list[dict[str, object]]:
    rows = result[name]
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def fail(code: Exit, reason: str, message: str, *, output: str) -> NoReturn:
    """Say in one line, or one JSON object, why nothing could be asked, and exit."""
    if output == "json":
        from iop_refresh import SCHEMA_VERSION

        error = {"schema_version": SCHEMA_VERSION, "status": "error", "code": reason, "message": message}
        click.echo(json.dumps(error, indent=2, ensure_ascii=False))
    else:
        click.echo(f"iop-edge: {message}", err=True)
    sys.exit(code)
