"""Where a config path stands, and how it is spelled there: the way back from the config to its files (C19)."""

from __future__ import annotations

from iop_config import _nodes
from iop_config._nodes import LIST, MAP, Node, identity_of, make_problem
from iop_config._normalise import PROVIDER_FIRST
from iop_config._problems import ConfigPath, Finding, Problem
from iop_config._values import plain


class Locator:
    """Finds config paths in the normalised nodes."""

    def __init__(self, root: Node) -> None:
        """Look below `root`."""
        self._root = root
        self._indexes: dict[int, dict[str, Node]] = {}

    def find(self, path: ConfigPath) -> tuple[Node, Node]:
        """Return the deepest node on a path: the one to point at, which is the alias it lies behind, and itself."""
        node = self._root
        site: Node | None = None
        for step in path:
            child = self._child(node, step)
            if child is None:
                break
            node = child
            if site is None and node.origin is not None and node.kind in (MAP, LIST):
                site = node
        return site or node, node

    def place(self, path: ConfigPath) -> str:
        """Return where a path stands, as file:line:column."""
        return self.find(path)[0].place

    def problem(self, finding: Finding) -> Problem:
        """Return a rule's finding at its place."""
        at, node = self.find(finding.path)
        made = make_problem(
            finding.code,
            (),
            finding.message,
            finding.suggestion,
            node=node,
            site=at if at is not node else None,
        )
        return Problem(
            code=made.code,
            path=self.spell(finding.path),
            message=made.message,
            suggestion=made.suggestion,
            file=made.file,
            line=made.line,
            column=made.column,
        )

    def spell(self, path: ConfigPath) -> str:
        """Spell a path as in the file: what was made from a provider's own fields stands under the provider."""
        if len(path) >= 4 and path[0] == "nodes" and path[2] == "adapters":
            adapter = self.find(path[:4])[1]
            if adapter.spelling == PROVIDER_FIRST:
                rest = ("id", *path[5:]) if path[4:5] == ("name",) else path[4:]
                path = (*path[:2], "providers", path[3], *rest)
        return _nodes.spell(path)

    def _child(self, node: Node, step: str | int) -> Node | None:
        if node.kind == MAP:
            return node.entries.get(step) if isinstance(step, str) else None
        if node.kind != LIST:
            return None
        if isinstance(step, int):
            return node.items[step] if step < len(node.items) else None
        index = self._indexes.get(id(node))
        if index is None:
            index = self._indexes[id(node)] = {}
            for member in node.items:
                name = identity_of(member)
                if name is not None:
                    index.setdefault(plain(name), member)
        return index.get(plain(step))
