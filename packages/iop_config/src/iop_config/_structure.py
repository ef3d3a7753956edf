"""Nodes to config classes, strictly by each field's shape; no problem hides another (C11, C18, C19)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from iop_config import _formats
from iop_config._fields import ConfigObject, FieldInfo, Format, Shape
from iop_config._model import AdapterConfig, EdgeConfig
from iop_config._nodes import BROKEN, LIST, MAP, SCALAR, Node, Report
from iop_config._normalise import PROVIDER_FIRST
from iop_config._problems import ConfigPath
from iop_config._scalars import Wrong, boolean, integer, kind_of, text
from iop_config._values import FrozenMap, Secret, plain
from iop_config._words import (
    bound_code,
    choice_problem,
    duplicate_code,
    format_code,
    missing_problem,
    unknown_key_problem,
)

T = TypeVar("T", bound=ConfigObject)

_LIKE_A_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
UNNAMED = "?"  # the identity of a member that has none; every path through it is broken
_KIND_NAMES = {SCALAR: "a single value", MAP: "a mapping", LIST: "a list"}


class Structurer:
    """One walk over the normalised nodes.

    A bad or missing value is replaced by a harmless one and its path goes into `report.broken`, so that the rules can
    run over a whole config and stay silent where they would only repeat.
    """

    def __init__(self, report: Report) -> None:
        """Report to `report`."""
        self._report = report
        self._site: Node | None = None  # the alias that the walk is inside of
        self._shown: tuple[ConfigPath, ConfigPath] | None = None  # a provider-first adapter, and its provider (C19)
        self._plans: dict[type[ConfigObject], dict[str, tuple[FieldInfo, _Convert]]] = {}
        self._by_shape: dict[Shape, _Convert] = {
            Shape.TEXT: self._text,
            Shape.INTEGER: self._integer,
            Shape.BOOLEAN: self._boolean,
            Shape.TEXTS: self._texts,
            Shape.MAP: self._map,
            Shape.SECTION: self._section,
            Shape.MEMBERS: self._members,
        }

    def root(self, node: Node) -> EdgeConfig:
        """Return the whole config."""
        if node.kind == SCALAR and node.plain and not node.text:
            self._problem("C18.top-level", node, (), "the file is empty", "it holds a mapping with at least `edge`")
            self._report.broken.add(())
            return _placeholder(EdgeConfig)
        if node.kind != MAP:
            what = _KIND_NAMES.get(node.kind, "something else")
            self._problem("C18.top-level", node, (), f"{what} stands at the top of the file", "a mapping is asked")
            self._report.broken.add(())
            return _placeholder(EdgeConfig)
        for key in [key for key in node.entries if key.startswith("x-")]:
            del node.entries[key]  # a place to define anchors, nothing more
        return self._object(EdgeConfig, node, ())

    # -- objects ---------------------------------------------------------------------------------------------------

    def _object(self, cls: type[T], node: Node, path: ConfigPath) -> T:
        """Return an object of a class; `node` is a mapping."""
        plan = self._plans.get(cls)
        if plan is None:
            plan = self._plans[cls] = {
                name: (info, self._by_shape[info.shape]) for name, info in cls.__fields__.items() if not info.internal
            }
        outer = self._site
        if outer is None and node.origin is not None:
            self._site = node
        values: dict[str, object] = {}
        for key, child in node.entries.items():
            known = plan.get(key)
            if known is None:
                self._unknown(cls, node, key, child, path)
                continue
            info, convert = known
            value = convert(info, child, path)
            if value is not None:
                values[key] = value
        if len(values) < len(plan):
            for name, (info, _) in plan.items():
                if info.required and name not in values:
                    if name not in node.entries and (*path, name) not in self._report.broken:
                        self._missing(cls, info, node, path)
                    values[name] = _harmless(info)
        if cls is AdapterConfig and node.spelling:
            values["origin"] = node.spelling
        self._site = outer
        return cls(**values)

    def _unknown(self, cls: type[ConfigObject], node: Node, key: str, child: Node, path: ConfigPath) -> None:
        if (*path, key) in self._report.broken:
            return  # said already: it is no text, or stands twice
        code, message, suggestion, meant = unknown_key_problem(cls, _chain(path), key)
        if meant:
            self._report.broken.add((*path, meant))
        shown = key if _LIKE_A_KEY.fullmatch(key) else "?"
        self._problem(code, child, (*path, shown), message, suggestion, key=True)

    def _missing(self, cls: type[ConfigObject], info: FieldInfo, node: Node, path: ConfigPath) -> None:
        below = (*path, info.name)
        self._report.broken.add(below)
        code, message, suggestion = missing_problem(cls, info)
        self._problem(code, node, below, message, suggestion)

    def _section(self, info: FieldInfo, node: Node, path: ConfigPath) -> object:
        below = (*path, info.name)
        assert info.item is not None
        if node.kind != MAP:
            return self._wrong_kind(info, node, below, "a mapping")
        return self._object(info.item, node, below)

    def _members(self, info: FieldInfo, node: Node, path: ConfigPath) -> object:
        below = (*path, info.name)
        assert info.item is not None
        assert info.key is not None
        if node.kind != LIST:
            self._wrong_kind(info, node, below, "a list of mappings")
            return (_stand_in(info.item),)
        outer = self._site
        if outer is None and node.origin is not None:
            self._site = node
        made: list[ConfigObject] = []
        first: dict[str, Node] = {}
        for number, member in enumerate(node.items):
            if member.kind != MAP:
                self._wrong_kind(info, member, (*below, member.spelling or number), "a mapping")
                self._report.broken.add((*below, UNNAMED))
                made.append(_stand_in(info.item))
                continue
            named = member.entries.get(info.key)
            identity = _identity(named)
            if not identity:
                self._report.broken.add((*below, UNNAMED))
            made.append(self._member(info.item, member, (*below, identity or number)))
            if named is None or not identity:
                continue
            if identity not in first:
                first[identity] = named
            else:  # which of the two is meant cannot be told: the rules judge neither
                self._report.broken.add((*below, identity))
                self._duplicate(info, member, named, first[identity], (*below, identity))
        self._site = outer
        return tuple(made)

    def _member(self, cls: type[T], node: Node, path: ConfigPath) -> T:
        if node.spelling != PROVIDER_FIRST:
            return self._object(cls, node, path)
        self._shown = path, (*path[:-2], "providers", path[-1])
        made = self._object(cls, node, path)
        self._shown = None
        return made

    def _duplicate(self, info: FieldInfo, member: Node, node: Node, first: Node, path: ConfigPath) -> None:
        assert info.key is not None
        code = duplicate_code(info)
        if member.spelling == PROVIDER_FIRST:
            self._problem(
                code,
                node,
                (*path[:-2], "providers", path[-1], "id"),
                f"the adapter instance made for this provider takes its id, the name of another one at {first.place}",
                "rename one of the two, or name an instance in `adapter`",
            )
        else:
            self._problem(
                code,
                node,
                (*path, info.key),
                f"this {info.key} was given before, at {first.place}",
                "give it another one, or remove it",
            )

    # -- values ----------------------------------------------------------------------------------------------------

    def _text(self, info: FieldInfo, node: Node, path: ConfigPath) -> object:
        if node.kind != SCALAR:
            return self._wrong_kind(info, node, (*path, info.name), "a text")
        value: object = node.value
        wrong = text(node)
        if wrong is not None:
            return self._bad("C18.type", info, node, path, wrong)
        if info.choices:
            if value not in info.choices:
                return self._bad_choice(info, node, path)
            return str(plain(node.text)) if type(value) is str else Secret(node.text)
        return self._formatted(info, info.format, node, (*path, info.name))

    def _formatted(self, info: FieldInfo, wanted: Format, node: Node, path: ConfigPath) -> object:
        """Return a text that looks as wanted: a `Secret` where it was injected or its field is secret."""
        value = node.text
        if wanted is not Format.TEXT:
            real = plain(value)
            wrong = _formats.check(wanted, real)
            if wrong is not None:
                self._report.broken.add(path)
                self._problem(format_code(wanted, path), node, path, *wrong)
                return None
            if wanted is Format.SHA256 and real != real.lower():
                value = Secret(real.lower()) if isinstance(value, Secret) else real.lower()
            elif wanted is Format.URL and not isinstance(value, Secret):
                value = _formats.shown(wanted, value)
        if info.secret and not isinstance(value, Secret):
            return Secret(value)
        return value

    def _integer(self, info: FieldInfo, node: Node, path: ConfigPath) -> object:
        if node.kind != SCALAR:
            return self._wrong_kind(info, node, (*path, info.name), "a whole number")
        value = integer(node)
        if isinstance(value, Wrong):
            return self._bad("C18.type", info, node, path, value)
        if not (info.ge is None or info.le is None or info.ge <= value <= info.le):
            # Formatting a SensitiveInt gives its mask.
            low = value < info.ge
            message = f"{value} is too {'small' if low else 'large'}"
            suggestion = f"at least {info.ge}" if low else f"at most {info.le}"
            return self._bad(bound_code(path), info, node, path, Wrong(message, suggestion))
        return value

    def _boolean(self, info: FieldInfo, node: Node, path: ConfigPath) -> object:
        if node.kind != SCALAR:
            return self._wrong_kind(info, node, (*path, info.name), "true or false")
        value = boolean(node)
        return self._bad("C18.type", info, node, path, value) if isinstance(value, Wrong) else value

    def _texts(self, info: FieldInfo, node: Node, path: ConfigPath) -> object:
        below = (*path, info.name)
        if node.kind != LIST:
            return self._wrong_kind(info, node, below, "a list of texts")
        made: list[str] = []
        outer = self._site
        if outer is None and node.origin is not None:
            self._site = node
        for number, member in enumerate(node.items):
            value = self._leaf(info, info.format, member, (*below, number))
            if isinstance(value, str):
                made.append(value)
            else:
                self._report.broken.add(below)
        self._site = outer
        return tuple(sorted(set(made))) if info.unordered else tuple(made)

    def _map(self, info: FieldInfo, node: Node, path: ConfigPath) -> object:
        below = (*path, info.name)
        if node.kind != MAP:
            return self._wrong_kind(info, node, below, "a mapping of texts")
        made: dict[str, str] = {}
        outer = self._site
        if outer is None and node.origin is not None:
            self._site = node
        for key, member in node.entries.items():
            place = (*below, key)
            wrong = _formats.check(info.key_format, key)
            if wrong is None and "${" in key:
                wrong = "a key with ${…}", "only values are injected"
            if wrong is not None:
                self._report.broken.add(place)
                self._problem(format_code(info.key_format, place), member, place, *wrong, key=True)
                continue
            value = self._leaf(info, info.format, member, place)
            made[key] = value if isinstance(value, str) else Secret("?") if info.secret else "?"
        self._site = outer
        return FrozenMap(made)

    def _leaf(self, info: FieldInfo, wanted: Format, node: Node, path: ConfigPath) -> object:
        """Return one text inside of a list or a mapping, or None after a problem."""
        if node.kind != SCALAR:
            return self._wrong_kind(info, node, path, "a text")
        wrong = text(node)
        if wrong is not None:
            self._report.broken.add(path)
            self._problem("C18.type", node, path, *wrong)
            return None
        return self._formatted(info, wanted, node, path)

    # -- problems --------------------------------------------------------------------------------------------------

    def _bad(self, code: str, info: FieldInfo, node: Node, path: ConfigPath, wrong: Wrong) -> object:
        below = (*path, info.name)
        self._report.broken.add(below)
        self._problem(code, node, below, *wrong)
        return None

    def _bad_choice(self, info: FieldInfo, node: Node, path: ConfigPath) -> object:
        below = (*path, info.name)
        self._report.broken.add(below)
        code, message, suggestion = choice_problem(info, node)
        self._problem(code, node, below, message, suggestion)
        return None

    def _wrong_kind(self, info: FieldInfo, node: Node, path: ConfigPath, asked: str) -> object:
        self._report.broken.add(path)
        if node.kind == SCALAR and node.plain and kind_of(node) == "null":
            self._problem(
                "C18.type", node, path, f"nothing stands where {asked} is asked", "write it, or remove the key"
            )
        elif node.kind != BROKEN:
            what = _KIND_NAMES[node.kind]
            self._problem("C18.type", node, path, f"{what} stands where {asked} is asked", f"write {asked}")
        return None

    def _problem(
        self, code: str, node: Node, path: ConfigPath, message: str, suggestion: str, *, key: bool = False
    ) -> None:
        shown = path
        if self._shown is not None:
            inside, outside = self._shown
            if path[: len(inside)] == inside:
                rest = path[len(inside) :]
                shown = (*outside, *(("id", *rest[1:]) if rest[:1] == ("name",) else rest))
        if node.spelling and node.kind != MAP and shown and not key:
            shown = (*shown[:-1], node.spelling) if isinstance(shown[-1], str) else shown
        self._report.add(code, shown, message, suggestion, node=node, site=self._site, key=key)


_Convert = Callable[[FieldInfo, Node, ConfigPath], object]


def _chain(path: ConfigPath) -> list[type[ConfigObject]]:
    """Return the classes of the objects that a path leads through, the root first, without the last."""
    found: list[type[ConfigObject]] = []
    cls: type[ConfigObject] = EdgeConfig
    for part in path:
        info = cls.__fields__.get(part) if isinstance(part, str) else None
        if info is not None and info.item is not None:
            found.append(cls)
            cls = info.item
    return found


def _identity(node: Node | None) -> str:
    """Return the name of a member, or an empty text where it is missing or wrong."""
    return node.text if node is not None and node.kind == SCALAR and kind_of(node) == "text" else ""


def _harmless(info: FieldInfo) -> object:
    """Return a value for a required field that has none; its path is broken, so no rule judges it."""
    if info.item is not None:
        return _placeholder(info.item)
    if info.choices:
        return info.choices[0]
    values: dict[Shape, object] = {
        Shape.INTEGER: info.ge or 0,
        Shape.BOOLEAN: False,
        Shape.TEXTS: (),
        Shape.MAP: FrozenMap(),
    }
    return values.get(info.shape, UNNAMED)


def _placeholder(cls: type[T]) -> T:
    return cls(**{name: _harmless(info) for name, info in cls.__fields__.items() if info.required})


def _stand_in(cls: type[T]) -> T:
    """Return a member for a collection that cannot be read, with members all the way down.

    What is missing there cannot be known, and a rule that looks for a name finds this broken one on its way.
    """
    values = {name: _harmless(info) for name, info in cls.__fields__.items() if info.required}
    for name, info in cls.__fields__.items():
        if info.key is not None and info.item is not None:
            values[name] = (_stand_in(info.item),)
    return cls(**values)
