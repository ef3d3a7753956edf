"""The gRPC listener that Nodes dial: authentication at the door, one handler per stream, TLS, shutdown in order."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
from typing import Protocol
from urllib.parse import unquote

from iop_edge.nodes.auth import FailureLimit, NodeAuth
from iop_edge.nodes.registry import NodeRegistry
from iop_edge.nodes.stream import RawStream, serve_stream
from iop_edge.nodes.values import TlsFiles
from iop_wire.limits import (
    METADATA_ACCEPTED,
    METADATA_NODE_ID,
    METADATA_TOKEN,
    METHOD_NAME,
    METHOD_SERVICE,
    server_options,
)
from iop_wire.rpc import grpc

log = logging.getLogger("iop.edge.nodes")

_TICK_S = 0.25
_STOP_GRACE_S = 1.0


class _Context(RawStream, Protocol):
    """What is used of `grpc.aio.ServicerContext`."""

    def peer(self) -> str: ...

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...] | None: ...

    async def send_initial_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None: ...

    async def abort(self, code: grpc.StatusCode, details: str) -> None: ...


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
        self._registry = registry
        self._host, self._port = split_address(listen)
        self._auth = auth
        self._failures = FailureLimit()
        self._tls = tls
        self._server: grpc.aio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._streams: set[asyncio.Task[object]] = set()
        if tls is None and not insecure and not is_loopback(self._host):
            raise ValueError(f"{listen}: plaintext off loopback; set server.tls, or server.insecure: true")
        if tls is not None:
            check_tls(tls)

    async def start(self) -> str:
        """Listen; return the address as host:port with the real port. Raises OSError when it cannot be bound."""
        server = grpc.aio.server(options=server_options())
        handler = grpc.stream_stream_rpc_method_handler(self._session)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(METHOD_SERVICE, {METHOD_NAME: handler}),))
        address = join_address(self._host, self._port)
        try:
            if self._tls is None:
                port = server.add_insecure_port(address)
            else:
                credentials = grpc.dynamic_ssl_server_credentials(
                    self._certificate(), lambda: self._certificate(), self._tls.client_ca is not None
                )
                port = server.add_secure_port(address, credentials)
        except RuntimeError:
            port = 0
        if not port:
            await server.stop(None)
            raise OSError(f"{address}: cannot be listened on; is another process using the port?")
        await server.start()
        self._server = server
        self._ticker = asyncio.ensure_future(self._tick())
        return join_address(self._host, port)

    def reload_tls(self, tls: TlsFiles) -> None:
        """New handshakes get the new certificate; open sessions live on. Raises ValueError for unusable files."""
        if self._tls is None:
            raise ValueError("this listener was started without TLS")
        if (tls.client_ca is None) != (self._tls.client_ca is None):
            raise ValueError("client certificates cannot be switched on or off without a restart")
        check_tls(tls)
        self._tls = tls

    @property
    def refused_logins(self) -> int:
        """How many streams were refused for their id or token."""
        return self._failures.total

    def request_drain(self, grace: float) -> None:
        """Tell every Node that the Edge is about to stop; runs go on, new Nodes are still welcomed."""
        self._registry.request_drain(grace)

    async def stop(self) -> None:
        """End every session by frame (EDGE_SHUTDOWN), then the listener; runs still open end as `edge_shutdown`."""
        self._registry.close()
        if self._streams:
            # Each ends by itself once its SessionEnd was written, within the flush bound.
            await asyncio.wait(self._streams, timeout=self._registry.timing.end_flush + _STOP_GRACE_S)
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
            self._ticker = None
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_S)
            self._server = None

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._registry.tick()

    async def _session(self, _requests: object, context: _Context) -> None:
        """Handle one stream. Everything is caught here: gRPC would send the text of an exception to the peer (G24)."""
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            peer = peer_address(context.peer())
            node_id = self._authenticated(context, peer)
            if isinstance(node_id, _Refused):
                await context.abort(node_id.code, node_id.text)
            else:
                # At once, not with the first frame: the Node sends its Hello only when it knows it is accepted.
                await context.send_initial_metadata(((METADATA_ACCEPTED, "1"),))
                refusal = await serve_stream(context, self._registry, node_id, peer)
                if refusal is not None:
                    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)
        except grpc.aio.AbortError:
            raise
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a Node's stream failed")
            await context.abort(grpc.StatusCode.INTERNAL, "internal error; the Edge's log has the details")
        finally:
            self._streams.discard(task)

    def _authenticated(self, context: _Context, peer: str) -> str | _Refused:
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        node_id = metadata.get(METADATA_NODE_ID, "")
        scheme, _, token = metadata.get(METADATA_TOKEN, "").partition(" ")
        if self._auth.check(node_id, token) and scheme.lower() == "bearer":
            return node_id
        host = peer.rpartition(":")[0]
        if self._failures.failed(host, self._registry.clock()):
            text = "too many refused logins from this address; check id and token, then wait a minute"
            return _Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        why = "wrong token" if self._auth.knows(node_id) else "unknown node id"
        log.warning("login of node %r from %s refused: %s", node_id[:64], peer, why)
        # One text for both: who has no token learns no id.
        return _Refused(
            grpc.StatusCode.UNAUTHENTICATED,
            "this Edge knows no Node with this id and token; `iop-edge node add` makes a new pair",
        )

    def _certificate(self) -> grpc.ServerCertificateConfiguration:
        assert self._tls is not None
        pair = (self._tls.private_key, self._tls.certificate)
        return grpc.ssl_server_certificate_configuration([pair], self._tls.client_ca)


class _Refused:
    """The status of a stream that is refused at the door."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        self.code = code
        self.text = text


def split_address(address: str) -> tuple[str, int]:
    """Split host:port, with or without brackets around an IPv6 host. ValueError says what is wrong."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r}: not an address of the form host:port")
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)


def join_address(host: str, port: int) -> str:
    """Return host:port as gRPC and people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a listener on this host can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def peer_address(peer: str) -> str:
    """Return gRPC's peer (`ipv4:127.0.0.1:5`, `ipv6:%5B::1%5D:5`) as host:port."""
    return unquote(peer.partition(":")[2])


def check_tls(tls: TlsFiles) -> None:
    """Raise ValueError unless certificate and key are PEM and belong together: gRPC would fail at each handshake."""
    import ssl
    import tempfile

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("certificate", "key")]
        for path, content in zip(paths, (tls.certificate, tls.private_key), strict=True):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
        try:
            context.load_cert_chain(paths[0], paths[1], password="")
        except (ssl.SSLError, OSError, ValueError):
            # Without the cause: its text may quote the files.
            raise ValueError("certificate and key are not usable: not PEM, encrypted, or not a pair") from None
    if tls.client_ca is not None:
        try:
            context.load_verify_locations(cadata=tls.client_ca.decode())
        except (ssl.SSLError, ValueError):
            raise ValueError("the CA of client certificates is not usable: no PEM certificate in it") from None
