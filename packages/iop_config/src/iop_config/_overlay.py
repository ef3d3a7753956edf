"""Overlays merged by identity, and ${…} injected as sensitive values (C2)."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from iop_config._fields import ConfigObject, FieldInfo, Shape
from iop_config._nodes import BROKEN, LIST, MAP, SCALAR, Node, Report, name_members
from iop_config._problems import ConfigPath
from iop_config._values import Secret, plain

FILE_MAX = 64 * 2**10  # bytes of a `${file:…}`

_FORM = re.compile(r"\$\$|\$\{([^{}]*)\}|\$\{")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:(:[-?])(.*))?", re.DOTALL)


def merge(base: Node, over: Node, cls: type[ConfigObject]) -> Node:
    """Return `base` with what `over` says: mappings key by key, collections by identity, all else replaced (C2).

    Neither is changed, and each value keeps its own place, so that a problem in an overlay points at the overlay.
    """
    if base.kind != MAP or over.kind != MAP:
        return over
    entries = dict(base.entries)
    for key, child in over.entries.items():
        info = cls.__fields__.get(key)
        below = entries.get(key)
        entries[key] = child if below is None or info is None else _merge_field(below, child, info)
    return _replaced(base, entries)


def _merge_field(base: Node, over: Node, info: FieldInfo) -> Node:
    if info.shape is Shape.SECTION and info.item is not None:
        return merge(base, over, info.item)
    if info.shape is Shape.MAP and base.kind == over.kind == MAP:
        return _replaced(base, {**base.entries, **over.entries})
    if info.merge and info.key is not None and info.item is not None and base.kind == over.kind == LIST:
        return _merge_members(base, over, info.item, info.key)
    return over


def _merge_members(base: Node, over: Node, item: type[ConfigObject], key: str) -> Node:
    members = list(base.items)
    index: dict[str, int] = {}
    for number, member in enumerate(members):
        index.setdefault(_identity(member, key), number)
    merged: set[str] = set()
    for member in over.items:
        name = _identity(member, key)
        if name and name in index and name not in merged:
            members[index[name]] = merge(members[index[name]], member, item)
        else:  # new, or a second one of the same name in this overlay: the structure will say so
            members.append(member)
        merged.add(name)
    return _replaced(base, members)


def _identity(member: Node, key: str) -> str:
    named = member.entries.get(key) if member.kind == MAP else None
    return plain(named.text) if named is not None and named.kind == SCALAR else ""


def _replaced(node: Node, value: object) -> Node:
    made = Node(node.kind, value, node.file, node.line, node.column)
    made.key_line, made.key_column, made.spelling = node.key_line, node.key_column, node.spelling
    return made


class Injector:
    """Replaces the `${…}` of texts, once each; what came from outside becomes a `Secret`."""

    def __init__(self, env: Mapping[str, str], report: Report) -> None:
        """Take values from `env` and from files."""
        self._env = env
        self._report = report
        self._files: dict[Path, str] = {}

    def inject(self, root: Node) -> None:
        """Inject into every text below `root`, but for the extension keys `x-*` at the top."""
        if root.kind != MAP:
            return
        pending: list[tuple[Node, ConfigPath, Node | None]] = [
            (child, (key,), None) for key, child in reversed(root.entries.items()) if not key.startswith("x-")
        ]
        while pending:
            node, path, site = pending.pop()
            if node.kind == SCALAR:
                if type(node.value) is str and "$" in node.value:
                    self._scalar(node, lambda path=path: name_members(root, path), site)  # type: ignore[misc]
            elif node.kind == MAP:
                site = site or (node if node.origin is not None else None)
                pending.extend((child, (*path, key), site) for key, child in node.entries.items())
            elif node.kind == LIST:
                site = site or (node if node.origin is not None else None)
                pending.extend((child, (*path, number), site) for number, child in enumerate(node.items))

    def _scalar(self, node: Node, path: Callable[[], ConfigPath], site: Node | None) -> None:
        text = node.text
        parts: list[str] = []
        sensitive = False
        end = 0
        for found in _FORM.finditer(text):
            parts.append(text[end : found.start()])
            end = found.end()
            if found.group() == "$$":
                parts.append("$")
                continue
            value = self._value(found.group(1), node, path, site)
            if value is None:
                node.kind = BROKEN
                return
            parts.append(plain(value))
            sensitive = sensitive or isinstance(value, Secret)
        parts.append(text[end:])
        joined = "".join(parts)
        node.value = Secret(joined) if sensitive else joined

    def _value(self, form: str | None, node: Node, path: Callable[[], ConfigPath], site: Node | None) -> str | None:
        """Return what stands for a form, a `Secret` where it came from outside; None after a problem."""
        if form is not None and form.startswith("file:"):
            return self._file(form[5:], node, path, site)
        found = _NAME.fullmatch(form) if form is not None else None
        if found is None:
            self._report.add(
                "C2.form",
                path(),
                "this text has a `${` that begins none of ${NAME}, ${NAME:-default}, ${NAME:?message}, ${file:PATH}",
                "write $$ for a literal $; forms do not nest",
                node=node,
                site=site,
            )
            return None
        name, operator, rest = found.groups()
        value = self._env.get(name)
        if value is not None and (value or operator is None):
            return Secret(value)
        if operator == ":-":
            return str(rest)
        state = "not set" if value is None else "empty"
        message = f'the environment variable "{name}" is {state}'
        if operator == ":?" and rest.strip():
            message += f": {' '.join(rest.split())[:200]}"
        self._report.add("C2.unset", path(), message, f"set it, or write ${{{name}:-default}}", node=node, site=site)
        return None

    def _file(self, name: str, node: Node, path: Callable[[], ConfigPath], site: Node | None) -> str | None:
        place = node.file.base_dir / name
        if place not in self._files:
            try:
                text, open_to_all = _read_secret(place)
            except (OSError, ValueError) as error:
                reason = (error.strerror or "it cannot be read").lower() if isinstance(error, OSError) else str(error)
                self._report.add(
                    "C2.file",
                    path(),
                    f"the file that ${{file:…}} names cannot be used: {reason}",
                    "name a readable text file",
                    node=node,
                    site=site,
                )
                return None
            if open_to_all:
                self._warn(path(), node, site)
            self._files[place] = text
        return Secret(self._files[place])

    def _warn(self, path: ConfigPath, node: Node, site: Node | None) -> None:
        before = len(self._report.problems)
        self._report.add(
            "C2.world-readable",
            path,
            "the file that ${file:…} names can be read by every user of this machine",
            "chmod 600 it",
            node=node,
            site=site,
        )
        self._report.warnings.append(self._report.problems.pop(before))


def _read_secret(path: Path) -> tuple[str, bool]:
    """Return the text of a file without one newline at its end, and whether everyone may read it.

    Raises OSError, or ValueError with the reason in words.
    """
    # Non-blocking: a FIFO would otherwise hold the load until somebody writes into it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as stream:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise ValueError("it is not a regular file")
        data = stream.read(FILE_MAX + 1)
    if len(data) > FILE_MAX:
        raise ValueError(f"it has more than {FILE_MAX} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise ValueError("it is empty")
    return text, bool(state.st_mode & stat.S_IROTH)
