"""What every adapter kind is to the rest of the Node: the protocol, what it tells of a run, what its probe finds."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Protocol

from attrs import frozen

from iop_node.link import Health, RunError, RunOrder, Usage
from iop_node.settings import AdapterSettings

JSON_HEAD = (("content-type", "application/json"),)
STREAM_HEAD = (("content-type", "text/event-stream"),)


class RunFailedError(Exception):
    """A run ended without an answer, or in the middle of one; `error` says why, in words without secrets."""

    def __init__(self, error: RunError) -> None:
        super().__init__(error.message)
        self.error = error


class BuildError(Exception):
    """An adapter cannot be built from its settings: the payload is refused with this fault (N3).

    `path` is relative to the adapter (`cli.command`); the text holds no secret.
    """

    def __init__(self, path: str, code: str, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.code = code


class RunOutput(Protocol):
    """Where an adapter tells what happens to the run that it executes. One per run; the deadlines are behind it."""

    usage: Usage | None
    """Set it as soon as something is known, and again when it grows: a cancelled run is metered by it (E9)."""

    def contacted(self) -> None:
        """The request is about to reach the runtime: from here on it may have been executed."""

    def alive(self) -> None:
        """The runtime said something that is not for the client; its silence counts from now (E12).

        Before the first data it changes nothing: a runtime that only says that it lives has not answered.
        """

    def head(self, status: int, headers: tuple[tuple[str, str], ...]) -> None:
        """Status (below 400) and headers of the answer; once, before the first `data`."""

    async def data(self, data: bytes) -> None:
        """Bytes for the client: whole SSE events in a streaming run, else a piece of the body.

        Waits while the client is slow; that time does not count as the runtime's silence.
        """


@frozen
class ProbeTarget:
    """Which provider is asked about: an adapter may serve several."""

    provider_id: str
    models: tuple[str, ...] = ()
    """The served names that should be there."""
    context_size: int | None = None


@frozen
class ProbeResult:
    """What a probe found out (N7). Numbers are 0 where the runtime does not say."""

    health: Health
    message: str = ""
    context_tokens: int = 0
    runtime_slots: int = 0
    silent: bool = False
    """Unhealthy for want of an answer only: a runtime that is busy or a run that makes tokens may explain it."""


@frozen
class AdapterContext:
    """What an adapter may use of its Node."""

    folder: Path
    """A folder of this Node for what lives longer than a run; it may not exist yet."""
    node_version: str = ""


class Adapter(Protocol):
    """An adapter instance: built from its settings, runs, probed, closed once nobody uses it any more (N3, N5)."""

    kinds: ClassVar[frozenset[str]]
    """The kinds that this class executes."""

    def __init__(self, settings: AdapterSettings, context: AdapterContext) -> None:
        """Build without touching the runtime, on the running loop; BuildError for what can never work."""

    async def run(self, order: RunOrder, out: RunOutput) -> None:
        """Execute the order; returns once it is complete and the runtime is free of it.

        Raises RunFailedError. Cancelled once it stops the runtime, waits until that is sure where it can be asked (N8),
        and lets CancelledError through; cancelled again it gives up waiting at once.
        """

    async def probe(self, target: ProbeTarget) -> ProbeResult:
        """Ask the runtime how it is; bounded by the caller, never raises for what the runtime does."""

    async def close(self) -> None:
        """Free everything; no run is active any more."""
