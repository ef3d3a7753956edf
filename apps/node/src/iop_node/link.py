"""What the session hands to the rest of the Node and gets back: plain values and two protocols, no wire type.

`session.py` drives a `Host` (implemented by `runs.py`); each run answers through its `RunSink` (given by the session).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from attrs import field, frozen

if TYPE_CHECKING:
    from iop_node.settings import NodeSettings


@frozen
class RunOrder:
    """One attempt to execute, with its whole body."""

    run_id: str
    attempt: int
    adapter: str
    target: str
    operation: str
    body: bytes = field(repr=False)
    streaming: bool
    generation: int
    provider_id: str = ""
    long: bool = False
    include_usage: bool = False
    deadline_ms: int = 0
    input_tokens_estimate: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    secret_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@frozen
class Usage:
    """Tokens of one attempt; `from_runtime` is false for what the Node counted itself (E9)."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    from_runtime: bool = False


@frozen
class RunError:
    """Why a run failed, worded for people and free of secrets."""

    code: str
    message: str
    upstream_status: int | None = None
    upstream_body: bytes = field(default=b"", repr=False)
    retry_after_ms: int | None = None
    retryable: bool = False
    maybe_executed: bool = False
    outcome: str = "broken"
    """`ok`, `client_error`, `busy`, `broken` or `cancelled` (P14)."""


class EndKind(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@frozen
class RunEnd:
    """The one end of an attempt."""

    kind: EndKind
    usage: Usage | None = None
    error: RunError | None = None
    started: bool = False


class Health(StrEnum):
    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


@frozen
class ProviderState:
    """What a probe found out about one provider (N7)."""

    provider_id: str
    health: Health
    message: str = ""
    context_tokens: int = 0
    runtime_slots: int = 0


@frozen
class StoppingAttempt:
    """An attempt of an earlier session that has not ended yet and still occupies its runtime (wire §1.6)."""

    run_id: str
    attempt: int
    provider_id: str
    long: bool


@frozen
class ConfigFault:
    """One reason why a payload could not be built."""

    path: str
    code: str
    message: str


@frozen
class ConfigOutcome:
    """What became of a payload: applied, or refused with every fault and the old registry still in force (N3, R9)."""

    applied: bool
    applied_version: str
    applied_generation: int
    faults: tuple[ConfigFault, ...] = ()
    carried_over: tuple[str, ...] = ()
    rebuilt: tuple[str, ...] = ()
    draining: tuple[str, ...] = ()


class RunSink(Protocol):
    """Where one run sends what happens to it. After the session is lost everything is swallowed."""

    def accepted(self) -> None: ...

    def head(self, status: int, headers: tuple[tuple[str, str], ...]) -> None: ...

    async def chunk(self, data: bytes) -> None:
        """Queue bytes for the Edge; waits while the run has no credit, so the runtime is not read either (§1.2.4)."""

    def end(self, end: RunEnd) -> None:
        """Exactly once, last."""


class Host(Protocol):
    """The Node behind its session: configuration, runs and health."""

    @property
    def applied_version(self) -> str: ...

    @property
    def applied_generation(self) -> int: ...

    @property
    def active_runs(self) -> int: ...

    def provider_states(self) -> tuple[ProviderState, ...]:
        """Return the state of every provider, for Hello."""

    def stopping_attempts(self) -> tuple[StoppingAttempt, ...]:
        """Return the attempts that still occupy a runtime; their ends are told through `watch_stopping`."""

    def watch_stopping(self, on_end: Callable[[StoppingAttempt, RunEnd], None]) -> None:
        """Call `on_end` once for each of `stopping_attempts()` when it ends, for the session that announced them."""

    async def configure(self, settings: NodeSettings) -> ConfigOutcome:
        """Build, swap and drain (N3). A settings version already in force does nothing and says applied."""

    def start(self, order: RunOrder, sink: RunSink) -> None:
        """Execute the order; every refusal, failure and success ends in `sink.end`, nothing is raised."""

    def cancel(self, run_id: str, attempt: int, reason: str) -> None:
        """Stop a run; its end still comes through its sink. Unknown or ended: harmless."""

    def session_lost(self) -> None:
        """Cancel every run: nobody can be told (§1.6). They stay in `stopping_attempts` until they really ended."""

    def watch_health(self, report: Callable[[tuple[ProviderState, ...]], None]) -> None:
        """From now on tell `report` about changes of provider health; replaces the earlier one."""
