"""One attempt of a run as the service sees it: what is sent, what comes back. Knows no wire type."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from attrs import field, frozen


class Operation(StrEnum):
    """The client surface that a run serves; the adapter maps it to the runtime's path."""

    CHAT_COMPLETIONS = "chat_completions"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"


@frozen
class RunSpec:
    """One attempt, ready to be sent to a Node (`RunRequest`). `body` has the target as its model and E5 applied."""

    run_id: str
    attempt: int
    adapter: str
    target: str
    operation: Operation
    body: bytes = field(repr=False)
    streaming: bool
    generation: int
    """The generation of the Node's payload which this run was routed under; an older Node refuses `config_behind`."""
    provider_id: str = ""
    """Empty for a `model_routes` run that no provider owns."""
    long: bool = False
    include_usage: bool = False
    """The client itself asked for the usage chunk of a stream."""
    deadline_ms: int = 0
    """From now; 0 means none."""
    input_tokens_estimate: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    secret_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """E6; never logged, never stored."""


class UsageSource(StrEnum):
    RUNTIME = "runtime"
    ESTIMATE = "estimate"


@frozen
class Usage:
    """Tokens of one attempt, as the runtime said or as the Node counted while it went (E9)."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    source: UsageSource = UsageSource.ESTIMATE


@frozen
class RunError:
    """Why an attempt failed. `message` is already redacted by the Node."""

    code: str
    message: str
    upstream_status: int | None = None
    upstream_body: bytes = field(default=b"", repr=False)
    retry_after_ms: int | None = None
    retryable: bool = False
    maybe_executed: bool = False
    outcome: str = "broken"
    """What it says of the provider's health: a value of `iop_pool.Outcome` (P14)."""


class EndKind(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@frozen
class Head:
    """Status and headers of the runtime's answer, before any byte of it."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()


@frozen
class Chunk:
    """Response bytes: whole SSE events in a streaming run, else a piece of the body. Ready ones come joined."""

    data: bytes = field(repr=False)


@frozen
class End:
    """The one end of an attempt: the Node's Terminal, or what the Edge made up because the session was lost (§1.2)."""

    kind: EndKind
    usage: Usage | None = None
    error: RunError | None = None
    started: bool = False
    """The runtime was contacted."""
    session_lost: bool = False
    """No Terminal came: the Node's session broke, so the slot is free only as far as this session knows (P8)."""


class RunHandle(Protocol):
    """A started attempt. Exactly one `End` comes out of it, after every byte that precedes it."""

    @property
    def ended(self) -> bool:
        """Whether the end has arrived (bytes before it may still wait to be taken)."""

    async def next(self) -> Head | Chunk | End:
        """Return what came next, in order; taking a chunk grants its bytes as new credit. After the end: the end again.

        Safe to cancel: nothing is lost by it.
        """

    def cancel(self, reason: str) -> None:
        """Ask the Node to stop the run. Its end still comes, through `on_end`. Harmless when repeated or too late."""


class NodeSession(Protocol):
    """A live session of one Node, as far as the service needs it."""

    @property
    def node_id(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    def start_run(self, spec: RunSpec, on_end: Callable[[End], None]) -> RunHandle:
        """Send the attempt; never blocks, never raises for a session that just broke (the end then says so).

        `on_end` is called once, synchronously, when the end arrives, whether or not somebody still reads: it is
        where the lease is given back (P8).
        """
