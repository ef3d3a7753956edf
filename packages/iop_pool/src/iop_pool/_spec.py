"""What the pool is told: providers, groups, queue policies and the numbers that hold for all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import Attribute, evolve, field, frozen

__all__ = ["GroupSpec", "HealthPolicy", "PoolSpec", "ProviderSpec", "QueuePolicy"]


def _whole(minimum: int, *, optional: bool = False) -> Any:
    """An attrs validator: a whole number of at least `minimum` (`True` is no number), or None where `optional`."""

    def check(owner: object, attribute: Attribute[Any], value: object) -> None:
        if value is None and optional:
            return
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{_where(owner)}{attribute.name}: {value!r} is not a whole number")
        if value < minimum:
            raise ValueError(f"{_where(owner)}{attribute.name}: {value} is too small; at least {minimum}")

    return check


def _name(owner: object, attribute: Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{_where(owner)}{attribute.name}: {value!r} is no name; a non-empty string is needed")


def _where(owner: object) -> str:
    """Whose field a message is about; `id` is the first field, so it is set when a later one is checked."""
    kind = {"ProviderSpec": "provider", "GroupSpec": "group"}.get(type(owner).__name__)
    identity = getattr(owner, "id", None)
    return f"{kind} {identity!r}: " if kind and identity else f"{type(owner).__name__}."


@frozen
class QueuePolicy:
    """How long a line may be and how long one may stand in it; None means "not said here" (P6, P7).

    `queue_timeout_ms=0` is said: no timeout, only the caller's cancellation ends the wait.
    """

    max_queue: int | None = field(default=None, validator=_whole(0, optional=True))
    queue_timeout_ms: int | None = field(default=None, validator=_whole(0, optional=True))


@frozen
class HealthPolicy:
    """When outcomes take a provider out of use, and for how long (P10, P14).

    `eject_after` consecutive `broken` outcomes eject it. After `backoff_ms` (doubled by each failed trial, at most
    `backoff_max_ms`) it is half-open: one run at a time may try it.
    """

    eject_after: int = field(default=3, validator=_whole(1))
    backoff_ms: int = field(default=500, validator=_whole(1))
    backoff_max_ms: int = field(default=30_000, validator=_whole(1))


@frozen
class ProviderSpec:
    """One schedulable resource.

    `node` is the machine that must be connected for it to be used; None (the default) is always connected, for a
    program that has no such notion. `long_context_capacity` absent: long runs are not counted; 0: it takes none; n:
    at most n at once (C12). `priority`: lower is preferred among equally loaded ones (P2). `queue` is the provider's
    own policy, `adapter_queue` the one of its adapter instance, asked field by field where the first is silent (P6,
    P7). `probe_required`: it takes no run until a probe (`set_health`) or an outcome has proven it.
    """

    id: str = field(validator=_name)
    node: str | None = None
    capacity: int = field(default=1, validator=_whole(1))
    long_context_capacity: int | None = field(default=None, validator=_whole(0, optional=True))
    priority: int = field(default=0, validator=_whole(0))
    enabled: bool = True
    queue: QueuePolicy = QueuePolicy()
    adapter_queue: QueuePolicy = QueuePolicy()
    probe_required: bool = False

    def __attrs_post_init__(self) -> None:
        long = self.long_context_capacity
        if long is not None and long > self.capacity:
            raise ValueError(
                f"provider {self.id!r}: long_context_capacity: {long} is above the capacity; at most {self.capacity}"
            )

    @property
    def takes_long(self) -> bool:
        """Whether a long run can ever be run here (C12)."""
        return self.long_context_capacity != 0

    def max_queue(self, default: int) -> int:
        """How many waiters this provider adds to the bound of each of its groups (P6)."""
        for policy in (self.queue, self.adapter_queue):
            if policy.max_queue is not None:
                return policy.max_queue
        return default

    def queue_timeout_ms(self, default: int) -> int | None:
        """How long one may wait for this provider in milliseconds; None: no timeout (P7)."""
        for policy in (self.queue, self.adapter_queue):
            if policy.queue_timeout_ms is not None:
                return policy.queue_timeout_ms or None
        # A policy that sets only the bound is still "configured": its absent timeout means none, not the default.
        configured = self.queue.max_queue is not None or self.adapter_queue.max_queue is not None
        return None if configured else default or None


def _ids(given: Iterable[str]) -> tuple[str, ...]:
    # A bare string is iterable too: "abc" would become three providers.
    return (given,) if isinstance(given, str) else tuple(given)


@frozen
class GroupSpec:
    """What callers ask for by name: the providers that serve it, in config order (the order of the rotation, P2)."""

    id: str = field(validator=_name)
    providers: tuple[str, ...] = field(converter=_ids)

    @providers.validator
    def _check(self, _attribute: Attribute[Any], value: tuple[object, ...]) -> None:
        seen = set()
        for provider in value:
            if not isinstance(provider, str):
                raise ValueError(f"group {self.id!r}: providers: {provider!r} is not a provider id; ids are strings")
            if provider in seen:
                raise ValueError(f"group {self.id!r}: providers: {provider!r} is listed twice; list it once")
            seen.add(provider)


def _providers(given: Iterable[ProviderSpec]) -> tuple[ProviderSpec, ...]:
    return tuple(given)


def _groups(given: Iterable[GroupSpec]) -> tuple[GroupSpec, ...]:
    return tuple(given)


@frozen
class PoolSpec:
    """Everything the pool knows of the configuration; immutable, so that a generation is one value (P9).

    Raises ValueError for an id that is used twice or that names nothing. A request with at least
    `long_context_threshold_tokens` estimated input tokens is long (P3). A lost Node is waited for
    `reconnect_grace_ms` (P5). `default_queue_timeout_ms=0` means no timeout.
    """

    providers: tuple[ProviderSpec, ...] = field(converter=_providers)
    groups: tuple[GroupSpec, ...] = field(converter=_groups)
    long_context_threshold_tokens: int = field(default=100_000, validator=_whole(1))
    default_max_queue: int = field(default=64, validator=_whole(0))
    default_queue_timeout_ms: int = field(default=30_000, validator=_whole(0))
    reconnect_grace_ms: int = field(default=10_000, validator=_whole(0))
    health: HealthPolicy = HealthPolicy()

    def __attrs_post_init__(self) -> None:
        known = _unique("provider", (provider.id for provider in self.providers))
        _unique("group", (group.id for group in self.groups))
        for group in self.groups:
            for provider in group.providers:
                if provider not in known:
                    raise ValueError(f"group {group.id!r}: providers: there is no provider {provider!r}")

    def all_disabled(self) -> PoolSpec:
        """The same pool with every provider disabled: given to `reconfigure` it refuses all waiters and newcomers,
        and ends no run, which is what a shutdown wants."""
        return evolve(self, providers=tuple(evolve(provider, enabled=False) for provider in self.providers))


def _unique(what: str, ids: Iterable[str]) -> set[str]:
    seen: set[str] = set()
    for identity in ids:
        if identity in seen:
            raise ValueError(f"PoolSpec: {what} {identity!r} is there twice; ids are unique")
        seen.add(identity)
    return seen
