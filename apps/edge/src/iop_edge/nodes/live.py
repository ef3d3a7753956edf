"""A session and its runs as the service holds them: the machine, with someone to wake and someone to tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from iop_edge.nodes.attempt import Attempt
from iop_edge.nodes.effects import AttemptEnded, AttemptReady, Effect, OverReason
from iop_edge.nodes.run import Chunk, End, Head, RunHandle, RunSpec
from iop_edge.nodes.session import SessionMachine

Tell = Callable[["LiveSession", Effect], None]


class LiveSession:
    """One welcomed Node (`run.NodeSession`). Synchronous; every call leaves no effect behind."""

    def __init__(self, machine: SessionMachine, peer: str, clock: Callable[[], float], tell: Tell) -> None:
        self.machine = machine
        self.peer = peer
        self.since = clock()
        self.wake: Callable[[], None] = _nobody
        """Called when frames may be ready to be written, or the session is over; set by the stream's shell."""
        self._clock = clock
        self._tell = tell

    @property
    def node_id(self) -> str:
        return self.machine.info.node_id

    @property
    def epoch(self) -> int:
        return self.machine.epoch

    def start_run(self, spec: RunSpec, on_end: Callable[[End], None]) -> RunHandle:
        """See `run.NodeSession.start_run`."""
        attempt = self.machine.start(spec, on_end, self._clock())
        self.settle()
        return _Handle(self, attempt)

    def take(self, attempt: Attempt) -> Head | Chunk | End | None:
        """Return the attempt's next item, if any; taken bytes are granted as credit."""
        item = self.machine.take(attempt, self._clock())
        if isinstance(item, Chunk):
            self.wake()
        return item

    def cancel(self, attempt: Attempt, reason: str) -> None:
        """Ask the Node to stop a run."""
        self.machine.cancel(attempt, reason, self._clock())
        self.settle()

    def receive(self, data: bytes) -> None:
        """Take the bytes of one frame."""
        self.machine.receive(data, self._clock())
        self.settle()

    def tick(self) -> None:
        """Look at the clock."""
        self.machine.tick(self._clock())
        self.settle()

    def close(self, reason: OverReason, message: str, retry_after: float = 0.0) -> None:
        """End the session."""
        self.machine.close(reason, message, retry_after)
        self.settle()

    def settle(self) -> None:
        """Carry out what the machine decided, and wake the writer."""
        self.carry_out()
        self.wake()

    def carry_out(self) -> None:
        """Tell everyone what the machine decided."""
        while effects := self.machine.take_effects():
            for effect in effects:
                if isinstance(effect, AttemptReady):
                    if effect.attempt.notify is not None:
                        effect.attempt.notify()
                elif isinstance(effect, AttemptEnded):
                    # The slot first: the next waiter is served before the reader of this run even wakes.
                    effect.attempt.on_end(effect.end)
                    if effect.attempt.notify is not None:
                        effect.attempt.notify()
                else:
                    self._tell(self, effect)


def _nobody() -> None:
    """Nobody writes yet."""


class _Handle:
    """One attempt as its reader holds it (`run.RunHandle`)."""

    __slots__ = ("_attempt", "_session")

    def __init__(self, session: LiveSession, attempt: Attempt) -> None:
        self._session = session
        self._attempt = attempt

    @property
    def ended(self) -> bool:
        return self._attempt.end is not None

    async def next(self) -> Head | Chunk | End:
        """See `run.RunHandle.next`. One reader at a time."""
        attempt = self._attempt
        while (item := self._session.take(attempt)) is None:
            waiter = asyncio.get_running_loop().create_future()

            def notify(waiter: asyncio.Future[None] = waiter) -> None:
                if not waiter.done():
                    waiter.set_result(None)

            attempt.notify = notify
            try:
                await waiter
            finally:
                attempt.notify = None
        return item

    def cancel(self, reason: str) -> None:
        """See `run.RunHandle.cancel`."""
        self._session.cancel(self._attempt, reason)
