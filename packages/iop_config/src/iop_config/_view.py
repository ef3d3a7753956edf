"""What the rules see: the config with its indexes, and the words that their messages share (C19)."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Collection, Sequence
from functools import cached_property

import attrs

from iop_config._model import ALIASES, AdapterConfig, EdgeConfig, NodeConfig, ProviderConfig
from iop_config._problems import ConfigPath, quoted
from iop_config._values import REDACTED, is_sensitive

At = Callable[[ConfigPath], str]  # words the place of a path as file:line:column

_NAMES_SHOWN = 8  # a message lists at most so many names
_NAMES_COMPARED = 200  # and looks for a likely one among so many: comparing costs some 20 µs a name


@attrs.frozen
class Place:
    """A provider where it stands."""

    node: NodeConfig
    provider: ProviderConfig

    @property
    def path(self) -> ConfigPath:
        return ("nodes", self.node.id, "providers", self.provider.id)


@attrs.define(slots=False)
class Instances:
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
        """The enabled instances that a legacy type name could mean; an alias of C9 is kept as the provider label."""
        found: dict[str, list[AdapterConfig]] = {}
        for _, adapter in self.members:
            if adapter.enabled and adapter.origin != "provider":
                found.setdefault(adapter.type, []).append(adapter)
                if adapter.type == "openai_compat" and adapter.provider in ALIASES:
                    found.setdefault(adapter.provider, []).append(adapter)
        return found

    @cached_property
    def switches(self) -> tuple[ConfigPath, ...]:
        """What a verdict on a name relies on: every name, type and `enabled`."""
        return tuple(
            adapter_path(node, adapter, key) for node, adapter in self.members for key in ("name", "type", "enabled")
        )


@attrs.define(slots=False)
class View:
    """A config with the indexes that the rules share; each is built once, when a rule first asks."""

    config: EdgeConfig
    at: At

    @cached_property
    def places(self) -> list[Place]:
        return [Place(node, provider) for node in self.config.nodes for provider in node.providers]

    @cached_property
    def by_id(self) -> dict[str, Place]:
        """The first provider of each id, in file order."""
        found: dict[str, Place] = {}
        for place in self.places:
            found.setdefault(place.provider.id, place)
        return found

    @cached_property
    def instances(self) -> dict[str, Instances]:
        """Node id to its adapter instances."""
        return {node.id: Instances([(node, adapter) for adapter in node.adapters]) for node in self.config.nodes}

    @cached_property
    def all_instances(self) -> Instances:
        return Instances([(node, adapter) for node in self.config.nodes for adapter in node.adapters])

    def adapter_of(self, place: Place) -> AdapterConfig | None:
        """The instance that a provider names, enabled or not."""
        name = place.provider.adapter
        found = self.instances[place.node.id].by_name.get(name) if name is not None else None
        return found[0][1] if found else None

    @cached_property
    def all_node_ids(self) -> tuple[ConfigPath, ...]:
        return tuple(("nodes", node.id, "id") for node in self.config.nodes)

    @cached_property
    def all_provider_ids(self) -> tuple[ConfigPath, ...]:
        return tuple((*place.path, "id") for place in self.places)


def adapter_path(node: NodeConfig, adapter: AdapterConfig, key: str) -> ConfigPath:
    """Return the path of an adapter instance's field."""
    return ("nodes", node.id, "adapters", adapter.name, key)


def named(name: str) -> str:
    """Return a name as messages have it: in double quotes, or masked where it was injected."""
    return quoted([name])


def listed(names: Collection[str]) -> str:
    """Return the first few names, and how many more there are."""
    rest = len(names) - _NAMES_SHOWN
    return quoted(itertools.islice(names, _NAMES_SHOWN)) + (f" and {rest} more" if rest > 0 else "")


def choice(wrong: str, names: Collection[str], lead: str, none: str) -> str:
    """Return which name was likely meant, and those that there are. Masked names are compared as masks: no oracle."""
    if not names:
        return none
    if len(names) <= _NAMES_COMPARED and not is_sensitive(wrong):
        near = difflib.get_close_matches(str(wrong), [str(name) for name in names], 1, 0.6)
        if near:
            meant = f"did you mean {named(near[0])}?"
            return f"{meant} {lead} {listed(names)}" if len(names) > 1 else meant
    return f"{lead} {listed(names)}"


def shown_count(value: int, *sources: int | None) -> str:
    """A computed number, masked where one of its sources is (C2)."""
    return REDACTED if any(map(is_sensitive, sources)) else str(value)
