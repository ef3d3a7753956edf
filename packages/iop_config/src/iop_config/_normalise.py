"""Older and shorter forms made into named adapter instances, so that nothing later knows them (C9, C10, C24)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from iop_config._model import ALIASES, OPENAI_KINDS, TYPES, AdapterConfig, ProviderConfig
from iop_config._nodes import BROKEN, LIST, MAP, SCALAR, Node, Report, identity_of
from iop_config._problems import ConfigPath
from iop_config._values import Secret, plain

LEGACY, PROVIDER_FIRST = "legacy", "provider"

_FIRST = tuple(name for name, info in AdapterConfig.__fields__.items() if info.provider_first)
_ONLY_FIRST = tuple(name for name in _FIRST if name not in ProviderConfig.__fields__)
_OLD_NAMES = {old: name for name, info in AdapterConfig.__fields__.items() for old in info.aliases}
_NO_PATH = re.compile(r"(https?://[^/?#]+)/?(\?[^#]*)?", re.IGNORECASE)


def rename(root: Node) -> None:
    """Bring one file's `nodes` to the keys of today, before overlays meet: a name is a name in each of them.

    The mapping form of `adapters` becomes a list of named instances (C10), `endpoint` becomes `base_url` (C24).
    """
    for _, node in _members(root, "nodes"):
        adapters = node.entries.get("adapters")
        if adapters is not None and adapters.kind == MAP:
            made = [_named(key, entry) for key, entry in adapters.entries.items()]
            node.value = {**node.entries, "adapters": adapters.at(LIST, made)}
        for collection in ("adapters", "providers"):
            for _, member in _members(node, collection):
                _rename_keys(member)


def _named(key: str, entry: Node) -> Node:
    """Return one entry of the mapping form as a named instance: named after its type."""
    if entry.kind != MAP:
        entry.spelling = key
        return entry
    name = Node(SCALAR, key, entry.file, entry.key_line, entry.key_column)
    made = entry.at(MAP, {"name": name, "type": name.at(SCALAR, key), **entry.entries})
    made.spelling = LEGACY
    return made


def _rename_keys(member: Node) -> None:
    for old, name in _OLD_NAMES.items():
        if old in member.entries and name not in member.entries:
            member.value = {name if key == old else key: child for key, child in member.entries.items()}
            renamed = member.entries[name]
            member.entries[name] = renamed.at(renamed.kind, renamed.value)
            member.entries[name].spelling = old


def normalise(root: Node, report: Report) -> None:
    """Make every provider name an adapter instance of its Node; types are runtime kinds from here on."""
    for path, node in _members(root, "nodes"):
        adapters = node.entries.get("adapters")
        providers = node.entries.get("providers")
        named = list(adapters.items) if adapters is not None and adapters.kind == LIST else []
        named = [_adapter(member, (*path, "adapters", _step(member, n)), report) for n, member in enumerate(named)]
        if providers is None or providers.kind != LIST:
            if adapters is not None and adapters.kind == LIST:
                node.value = {**node.entries, "adapters": adapters.at(LIST, named)}
            continue
        made: list[Node] = []
        first: list[Node] = []
        for number, member in enumerate(providers.items):
            if member.kind != MAP:
                made.append(member)
                continue
            provider, adapter = _provider(member, (*path, "providers", _step(member, number)), named, report)
            made.append(provider)
            if adapter is not None:
                first.append(adapter)
        entries = {**node.entries, "providers": providers.at(LIST, made)}
        if adapters is None and first:
            entries["adapters"] = providers.at(LIST, first)
        elif adapters is not None and adapters.kind == LIST:
            entries["adapters"] = adapters.at(LIST, named + first)
        node.value = entries


def _provider(member: Node, path: ConfigPath, named: list[Node], report: Report) -> tuple[Node, Node | None]:
    """Return a provider that names its adapter, and the instance made from its own fields, if it had none (C10)."""
    entries = _one_name_each(member, path, report)
    kind, label = _runtime_kind(entries.get("type"))
    if kind is not None:
        entries["type"] = kind
    reference = entries.get("adapter")
    if reference is not None:
        for key in _ONLY_FIRST:
            if key in entries:
                report.add(
                    "C24.adapter-field",
                    (*path, entries[key].spelling or key),
                    "a provider that names an adapter takes this from it",
                    "move it to the adapter",
                    node=entries.pop(key),
                    key=True,
                )
        _by_type(entries, reference, named)
        if label is not None:
            _keep_label(entries, label, named)
        return member.at(MAP, entries), None
    identity = entries.get("id")
    usable = identity is not None and identity.kind == SCALAR
    name = identity.at(SCALAR, identity.value) if identity is not None and usable else member.at(BROKEN, "")
    name.plain = False  # what is wrong with the id is said at the id
    made = {"name": name, "type": entries.get("type") or member.at(BROKEN, "")}
    if label is not None and "provider" not in entries:
        made["provider"] = label
    for key in _FIRST:
        if key in entries:
            made[key] = entries.pop(key)
    entries["adapter"] = name.at(name.kind, name.value)
    adapter = member.at(MAP, made)
    adapter.spelling = PROVIDER_FIRST
    _versioned(adapter)
    return member.at(MAP, entries), adapter


def _adapter(member: Node, path: ConfigPath, report: Report) -> Node:
    """Return a named instance whose type is a runtime kind (C9) and whose address has its path (C24)."""
    if member.kind != MAP:
        return member
    entries = _one_name_each(member, path, report)
    kind, label = _runtime_kind(entries.get("type"))
    if kind is not None:
        entries["type"] = kind
    if label is not None:
        entries.setdefault("provider", label)
    made = member.at(MAP, entries)
    _versioned(made)
    return made


def _one_name_each(member: Node, path: ConfigPath, report: Report) -> dict[str, Node]:
    """Return the entries, with a field that is written under both of its names once; different values are a problem."""
    entries = dict(member.entries)
    for old, name in _OLD_NAMES.items():
        if old not in entries or name not in entries:
            continue
        older, newer = entries.pop(old), entries[name]
        if older.kind == newer.kind == SCALAR and plain(older.text) != plain(newer.text):
            report.add(
                f"C24.{old}",
                (*path, old),
                f"`{old}` is the old name of `{name}`, and the two differ; the other one is at {newer.place}",
                f"keep `{name}` alone",
                node=older,
            )
    return entries


def _runtime_kind(node: Node | None) -> tuple[Node | None, Node | None]:
    """Return the runtime kind of an alias type, and the alias as a label; nothing for any other type (C9)."""
    if node is None or node.kind != SCALAR or plain(node.text) not in ALIASES:
        return None, None
    return node.at(SCALAR, "openai_compat"), node.at(SCALAR, node.value)


def _versioned(adapter: Node) -> None:
    """Give an OpenAI surface without a path its `/v1` (C24)."""
    base_url, kind = adapter.entries.get("base_url"), adapter.entries.get("type")
    if base_url is None or base_url.kind != SCALAR or kind is None or kind.kind != SCALAR:
        return
    found = _NO_PATH.fullmatch(plain(base_url.text))
    if found is None or plain(kind.text) not in OPENAI_KINDS:
        return
    whole = f"{found[1]}/v1{found[2] or ''}"
    value = Secret(whole) if isinstance(base_url.value, Secret) else whole
    adapter.entries["base_url"] = base_url.at(SCALAR, value)


def _by_type(entries: dict[str, Node], reference: Node, named: list[Node]) -> None:
    """Turn a legacy reference, a type's name, into the name of the one enabled instance of that type (C7)."""
    if reference.kind != SCALAR:
        return
    wanted = plain(reference.text)
    if wanted not in TYPES or any(plain(identity_of(member) or "") == wanted for member in named):
        return
    kind = "openai_compat" if wanted in ALIASES else wanted
    of_kind = [
        member for member in named if _text(member, "type") == kind and _text(member, "enabled").lower() != "false"
    ]
    if wanted in ALIASES:  # the instances that carry the alias themselves come first
        of_kind = [member for member in of_kind if _text(member, "provider") == wanted] or of_kind
    if len(of_kind) == 1 and (name := identity_of(of_kind[0])) is not None:
        entries["adapter"] = reference.at(SCALAR, name)


