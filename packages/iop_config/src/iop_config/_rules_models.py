"""Rules of models, routes and keys: windows and budgets hold together, a name has one meaning (C3, C12-C14, C16)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from iop_config._model import ModelConfig
from iop_config._problems import ConfigPath, Finding
from iop_config._values import plain
from iop_config._view import Place, View, adapter_path, choice, named, shown_count


def c12_long_slots(view: View) -> Iterator[Finding]:
    """A provider has no more long slots than slots (C12)."""
    for place in view.places:
        long, capacity = place.provider.long_context_capacity, place.provider.capacity
        if long is not None and long > capacity:
            yield Finding(
                code="C12.long-above-capacity",
                path=(*place.path, "long_context_capacity"),
                message=f"{long} long slots are more than the capacity of {capacity}",
                suggestion=f"at most {capacity}: a long run takes a slot of both kinds",
                needs=((*place.path, "capacity"),),
            )


def c12_groups(view: View) -> Iterator[Finding]:
    """Each provider keeps the window of each group that it serves, in one request and in all at once (C12, C24)."""
    for model in view.config.models:
        window = model.context_window_tokens
        if window is None:  # C24: without a window there is nothing to check
            continue
        for provider_id in model.providers:
            place = view.by_id.get(provider_id)
            if place is not None:
                yield from _window_kept(model, window, place, view)
                yield from _budget_kept(model, window, place, view)


def _window_kept(model: ModelConfig, window: int, place: Place, view: View) -> Iterator[Finding]:
    adapter = view.adapter_of(place)
    size = place.provider.context_size
    path = (*place.path, "context_size")
    if size is None and adapter is not None:
        size, path = adapter.context_size, adapter_path(place.node, adapter, "context_size")
    if size is None or size >= window:
        return
    window_path: ConfigPath = ("models", model.id, "context_window_tokens")
    yield Finding(
        code="C12.context-size-below-window",
        path=path,
        message=f"{size} tokens are less than the window of the model {named(model.id)}, {window} at "
        f"{view.at(window_path)}, which the provider {named(place.provider.id)} serves",
        suggestion="the window is a promise that every provider of the group keeps: raise this or lower the window",
        needs=(window_path, (*place.path, "context_size"), (*place.path, "adapter")),
    )


def _budget_kept(model: ModelConfig, window: int, place: Place, view: View) -> Iterator[Finding]:
    provider = place.provider
    total, capacity, long = provider.total_context_tokens, provider.capacity, provider.long_context_capacity
    if total is None or (long is not None and long > capacity):
        return
    threshold = view.config.long_context_threshold_tokens
    if long is None:  # C24: every slot may be long
        needed, sum_text = capacity * window, f"{capacity} × {window}"
    else:
        short = min(threshold, window)
        needed = long * window + (capacity - long) * short
        sum_text = f"{long} × {window} + ({capacity} − {long}) × {short}"
    if needed <= total:
        return
    window_path: ConfigPath = ("models", model.id, "context_window_tokens")
    shown = shown_count(needed, capacity, window, long, threshold)
    yield Finding(
        code="C12.budget",
        path=(*place.path, "total_context_tokens"),
        message=f"the model {named(model.id)} with its window at {view.at(window_path)} needs {sum_text} = {shown} "
        f"tokens; the runtime holds {total}",
        suggestion="lower capacity, long_context_capacity or the window, or raise this if the runtime holds more",
        needs=(
            window_path,
            ("long_context_threshold_tokens",),
            (*place.path, "capacity"),
            (*place.path, "long_context_capacity"),
        ),
    )


def c13_generation(view: View) -> Iterator[Finding]:
    """min_max_tokens ≤ default_max_tokens ≤ context_window_tokens, as far as they are given (C13)."""
    for model in view.config.models:
        path: ConfigPath = ("models", model.id)
        keys = [
            key
            for key in ("min_max_tokens", "default_max_tokens", "context_window_tokens")
            if getattr(model, key) is not None
        ]
        for lower, upper in itertools.pairwise(keys):
            low, high = getattr(model, lower), getattr(model, upper)
            if low > high:
                yield Finding(
                    code="C13.min-too-large" if lower == "min_max_tokens" else "C13.default-too-large",
                    path=(*path, lower),
                    message=f"{low} is more than the {upper} of the model, {high} at {view.at((*path, upper))}",
                    suggestion=f"at most {high}",
                    needs=((*path, upper),),
                )


def c14_hashes(view: View) -> Iterator[Finding]:
    """No two principal tokens have one hash, whatever its case (C14)."""
    seen: dict[str, ConfigPath] = {}
    for token in view.config.openai.principal_tokens:
        path: ConfigPath = ("openai", "principal_tokens", token.token_ref, "token_hash_sha256")
        first = seen.setdefault(plain(token.token_hash_sha256).lower(), path)
        if first != path:
            yield Finding(
                code="C14.duplicate-hash",
                path=path,
                message=f"the same hash stands at {view.at(first)}: one key would be counted for two",
                suggestion="make a key of its own: iop-edge token new",
                needs=(first,),
            )


def c16_routes(view: View) -> Iterator[Finding]:
    """A route is no model, and leads to an enabled adapter instance (C16)."""
    models = {model.id for model in view.config.models}
    for route in view.config.openai.model_routes:
        path: ConfigPath = ("openai", "model_routes", route.model)
        if route.model in models:
            model_path: ConfigPath = ("models", route.model, "id")
            yield Finding(
                code="C16.route-is-model",
                path=(*path, "model"),
                message=f"{named(route.model)} is a model id too, at {view.at(model_path)}",
                suggestion="remove the route or the model: an external model has one meaning",
                needs=(model_path,),
            )
        if route.node is not None and route.node not in view.instances:
            yield Finding(
                code="C16.unknown-node",
                path=(*path, "node"),
                message=f"no node {named(route.node)}",
                suggestion=choice(route.node, view.instances, "the nodes are", "the config has no node"),
                needs_all=view.all_node_ids,
            )
            continue
        yield from _route_adapter(view, route.node, route.adapter, path)


def _route_adapter(view: View, node_id: str | None, name: str, path: ConfigPath) -> Iterator[Finding]:
    instances = view.all_instances if node_id is None else view.instances[node_id]
    found = instances.by_name.get(name, [])
    if any(adapter.enabled for _, adapter in found):
        return
    on = "on any node" if node_id is None else f"on the node {named(node_id)}"
    if found:
        switches = [adapter_path(node, adapter, "enabled") for node, adapter in found]
        yield Finding(
            code="C16.adapter-disabled",
            path=(*path, "adapter"),
            message=f"the adapter instance {named(name)} is not enabled {on}: see {view.at(switches[0])}",
            suggestion="enable it, or name another one",
            needs=((*path, "node"), *switches),
        )
        return
    yield Finding(
        code="C16.unknown-adapter",
        path=(*path, "adapter"),
        message=f"no adapter instance {named(name)} {on}",
        suggestion=choice(name, instances.enabled_names, "there are", "there is none"),
        needs=((*path, "node"),),
        needs_all=instances.switches,
    )


def c3_a2a_model(view: View) -> Iterator[Finding]:
    """The model that answers agents is given, and is a model or a route (C3, C16)."""
    a2a = view.config.a2a
    if not a2a.enabled:
        return
    enabled: ConfigPath = ("a2a", "enabled")
    if a2a.model is None:
        yield Finding(
            code="C3.a2a-needs-model",
            path=("a2a", "model"),
            message="the agent-to-agent listener needs a model that answers",
            suggestion="add model: a model id or a route",
            needs=(enabled,),
        )
        return
    models = [model.id for model in view.config.models]
    routes = [route.model for route in view.config.openai.model_routes]
    if a2a.model not in {*models, *routes}:
        yield Finding(
            code="C3.unknown-model",
            path=("a2a", "model"),
            message=f"no model and no route {named(a2a.model)}",
            suggestion=choice(a2a.model, [*models, *routes], "there are", "the config has neither"),
            needs=(
                enabled,
                *(("models", name, "id") for name in models),
                *(("openai", "model_routes", name, "model") for name in routes),
            ),
        )
