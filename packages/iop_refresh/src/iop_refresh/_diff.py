"""How two configs differ: by identity, never by position; read from the field metadata alone (R10)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve, field, frozen

from iop_config import ConfigObject, ConfigPath, EdgeConfig, FieldInfo, Policy, field_info, walk_fields
from iop_refresh._result import ChangeKind

PROVIDERS = "providers"
"""Of all collections only this one has identities that hold over the whole file (C5): its members can move."""


@frozen(eq=False)
class Difference:
    """One leaf that changed, or one object that came, went or moved; values are the real ones, for no eye."""

    path: ConfigPath
    """In the normalised form; of what was removed, its old place."""
    kind: ChangeKind
    live: bool
    """Whether the field, or for a whole object its collection, may change while serving (R2)."""
    info: FieldInfo = field(repr=False)
    """The leaf, or the collection."""
    before: object = field(default=None, repr=False)
    after: object = field(default=None, repr=False)
    origin: ConfigPath = ()
    """Where a moved object was."""


def differences(old: EdgeConfig, new: EdgeConfig) -> tuple[Difference, ...]:
    """Return every difference; order, spelling and spelled-out defaults make none. Costs one pass over both."""
    found = list(_between(old, new, ()))
    return tuple(_with_moves(found))


def _between(old: ConfigObject, new: ConfigObject, path: ConfigPath) -> Iterator[Difference]:
    for info in field_info(type(new)).values():
        if info.internal or info.policy is Policy.IDENTITY:
            continue
        before, after = getattr(old, info.name), getattr(new, info.name)
        if before is after:
            continue
        here = (*path, info.name)
        if info.key is not None:
            yield from _members(before, after, info, here)
        elif info.item is not None:
            yield from _section(before, after, info, here)
        elif before != after:
            yield Difference(here, ChangeKind.CHANGED, info.policy is Policy.LIVE, info, before, after)


def _members(
    before: Sequence[ConfigObject], after: Sequence[ConfigObject], info: FieldInfo, path: ConfigPath
) -> Iterator[Difference]:
    live = info.members_policy is Policy.LIVE
    olds, news = by_identity(before, info), by_identity(after, info)
    for name, member in olds.items():
        if name not in news:
            yield Difference((*path, name), ChangeKind.REMOVED, live, info, member, None)
    for name, member in news.items():
        earlier = olds.get(name)
        if earlier is None:
            yield Difference((*path, name), ChangeKind.ADDED, live, info, None, member)
        elif earlier is not member:
            yield from _between(earlier, member, (*path, name))


def _section(
    before: ConfigObject | None, after: ConfigObject | None, info: FieldInfo, path: ConfigPath
) -> Iterator[Difference]:
    if before is not None and after is not None:
        yield from _between(before, after, path)
    elif before is None and after is not None:
        yield Difference(path, ChangeKind.ADDED, _all_live(info), info, None, after)
    elif before is not None:
        yield Difference(path, ChangeKind.REMOVED, _all_live(info), info, before, None)


def by_identity(members: Sequence[ConfigObject], info: FieldInfo) -> dict[str, ConfigObject]:
    """Return the members of a collection by the field that names them."""
    assert info.key is not None, info.name
    return {getattr(member, info.key): member for member in members}


def _all_live(info: FieldInfo) -> bool:
    assert info.item is not None, info.name
    return all(leaf.policy in (Policy.LIVE, Policy.CONTAINER) for _, leaf in walk_fields(info.item))


def _with_moves(found: Sequence[Difference]) -> Iterator[Difference]:
    """Make one `moved` of each provider that left one Node and appeared in another."""
    came = {d.path[-1]: d for d in found if _is_provider(d, ChangeKind.ADDED)}
    left = {d.path[-1]: d for d in found if _is_provider(d, ChangeKind.REMOVED)}
    for difference in found:
        name = difference.path[-1]
        old, new = left.get(name), came.get(name)
        if old is None or new is None or difference not in (old, new):
            yield difference
        elif difference is new:
            yield evolve(new, kind=ChangeKind.MOVED, live=False, before=old.before, origin=old.path)
            if isinstance(old.before, ConfigObject) and isinstance(new.after, ConfigObject):
                yield from _between(old.before, new.after, new.path)


def _is_provider(difference: Difference, kind: ChangeKind) -> bool:
    return difference.kind is kind and difference.info.name == PROVIDERS
