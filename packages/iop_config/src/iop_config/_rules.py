"""Rules that cross places, a short function each, over the normalised, structured config (C3-C17, C24, C25, R12)."""

from __future__ import annotations

import difflib
import ipaddress
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property

import attrs

from iop_config._fields import evolve
from iop_config._model import ALIASES, HTTP_KINDS, AdapterConfig, EdgeConfig, ModelConfig, NodeConfig, ProviderConfig
from iop_config._problems import ConfigPath, Finding, quoted
from iop_config._values import REDACTED, is_sensitive, plain

At = Callable[[ConfigPath], str]
_NAMES_SHOWN = 8  # a message lists at most so many names
_NAMES_COMPARED = 200  # and looks for a likely one among so many: comparing costs some 20 µs a name


@attrs.frozen
class _Place:
    """A provider where it stands."""

    node: NodeConfig
    provider: ProviderConfig

    @property
    def path(self) -> ConfigPath:
        return ("nodes", self.node.id, "providers", self.provider.id)


@attrs.define(slots=False)
class _Instances:
    """The adapter instances of one Node, or of all: indexes that are built once, when a rule first asks."""

    members: Sequence[tuple[NodeConfig, AdapterConfig]]

    @cached_property
    def by_name(self) -> dict[str, list[tuple[NodeConfig, AdapterConfig]]]:
        found: dict[str, list[tuple[NodeConfig, AdapterConfig]]] = {}
        for node, adapter in self.members:
            found.setdefault(adapter.name, []).append((node, adapter))
        return found

    @cached_property
    def enabled_names(self) -> list[str]:
        return list(dict.fromkeys(adapter.name for _, adapter in self.members if adapter.enabled))

    @cached_property
    def by_type(self) -> dict[str, list[AdapterConfig]]:
        """The enabled instances of each legacy type name; an alias of C9 is kept as the provider label."""
        found: dict[str, list[AdapterConfig]] = {}
        for _, adapter in self.members:
            if adapter.enabled:
                found.setdefault(adapter.type, []).append(adapter)
                if adapter.type == "openai_compat" and adapter.provider in ALIASES:
                    found.setdefault(adapter.provider, []).append(adapter)
        return found

    @cached_property
    def switches(self) -> tuple[ConfigPath, ...]:
        """What a verdict on a name relies on: every name, type and `enabled`."""
        return tuple(
            _adapter_path(node, adapter, key) for node, adapter in self.members for key in ("name", "type", "enabled")
        )


@attrs.define(slots=False)
class _View:
    """A config with the indexes that the rules share; each is built once, when a rule first asks."""

    config: EdgeConfig
    at: At

    @cached_property
    def places(self) -> list[_Place]:
        return [_Place(node, provider) for node in self.config.nodes for provider in node.providers]

    @cached_property
    def by_id(self) -> dict[str, _Place]:
        """The first provider of each id, in file order."""
        found: dict[str, _Place] = {}
        for place in self.places:
            found.setdefault(place.provider.id, place)
        return found

    @cached_property
    def instances(self) -> dict[str, _Instances]:
        """Node id to its adapter instances."""
        return {node.id: _Instances([(node, adapter) for adapter in node.adapters]) for node in self.config.nodes}

    @cached_property
    def all_instances(self) -> _Instances:
        return _Instances([(node, adapter) for node in self.config.nodes for adapter in node.adapters])

    def adapter_of(self, place: _Place) -> AdapterConfig | None:
        """The instance that a provider names, enabled or not."""
        name = place.provider.adapter
        found = self.instances[place.node.id].by_name.get(name) if name is not None else None
        return found[0][1] if found else None

    @cached_property
    def all_provider_ids(self) -> tuple[ConfigPath, ...]:
        return tuple((*place.path, "id") for place in self.places)


def check(config: EdgeConfig, at: At) -> Iterator[Finding]:
    """Yield what breaks a rule that crosses places; `at` words the place of a path as file:line:column (C19).

    Costs one pass over the config per rule. Needs the form that `resolve_adapters` returns.
    """
    view = _View(config, at)
    for rule in _RULES:
        yield from rule(view)


