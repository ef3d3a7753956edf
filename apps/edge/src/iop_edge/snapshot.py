"""Snapshot: one config generation, complete and immutable; the cell that is swapped when a refresh applies (R7)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from attrs import field, frozen

from iop_config import EdgeConfig, reveal
from iop_edge.nodes.payload import NodePayload, build_payload
from iop_edge.routing import Catalog, build_catalog, pool_spec
from iop_pool import PoolSpec


@frozen
class Snapshot:
    """Everything that a request or a Node is answered from in one generation.

    `config` is what may be shown; `live` has the real values in place of masked ones and is never printed.
    """

    config: EdgeConfig
    live: EdgeConfig = field(repr=False)
    version: str
    generation: int
    catalog: Catalog = field(repr=False)
    pool: PoolSpec = field(repr=False)
    payloads: Mapping[str, NodePayload] = field(repr=False)


def build_snapshot(config: EdgeConfig, version: str, digest_key: bytes, previous: Snapshot | None = None) -> Snapshot:
    """Return the whole next generation; pure: nothing that is in force is touched (R11)."""
    live = reveal(config)
    earlier = previous.payloads if previous is not None else {}
    return Snapshot(
        config=config,
        live=live,
        version=version,
        generation=previous.generation + 1 if previous is not None else 1,
        catalog=build_catalog(live),
        pool=pool_spec(live),
        payloads=MappingProxyType(
            {node.id: build_payload(node, digest_key, earlier.get(node.id)) for node in live.nodes}
        ),
    )


class SnapshotCell:
    """Holds the generation in force. A request reads it once and keeps what it read."""

    def __init__(self, first: Snapshot) -> None:
        self._current = first

    @property
    def current(self) -> Snapshot:
        """The generation in force."""
        return self._current

    def swap(self, following: Snapshot) -> Snapshot:
        """Put `following` in force; returns the one that it replaced."""
        replaced, self._current = self._current, following
        return replaced
