"""The Node's side of the link as it runs: dial, serve a session, wait, dial again, for ever (N4, wire §1.4, §1.7).

`session.py` decides, `dial.py` opens calls; here are the tasks: one reader and one writer per stream, a ticker, and the
loop around them. No read or write is wrapped in a timeout (G9): what takes too long is ended by cancelling the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import random
import secrets
import time
from collections.abc import Callable
from enum import StrEnum

from attrs import evolve, frozen

from iop_node.backoff import Backoff, Cause, Uniform
from iop_node.dial import DialFailedError, DialSettings, check_settings, explain_failure, open_channel
from iop_node.link import Host
from iop_node.pump import Pump, RawCall
from iop_node.session import Identity, NodeSession, Over, SessionState, Welcomed
from iop_wire.limits import METADATA_ACCEPTED, METADATA_NODE_ID, METADATA_TOKEN, METHOD_PATH, Timing
from iop_wire.rpc import grpc

log = logging.getLogger("iop.node.link")


class LinkPhase(StrEnum):
    """Where the connection is (wire §1.4)."""

    BACKOFF = "backoff"
    DIALING = "dialing"
    HELLO_SENT = "hello_sent"
    CONFIGURING = "configuring"
    READY = "ready"
    DRAINING = "draining"
    CLOSED = "closed"


@frozen
class LinkStatus:
    """What `iop-node status` shows of the link."""

    phase: LinkPhase
    since: float
    """Unix time of the last change."""
    edge: str
    node_id: str
    last_error: str = ""
    last_cause: Cause | None = None
    retry_at: float | None = None
    """Unix time of the next dial, while in backoff."""
    session_id: str = ""
    epoch: int = 0
    edge_id: str = ""
    edge_version: str = ""
    attempts: int = 0
    """Dials so far."""


_PHASES = {
    SessionState.HELLO_SENT: LinkPhase.HELLO_SENT,
    SessionState.CONFIGURING: LinkPhase.CONFIGURING,
    SessionState.READY: LinkPhase.READY,
    SessionState.DRAINING: LinkPhase.DRAINING,
}
_SLOW_CAUSES = frozenset({Cause.REFUSED, Cause.VERSION, Cause.DUPLICATE, Cause.NOT_AN_EDGE, Cause.TLS})


class Connection:
    """Keeps this Node connected until it is drained. `run` in a task of its own, on asyncio."""

    def __init__(
        self,
        settings: DialSettings,
        host: Host,
        *,
        node_version: str,
        timing: Timing | None = None,
        rng: Uniform | None = None,
        on_status: Callable[[LinkStatus], None] | None = None,
    ) -> None:
        """Raises DialError for what waiting cannot cure. `on_status` is told of every change."""
        check_settings(settings)
        self._settings = settings
        self._host = host
        self._timing = timing or Timing()
        self._backoff = Backoff(rng or random.SystemRandom())
        self._on_status = on_status
        self._identity = Identity(
            node_id=settings.node_id,
            instance_id=secrets.token_bytes(16),
            hostname=platform.node(),
            pid=os.getpid(),
            node_version=node_version,
        )
        self._status = LinkStatus(LinkPhase.BACKOFF, time.time(), settings.edge, settings.node_id)
        self._ready_at: float | None = None
        self._pump: Pump | None = None
        self._configuring = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._drain: tuple[str, float] | None = None

    @property
    def status(self) -> LinkStatus:
        """Where the connection is now."""
        return self._status

    async def run(self) -> None:
        """Dial and serve until `drain` was called and is done. Never gives up by itself (N4)."""
        try:
            while not self._stopping.is_set():
                over = await self._attempt()
                if self._stopping.is_set():
                    break
                await self._pause(over)
        finally:
            self._change(LinkPhase.CLOSED)

    async def drain(self, grace: float, reason: str = "the Node is shutting down") -> None:
        """Stop for good: no new runs, the active ones finish within `grace` seconds, then they are cancelled (N6).

        Returns once every end was told; `run` returns soon after. A second call with grace 0 hurries the first one.
        """
        first = not self._stopping.is_set()
        self._stopping.set()
        if grace <= 0:
            self._hurry.set()
        pump = self._pump
        if pump is not None and first:
            await pump.drain(reason, grace, self._hurry)

    # ------------------------------------------------------------ one attempt

    async def _attempt(self) -> Over:
        self._status = evolve(self._status, attempts=self._status.attempts + 1, session_id="", epoch=0)
        self._change(LinkPhase.DIALING)
        self._ready_at = None
        try:
            channel = await open_channel(self._settings, self._timing.connect)
        except DialFailedError as error:
            return error.over
        try:
            return await self._session(channel)
        finally:
            # In order: the call ended first, so that closing the channel cuts nobody off (G25).
            await channel.close()

    async def _session(self, channel: grpc.aio.Channel) -> Over:
        settings = self._settings
        method = channel.stream_stream(METHOD_PATH)
        call = method(
            metadata=((METADATA_NODE_ID, settings.node_id), (METADATA_TOKEN, f"Bearer {settings.token}")),
        )
        # The Edge answers with its headers once it has accepted the token. A frame written before that could meet the
        # refusal half-way, and gRPC would then report the failed write instead of the reason.
        accepting = asyncio.ensure_future(_accepted(call))
        done, _ = await asyncio.wait({accepting}, timeout=self._timing.connect)
        if not done:
            call.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        if not done:
            text = f"no answer from {settings.edge} within {self._timing.connect:.0f} s; is that port an IOP Edge?"
            return Over(Cause.UNREACHABLE, text)
        if accepting.cancelled() or accepting.exception() is not None or not accepting.result():
            return await self._refused(call)
        machine = NodeSession(
            self._identity,
            applied_version=self._host.applied_version,
            applied_generation=self._host.applied_generation,
            providers=self._host.provider_states(),
            stopping=self._host.stopping_attempts(),
            now=time.monotonic(),
            timing=self._timing,
        )
        pump = Pump(call, machine, self._host, self._configuring, self._timing, self._session_changed)
        self._pump = pump
        try:
            if self._stopping.is_set():
                pump.stop_before_start()
            over = await pump.run()
        finally:
            self._pump = None
        if over.cause is Cause.LOST:
            over = explain_failure(settings, await call.code(), await call.details() or "", pump.welcomed)
        return over

    async def _refused(self, call: RawCall) -> Over:
        """Return why there is no session, once the status is there."""
        ending = asyncio.ensure_future(call.code())
        done, _ = await asyncio.wait({ending}, timeout=self._timing.goodbye)
        if not done:
            # A stranger that answered with headers of its own and keeps the call open.
            call.cancel()
            await asyncio.gather(ending, return_exceptions=True)
            return explain_failure(self._settings, grpc.StatusCode.UNIMPLEMENTED, "", welcomed=False)
        return explain_failure(self._settings, ending.result(), await call.details() or "", welcomed=False)

    def _session_changed(self, state: SessionState, welcomed: Welcomed | None) -> None:
        if welcomed is not None:
            self._status = evolve(
                self._status,
                session_id=welcomed.session_id,
                epoch=welcomed.epoch,
                edge_id=welcomed.edge_id,
                edge_version=welcomed.edge_version,
            )
        phase = _PHASES.get(state)
        if phase is None or phase is self._status.phase:
            return
        if phase is LinkPhase.READY:
            self._ready_at = time.monotonic()
            self._status = evolve(self._status, last_error="", last_cause=None)
        self._change(phase)

    async def _pause(self, over: Over) -> None:
        if self._ready_at is not None:
            self._backoff.ready_for(time.monotonic() - self._ready_at)
        delay = self._backoff.delay(over.cause, over.retry_after)
        self._status = evolve(
            self._status, last_error=over.message, last_cause=over.cause, retry_at=time.time() + delay
        )
        self._change(LinkPhase.BACKOFF, f"{over.message}; next try in {delay:.1f} s", over.cause in _SLOW_CAUSES)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay)
        self._status = evolve(self._status, retry_at=None)

    def _change(self, phase: LinkPhase, text: str = "", severe: bool = False) -> None:
        self._status = evolve(self._status, phase=phase, since=time.time())
        level = logging.ERROR if severe else logging.WARNING if text else logging.INFO
        log.log(level, "link %s edge=%s%s", phase, self._settings.edge, f": {text}" if text else "")
        if self._on_status is not None:
            self._on_status(self._status)


async def _accepted(call: RawCall) -> bool:
    """Return whether the Edge accepted the token; raises when there is no connection."""
    await call.wait_for_connection()
    return any(key == METADATA_ACCEPTED for key, _ in await call.initial_metadata())