# --- C7: which adapter instance a provider means ---------------------------------------------------------------


def resolve_adapters(config: EdgeConfig) -> EdgeConfig:
    """Return the config with each legacy type name in `adapter` replaced by the one instance that it means (C7).

    What names no single enabled instance stays as it is, for `check` to report.
    """
    nodes = tuple(_resolved(node) for node in config.nodes)
    if all(new is old for new, old in zip(nodes, config.nodes, strict=True)):
        return config
    return evolve(config, nodes=nodes)


def _resolved(node: NodeConfig) -> NodeConfig:
    names = {adapter.name for adapter in node.adapters}
    if all(provider.adapter is None or provider.adapter in names for provider in node.providers):
        return node
    by_type = _Instances([(node, adapter) for adapter in node.adapters]).by_type
    providers = []
    for provider in node.providers:
        found = by_type.get(provider.adapter, []) if provider.adapter and provider.adapter not in names else []
        providers.append(evolve(provider, adapter=found[0].name) if len(found) == 1 else provider)
    return evolve(node, providers=tuple(providers))


def _c7_adapter(view: _View) -> Iterator[Finding]:
    """A provider names an enabled adapter instance of its Node, of its own type (C7, C8, C24)."""
    for place in view.places:
        provider = place.provider
        if not provider.enabled or provider.adapter is None:  # C8: the reference of a disabled one is not checked
            continue
        adapter = view.adapter_of(place)
        if adapter is None:
            yield _no_adapter(place, provider.adapter, view.instances[place.node.id])
        elif not adapter.enabled:
            switch = _adapter_path(place.node, adapter, "enabled")
            yield Finding(
                code="C7.adapter-disabled",
                path=(*place.path, "adapter"),
                message=f"the adapter instance {_q(adapter.name)} is disabled at {view.at(switch)}",
                suggestion="enable it, name another one, or disable the provider",
                needs=((*place.path, "enabled"), switch),
            )
        else:
            yield from _fits(place, adapter, view)


def _no_adapter(place: _Place, name: str, instances: _Instances) -> Finding:
    path = (*place.path, "adapter")
    needs = ((*place.path, "enabled"), *instances.switches)
    several = instances.by_type.get(name, [])
    if len(several) > 1:
        return Finding(
            code="C7.ambiguous-adapter",
            path=path,
            message=f"the type name {_q(name)} fits {len(several)} enabled adapter instances",
            suggestion="name one of " + _listed(adapter.name for adapter in several),
            needs=needs,
        )
    return Finding(
        code="C7.unknown-adapter",
        path=path,
        message=f"no enabled adapter instance {_q(name)}",
        suggestion=_choice(name, instances.enabled_names, "this node has", "this node has none"),
        needs=needs,
    )


def _fits(place: _Place, adapter: AdapterConfig, view: _View) -> Iterator[Finding]:
    provider = place.provider
    if adapter.origin == "provider":  # made from this provider's own type
        needs: tuple[ConfigPath, ...] = ((*place.path, "type"),)
        where = ""
    else:
        needs = (_adapter_path(place.node, adapter, "type"), (*place.path, "adapter"))
        where = f" at {view.at(_adapter_path(place.node, adapter, 'type'))}"
    if provider.category == "cli" and adapter.type != "cli":
        yield Finding(
            code="C7.cli-needs-cli-adapter",
            path=(*place.path, "category"),
            message=f"the category cli needs an adapter of the type cli; {_q(adapter.name)} has the type "
            f"{adapter.type}{where}",
            suggestion="name a cli adapter, or use the category api or local_inference",
            needs=needs,
        )
    elif provider.type != adapter.type:
        yield Finding(
            code="C24.type-mismatch",
            path=(*place.path, "type"),
            message=f"the type {provider.type} is not the type of the adapter {_q(adapter.name)}, which is "
            f"{adapter.type}{where}",
            suggestion=f"write {adapter.type}, or name another adapter",
            needs=needs,
        )


