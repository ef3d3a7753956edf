"""What a file says before it has a meaning: nodes with their places; the report that collects problems (C18, C19)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs

from iop_config._problems import ConfigPath, Problem
from iop_config._values import Secret

SCALAR: Final = 0
MAP: Final = 1
LIST: Final = 2
BROKEN: Final = 3  # a problem was reported here already: whatever reads it stays silent

IDENTITY_KEYS = ("id", "name", "token_ref", "model")


@attrs.frozen(eq=False)
class File:
    """A file that nodes point into."""

    name: str
    base_dir: Path  # relative `${file:…}` paths start here


class Node:
    """One YAML value at one place. Lines and columns count from 0; an alias is a node of its own at its use site."""

    __slots__ = (
        "column",
        "file",
        "key_column",
        "key_line",
        "kind",
        "line",
        "origin",
        "plain",
        "size",
        "spelling",
        "value",
    )

    def __init__(self, kind: int, value: object, file: File, line: int, column: int, plain: bool = False) -> None:
        """Make a node; `value` is a text, a dict or a list of nodes."""
        self.kind = kind
        self.value = value
        self.file = file
        self.line = line
        self.column = column
        self.plain = plain  # a scalar without quotes
        self.key_line = line  # where the key that leads here stands
        self.key_column = column
        self.origin: Node | None = None  # for an alias: what it stands for
        self.size = 1  # nodes in here, aliases expanded
        self.spelling = ""  # as the file says it: an older key's name; an adapter's form; "<<" for a merge key

    @property
    def text(self) -> str:
        """The text of a scalar; a `Secret` once something was injected."""
        assert isinstance(self.value, str)
        return self.value

    @property
    def entries(self) -> dict[str, Node]:
        """The children of a mapping by key."""
        assert isinstance(self.value, dict)
        return self.value

    @property
    def items(self) -> list[Node]:
        """The members of a list."""
        assert isinstance(self.value, list)
        return self.value

    def at(self, kind: int, value: object) -> Node:
        """Return another node at the same place."""
        made = Node(kind, value, self.file, self.line, self.column, self.plain)
        made.key_line, made.key_column, made.origin, made.spelling = (
            self.key_line,
            self.key_column,
            self.origin,
            self.spelling,
        )
        return made

    @property
    def place(self) -> str:
        """The place in words: file:line:column."""
        return f"{self.file.name}:{self.line + 1}:{self.column + 1}"

    @property
    def key_place(self) -> str:
        """The place of the key that leads here, in words."""
        return f"{self.file.name}:{self.key_line + 1}:{self.key_column + 1}"


class Report:
    """Every problem so far, and the paths whose values cannot be relied on."""

    def __init__(self) -> None:
        """Start with nothing wrong."""
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.broken: set[ConfigPath] = set()

    def add(
        self,
        code: str,
        path: ConfigPath,
        message: str,
        suggestion: str = "",
        *,
        node: Node | None = None,
        site: Node | None = None,
        key: bool = False,
    ) -> None:
        """Report a problem at a node, or at its key; `site` is the alias through which the node was reached."""
        self.problems.append(make_problem(code, path, message, suggestion, node=node, site=site, key=key))


def make_problem(
    code: str,
    path: ConfigPath,
    message: str,
    suggestion: str = "",
    *,
    node: Node | None = None,
    site: Node | None = None,
    key: bool = False,
) -> Problem:
    """Return a problem at a node; behind an alias it points at the use site and names the definition."""
    text = spell(path)
    if node is None:
        return Problem(code=code, path=text, message=message, suggestion=suggestion)
    if site is not None:
        message += f" (written at {node.key_place if key else node.place})"
        node, key = site, False
    elif node.origin is not None and not key:
        message += f" (written at {node.origin.place})"
    return Problem(
        code=code,
        path=text,
        message=message,
        suggestion=suggestion,
        file=node.file.name,
        line=(node.key_line if key else node.line) + 1,
        column=(node.key_column if key else node.column) + 1,
    )


_IN_BRACKETS = ("nodes", "providers", "adapters", "models", "model_routes", "principal_tokens", "headers", "env")


def spell(path: ConfigPath) -> str:
    """Spell a path for people, members and map keys in brackets: `nodes[gpu-1].providers[vllm-a].adapter`."""
    text = ""
    member = False
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            member = False
        elif member:
            text += f"[{escape(part)}]"
            member = False
        else:
            text += f".{part}" if text else str(part)
            member = part in _IN_BRACKETS
    return text


def escape(name: str) -> str:
    """Return an identity as it stands in brackets: quoted where it could be misread (refresh.md §4)."""
    shown = name.shown if isinstance(name, Secret) else name
    if shown and not any(char in shown for char in "[].\"'\\ ") and shown.isprintable():
        return shown
    quoted = shown.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in quoted) + '"'


def identity_of(node: Node) -> str | None:
    """Return what a member of a list is called, or None where it cannot be told."""
    if node.kind != MAP:
        return None
    for key in IDENTITY_KEYS:
        named = node.entries.get(key)
        if named is not None and named.kind == SCALAR and named.text:
            return named.text
    return None


def name_members(root: Node, path: ConfigPath) -> ConfigPath:
    """Return a path of keys and indexes with each member of a list by its identity, where it has one."""
    made: list[str | int] = []
    node: Node | None = root
    for part in path:
        step: str | int = part
        child: Node | None = None
        if node is not None and isinstance(part, int) and node.kind == LIST and part < len(node.items):
            child = node.items[part]
            step = identity_of(child) or part
        elif node is not None and isinstance(part, str) and node.kind == MAP:
            child = node.entries.get(part)
        made.append(step)
        node = child
    return tuple(made)
