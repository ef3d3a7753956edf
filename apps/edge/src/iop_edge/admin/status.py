"""What `GET /status` says: the Edge, its config, its refreshes, and the runtime's Nodes, providers and models (P11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from iop_edge.admin.refresh import RefreshEngine
from iop_edge.admin.runtime import Runtime, SnapshotView

__all__ = ["refresh_status", "status_body"]

SnapshotT = TypeVar("SnapshotT", bound=SnapshotView)


def status_body(
    engine: RefreshEngine[SnapshotT], runtime: Runtime[SnapshotT], about: Callable[[], dict[str, object]]
) -> dict[str, object]:
    """Return the whole status, ready for JSON; called on the event loop."""
    return {
        "edge": about(),
        "config_version": runtime.snapshot.version,
        "generation": runtime.snapshot.generation,
        **runtime.status(),
        "pending_restart_paths": list(engine.pending_restart_paths),
        "refresh": refresh_status(engine),
    }


def refresh_status(engine: RefreshEngine[SnapshotT]) -> dict[str, object]:
    """Return what became of refreshes: the last one, the last that succeeded, and how many of each kind."""
    last = engine.last
    return {
        "last_status": last.status.value if last is not None else None,
        "last_trigger": last.trigger if last is not None else None,
        "last_at": last.at if last is not None else None,
        "last_success_at": engine.last_success_at or None,
        "totals": [
            {"status": status, "trigger": trigger, "count": count}
            for (status, trigger), count in sorted(engine.totals.items())
        ],
    }
