"""From a model id to the providers that may run it: the catalog of one generation, and what the pool is told of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import field, frozen

from iop_config import AdapterConfig, EdgeConfig, ModelConfig, ModelRoute, NodeConfig, ProviderConfig, reveal
from iop_pool import GroupSpec, PoolSpec, ProviderSpec, QueuePolicy

__all__ = ["ROUTE_CAPACITY", "Catalog", "GenerationPolicy", "ModelEntry", "Target", "build_catalog", "pool_spec"]

ROUTE_CAPACITY = 1_000_000
"""Runs at once on an adapter instance that no provider bounds: practically no limit, but still a count (0003)."""


@frozen
class Target:
    """Where a run of one model goes when the pool has chosen `provider_id`: adapter and served name (C4).

    `owned` is false for the pool's stand-in of an adapter instance that no provider uses (0003); the Node then knows
    no provider for the run. `label` is the provider label of C9. `request_timeout_ms` None: no limit.
    """

    provider_id: str
    node_id: str
    adapter: str
    kind: str
    label: str | None
    category: str
    name: str
    request_timeout_ms: int | None = None
    owned: bool = True


@frozen
class GenerationPolicy:
    """The generation numbers of a group (C13, E5); None: not said."""

    default_max_tokens: int | None = None
    min_max_tokens: int | None = None
    default_thinking_token_budget: int | None = None


@frozen
class ModelEntry:
    """One external model: a group of `models[]` or a compatibility route. Its id is the pool's group key (C3)."""

    id: str
    targets: Mapping[str, Target] = field(hash=False)
    display_name: str | None = None
    context_window_tokens: int | None = None
    policy: GenerationPolicy = GenerationPolicy()
    is_route: bool = False


@frozen
class Catalog:
    """Every external model of one generation, in the order of the file; immutable (R7)."""

    entries: Mapping[str, ModelEntry] = field(hash=False)

    def find(self, model: str) -> ModelEntry | None:
        """Return the entry that `models[]`, else `openai.model_routes[]`, has for an id (E1)."""
        return self.entries.get(model)

    def __iter__(self) -> Iterator[ModelEntry]:
        return iter(self.entries.values())


def build_catalog(config: EdgeConfig) -> Catalog:
    """Return the catalog of a loaded config; costs one pass over it."""
    config = reveal(config)
    places = _places(config)
    entries: dict[str, ModelEntry] = {}
    for model in config.models:
        entries[model.id] = _group_entry(model, places)
    for route in config.openai.model_routes:
        entries.setdefault(route.model, _route_entry(route, config))
    return Catalog(entries)


def pool_spec(config: EdgeConfig) -> PoolSpec:
    """Return what the pool is told of a loaded config: providers, one group per model and route, the policies.

    Raises ValueError where the config breaks a rule that `iop_config` checks; a loaded one does not.
    """
    config = reveal(config)
    providers = [
        _provider_spec(node, provider, _adapter(node, provider)) for node in config.nodes for provider in node.providers
    ]
    catalog = build_catalog(config)
    stand_ins = {
        target.provider_id: ProviderSpec(
            id=target.provider_id,
            node=target.node_id,
            capacity=ROUTE_CAPACITY,
            adapter_queue=_queue_policy(_instance(config, target)),
        )
        for entry in catalog
        for target in entry.targets.values()
        if not target.owned
    }
    return PoolSpec(
        providers=(*providers, *stand_ins.values()),
        groups=tuple(GroupSpec(entry.id, entry.targets) for entry in catalog),
        long_context_threshold_tokens=config.long_context_threshold_tokens,
        reconnect_grace_ms=config.server.reconnect_grace_ms,
    )


_Place = tuple[NodeConfig, ProviderConfig, AdapterConfig | None]


def _places(config: EdgeConfig) -> dict[str, _Place]:
    return {
        provider.id: (node, provider, _adapter(node, provider)) for node in config.nodes for provider in node.providers
    }


def _adapter(node: NodeConfig, provider: ProviderConfig) -> AdapterConfig | None:
    # A disabled provider's reference is not checked (C8), so it may name nothing.
    return next((adapter for adapter in node.adapters if adapter.name == provider.adapter), None)


def _instance(config: EdgeConfig, target: Target) -> AdapterConfig:
    node = next(node for node in config.nodes if node.id == target.node_id)
    return next(adapter for adapter in node.adapters if adapter.name == target.adapter)


def _group_entry(model: ModelConfig, places: Mapping[str, _Place]) -> ModelEntry:
    targets = {
        provider_id: _provider_target(places[provider_id], name)
        for provider_id, name in model.providers.items()
        if provider_id in places
    }
    return ModelEntry(
        id=model.id,
        targets=targets,
        display_name=model.display_name,
        context_window_tokens=model.context_window_tokens,
        policy=GenerationPolicy(model.default_max_tokens, model.min_max_tokens, model.default_thinking_token_budget),
    )


def _provider_target(place: _Place, name: str) -> Target:
    node, provider, adapter = place
    timeout = provider.request_timeout_ms
    if timeout is None and adapter is not None:
        timeout = adapter.request_timeout_ms
    return Target(
        provider_id=provider.id,
        node_id=node.id,
        adapter=provider.adapter or provider.id,
        kind=adapter.type if adapter is not None else provider.type,
        label=adapter.provider if adapter is not None else None,
        category=provider.category,
        name=name,
        request_timeout_ms=timeout,
    )


def _route_entry(route: ModelRoute, config: EdgeConfig) -> ModelEntry:
    """The providers of the named instance, so that a route is no side door past their capacity; see 0003."""
    targets: dict[str, Target] = {}
    for node in config.nodes:
        if route.node is not None and node.id != route.node:
            continue
        adapter = next((entry for entry in node.adapters if entry.name == route.adapter and entry.enabled), None)
        if adapter is None:
            continue
        users = [provider for provider in node.providers if provider.adapter == adapter.name]
        for provider in users:
            targets[provider.id] = _provider_target((node, provider, adapter), route.target)
        if not users:
            stand_in = f"route:{node.id}/{adapter.name}"
            targets[stand_in] = Target(
                provider_id=stand_in,
                node_id=node.id,
                adapter=adapter.name,
                kind=adapter.type,
                label=adapter.provider,
                category="cli" if adapter.type == "cli" else "api",
                name=route.target,
                request_timeout_ms=adapter.request_timeout_ms,
                owned=False,
            )
    return ModelEntry(id=route.model, targets=targets, is_route=True)


def _queue_policy(owner: AdapterConfig | ProviderConfig | None) -> QueuePolicy:
    return QueuePolicy() if owner is None else QueuePolicy(owner.max_queue, owner.queue_timeout_ms)


def _provider_spec(node: NodeConfig, provider: ProviderConfig, adapter: AdapterConfig | None) -> ProviderSpec:
    return ProviderSpec(
        id=provider.id,
        node=node.id,
        capacity=provider.capacity,
        long_context_capacity=provider.long_context_capacity,
        priority=provider.priority,
        enabled=provider.enabled,
        queue=_queue_policy(provider),
        adapter_queue=_queue_policy(adapter),
        # A runtime that is probed anyway gets its first run when the probe has found it up (P11 "not yet proven").
        probe_required=provider.health.probe,
    )
