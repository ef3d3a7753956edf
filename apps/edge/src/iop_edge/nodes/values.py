"""What the Edge learns from its Nodes, as plain values: provider states, push outcomes, rows for the status."""

from __future__ import annotations

from enum import StrEnum

from attrs import field, frozen


class NodeHealth(StrEnum):
    """What a Node's probe says of a provider (N7)."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


@frozen
class ProviderState:
    """One provider as its Node sees it."""

    provider_id: str
    health: NodeHealth
    message: str = ""
    """Redacted by the Node, for people."""
    context_tokens: int = 0
    """What the runtime says one request may hold; 0: it does not say."""
    runtime_slots: int = 0
    """What the runtime says it runs at once; 0: it does not say."""


@frozen
class StoppingAttempt:
    """An attempt of an earlier session that still occupies its runtime (wire §1.6): it keeps a slot occupied."""

    run_id: str
    attempt: int
    provider_id: str
    long: bool


class PushState(StrEnum):
    """What became of a config push to one Node (R9)."""

    ACKED = "acked"
    NACKED = "nacked"
    NO_ANSWER = "no_answer"
    """Silent for the push bound; a late answer, or the next Hello, still decides."""
    SUPERSEDED = "superseded"
    """A newer push took its place before it was sent."""
    DISCONNECTED = "disconnected"
    """No session, or it broke before the answer; the next Welcome carries what is in force (R8)."""


@frozen
class PushFault:
    """One reason for a NACK."""

    path: str
    code: str
    message: str


@frozen
class PushOutcome:
    """The answer to one push; `version` and `generation` are what is in force on the Node now ("" and 0: unknown)."""

    push_id: str
    state: PushState
    version: str = ""
    generation: int = 0
    faults: tuple[PushFault, ...] = ()
    carried_over: tuple[str, ...] = ()
    rebuilt: tuple[str, ...] = ()
    draining: tuple[str, ...] = ()


class LinkState(StrEnum):
    """How a Node's session is doing, for the status."""

    DISCONNECTED = "disconnected"
    CONNECTED = "connected"
    SUSPECT = "suspect"
    DRAINING = "draining"


@frozen
class NodeRow:
    """One Node in the status; ages and the time connected are seconds on the monotonic clock."""

    node_id: str
    state: LinkState
    connected: bool
    session_id: str = ""
    epoch: int = 0
    connected_for: float | None = None
    """Seconds since this session was welcomed; None while disconnected."""
    last_frame_age: float | None = None
    loop_lag_ms: int = 0
    """The Node's own event loop delay, from its last heartbeat."""
    active_runs: int = 0
    """Runs the Node says it is executing."""
    runs: int = 0
    """Attempts of this session that the Edge knows and that have not ended."""
    rss_bytes: int = 0
    hostname: str = ""
    pid: int = 0
    node_version: str = ""
    instance: str = ""
    """Hex digits of the process's random id."""
    peer: str = ""
    config_version: str = ""
    """In force on the Node, as it said last."""
    generation: int = 0
    push_state: PushState | None = None
    """What became of the newest push; None while it is on its way."""
    push_faults: tuple[PushFault, ...] = ()
    last_end: str = ""
    """Why the last session ended, in words; kept while disconnected."""
    dropped_frames: int = 0
    """Frames and events for unknown or ended attempts (normal where cancel and completion cross), unknown members."""


@frozen
class TlsFiles:
    """The server's certificate chain and key, and for mTLS the CA that signs Node certificates (PEM bytes)."""

    certificate: bytes
    private_key: bytes = field(repr=False)
    client_ca: bytes | None = None
