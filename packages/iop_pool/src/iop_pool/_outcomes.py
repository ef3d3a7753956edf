"""What goes in and comes out: requests, decisions, outcomes, the words for why, and the errors raised from them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from iop_pool._queue import Waiter
    from iop_pool._slots import CoreLease

__all__ = [
    "ConnectionState",
    "ContextClass",
    "Decision",
    "Decisions",
    "Granted",
    "Health",
    "LeaseState",
    "Outcome",
    "PoolError",
    "ProviderReason",
    "QueueFull",
    "QueueTimeout",
    "Queued",
    "Reason",
    "RefusalKind",
    "Refused",
    "Request",
    "Unavailable",
    "UnknownModel",
]


class ConnectionState(StrEnum):
    """What is known of a Node: `suspect` gets no new runs, `disconnected` is waited for during the grace (P5)."""

    CONNECTED = "connected"
    SUSPECT = "suspect"
    DISCONNECTED = "disconnected"


class Health(StrEnum):
    """How well a provider is (P10): `degraded` is used only when no healthy candidate is free."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    EJECTED = "ejected"
    UNKNOWN = "unknown"


class Outcome(StrEnum):
    """How a run ended, as far as health is concerned; only `broken` counts against the provider (P14).

    `client_error`: the request's own fault. `busy`: the runtime said 429 or 503. `broken`: cannot connect, 5xx,
    malformed or silent. `cancelled`: the caller left, which says nothing about the provider.
    """

    OK = "ok"
    CLIENT_ERROR = "client_error"
    BUSY = "busy"
    BROKEN = "broken"
    CANCELLED = "cancelled"


class ContextClass(StrEnum):
    """The size class of a request (P3)."""

    NORMAL = "normal"
    LONG = "long"


class LeaseState(StrEnum):
    """The three states of a slot (P8); `cancelling` still counts, for the runtime is still busy."""

    HELD = "held"
    CANCELLING = "cancelling"
    FREE = "free"


class RefusalKind(StrEnum):
    """Why a request is not served (P5-P7)."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    UNAVAILABLE = "unavailable"
    UNKNOWN_MODEL = "unknown_model"


class Reason(StrEnum):
    """Why a provider was chosen or passed over (P15). The value is stable; `words` is for people."""

    CHOSEN = "chosen"
    # a candidate, but another one was better (P2)
    NOT_ITS_TURN = "not_its_turn"
    LOWER_PRIORITY = "lower_priority"
    BUSIER = "busier"
    DEGRADED = "degraded"
    # no candidate now, but it can become one, so it is worth waiting for (P4)
    FULL = "full"
    LONG_SLOTS_FULL = "long_slots_full"
    PENDING = "pending"
    EJECTED = "ejected"
    TRIAL_UNDER_WAY = "trial_under_way"
    UNPROVEN = "unproven"
    SUSPECT = "suspect"
    RECONNECTING = "reconnecting"
    # never for this request, as things are (P5)
    DISABLED = "disabled"
    DISCONNECTED = "disconnected"
    NO_LONG_RUNS = "no_long_runs"
    EXCLUDED = "excluded"

    @property
    def words(self) -> str:
        """The reason as a person would say it of the provider."""
        return _WORDS[self]


_WORDS = {
    Reason.CHOSEN: "chosen",
    Reason.NOT_ITS_TURN: "equally good, but not its turn",
    Reason.LOWER_PRIORITY: "equally loaded, but a lower priority number comes first",
    Reason.BUSIER: "has more in flight",
    Reason.DEGRADED: "degraded, and a healthy one is free",
    Reason.FULL: "at its capacity",
    Reason.LONG_SLOTS_FULL: "no free long-context slot",
    Reason.PENDING: "its node has not acknowledged the configuration",
    Reason.EJECTED: "ejected after failures",
    Reason.TRIAL_UNDER_WAY: "ejected, a trial run is under way",
    Reason.UNPROVEN: "not proven by a probe yet",
    Reason.SUSPECT: "its node is silent",
    Reason.RECONNECTING: "its node was lost just now",
    Reason.DISABLED: "disabled",
    Reason.DISCONNECTED: "its node is not connected",
    Reason.NO_LONG_RUNS: "takes no long-context runs",
    Reason.EXCLUDED: "already tried",
}


@frozen
class Request:
    """One request for a slot.

    `exclude`: providers that it must not get, such as those already tried (E7). `arrival`: the `CoreLease.arrival` of
    an earlier grant, so that a retry waits at its old place, not at the tail. `deadline` (seconds, on the clock of
    `now`): the wait ends then even where the queue policy would allow more.
    """

    group: str
    input_tokens: int = 0
    exclude: frozenset[str] = frozenset()
    arrival: int | None = None
    deadline: float | None = None


@frozen
class ProviderReason:
    """Why one provider could not serve."""

    provider: str
    reason: Reason


@frozen
class Granted:
    """A slot is held. `waiter` is set when it was granted to one that had been queued."""

    lease: CoreLease
    waiter: Waiter | None = None


@frozen
class Queued:
    """The request waits; the grant or the refusal comes as a decision of a later call (P4)."""

    waiter: Waiter


@frozen
class Refused:
    """The pool's no. `reasons` is there for `unavailable`, `retry_after_ms` (an estimate) for `queue_full`."""

    kind: RefusalKind
    group: str
    reasons: tuple[ProviderReason, ...] = ()
    retry_after_ms: int | None = None
    waiter: Waiter | None = None


Decision = Granted | Refused
Decisions = tuple[Decision, ...]
"""What a call caused for waiters, in the order in which it was decided; each has its `waiter`."""


class PoolError(Exception):
    """The async face's form of a refusal; `refused` has the data, the text is for people."""

    def __init__(self, refused: Refused, text: str) -> None:
        super().__init__(text)
        self.refused = refused

    @property
    def model(self) -> str:
        """The group that was asked for."""
        return self.refused.group


class QueueFull(PoolError):  # noqa: N818 -- the name is the rule's word (P6)
    """As many wait already as may (P6)."""

    @property
    def retry_after_ms(self) -> int:
        """When it is worth trying again, in milliseconds; estimated from the service times seen so far."""
        return self.refused.retry_after_ms or 0


class QueueTimeout(PoolError):  # noqa: N818
    """No slot became free in time (P7)."""


class Unavailable(PoolError):  # noqa: N818
    """No provider of the group could ever serve this request, as things are (P5)."""

    @property
    def reasons(self) -> tuple[ProviderReason, ...]:
        """Why, for each provider of the group."""
        return self.refused.reasons


class UnknownModel(PoolError):  # noqa: N818
    """There is no such group (P5)."""


def error_from(refused: Refused) -> PoolError:
    """The exception for a refusal, worded."""
    where = f'model "{refused.group}"'
    match refused.kind:
        case RefusalKind.QUEUE_FULL:
            return QueueFull(refused, f"{where}: the queue is full; try again in {refused.retry_after_ms} ms")
        case RefusalKind.QUEUE_TIMEOUT:
            return QueueTimeout(refused, f"{where}: no slot became free in time")
        case RefusalKind.UNKNOWN_MODEL:
            return UnknownModel(refused, f"{where}: there is no such model")
        case RefusalKind.UNAVAILABLE:
            why = "; ".join(f"{entry.provider}: {entry.reason.words}" for entry in refused.reasons)
            return Unavailable(refused, f"{where}: no provider can take this run ({why or 'it has none'})")
