"""The gRPC listener that Nodes dial: authentication at the door, one handler per stream, TLS, shutdown in order."""

from __future__ import annotations

from iop_edge.nodes.auth import NodeAuth
from iop_edge.nodes.registry import NodeRegistry
from iop_edge.nodes.values import TlsFiles


class NodeServer:
    """Serves `NodeLink.Session` for one registry, on the running asyncio loop."""

    def __init__(
        self,
        registry: NodeRegistry,
        listen: str,
        auth: NodeAuth,
        *,
        tls: TlsFiles | None = None,
        insecure: bool = False,
    ) -> None:
        """`listen` is host:port (port 0: a free one). Without TLS it must be loopback unless `insecure`: ValueError."""
        raise NotImplementedError

    async def start(self) -> str:
        """Listen; return the address as host:port with the real port. Raises OSError when it cannot be bound."""
        raise NotImplementedError

    async def reload_tls(self, tls: TlsFiles) -> None:
        """New handshakes get the new certificate; open sessions live on. Raises ValueError for unusable files."""
        raise NotImplementedError

    def request_drain(self, grace: float) -> None:
        """Tell every Node that the Edge is about to stop; runs go on, new Nodes are still welcomed."""
        raise NotImplementedError

    async def stop(self) -> None:
        """End every session by frame (EDGE_SHUTDOWN), then the listener; runs still open end as `edge_shutdown`."""
        raise NotImplementedError