def _c10_lives_on(view: _View) -> Iterator[Finding]:
    """An enabled adapter instance, and each that is made from a provider, has the address or the command (C10)."""
    for node in view.config.nodes:
        for adapter in node.adapters:
            if not adapter.enabled and adapter.origin != "provider":
                continue
            key = "base_url" if adapter.type in HTTP_KINDS else "command" if adapter.type == "cli" else ""
            if not key or getattr(adapter, key) is not None:
                continue
            fix = f"add {key}"
            if adapter.origin == "provider":
                fix += ", or name an adapter instance of this node in `adapter`"
            yield Finding(
                code=f"C10.needs-{key.replace('_', '-')}",
                path=_adapter_path(node, adapter, key),
                message=f"the type {adapter.type} needs a {key}",
                suggestion=fix,
                needs=(_adapter_path(node, adapter, "type"), _adapter_path(node, adapter, "enabled")),
            )


# --- C4, C5: models and providers -------------------------------------------------------------------------------


def _c4_providers(view: _View) -> Iterator[Finding]:
    """A model's providers exist, and serve the name that it gives (C4)."""
    for model in view.config.models:
        for provider_id, served in model.providers.items():
            path: ConfigPath = ("models", model.id, "providers", provider_id)
            place = view.by_id.get(provider_id)
            if place is None:
                yield Finding(
                    code="C4.unknown-provider",
                    path=path,
                    message=f"no provider {_q(provider_id)} on any node",
                    suggestion=_choice(provider_id, view.by_id, "the providers are", "the config has no provider"),
                    needs=view.all_provider_ids,
                )
            elif served not in place.provider.models:
                where = (*place.path, "models")
                yield Finding(
                    code="C4.unserved-model",
                    path=path,
                    message=f"the provider {_q(provider_id)} does not list the served name {_q(served)} in its "
                    f"models at {view.at(where)}",
                    suggestion=_choice(served, place.provider.models, "it lists", "it lists none"),
                    needs=(where,),
                )


def _c5_unique(view: _View) -> Iterator[Finding]:
    """Provider ids are unique over all Nodes (C5); within one Node the structure has seen to it."""
    told: set[ConfigPath] = set()
    for place in view.places:
        first = view.by_id[place.provider.id]
        path = (*place.path, "id")
        if first.node.id == place.node.id or path in told:
            continue
        told.add(path)
        yield Finding(
            code="C5.duplicate-provider",
            path=path,
            message=f"the provider id {_q(place.provider.id)} is used on the node {_q(first.node.id)} too, at "
            + view.at((*first.path, "id")),
            suggestion="give each provider of the config an id of its own",
            needs=((*first.path, "id"), ("nodes", first.node.id, "id"), ("nodes", place.node.id, "id")),
        )


# --- C12, C13: windows and budgets ------------------------------------------------------------------------------


def _c12_long_slots(view: _View) -> Iterator[Finding]:
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


def _c12_groups(view: _View) -> Iterator[Finding]:
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


def _window_kept(model: ModelConfig, window: int, place: _Place, view: _View) -> Iterator[Finding]:
    adapter = view.adapter_of(place)
    size = place.provider.context_size
    path = (*place.path, "context_size")
    if size is None and adapter is not None:
        size, path = adapter.context_size, _adapter_path(place.node, adapter, "context_size")
    if size is None or size >= window:
        return
    window_path: ConfigPath = ("models", model.id, "context_window_tokens")
    yield Finding(
        code="C12.context-size-below-window",
        path=path,
        message=f"{size} tokens are less than the window of the model {_q(model.id)}, {window} at "
        f"{view.at(window_path)}, which the provider {_q(place.provider.id)} serves",
        suggestion="the window is a promise that every provider of the group keeps: raise this or lower the window",
        needs=(window_path, (*place.path, "context_size"), (*place.path, "adapter")),
    )


