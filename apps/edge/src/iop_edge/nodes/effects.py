"""What a session of the Edge tells its surroundings, as values (wire §1.5, §1.6)."""

from __future__ import annotations

from enum import StrEnum

from attrs import field, frozen

from iop_edge.nodes.attempt import Attempt
from iop_edge.nodes.run import End
from iop_edge.nodes.values import ProviderState, PushOutcome, StoppingAttempt


class OverReason(StrEnum):
    """Why a session ended, for the log, the status and a metric label."""

    LOST = "lost"
    """The stream broke without a Goodbye (G8)."""
    GOODBYE = "goodbye"
    SILENT = "silent"
    FENCED = "fenced"
    PROTOCOL = "protocol"
    UNRESPONSIVE = "unresponsive"
    EDGE_SHUTDOWN = "edge_shutdown"


@frozen
class AttemptReady:
    """Something can be taken from the attempt."""

    attempt: Attempt


@frozen
class AttemptEnded:
    """The attempt's one end: its slot is free (P8)."""

    attempt: Attempt
    end: End


@frozen
class Suspected:
    """Silent for too long to be given new runs."""


@frozen
class Recovered:
    """A suspected Node spoke again."""


@frozen
class NodeDrains:
    """The Node is shutting down."""

    reason: str


@frozen
class HealthChanged:
    """Provider states that changed."""

    states: tuple[ProviderState, ...]


@frozen
class StoppingEnded:
    """An attempt of an earlier session released its runtime."""

    attempt: StoppingAttempt


@frozen
class PushDone:
    """A push, or the Welcome's payload (`push_id` ""), has its outcome; `late` when `no_answer` was said before."""

    outcome: PushOutcome
    late: bool = False


@frozen
class SessionOver:
    """The session ended; emitted once, before the ends of its attempts and pushes."""

    reason: OverReason
    message: str = field(default="")


Effect = (
    AttemptReady
    | AttemptEnded
    | Suspected
    | Recovered
    | NodeDrains
    | HealthChanged
    | StoppingEnded
    | PushDone
    | SessionOver
)
