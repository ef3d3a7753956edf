"""Rules of providers: the adapter they name, the model that names them, one id each (C4, C5, C7, C8, C10, C24)."""

from __future__ import annotations

from collections.abc import Iterator

from iop_config._model import ALIASES, HTTP_KINDS, AdapterConfig
from iop_config._problems import ConfigPath, Finding
from iop_config._view import Instances, Place, View, adapter_path, choice, listed, named


def c7_adapter(view: View) -> Iterator[Finding]:
    """A provider names an enabled adapter instance of its Node, of its own type (C7, C8, C24)."""
    for place in view.places:
        provider = place.provider
        if not provider.enabled or provider.adapter is None:  # C8: the reference of a disabled one is not checked
            continue
        adapter = view.adapter_of(place)
        if adapter is None:
            yield _no_adapter(place, provider.adapter, view.instances[place.node.id])
        elif not adapter.enabled:
            switch = adapter_path(place.node, adapter, "enabled")
            yield Finding(
                code="C7.adapter-disabled",
                path=(*place.path, "adapter"),
                message=f"the adapter instance {named(adapter.name)} is disabled at {view.at(switch)}",
                suggestion="enable it, name another one, or disable the provider",
                needs=((*place.path, "enabled"), switch),
            )
        else:
            yield from _fits(place, adapter, view)


def _no_adapter(place: Place, name: str, instances: Instances) -> Finding:
    path = (*place.path, "adapter")
    needs = ((*place.path, "enabled"),)
    several = instances.by_type.get(name) or instances.by_type.get("openai_compat" if name in ALIASES else name, [])
    if len(several) > 1:
        return Finding(
            code="C7.ambiguous-adapter",
            path=path,
            message=f"the type name {named(name)} fits {len(several)} enabled adapter instances",
            suggestion="name one of " + listed([adapter.name for adapter in several]),
            needs=needs,
            needs_all=instances.switches,
        )
    return Finding(
        code="C7.unknown-adapter",
        path=path,
        message=f"no enabled adapter instance {named(name)}",
        suggestion=choice(name, instances.enabled_names, "this node has", "this node has none"),
        needs=needs,
        needs_all=instances.switches,
    )


def _fits(place: Place, adapter: AdapterConfig, view: View) -> Iterator[Finding]:
    provider = place.provider
    if adapter.origin == "provider":  # made from this provider's own type
        needs: tuple[ConfigPath, ...] = ((*place.path, "type"),)
        where = ""
    else:
        needs = (adapter_path(place.node, adapter, "type"), (*place.path, "adapter"))
        where = f" at {view.at(adapter_path(place.node, adapter, 'type'))}"
    if provider.category == "cli" and adapter.type != "cli":
        yield Finding(
            code="C7.cli-needs-cli-adapter",
            path=(*place.path, "category"),
            message=f"the category cli needs an adapter of the type cli; {named(adapter.name)} has the type "
            f"{adapter.type}{where}",
            suggestion="name a cli adapter, or use the category api or local_inference",
            needs=needs,
        )
    elif provider.type != adapter.type:
        yield Finding(
            code="C24.type-mismatch",
            path=(*place.path, "type"),
            message=f"the type {provider.type} is not the type of the adapter {named(adapter.name)}, which is "
            f"{adapter.type}{where}",
            suggestion=f"write {adapter.type}, or name another adapter",
            needs=needs,
        )


def c10_lives_on(view: View) -> Iterator[Finding]:
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
                path=adapter_path(node, adapter, key),
                message=f"the type {adapter.type} needs a {key}",
                suggestion=fix,
                needs=(adapter_path(node, adapter, "type"), adapter_path(node, adapter, "enabled")),
            )


def c4_providers(view: View) -> Iterator[Finding]:
    """A model's providers exist, and serve the name that it gives (C4)."""
    for model in view.config.models:
        for provider_id, served in model.providers.items():
            path: ConfigPath = ("models", model.id, "providers", provider_id)
            place = view.by_id.get(provider_id)
            if place is None:
                yield Finding(
                    code="C4.unknown-provider",
                    path=path,
                    message=f"no provider {named(provider_id)} on any node",
                    suggestion=choice(provider_id, view.by_id, "the providers are", "the config has no provider"),
                    needs_all=view.all_provider_ids,
                )
            elif served not in place.provider.models:
                where = (*place.path, "models")
                yield Finding(
                    code="C4.unserved-model",
                    path=path,
                    message=f"the provider {named(provider_id)} does not list the served name {named(served)} in its "
                    f"models at {view.at(where)}",
                    suggestion=choice(served, place.provider.models, "it lists", "it lists none"),
                    needs=(where,),
                )


def c5_unique(view: View) -> Iterator[Finding]:
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
            message=f"the provider id {named(place.provider.id)} is used on the node {named(first.node.id)} too, at "
            + view.at((*first.path, "id")),
            suggestion="give each provider of the config an id of its own",
            needs=((*first.path, "id"), ("nodes", first.node.id, "id"), ("nodes", place.node.id, "id")),
        )
