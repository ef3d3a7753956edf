"""live(), restart(), identity(), section(), members(): each config field declares its policy (C22)."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar, dataclass_transform

import attrs

from iop_config._values import FrozenMap, Secret, reveal

INT_MAX = 2**31 - 1  # every count and duration fits the wire's 32 bits; 2**31 ms are 24 days
_KEY = "iop"
T = TypeVar("T")


class Policy(enum.StrEnum):
    """What a refresh may do with a change of a field (R2, R3)."""

    LIVE = "live"  # applied while serving
    RESTART = "restart"  # pending until the Edge is restarted
    IDENTITY = "identity"  # names its object: another value is another object (removed + added)
    CONTAINER = "container"  # has no value of its own; its fields, or its members, say


class Format(enum.StrEnum):
    """What a text must look like; `_formats.py` checks it."""

    TEXT = "text"
    NAME = "name"  # an id or a name: 1-256 characters, no control characters, no space at either end
    PATH = "path"
    ADDRESS = "address"  # host:port
    URL = "url"  # http(s)://host[:port][/path]
    SHA256 = "sha256"
    HEADER = "header"  # an HTTP header's name
    HEADER_VALUE = "header-value"
    ENV_NAME = "env-name"
    ORIGIN = "origin"  # scheme://host[:port], or *


class Shape(enum.StrEnum):
    """The kind of YAML value that a field takes."""

    TEXT = "text"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    TEXTS = "list of text"
    MAP = "mapping of text to text"
    SECTION = "mapping"
    MEMBERS = "list of mappings"


class _Required(enum.Enum):
    REQUIRED = "required"


REQUIRED = _Required.REQUIRED


@attrs.frozen(kw_only=True)
class FieldInfo:
    """Everything known about one config field; schema, reference, explain, diff and redaction read only this."""

    name: str
    policy: Policy
    doc: str
    shape: Shape
    optional: bool  # None is a value: the key is absent
    default: (
        object  # REQUIRED; else the value of an absent key (None where it depends on other fields: see default_text)
    )
    default_text: str  # for people; "" when required
    format: Format
    key_format: Format
    choices: tuple[str, ...]
    ge: int | None
    le: int | None
    secret: bool  # the value is masked whatever its source
    unordered: bool  # a list whose order has no meaning: kept sorted, without duplicates
    item: type[ConfigObject] | None  # the class of a section, or of a collection's members
    key: str | None  # a collection's identity field
    members_policy: Policy | None  # what adding or removing a member is (R10)
    merge: bool  # an overlay merges this collection by identity (C2)
    aliases: tuple[str, ...]  # older names of the key
    provider_first: bool  # the key may also stand on a provider without `adapter` (C10)
    internal: bool  # not a key of the file, no part of equality, digest or diff

    @property
    def required(self) -> bool:
        """Whether the key must be written."""
        return self.default is REQUIRED

    @property
    def bounds(self) -> str:
        """The bounds in words, or an empty text."""
        if self.ge is None:
            return ""
        return f">= {self.ge}" if self.le in (None, INT_MAX) else f"{self.ge} to {self.le}"


class ConfigObject:
    """Base of every config class: frozen, slotted, hashable, and masked when printed (C21, C23)."""

    __slots__ = ()
    if typing.TYPE_CHECKING:
        __attrs_attrs__: ClassVar[tuple[attrs.Attribute[Any], ...]]
    __fields__: ClassVar[dict[str, FieldInfo]] = {}

    def __repr__(self) -> str:
        """Show what differs from the default; secrets and injected values are masks."""
        shown = ", ".join(
            f"{info.name}={value!r}"
            for info in self.__fields__.values()
            if (value := getattr(self, info.name)) != info.default and not info.internal
        )
        return f"{type(self).__name__}({shown})"

    def __reveal__(self) -> typing.Self:
        """Return a copy with plain values, except where a field is declared secret (see `reveal`)."""
        changed = {}
        for info in self.__fields__.values():
            value = getattr(self, info.name)
            if info.secret or value is None:
                continue
            real = reveal(value)
            if real is not value:
                changed[info.name] = real
        return evolve(self, **changed) if changed else self


def evolve(piece: T, **changes: object) -> T:
    """Return a copy of a config object with the given fields replaced (copy-on-write)."""
    whole: Any = piece
    made: T = attrs.evolve(whole, **changes)
    return made


def live(
    doc: str,
    *,
    default: object = REQUIRED,
    default_text: str = "",
    ge: int | None = None,
    le: int | None = None,
    is_a: Format = Format.TEXT,
    keys_are: Format = Format.TEXT,
    choices: tuple[str, ...] = (),
) -> Any:
    """Declare a field whose change is applied while serving (R2)."""
    return _declare(
        Policy.LIVE, doc, default, default_text=default_text, ge=ge, le=le, is_a=is_a, keys_are=keys_are,
        choices=choices,
    )  # fmt: skip


def restart(
    doc: str,
    *,
    default: object = REQUIRED,
    factory: Callable[[Any], object] | None = None,
    default_text: str = "",
    ge: int | None = None,
    le: int | None = None,
    is_a: Format = Format.TEXT,
    keys_are: Format = Format.TEXT,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    unordered: bool = False,
    aliases: tuple[str, ...] = (),
    provider_first: bool = False,
) -> Any:
    """Declare a field whose change waits for a restart (R3). `factory` makes a default from the fields before it."""
    return _declare(
        Policy.RESTART, doc, default, factory=factory, default_text=default_text, ge=ge, le=le, is_a=is_a,
        keys_are=keys_are, choices=choices, secret=secret, unordered=unordered, aliases=aliases,
        provider_first=provider_first,
    )  # fmt: skip


def identity(doc: str, *, is_a: Format = Format.NAME) -> Any:
    """Declare the field that names its object within a collection (R10)."""
    return _declare(Policy.IDENTITY, doc, REQUIRED, is_a=is_a)


def section(doc: str, item: type[ConfigObject], *, optional: bool = False, required: bool = False) -> Any:
    """Declare a nested object: absent means all its defaults, or None with `optional`."""
    if required:
        return _declare(Policy.CONTAINER, doc, REQUIRED, item=item)
    if optional:
        return _declare(Policy.CONTAINER, doc, None, default_text="absent", item=item)
    return _declare(Policy.CONTAINER, doc, item(), default_text="its fields' defaults", item=item)


def members(doc: str, item: type[ConfigObject], *, key: str, policy: Policy, merge: bool = True) -> Any:
    """Declare a list of objects with identities; `policy` is what adding or removing one is (R2, R3, R10)."""
    return _declare(
        Policy.CONTAINER, doc, (), default_text="empty", item=item, key=key, members_policy=policy, merge=merge
    )


def internal(doc: str, *, default: object) -> Any:
    """Declare an attribute that is no key of the file: it takes no part in equality, version and diff."""
    return _declare(Policy.CONTAINER, doc, default, internal=True)


def _declare(
    policy: Policy,
    doc: str,
    default: object,
    *,
    factory: Callable[[Any], object] | None = None,
    **rest: object,
) -> Any:
    declared = {"policy": policy, "doc": doc, **rest}
    how: dict[str, Any] = {"metadata": {_KEY: declared}, "eq": not rest.get("internal", False)}
    if factory is not None:
        declared["default"] = None
        how["default"] = attrs.Factory(factory, takes_self=True)
    else:
        declared["default"] = default
        if default is not REQUIRED:
            how["default"] = default
    return attrs.field(**how)


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(live, restart, identity, section, members, internal)
)
def config_class(cls: type[T]) -> type[T]:
    """Make a frozen, slotted, keyword-only attrs class whose every field has a policy, or raise TypeError (C22)."""
    made = attrs.define(cls, frozen=True, kw_only=True, repr=False, slots=True, eq=True, hash=None)
    if not issubclass(made, ConfigObject):
        raise TypeError(f"{cls.__name__}: a config class derives from ConfigObject")
    hints = typing.get_type_hints(made)
    infos: dict[str, FieldInfo] = {}
    for attribute in attrs.fields(made):
        declared = attribute.metadata.get(_KEY)
        if declared is None:
            raise TypeError(
                f"{cls.__name__}.{attribute.name} has no policy (C22): declare it with live(), restart(), identity(), …"
            )
        infos[attribute.name] = _info(attribute.name, hints[attribute.name], declared)
    made.__fields__ = infos
    return typing.cast("type[T]", made)


def _info(name: str, hint: Any, declared: dict[str, Any]) -> FieldInfo:
    arguments = [part for part in typing.get_args(hint) if part is not types.NoneType]
    optional = isinstance(hint, types.UnionType) and len(arguments) == 1
    shape = _shape(arguments[0] if optional else hint)
    default, default_text = declared["default"], declared.get("default_text", "")
    if not default_text and default is not REQUIRED:
        default_text = _default_text(default)
    is_int = shape is Shape.INTEGER
    return FieldInfo(
        name=name,
        policy=declared["policy"],
        doc=declared["doc"],
        shape=shape,
        optional=optional,
        default=default,
        default_text=default_text,
        format=declared.get("is_a", Format.TEXT),
        key_format=declared.get("keys_are", Format.TEXT),
        choices=declared.get("choices", ()),
        ge=(0 if declared.get("ge") is None else declared["ge"]) if is_int else None,
        le=(declared.get("le") or INT_MAX) if is_int else None,
        secret=declared.get("secret", False),
        unordered=declared.get("unordered", False),
        item=declared.get("item"),
        key=declared.get("key"),
        members_policy=declared.get("members_policy"),
        merge=declared.get("merge", False),
        aliases=declared.get("aliases", ()),
        provider_first=declared.get("provider_first", False),
        internal=declared.get("internal", False),
    )


def _shape(hint: Any) -> Shape:
    simple = {str: Shape.TEXT, Secret: Shape.TEXT, int: Shape.INTEGER, bool: Shape.BOOLEAN}
    if hint in simple:
        return simple[hint]
    origin = typing.get_origin(hint)
    if origin is tuple:
        of = typing.get_args(hint)[0]
        return Shape.MEMBERS if isinstance(of, type) and issubclass(of, ConfigObject) else Shape.TEXTS
    if origin is FrozenMap:
        return Shape.MAP
    if isinstance(hint, type) and issubclass(hint, ConfigObject):
        return Shape.SECTION
    raise TypeError(f"no config field has the type {hint!r}")


def _default_text(default: object) -> str:
    if default is None:
        return "absent"
    if isinstance(default, bool):
        return "true" if default else "false"
    if default == () or default == FrozenMap():
        return "empty"
    return str(default)


def field_info(cls: type[ConfigObject]) -> dict[str, FieldInfo]:
    """Return the fields of a config class by name, in the order of the file."""
    return cls.__fields__


def walk_fields(cls: type[ConfigObject], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every field below `cls` with its path, such as `nodes[].providers[].capacity`; containers come first."""
    for info in cls.__fields__.values():
        if info.internal:
            continue
        path = f"{prefix}.{info.name}" if prefix else info.name
        yield path, info
        if info.item is not None:
            yield from walk_fields(info.item, path + ("[]" if info.key else ""))


__all__ = [
    "INT_MAX",
    "REQUIRED",
    "ConfigObject",
    "FieldInfo",
    "Format",
    "Policy",
    "Shape",
    "config_class",
    "evolve",
    "field_info",
    "identity",
    "internal",
    "live",
    "members",
    "restart",
    "section",
    "walk_fields",
]
