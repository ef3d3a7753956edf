"""uvicorn inside the Edge's own task group, with the listener's limits (design §8).

uvicorn bounds neither a request's head nor a client that stops reading, and tells an app of a lost connection only
through `receive()`, which would cost a task per request: its protocol class is extended here, and one sweep per second
over all connections stands for a timer per connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import anyio
import uvicorn
from anyio.abc import TaskStatus
from attrs import frozen
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from iop_edge.errors import ApiError
from iop_edge.http.app import new_request_id
from iop_edge.http.body import BODY_BYTES
from iop_edge.http.surfaces import SURFACES, error_body

__all__ = ["HttpLimits", "serve"]

_LAST_WORDS = 1.0  # seconds for the tasks of cut connections to give back what they hold


@frozen
class HttpLimits:
    """Bounds of one listener; times in seconds, sizes in bytes."""

    max_connections: int = 4096
    head_bytes: int = 64 * 1024
    head_timeout: float = 10.0
    """From the first byte of a request until its head is complete."""
    idle_timeout: float = 75.0
    """A connection without a request."""
    stall_timeout: float = 60.0
    """A reader that takes nothing."""
    ignored_body_bytes: int = BODY_BYTES
    """What a client may still send of a body whose request is already answered."""

    @property
    def sweep(self) -> float:
        """Between two looks at the connections."""
        return min(1.0, self.head_timeout / 4, self.idle_timeout / 4, self.stall_timeout / 4)


async def serve(
    app: ASGIApp,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    sock: socket.socket | None = None,
    limits: HttpLimits = HttpLimits(),
    shutdown: anyio.Event | None = None,
    grace: float = 30.0,
    task_status: TaskStatus[tuple[str, int]] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` until `shutdown` is set or this is cancelled; `task_status` gets the real host and port.

    After `shutdown`: no new connections, idle ones are closed, the others may finish within `grace` seconds. Installs
    no signal handler. Raises OSError where the address cannot be bound.
    """
    listener = sock if sock is not None else _bind(host, port)
    config = uvicorn.Config(
        app,
        http=_protocol_class(limits),
        loop="none",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # a middleware of its own, for an address that nobody asks for
        server_header=False,
        timeout_keep_alive=int(limits.idle_timeout) or 1,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    try:
        await server.startup(sockets=[listener])
        task_status.started(listener.getsockname()[:2])
        await _tend(server, limits, shutdown)
        await _drain(server, grace)
    finally:
        with anyio.CancelScope(shield=True):
            await _close(server, listener)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


async def _tend(server: uvicorn.Server, limits: HttpLimits, shutdown: anyio.Event | None) -> None:
    """Sweep the connections and keep the date header fresh until `shutdown` is set."""
    ticks = 0
    loop = asyncio.get_running_loop()
    while shutdown is None or not shutdown.is_set():
        if ticks % max(1, round(1.0 / limits.sweep)) == 0:
            await server.on_tick(0)  # the date header, and no other thing with our config
        ticks += 1
        with anyio.move_on_after(limits.sweep):
            if shutdown is None:
                await anyio.sleep_forever()
            else:
                await shutdown.wait()
        now = loop.time()
        for connection in tuple(server.server_state.connections):
            if isinstance(connection, _Connection):
                connection.sweep(now)


async def _drain(server: uvicorn.Server, grace: float) -> None:
    for listening in server.servers:
        listening.close()
    for connection in tuple(server.server_state.connections):
        connection.shutdown()
    with anyio.move_on_after(grace):
        # uvicorn keeps plain sets and tells nobody when they change.
        while server.server_state.connections or server.server_state.tasks:  # noqa: ASYNC110
            await anyio.sleep(0.02)


async def _close(server: uvicorn.Server, listener: socket.socket) -> None:
    for listening in getattr(server, "servers", ()):
        listening.close()
    listener.close()
    for connection in tuple(server.server_state.connections):
        connection.transport.abort()
    tasks = tuple(server.server_state.tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_LAST_WORDS)


def _protocol_class(limits: HttpLimits) -> type[asyncio.Protocol]:
    """uvicorn makes the protocols itself, so what they need besides its arguments comes by a class of their own."""
    return type("IopConnection", (_Connection,), {"limits": limits})


class _Connection(HttpToolsProtocol):
    """One client connection: uvicorn's, with bounds on its head, its silence and its reading (design §8)."""

    limits: HttpLimits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._on_gone: Callable[[], None] | None = None
        self._gone = False
        self._head_since: float | None = None
        self._head_bytes = 0
        self._idle_since: float | None = None
        self._ignored = 0
        self._stalled_since: float | None = None
        self._unsent = 0
        self._refused = False

    # -- what the app asks for (http.sse.Connection) -------------------------------------------------------------

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back once when the client is gone."""
        if self._gone:
            callback()
            return
        self._on_gone = callback
        # A body above the high-water mark pauses reading, and a paused socket does not tell that its peer has left.
        self.flow.resume_reading()

    @property
    def body_complete(self) -> bool:
        """Whether the request's whole body is here already, so that reading it cannot wait."""
        return not self.cycle.more_body

    def unwatch(self) -> None:
        """The request is over: never call back."""
        self._on_gone = None

    def abort(self) -> None:
        """Cut the connection at once."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # else uvicorn complains that the answer is not complete
        self.transport.abort()

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it; one too many is answered with 503 as soon as its request is read, and closed."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        if len(self.connections) > self.limits.max_connections:
            self.app = _too_many_connections

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the running request at once."""
        super().connection_lost(exc)
        self._gone = True
        callback, self._on_gone = self._on_gone, None
        if callback is not None:
            callback()

    def data_received(self, data: bytes) -> None:
        """Parse, with the time and the size of the head in view."""
        if self._refused:
            return
        if self._idle_since is not None:
            self._idle_since = None
            self._head_since = self.loop.time()
        if self._head_since is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_since is not None and self._head_bytes > self.limits.head_bytes:
            self._refuse(ApiError("head_too_large", f"the request head is larger than {self.limits.head_bytes} bytes"))

    # -- the parser's callbacks ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins; the app finds its connection in the scope."""
        super().on_message_begin()
        if self._head_since is None:
            self._head_since = self.loop.time()
        self._ignored = 0
        self.scope["extensions"] = {"iop.connection": self}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        """The head is complete: start the app, unless the head was too large."""
        read, self._head_bytes, self._head_since = self._head_bytes, 0, None
        # One read may hold the head and much of the body: only then the head itself is measured.
        if read > self.limits.head_bytes and self._head_size() > self.limits.head_bytes:
            self._refuse(ApiError("head_too_large", f"the request head is larger than {self.limits.head_bytes} bytes"))
            return
        super().on_headers_complete()

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def on_body(self, body: bytes) -> None:
        """Take the body; of one whose request is already answered only so much more is read."""
        if self._refused:
            return
        if self.cycle.response_complete:
            self._ignored += len(body)
            if self._ignored > self.limits.ignored_body_bytes:
                self.transport.abort()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if not self._refused:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Ready for the next request."""
        super().on_response_complete()
        if not self.pipeline:
            self._idle_since = self.loop.time()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._refuse(ApiError("invalid_request", "this is not an HTTP/1.1 request"))

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; what its client never read is dropped."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    # -- bounds --------------------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """End what has waited too long: a head, an idle client, a reader that takes nothing."""
        limits = self.limits
        if self._head_since is not None and now - self._head_since > limits.head_timeout and not self._refused:
            self._refuse(ApiError("head_timeout", f"the request head took longer than {limits.head_timeout:g} s"))
        elif self._idle_since is not None and now - self._idle_since > limits.idle_timeout:
            self.timeout_keep_alive_handler()
        unsent = self.transport.get_write_buffer_size()
        if not unsent or not (self.flow.write_paused or self.transport.is_closing()):
            self._stalled_since = None
        elif self._stalled_since is None or unsent < self._unsent:
            self._stalled_since = now  # it took something since the last look
        elif now - self._stalled_since > limits.stall_timeout:
            self.abort()
        self._unsent = unsent

    def _refuse(self, error: ApiError) -> None:
        """Answer without the app, and close."""
        self._refused = True
        request_id = new_request_id()
        body = error_body(error, request_id, anthropic=False)
        head = [
            STATUS_LINE[error.status],
            b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body),
            b"x-request-id: %s\r\nconnection: close\r\n\r\n" % request_id.encode(),
        ]
        if not self.transport.is_closing():
            self.transport.write(b"".join(head) + body)
            self.transport.close()


async def _too_many_connections(scope: Scope, receive: Receive, send: Send) -> None:
    error = ApiError("too_many_connections", "this edge has as many client connections as it takes; try again")
    request_id = new_request_id()
    surface = SURFACES.get(scope["path"])
    body = error_body(error, request_id, anthropic=surface is not None and surface.anthropic)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id.encode()),
        (b"connection", b"close"),
        *error.headers(),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
