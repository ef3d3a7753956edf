"""A real Edge listener and real Node connections over loopback gRPC, with a fake inside on either end."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from iop_edge.nodes.auth import NodeAuth
from iop_edge.nodes.registry import NodeRegistry
from iop_edge.nodes.run import Chunk, End, Head, NodeSession, Operation, RunHandle, RunSpec
from iop_edge.nodes.server import NodeServer
from iop_edge.nodes.values import TlsFiles
from iop_node.connection import Connection, LinkPhase, LinkStatus
from iop_node.dial import DialSettings, DialTls
from iop_wire import runtime_pb2 as pb
from iop_wire.limits import Timing
from support.fakehost import FakeHost
from support.link import Fleet, payload

TOKEN = "iop-test-token"
FAST = Timing(heartbeat=0.3, suspect=0.8, dead=1.6, hello=1.0, welcome=1.0, connect=2.0)
"""Heartbeats and bounds short enough for a test; everything else as in production."""


class Instantly:
    """A random number generator that never waits long."""

    def uniform(self, a: float, b: float) -> float:
        return min(b, 0.02)


class EdgeUnderTest:
    """A listener, its registry and what it told."""

    def __init__(self, timing: Timing | None = None, tls: TlsFiles | None = None) -> None:
        self.fleet = Fleet()
        self.payload: pb.NodeConfigPayload | None = payload()
        self.auth = NodeAuth({"n1": (hashlib.sha256(TOKEN.encode()).hexdigest(),)})
        self.timing = timing or Timing()
        self.tls = tls
        self.address = "127.0.0.1:0"
        self.registry: NodeRegistry
        self.server: NodeServer

    async def start(self) -> None:
        """Listen; a restart takes the same port."""
        self.registry = NodeRegistry(
            self.fleet,
            lambda _node_id: self.payload,
            node_ids=("n1",),
            edge_id="edge-1",
            edge_version="0.1.0",
            timing=self.timing,
        )
        self.server = NodeServer(self.registry, self.address, self.auth, tls=self.tls)
        self.address = await self.server.start()

    def session(self) -> NodeSession:
        session = self.registry.session("n1")
        assert session is not None
        return session


@asynccontextmanager
async def edge_running(timing: Timing | None = None, tls: TlsFiles | None = None) -> AsyncIterator[EdgeUnderTest]:
    """An Edge that listens, stopped at the end."""
    edge = EdgeUnderTest(timing, tls)
    await edge.start()
    try:
        yield edge
    finally:
        await edge.server.stop()


class NodeUnderTest:
    """A connection that runs in a task, and every status it had."""

    def __init__(self, address: str, token: str = TOKEN, node_id: str = "n1", tls: DialTls | None = None) -> None:
        self.host = FakeHost()
        self.statuses: list[LinkStatus] = []
        self.changed = asyncio.Event()
        self.connection = Connection(
            DialSettings(address, node_id, token, tls=tls),
            self.host,
            node_version="0.1.0",
            rng=Instantly(),
            on_status=self._status,
        )
        self.task: asyncio.Task[None] | None = None

    def _status(self, status: LinkStatus) -> None:
        self.statuses.append(status)
        self.changed.set()

    async def until(self, condition: Callable[[LinkStatus], bool], timeout: float = 10.0) -> LinkStatus:
        """Return the first status from now on for which the condition holds."""
        async with asyncio.timeout(timeout):
            while not condition(self.connection.status):
                self.changed.clear()
                await self.changed.wait()
        return self.connection.status

    async def ready(self) -> None:
        await self.until(lambda status: status.phase is LinkPhase.READY)

    async def failure(self) -> LinkStatus:
        """Return the status of the first failed dial."""
        return await self.until(lambda status: status.last_cause is not None)


@asynccontextmanager
async def node_running(
    address: str, token: str = TOKEN, node_id: str = "n1", tls: DialTls | None = None
) -> AsyncIterator[NodeUnderTest]:
    """A Node that dials, drained at the end."""
    node = NodeUnderTest(address, token, node_id, tls)
    node.task = asyncio.ensure_future(node.connection.run())
    try:
        yield node
    finally:
        await node.connection.drain(0.0)
        await node.task


def order(run_id: str = "r1", target: str = "echo", body: bytes = b"{}") -> RunSpec:
    """Return a run that the fake inside understands."""
    return RunSpec(
        run_id=run_id,
        attempt=1,
        adapter="a",
        target=target,
        operation=Operation.CHAT_COMPLETIONS,
        body=body,
        streaming=True,
        generation=0,
        provider_id="p",
    )


async def read_all(handle: RunHandle) -> tuple[list[Head], bytes, End]:
    """Read a run to its end, within ten seconds."""
    heads, parts = [], []
    async with asyncio.timeout(10):
        while True:
            item = await handle.next()
            if isinstance(item, Head):
                heads.append(item)
            elif isinstance(item, Chunk):
                parts.append(item.data)
            else:
                return heads, b"".join(parts), item
