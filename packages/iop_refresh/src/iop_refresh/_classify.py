"""Which object a change belongs to, and which objects wait for a restart (R3, R5); the field alone says live or not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

from iop_config import ConfigObject, ConfigPath, EdgeConfig, Policy, evolve, field_info
from iop_refresh._diff import Difference, by_identity

T = TypeVar("T", bound=ConfigObject)


class Owners:
    """Maps a path to the object that is applied as a whole or not at all (R5).

    That is the innermost member of a list with identities; elsewhere, the field of the root. An adapter instance that
    was made from a provider's own fields is that provider: a capacity for a new endpoint must not reach the old one.
    """

    def __init__(self, *configs: EdgeConfig) -> None:
        """Look at both sides of a comparison: made from a provider on one side is enough."""
        self._made: set[tuple[str, str]] = set()
        for config in configs:
            for node in config.nodes:
                own = {provider.id for provider in node.providers}
                self._made |= {(node.id, a.name) for a in node.adapters if a.origin == "provider" and a.name in own}

    def provider_of(self, path: ConfigPath) -> ConfigPath | None:
        """The provider whose own fields an adapter's path stands for; None for a named instance."""
        match path:
            case ("nodes", str(node), "adapters", str(name), *_) if (node, name) in self._made:
                return ("nodes", node, "providers", name)
        return None

    def of(self, path: ConfigPath) -> ConfigPath:
        """Return the path of the object that owns this one."""
        provider = self.provider_of(path)
        if provider is not None:
            return provider
        owner, at = path[:1], 0
        cls: type[ConfigObject] = EdgeConfig
        while at < len(path):
            info = field_info(cls).get(str(path[at]))
            if info is None or info.item is None:
                break
            at += 2 if info.key is not None else 1
            if info.key is not None and at <= len(path):
                owner = path[:at]
            cls = info.item
        return owner


def held_objects(found: Iterable[Difference], owners: Owners) -> dict[ConfigPath, set[ConfigPath]]:
    """Return the objects that wait for a restart, each with the paths that wait with it (a moved one: both)."""
    held: dict[ConfigPath, set[ConfigPath]] = {}
    for difference in found:
        if not difference.live:
            owner = owners.of(difference.path)
            held.setdefault(owner, {owner})
            if difference.origin:
                held[owner].add(difference.origin)
    return held


def apply_but(old: EdgeConfig, new: EdgeConfig, held: Collection[ConfigPath], owners: Owners) -> EdgeConfig:
    """Return `new` with each object in `held` as it is in `old`."""
    return _apply(old, new, (), held, owners)


def _apply(old: T, new: T, path: ConfigPath, held: Collection[ConfigPath], owners: Owners) -> T:
    changed: dict[str, object] = {}
    for info in field_info(type(new)).values():
        before, after = getattr(old, info.name), getattr(new, info.name)
        if before is after or info.policy is Policy.IDENTITY:
            continue
        here = (*path, info.name)
        if info.key is not None:
            olds, news = by_identity(before, info), by_identity(after, info)
            changed[info.name] = tuple(_members(olds, news, here, held, owners))
        elif isinstance(before, ConfigObject) and isinstance(after, ConfigObject):
            changed[info.name] = _apply(before, after, here, held, owners)
        elif owners.of(here) not in held:
            changed[info.name] = after
    return evolve(old, **changed) if changed else old


def _members(
    olds: dict[str, ConfigObject],
    news: dict[str, ConfigObject],
    path: ConfigPath,
    held: Collection[ConfigPath],
    owners: Owners,
) -> Sequence[ConfigObject]:
    """The new order; what may not leave yet stays at the end."""
    members = []
    for name, member in news.items():
        earlier = olds.get(name)
        if earlier is not None:
            members.append(_apply(earlier, member, (*path, name), held, owners))
        elif owners.of((*path, name)) not in held:
            members.append(member)
    members += [m for name, m in olds.items() if name not in news and owners.of((*path, name)) in held]
    return members
