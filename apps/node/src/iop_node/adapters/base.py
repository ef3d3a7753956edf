"""What an adapter is: executes one run against a runtime, probes it without an inference, and is closed at the end (N5)."""

from __future__ import annotations

from typing import Protocol

from attrs import frozen

from iop_node.link import EndKind, Health, RunEnd, RunError, RunOrder, Usage
from iop_node.settings import ProviderSettings

__all__ = ["Adapter", "BuildError", "Output", "Probe", "RunFailure", "completed", "failed"]


class BuildError(Exception):
    """An instance cannot be made from its settings; the text says what would be right. It becomes a NACK (N3)."""


class RunFailure(Exception):  # noqa: N818  it is one of a run's ordinary ends
    """Ends a run as failed from anywhere inside an adapter."""

    def __init__(self, error: RunError) -> None:
        super().__init__(error.message)
        self.error = error


@frozen
class Probe:
    """What a look at a runtime found (N7)."""

    health: Health
    message: str = ""
    """For people; free of secrets."""
    context_tokens: int = 0
    """What the runtime says one request may hold; 0: it does not say."""
    runtime_slots: int = 0
    """What the runtime says it runs at once; 0: it does not say."""


class Output(Protocol):
    """Where a run's answer goes. It also watches the silence of the runtime (E12) and counts for cancelled runs (E9)."""

    def started(self) -> None:
        """The runtime is about to be contacted: from here on the run may have been executed."""

    def alive(self) -> None:
        """Something came from the runtime that is no output yet (a CLI's progress): it is not silent."""

    def head(self, status: int, headers: tuple[tuple[str, str], ...]) -> None:
        """Status and headers of the answer, once, before the first chunk."""

    async def chunk(self, data: bytes) -> None:
        """Bytes of the answer, whole events of a stream; waits while the Edge takes no more."""

    def count(self, usage: Usage) -> None:
        """What is known of the tokens so far; the last word counts when the run ends early."""

    def produced(self, tokens: int) -> None:
        """So many more output tokens, by our own count, for a runtime that does not say."""


class Adapter(Protocol):
    """One adapter instance. Runs overlap; each is one call of `run` in a task of its own."""

    async def run(self, order: RunOrder, output: Output) -> RunEnd:
        """Execute the order and return how it ended; raises nothing but RunFailure and what cancellation raises.

        Cancelled, it makes the runtime stop and returns or raises only when the runtime is free again, as far as
        that can be known (N8); it may be abandoned after a bound.
        """

    async def probe(self, provider: ProviderSettings) -> Probe:
        """Look at the runtime without an inference. Raises nothing."""

    async def close(self) -> None:
        """Let go of everything; no run is active any more."""


def completed(usage: Usage | None) -> RunEnd:
    """The end of a run that was answered in full."""
    return RunEnd(EndKind.COMPLETED, usage=usage, started=True)


def failed(error: RunError, usage: Usage | None = None, *, started: bool = True) -> RunEnd:
    """The end of a run that failed."""
    return RunEnd(EndKind.FAILED, usage=usage, error=error, started=started)
