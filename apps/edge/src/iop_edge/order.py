"""What the client's side hands to the service: the order, where its answer goes, and what becomes known on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
from attrs import define, field, frozen

from iop_edge.auth import Principal
from iop_edge.nodes.run import Operation
from iop_edge.routing import Catalog

__all__ = ["Generation", "Order", "Reply", "Trace"]


class Generation(Protocol):
    """What a run needs of a Snapshot: one generation, read once and kept (R7)."""

    @property
    def catalog(self) -> Catalog: ...


@frozen
class Order:
    """One request, parsed and let in. `body` maps each top-level key of the JSON body to its untouched bytes (§4)."""

    request_id: str
    operation: Operation
    model: str
    body: Mapping[str, msgspec.Raw] = field(repr=False)
    streaming: bool = False
    include_usage: bool = False
    principal: Principal | None = None
    headers: tuple[tuple[str, str], ...] = ()
    secret_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    refit: Callable[[bytes], bytes] | None = field(default=None, repr=False)
    """What a complete plain answer goes through before it leaves; with it the answer is always held until complete."""


@define
class Trace:
    """What is known of a run so far, for the X-IOP-* headers and the usage record (P15)."""

    provider: str | None = None
    node: str | None = None
    attempts: int = 0
    queue_ms: int = 0
    context_class: str = "normal"


class Reply(Protocol):
    """Where the answer goes. Every call may wait for the client to take what it got; none is made after another fails.

    The service calls `whole` once, or `head`, `data`… and `finish`. Where it raises ApiError instead, before or after
    `head`, the caller renders that error.
    """

    @property
    def status(self) -> int | None:
        """The status that has left, if any: with it nothing but the body can be said any more (E11)."""

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call back once, at once if it is so already, when the client is no longer there."""

    async def head(self, status: int, headers: tuple[tuple[str, str], ...]) -> None:
        """The runtime answers: `headers` are its own, allow-listed."""

    async def data(self, data: bytes) -> None:
        """More of the body."""

    async def finish(self) -> None:
        """The body is complete."""

    async def whole(self, status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> None:
        """Head, body and finish in one."""