def _keep_label(entries: dict[str, Node], label: Node, named: list[Node]) -> None:
    """Give the instance that a provider of an alias type names the alias as its label, where it has none (C9)."""
    wanted = plain(entries["adapter"].text) if entries["adapter"].kind == SCALAR else ""
    for member in named:
        if plain(identity_of(member) or "") != wanted or _text(member, "type") != "openai_compat":
            continue
        kept = member.entries.get("provider")
        # Of two aliases that meet in one instance the lesser is kept, whatever the order of the providers (R10).
        if kept is None or (kept.spelling == "alias" and plain(kept.text) > plain(label.text)):
            label.spelling = "alias"
            member.entries["provider"] = label


def _text(member: Node, key: str) -> str:
    node = member.entries.get(key) if member.kind == MAP else None
    return plain(node.text) if node is not None and node.kind == SCALAR else ""


def _members(parent: Node, key: str) -> Iterator[tuple[ConfigPath, Node]]:
    """Yield the mappings in a list, each with its path below `parent`."""
    collection = parent.entries.get(key) if parent.kind == MAP else None
    if collection is None or collection.kind != LIST:
        return
    for number, member in enumerate(collection.items):
        if member.kind == MAP:
            yield (key, _step(member, number)), member


def _step(member: Node, number: int) -> str | int:
    return identity_of(member) or number
