"""Values beside plain ones: Secret, SensitiveInt, FrozenMap; reveal() gives the real ones (C2, C21, C23)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, NoReturn, SupportsIndex, TypeVar

REDACTED = "<redacted>"

K = TypeVar("K")
V = TypeVar("V", covariant=True)


class Secret(str):
    """A text whose value only `reveal()` gives.

    As a `str` it *is* its mask: printing, formatting, joining, JSON and every serializer see `<redacted>` (C23):
    forgetting to reveal breaks visibly and never leaks. It compares, sorts and hashes by the real value, so that a
    diff and a lookup in a dict work. `shown` is another mask: a URL keeps its host and path.
    """

    __slots__ = ("_value",)
    _value: str

    def __new__(cls, value: str, shown: str = REDACTED) -> Secret:
        """Wrap `value`; a `Secret` is wrapped anew with the given mask."""
        made = super().__new__(cls, shown)
        made._value = plain(value)
        return made

    def reveal(self) -> str:
        """Return the real value: for the payload of a Node, or the moment of use; never for a message."""
        return self._value

    @property
    def shown(self) -> str:
        """The mask, as a plain `str`."""
        return str.__str__(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return self._value == plain(other)
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __hash__(self) -> int:
        return hash(self._value)

    def __lt__(self, other: str) -> bool:
        return self._value < plain(other)

    def __le__(self, other: str) -> bool:
        return self._value <= plain(other)

    def __gt__(self, other: str) -> bool:
        return self._value > plain(other)

    def __ge__(self, other: str) -> bool:
        return self._value >= plain(other)

    def __str__(self) -> str:
        return str.__str__(self)  # an exact str, not a Secret

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(self.shown, spec)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a secret cannot be pickled; reveal it where it is used")


class SensitiveInt(int):
    """A number that came from the environment or a file: it computes as it is and prints as `<redacted>` (C2)."""

    def reveal(self) -> int:
        """Return the plain number."""
        return int.__int__(self)

    def __repr__(self) -> str:
        return REDACTED

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return REDACTED


class FrozenMap(Mapping[K, V], Generic[K, V]):
    """An immutable, hashable mapping: it keeps its order, and equality and hash ignore that order (R10, C21)."""

    __slots__ = ("_data", "_hash")

    def __init__(self, data: Mapping[K, V] | None = None) -> None:
        """Copy `data`."""
        self._data: dict[K, V] = dict(data or {})
        self._hash: int | None = None

    def __getitem__(self, key: K) -> V:
        return self._data[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FrozenMap):
            return self._data == other._data
        return self._data == other if isinstance(other, Mapping) else NotImplemented

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._data.items()))
        return self._hash

    def __repr__(self) -> str:
        return f"FrozenMap({self._data!r})"


def plain(value: str) -> str:
    """Return the real text of a `str` that may be a `Secret`."""
    return value._value if isinstance(value, Secret) else value


def is_sensitive(value: object) -> bool:
    """Tell whether a leaf's value must be masked wherever it is shown."""
    return isinstance(value, (Secret, SensitiveInt))


T = TypeVar("T")


def reveal(value: T) -> T:
    """Return `value` with real values in place of what is masked.

    A `Secret` gives its `str`, a `SensitiveInt` its `int`; in a tuple, mapping or config object this goes all the way
    down, and the result has the same type. Fields that are *declared* secret (headers, env) stay `Secret` inside a
    config object, so that even a revealed one can be printed: reveal those one by one at the point of use.
    Build what runs (listeners, pool spec, Node payloads) from `reveal(config)`; show, diff and log `config` itself.
    """
    result: Any = _revealed(value)
    return result  # type: ignore[no-any-return]


def _revealed(value: Any) -> Any:
    if isinstance(value, (Secret, SensitiveInt)):
        return value.reveal()
    if isinstance(value, tuple):
        made = tuple(map(_revealed, value))
        return made if any(a is not b for a, b in zip(made, value, strict=True)) else value
    if isinstance(value, FrozenMap):
        return FrozenMap({_revealed(key): _revealed(item) for key, item in value.items()})
    walk = getattr(type(value), "__reveal__", None)
    return value if walk is None else walk(value)