def _budget_kept(model: ModelConfig, window: int, place: _Place, view: _View) -> Iterator[Finding]:
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
    shown = _count(needed, capacity, window, long, threshold)
    yield Finding(
        code="C12.budget",
        path=(*place.path, "total_context_tokens"),
        message=f"the model {_q(model.id)} with its window at {view.at(window_path)} needs {sum_text} = {shown} "
        f"tokens; the runtime holds {total}",
        suggestion="lower capacity, long_context_capacity or the window, or raise this if the runtime holds more",
        needs=(
            window_path,
            ("long_context_threshold_tokens",),
            (*place.path, "capacity"),
            (*place.path, "long_context_capacity"),
        ),
    )


def _c13_generation(view: _View) -> Iterator[Finding]:
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


# --- C14, C16: keys, routes, and who names a model ---------------------------------------------------------------


def _c14_hashes(view: _View) -> Iterator[Finding]:
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


def _c16_routes(view: _View) -> Iterator[Finding]:
    """A route is no model, and leads to an enabled adapter instance (C16)."""
    models = {model.id for model in view.config.models}
    for route in view.config.openai.model_routes:
        path: ConfigPath = ("openai", "model_routes", route.model)
        if route.model in models:
            model_path: ConfigPath = ("models", route.model, "id")
            yield Finding(
                code="C16.route-is-model",
                path=(*path, "model"),
                message=f"{_q(route.model)} is a model id too, at {view.at(model_path)}",
                suggestion="remove the route or the model: an external model has one meaning",
                needs=(model_path,),
            )
        if route.node is not None and route.node not in view.instances:
            yield Finding(
                code="C16.unknown-node",
                path=(*path, "node"),
                message=f"no node {_q(route.node)}",
                suggestion=_choice(route.node, view.instances, "the nodes are", "the config has no node"),
                needs=tuple(("nodes", node, "id") for node in view.instances),
            )
            continue
        yield from _route_adapter(view, route.node, route.adapter, path)


def _route_adapter(view: _View, node_id: str | None, name: str, path: ConfigPath) -> Iterator[Finding]:
    instances = view.all_instances if node_id is None else view.instances[node_id]
    found = instances.by_name.get(name, [])
    if any(adapter.enabled for _, adapter in found):
        return
    on = "on any node" if node_id is None else f"on the node {_q(node_id)}"
    if found:
        switches = [_adapter_path(node, adapter, "enabled") for node, adapter in found]
        yield Finding(
            code="C16.adapter-disabled",
            path=(*path, "adapter"),
            message=f"the adapter instance {_q(name)} is not enabled {on}: see {view.at(switches[0])}",
            suggestion="enable it, or name another one",
            needs=((*path, "node"), *switches),
        )
        return
    yield Finding(
        code="C16.unknown-adapter",
        path=(*path, "adapter"),
        message=f"no adapter instance {_q(name)} {on}",
        suggestion=_choice(name, instances.enabled_names, "there are", "there is none"),
        needs=((*path, "node"), *instances.switches),
    )


def _c3_a2a_model(view: _View) -> Iterator[Finding]:
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
            message=f"no model and no route {_q(a2a.model)}",
            suggestion=_choice(a2a.model, [*models, *routes], "there are", "the config has neither"),
            needs=(
                enabled,
                *(("models", name, "id") for name in models),
                *(("openai", "model_routes", name, "model") for name in routes),
            ),
        )


# --- C25, R12: listeners -----------------------------------------------------------------------------------------


def _r12_admin(view: _View) -> Iterator[Finding]:
    """The admin API listens on loopback only (R12)."""
    listen = view.config.admin.listen
    if listen is not None and not _is_loopback(_host_port(listen)[0]):
        yield Finding(
            code="R12.admin-off-loopback",
            path=("admin", "listen"),
            message=f"the admin API listens on loopback only, not on {_q(listen)}",
            suggestion="use 127.0.0.1, or unix_socket; reach it from elsewhere through ssh",
        )


