"""RefreshResult: what a refresh found and did, and its stable JSON (R4, R6, `refresh.md` §4)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum

from attrs import Factory, field, frozen

SCHEMA_VERSION = 1
"""Raised when a reader of the JSON must change; new fields alone do not raise it."""


class Status(StrEnum):
    """What became of a refresh (R4). Whether anything was applied is said by `live_applied`, never by this word."""

    APPLIED = "applied"
    RESTART_REQUIRED = "restart_required"
    REJECTED = "rejected"


class ChangeKind(StrEnum):
    """What became of one thing between two configs; members are matched by identity, so an order is no change (R3)."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    MOVED = "moved"


class NodeState(StrEnum):
    """Where one Node stands after a push; in a dry run `pending` is what a push would make of it."""

    UNCHANGED = "unchanged"
    ACKED = "acked"
    NACKED = "nacked"
    PENDING = "pending"
    NO_ANSWER = "no_answer"
    DISCONNECTED = "disconnected"


def _sorted_unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(values)))


@frozen(order=False)
class Change:
    """One difference: a leaf that changed, or a whole object that came, went or moved.

    `before` and `after` are already redacted and cut to a readable length; empty where there is nothing to show.
    """

    path: str
    kind: ChangeKind
    policy: str
    """`live` or `restart`, read from the field."""
    before: str = ""
    after: str = ""
    line: int = 0
    """Where the proposed file says so, from 1; what was removed points at the place it was removed from; 0: unknown."""
    column: int = 0

    def to_plain(self) -> dict[str, object]:
        return {
            "path": self.path,
            "kind": self.kind.value,
            "policy": self.policy,
            "before": self.before,
            "after": self.after,
            "line": self.line,
            "column": self.column,
        }


@frozen(order=False)
class ResultProblem:
    """One reason why a refresh was rejected, or one warning; the same columns as a problem of `config check`."""

    code: str
    message: str
    path: str = ""
    file: str = ""
    line: int = 0
    column: int = 0
    suggestion: str = ""

    def sort_key(self) -> tuple[str, int, int, str, str, str]:
        return (self.file, self.line, self.column, self.path, self.code, self.message)

    def to_plain(self) -> dict[str, object]:
        return {
            "code": self.code,
            "path": self.path,
            "message": self.message,
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "suggestion": self.suggestion,
        }


@frozen(order=False)
class NodeResult:
    """One Node's outcome. Generations count the changes of that Node's payload; 0 means none was sent or answered."""

    node: str
    state: NodeState
    sent_generation: int = 0
    acked_generation: int = 0
    error_code: str = ""
    message: str = ""

    def to_plain(self) -> dict[str, object]:
        return {
            "node": self.node,
            "state": self.state.value,
            "sent_generation": self.sent_generation,
            "acked_generation": self.acked_generation,
            "error_code": self.error_code,
            "message": self.message,
        }


@frozen(order=False)
class Source:
    """Which text was read: the main file's path, and size and sha256 over it and its overlays in order."""

    path: str = ""
    size: int = 0
    hash: str = ""
    read_at: str = ""
    """UTC, RFC 3339."""

    def to_plain(self) -> dict[str, object]:
        return {"path": self.path, "size": self.size, "hash": self.hash, "read_at": self.read_at}


def _changes(values: Iterable[Change]) -> tuple[Change, ...]:
    return tuple(sorted(set(values), key=lambda change: (change.path, change.kind.value)))


def _problems(values: Iterable[ResultProblem]) -> tuple[ResultProblem, ...]:
    return tuple(sorted(set(values), key=ResultProblem.sort_key))


def _nodes(values: Iterable[NodeResult]) -> tuple[NodeResult, ...]:
    return tuple(sorted(values, key=lambda node: node.node))


@frozen(order=False, kw_only=True)
class RefreshResult:
    """The form that the admin API and the CLI share. Lists are sorted by code point, without repeats, never null."""

    status: Status
    dry_run: bool = False
    changed: bool = False
    live_applied: bool = False
    config_version_before: str = ""
    config_version_candidate: str = ""
    """The proposed config's version; empty where it could not be loaded."""
    config_version_after: str = ""
    generation: int = 0
    source: Source = Source()
    changes: tuple[Change, ...] = field(default=(), converter=_changes)
    changed_nodes: tuple[str, ...] = field(default=(), converter=_sorted_unique)
    changed_providers: tuple[str, ...] = field(default=(), converter=_sorted_unique)
    changed_models: tuple[str, ...] = field(default=(), converter=_sorted_unique)
    live_paths: tuple[str, ...] = field(default=(), converter=_sorted_unique)
    restart_required_paths: tuple[str, ...] = field(default=(), converter=_sorted_unique)
    pending_restart_paths: tuple[str, ...] = field(default=(), converter=_sorted_unique)
    problems: tuple[ResultProblem, ...] = field(default=(), converter=_problems)
    warnings: tuple[ResultProblem, ...] = field(default=(), converter=_problems)
    nodes: tuple[NodeResult, ...] = field(default=(), converter=_nodes)
    timings_ms: dict[str, float] = Factory(dict)

    @property
    def guard_failed(self) -> bool:
        """Rejected because an expected version was not met, and for no other reason (R13)."""
        return self.status is Status.REJECTED and [problem.code for problem in self.problems] == ["conflict"]

    def to_plain(self) -> dict[str, object]:
        """Return the documented form, ready for JSON, its keys in the documented order."""
        return {
            "schema_version": SCHEMA_VERSION,
            "status": self.status.value,
            "dry_run": self.dry_run,
            "changed": self.changed,
            "live_applied": self.live_applied,
            "config_version_before": self.config_version_before,
            "config_version_candidate": self.config_version_candidate,
            "config_version_after": self.config_version_after,
            "generation": self.generation,
            "source": self.source.to_plain(),
            "changes": [change.to_plain() for change in self.changes],
            "changed_nodes": list(self.changed_nodes),
            "changed_providers": list(self.changed_providers),
            "changed_models": list(self.changed_models),
            "live_paths": list(self.live_paths),
            "restart_required_paths": list(self.restart_required_paths),
            "pending_restart_paths": list(self.pending_restart_paths),
            "problems": [problem.to_plain() for problem in self.problems],
            "warnings": [warning.to_plain() for warning in self.warnings],
            "nodes": [node.to_plain() for node in self.nodes],
            "timings_ms": {name: round(value, 3) for name, value in sorted(self.timings_ms.items())},
        }

    def to_json(self) -> str:
        """Return the result as JSON: byte-identical for equal results."""
        return json.dumps(self.to_plain(), ensure_ascii=False, indent=2)
