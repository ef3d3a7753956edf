"""A real EdgeRuntime over a config in code, with Nodes connected by a call: what status, metrics and console show."""

from __future__ import annotations

from pathlib import Path

from iop_config import EdgeConfig
from iop_edge.fleet import Fleet
from iop_edge.nodes.registry import NodeRegistry
from iop_edge.nodes.values import NodeHealth, ProviderState, PushOutcome, PushState
from iop_edge.runtime import EdgeRuntime
from iop_edge.snapshot import SnapshotCell, build_snapshot
from iop_pool import Pool


class StatusRig:
    """An Edge without listeners; `runtime.status()` is the real one."""

    def __init__(self, edge: EdgeConfig, version: str = "v1") -> None:
        self.config = edge
        snapshot = build_snapshot(edge, version, b"k" * 32)
        self.cell = SnapshotCell(snapshot)
        self.pool = Pool(snapshot.pool)
        self.fleet = Fleet(self.pool, snapshot.pool, snapshot.payloads)
        self.registry = NodeRegistry(
            self.fleet,
            lambda node_id: self.cell.current.payloads[node_id].message,
            node_ids=tuple(node.id for node in edge.nodes),
            edge_id=edge.edge.id,
            edge_version="0",
        )
        self.runtime = EdgeRuntime(
            self.cell,
            self.pool,
            self.fleet,
            self.registry,
            paths=(Path("edge.yaml"),),
            digest_key=b"k" * 32,
            live_leases=tuple,
        )

    def connect(self, node_id: str, *, healthy: bool = True, message: str = "") -> None:
        """Let a Node come, confirm its configuration and say how its providers are."""
        payload = self.cell.current.payloads[node_id]
        self.fleet.connected(node_id, 1, (), ())
        self.fleet.config_result(
            node_id, PushOutcome("1", PushState.ACKED, version=payload.version, generation=payload.generation)
        )
        health = NodeHealth.HEALTHY if healthy else NodeHealth.UNHEALTHY
        own = next(node for node in self.config.nodes if node.id == node_id)
        self.fleet.provider_health(
            node_id, tuple(ProviderState(provider.id, health, message) for provider in own.providers)
        )