def _c25_plaintext(view: _View) -> Iterator[Finding]:
    """The link to the Nodes is plaintext on loopback only, unless it is said aloud (C25)."""
    server = view.config.server
    if server.tls is not None or server.insecure or _is_loopback(_host_port(server.listen)[0]):
        return
    yield Finding(
        code="C25.plaintext",
        path=("server", "listen"),
        message=f"{_q(server.listen)} would be plaintext off loopback, and Nodes send their tokens there",
        suggestion="set server.tls, or server.insecure: true if the network protects it",
        needs=(("server", "insecure"), ("server", "tls")),
    )


def _c25_addresses(view: _View) -> Iterator[Finding]:
    """No two listeners share an address (C25)."""
    taken: list[tuple[ConfigPath, str, int]] = []
    for path, listen, switch in _listeners(view.config):
        host, port = _host_port(listen)
        if port <= 0:  # 0: a free one; below: not an address, which the structure has told
            continue
        clash = next(
            (other for other, its_host, its_port in taken if its_port == port and _overlap(host, its_host)), None
        )
        if clash is None:
            taken.append((path, host, port))
            continue
        yield Finding(
            code="C25.address-taken",
            path=path,
            message=f"{_q(listen)} is taken by {'.'.join(map(str, clash))} at {view.at(clash)}",
            suggestion="give each listener a port of its own",
            needs=(clash, *switch),
        )


def _listeners(config: EdgeConfig) -> Iterator[tuple[ConfigPath, str, tuple[ConfigPath, ...]]]:
    """Every listener that `run` opens: its path, its address, and the switch that turns it on."""
    always: tuple[tuple[str, str | None], ...] = (
        ("server", config.server.listen),
        ("bootstrap", config.bootstrap.listen),
        ("admin", config.admin.listen),
        ("metrics", config.metrics.listen),
    )
    for name, listen in always:
        if listen is not None:
            yield (name, "listen"), listen, ()
    for name, part in (("console", config.console), ("openai", config.openai), ("a2a", config.a2a)):
        if part.enabled:
            yield (name, "listen"), part.listen, ((name, "enabled"),)


def _host_port(address: str) -> tuple[str, int]:
    """host:port apart; port -1 where the text is no address."""
    host, _, port = plain(address).rpartition(":")
    host = host.removeprefix("[").removesuffix("]").lower()
    return host, int(port) if port.isascii() and port.isdigit() else -1


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _overlap(one: str, other: str) -> bool:
    """Whether listeners on these hosts collide on one port."""
    anywhere = {"", "0.0.0.0", "::"}
    local = {"localhost", "127.0.0.1"}
    return one == other or bool({one, other} & anywhere) or {one, other} <= local


# --- words -------------------------------------------------------------------------------------------------------


def _adapter_path(node: NodeConfig, adapter: AdapterConfig, key: str) -> ConfigPath:
    return ("nodes", node.id, "adapters", adapter.name, key)


def _q(name: str) -> str:
    return quoted([name])


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    rest = len(shown) - _NAMES_SHOWN
    return quoted(shown[:_NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _choice(wrong: str, names: Iterable[str], lead: str, none: str) -> str:
    """The name that was likely meant, else those that there are. A masked name is compared as its mask: no oracle."""
    known = list(names)
    if not known:
        return none
    if len(known) <= _NAMES_COMPARED and not is_sensitive(wrong):
        near = difflib.get_close_matches(str(wrong), [str(name) for name in known], 1, 0.6)
        if near:
            return f"did you mean {_q(near[0])}?"
    return f"{lead} {_listed(known)}"


def _count(value: int, *sources: int | None) -> str:
    """A computed number, masked where one of its sources is (C2)."""
    return REDACTED if any(map(is_sensitive, sources)) else str(value)


_RULES: tuple[Callable[[_View], Iterator[Finding]], ...] = (
    _c3_a2a_model,
    _c4_providers,
    _c5_unique,
    _c7_adapter,
    _c10_lives_on,
    _c12_long_slots,
    _c12_groups,
    _c13_generation,
    _c14_hashes,
    _c16_routes,
    _c25_plaintext,
    _c25_addresses,
    _r12_admin,
)

__all__ = ["check", "resolve_adapters"]
