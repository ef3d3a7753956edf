"""The gRPC shell of one Node's stream: one reader task, one writer task, nothing that decides (wire §1, G8-G13).

A read or write is never wrapped in a timeout: whatever takes too long is ended from outside, by ending the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from typing import Protocol

from iop_edge.nodes.admission import Refusal
from iop_edge.nodes.effects import OverReason
from iop_edge.nodes.live import LiveSession
from iop_edge.nodes.registry import NodeRegistry
from iop_wire.runtime_pb2 import SESSION_END_REASON_PROTOCOL_ERROR

log = logging.getLogger("iop.edge.nodes")


class RawStream(Protocol):
    """What is used of `grpc.aio.ServicerContext`, with bytes as messages."""

    def read(self) -> Awaitable[object]:
        """Return the next message; anything but bytes is the end of the stream."""

    def write(self, message: bytes) -> Awaitable[None]:
        """Send a message; waits while the peer does not read."""


async def serve_stream(stream: RawStream, registry: NodeRegistry, node_id: str, peer: str) -> str | None:
    """Serve an authenticated stream to its end; return the text of a version that shares nothing with ours.

    Never raises, unless this task itself is cancelled, which is how gRPC says that the peer is gone.
    """
    hello = await _first_frame(stream, registry.timing.hello)
    if hello is None:
        log.warning("node %s from %s: no Hello within %.0f s", node_id, peer, registry.timing.hello)
        session: LiveSession | Refusal = Refusal("no Hello came in time", SESSION_END_REASON_PROTOCOL_ERROR)
    else:
        session = registry.admit(node_id, hello, peer)
    if isinstance(session, LiveSession):
        await _Pump(stream, session).run(registry.timing.end_flush)
        return None
    if session.reason is None:
        return session.message
    with contextlib.suppress(Exception):
        await stream.write(session.frame())
    return None


async def _first_frame(stream: RawStream, within: float) -> bytes | None:
    read = asyncio.ensure_future(stream.read())
    try:
        await asyncio.wait({read}, timeout=within)
    finally:
        # Cancelling a read loses messages (G11): only done here, where the call ends with it.
        if not read.done():
            read.cancel()
    if not read.done() or read.cancelled() or read.exception() is not None:
        return None
    data = read.result()
    return data if isinstance(data, bytes) else None


class _Pump:
    """Moves bytes between a stream and its session until the session is over."""

    def __init__(self, stream: RawStream, session: LiveSession) -> None:
        self._stream = stream
        self._session = session
        self._ready = asyncio.Event()
        self._over = asyncio.Event()

    async def run(self, flush: float) -> None:
        self._session.wake = self._wake
        self._wake()
        reader = asyncio.ensure_future(self._read())
        writer = asyncio.ensure_future(self._write())
        over = asyncio.ensure_future(self._over.wait())
        try:
            await over
            await asyncio.wait({writer}, timeout=flush)
        finally:
            # A no-op for a session that is over; otherwise this task was cancelled: the peer is gone (G8).
            self._session.close(OverReason.LOST, "the connection broke")
            tasks = (reader, writer, over)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _wake(self) -> None:
        self._ready.set()
        if self._session.machine.over is not None:
            self._over.set()

    async def _read(self) -> None:
        text = "the connection broke"
        try:
            while isinstance(data := await self._stream.read(), bytes):
                self._session.receive(data)
        except asyncio.CancelledError:
            # Ours comes only after the session is over; any other one is gRPC's way to say that the peer is gone (G10).
            raise
        except Exception as error:
            # The text of a foreign error may quote what it chokes on.
            text = f"the connection broke ({type(error).__name__})"
            log.debug("node %s: reader ended", self._session.node_id, exc_info=True)
        finally:
            # An end without a Goodbye, however regular it looks, is a lost connection (G8).
            self._session.close(OverReason.LOST, text)

    async def _write(self) -> None:
        machine = self._session.machine
        try:
            while True:
                self._ready.clear()
                while (frame := machine.take_frame()) is not None:
                    await self._stream.write(frame)
                # A request too large to be sent has ended.
                self._session.carry_out()
                if machine.over is not None:
                    return
                await self._ready.wait()
        except Exception as error:
            self._session.close(OverReason.LOST, f"the connection broke while writing ({type(error).__name__})")
