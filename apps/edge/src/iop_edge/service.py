"""submit_run: the only place that knows the order route → policy → pool → Node → relay → release, with failover (E1, E7)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import anyio
import msgspec
from attrs import define, field, frozen
from iop_pool import Lease, Outcome, Pool, PoolError, QueueFull, QueueTimeout, Unavailable, UnknownModel

from iop_edge.auth import Principal
from iop_edge.errors import ApiError
from iop_edge.estimate import estimate_tokens, fewest_tokens
from iop_edge.metering import Meter, RunRecord
from iop_edge.nodes.run import Chunk, End, EndKind, Head, NodeSession, Operation, RunError, RunHandle, RunSpec
from iop_edge.policy import apply_policy, read_limits
from iop_edge.routing import Catalog, ModelEntry, Target

__all__ = ["Generation", "Order", "Reply", "RunService", "Trace"]


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


class RunService:
    """Takes runs for every client surface; one per Edge, on one event loop.

    `snapshot` gives the generation in force; `session` the live session of a Node; `generation_of` what that Node has
    acknowledged (`RunSpec.generation`). `clock` counts monotonic seconds.
    """

    def __init__(
        self,
        *,
        snapshot: Callable[[], Generation],
        pool: Pool,
        session: Callable[[str], NodeSession | None],
        generation_of: Callable[[str], int],
        meter: Meter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        raise NotImplementedError

    @property
    def catalog(self) -> Catalog:
        """The catalog in force, for `GET /v1/models`."""
        raise NotImplementedError

    @property
    def live_leases(self) -> Collection[Lease]:
        """The leases that a run still stands behind: what `Pool.audit` compares with (P8)."""
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Whether at least one model can be served: some provider is available and no shutdown has begun."""
        raise NotImplementedError

    async def submit_run(self, order: Order, reply: Reply, trace: Trace) -> None:
        """Run `order` on the best provider and give the answer to `reply`; `trace` is kept up to date on the way.

        Raises ApiError where it ends otherwise. On cancellation, or when the client is gone, the run is cancelled on
        its Node; its slot comes back when the Node confirms the end (P8, E8).
        """
        raise NotImplementedError

    def begin_shutdown(self) -> None:
        """Refuse newcomers and waiters with 503 `edge_shutdown`; running runs go on."""
        raise NotImplementedError

    async def wait_idle(self) -> None:
        """Return when no request is running."""
        raise NotImplementedError

    def abort_all(self) -> None:
        """End what still runs: the clients get `edge_shutdown`, the Nodes a cancel (wire §1.7)."""
        raise NotImplementedError
