"""EdgeRuntime: the running Edge as refresh and status see it; implements `admin.runtime.Runtime` (R7, R8, P11)."""

from __future__ import annotations

import asyncio
import difflib
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import attrs

import iop_config
from iop_config import EdgeConfig, Loaded
from iop_edge.admin.runtime import NodeView
from iop_edge.fleet import Fleet
from iop_edge.nodes.registry import NodeRegistry
from iop_edge.nodes.values import NodeRow, PushOutcome, PushState
from iop_edge.snapshot import Snapshot, SnapshotCell, build_snapshot
from iop_pool import Lease, Pool
from iop_refresh import NodeResult, NodeState

_STATES = {
    PushState.ACKED: NodeState.ACKED,
    PushState.NACKED: NodeState.NACKED,
    PushState.NO_ANSWER: NodeState.NO_ANSWER,
    PushState.SUPERSEDED: NodeState.PENDING,
    PushState.DISCONNECTED: NodeState.DISCONNECTED,
}


class EdgeRuntime:
    """One config generation after another over one pool and one registry of Nodes."""

    def __init__(
        self,
        cell: SnapshotCell,
        pool: Pool,
        fleet: Fleet,
        registry: NodeRegistry,
        *,
        paths: Sequence[Path],
        digest_key: bytes,
        live_leases: Callable[[], Collection[Lease]],
    ) -> None:
        """`paths`: the main file and the overlays that `run` was started with, in this order.

        `live_leases` gives the leases that a request still stands behind (P8).
        """
        self._cell = cell
        self._pool = pool
        self._fleet = fleet
        self._registry = registry
        self._paths = tuple(paths)
        self._digest_key = digest_key
        self._live_leases = live_leases

    @property
    def snapshot(self) -> Snapshot:
        """The generation in force."""
        return self._cell.current

    @property
    def digest_key(self) -> bytes:
        """The key of versions and fingerprints (C21)."""
        return self._digest_key

    # -- loading: called in a thread ------------------------------------------------------------------------------

    def load_files(self) -> Loaded:
        """Read afresh the files that `run` was started with; raises ConfigError."""
        main, *overlays = self._paths
        return iop_config.load(main, overlays=overlays, digest_key=self._digest_key)

    def load_inline(self, text: str) -> Loaded:
        """Load a config that came with the request, in the place of the main file."""
        main, *overlays = self._paths
        return iop_config.load_text(
            text, name="<inline>", base_dir=main.parent, overlays=overlays, digest_key=self._digest_key
        )

    def load_kept(self, documents: Sequence[tuple[str, str]]) -> Loaded:
        """Load texts that were kept earlier (R15)."""
        (main, text), *overlays = documents
        sources = tuple(iop_config.text_source(kept, name=name, base_dir=Path(name).parent) for name, kept in overlays)
        return iop_config.load_text(
            text, name=main, base_dir=Path(main).parent, overlays=sources, digest_key=self._digest_key
        )

    # -- applying ---------------------------------------------------------------------------------------------------

    def build(self, config: EdgeConfig, version: str) -> Snapshot:
        """Return the next generation; pure (R11)."""
        return build_snapshot(config, version, self._digest_key, self._cell.current)

    def swap(self, snapshot: Snapshot) -> frozenset[str]:
        """Put it in force (R7): one assignment, then the pool, with no await between."""
        self._cell.swap(snapshot)
        return self._fleet.swap(snapshot.pool, snapshot.payloads)

    def push(self, node_ids: frozenset[str]) -> Mapping[str, asyncio.Future[NodeResult]]:
        """Start sending these Nodes the payload in force (R8)."""
        return {node_id: self._push(node_id) for node_id in sorted(node_ids)}

    def _push(self, node_id: str) -> asyncio.Future[NodeResult]:
        payload = self._cell.current.payloads[node_id]
        made: asyncio.Future[NodeResult] = asyncio.get_running_loop().create_future()

        def answered(done: asyncio.Future[PushOutcome]) -> None:
            if not made.done() and not done.cancelled():
                made.set_result(_node_result(node_id, payload.generation, done.result()))

        self._registry.push(node_id, payload.message).add_done_callback(answered)
        return made

    def nodes(self) -> Mapping[str, NodeView]:
        """Every configured Node."""
        connected = self._fleet.connected_nodes()
        return {
            node_id: NodeView(connected=node_id in connected, acked_generation=self._fleet.acked_generation(node_id))
            for node_id in self._cell.current.payloads
        }

    # -- looking ----------------------------------------------------------------------------------------------------

    def leaked_slots(self) -> int:
        """Count the leases without a live run: of no request, of no attempt that a Node is still stopping (P8)."""
        return len(self._pool.audit((*self._live_leases(), *self._fleet.occupied())))

    def status(self) -> dict[str, object]:
        """Nodes, providers, models and the leak gauge, ready for JSON (P11)."""
        leaked_slots = self.leaked_slots()
        snapshot, pool = self._cell.current, self._pool.status()
        configs = {node.id: node for node in snapshot.config.nodes}
        states = {node_id: self._fleet.provider_states(node_id) for node_id in configs}
        configured = {provider.id for node in snapshot.config.nodes for provider in node.providers}
        providers = []
        for row in pool.providers:
            plain = attrs.asdict(row)
            plain["blocked"], plain["blocked_long"] = _words(row.blocked), _words(row.blocked_long)
            state = states.get(row.node or "", {}).get(row.id)
            plain["message"] = state.message if state is not None else ""
            plain["context_tokens"] = state.context_tokens if state is not None else 0
            # A stand-in for a model route is no provider of the config; it is told apart, not hidden.
            plain["route"] = row.id not in configured
            providers.append(plain)
        return {
            "nodes": [self._node_row(row, configs) for row in self._registry.rows()],
            "providers": providers,
            "models": [attrs.asdict(group) for group in pool.groups],
            "retired": [attrs.asdict(retired) for retired in pool.retired],
            "leases": pool.leases,
            "waiting": pool.waiting,
            "leaked_slots": leaked_slots,
        }

    def _node_row(self, row: NodeRow, configs: Mapping[str, iop_config.NodeConfig]) -> dict[str, object]:
        plain = attrs.asdict(row)
        desired = self._fleet.desired(row.node_id)
        config = configs.get(row.node_id)
        plain["id"] = plain.pop("node_id")
        plain["session"] = plain.pop("session_id")
        # As its mask where it was injected (C2): a JSON encoder takes exact texts only.
        plain["alias"] = str(config.alias) if config is not None and config.alias is not None else None
        plain["desired_config_version"] = desired.version if desired is not None else ""
        plain["desired_generation"] = desired.generation if desired is not None else 0
        plain["acknowledged"] = desired is not None and self._fleet.acked_generation(row.node_id) == desired.generation
        return plain

    def explain(self, model: str, input_tokens: int) -> dict[str, object]:
        """What would happen to a request of this model now (P15); LookupError for an unknown one."""
        explanation = self._pool.explain(model, input_tokens)
        if explanation.verdict == "unknown_model":
            likely = difflib.get_close_matches(model, [group.id for group in self._pool.status().groups], n=1)
            hint = f'; did you mean "{likely[0]}"' if likely else ""
            raise LookupError(f"no model {json.dumps(model, ensure_ascii=False)}{hint}")
        plain = attrs.asdict(explanation)
        for entry, seen in zip(plain["considered"], explanation.considered, strict=True):
            entry["words"] = seen.reason.words
        plain["text"] = str(explanation)
        return plain


def _words(reason: object) -> str | None:
    words = getattr(reason, "words", None)
    return words if isinstance(words, str) else None


def _node_result(node_id: str, sent_generation: int, outcome: PushOutcome) -> NodeResult:
    faults = "; ".join(f"{fault.path}: {fault.message}" for fault in outcome.faults)
    return NodeResult(
        node=node_id,
        state=_STATES[outcome.state],
        sent_generation=sent_generation,
        acked_generation=outcome.generation,
        error_code=outcome.faults[0].code if outcome.faults else "",
        message=faults,
    )


def absolute(paths: Sequence[os.PathLike[str] | str]) -> tuple[Path, ...]:
    """Make paths independent of the working directory, without resolving links: those may be switched on purpose."""
    return tuple(Path(os.path.abspath(path)) for path in paths)
