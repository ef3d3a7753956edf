"""The answer on its way to the client: a held status line, keep-alive comments, errors as events (E3, E11, E14)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from attrs import frozen
from starlette.types import Receive, Scope, Send

from iop_edge.errors import ApiError
from iop_edge.http.surfaces import Surface, error_body
from iop_edge.order import Trace

__all__ = ["Connection", "HttpReply", "ReplySettings", "connection_of"]

RawHeaders = list[tuple[bytes, bytes]]

# One newline and no blank line after it: a comment of its own event breaks clients (backends §0.5).
_KEEP_ALIVE = b": keep-alive\n"
_PASSED = frozenset({"content-type", "content-language"})
_GONE = frozenset({"client_gone", "client_stalled"})
_JSON = (b"content-type", b"application/json")
_STREAM_HEADERS: RawHeaders = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class Connection(Protocol):
    """The client's connection, as far as a request needs it: know when it is lost, and cut it."""

    @property
    def body_complete(self) -> bool:
        """Whether the request's whole body is here already, so that reading it cannot wait."""

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back once when the client is gone."""

    def unwatch(self) -> None:
        """The request is over: never call back."""

    def abort(self) -> None:
        """Cut the connection, so that an answer that is not complete cannot look so."""


class _ReceiveWatch:
    """The connection behind any ASGI server: a task that waits for `http.disconnect`. Our own listener needs none."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: asyncio.Task[None] | None = None
        self.body_complete = False

    def watch(self, callback: Callable[[], None]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._wait(callback))

    async def _wait(self, callback: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        callback()

    def unwatch(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        """Nothing to cut with: the server does it when the app returns before its answer is complete."""


def connection_of(scope: Scope, receive: Receive) -> Connection:
    """Return the connection of a request."""
    extensions = scope.get("extensions")
    found: Connection | None = extensions.get("iop.connection") if extensions else None
    return found if found is not None else _ReceiveWatch(receive)


@frozen
class ReplySettings:
    """What the listener's config says of answers; times in seconds."""

    stream_hold: float = 15.0
    keep_alive: float = 10.0
    response_headers: bool = False


class HttpReply:
    """Implements `service.Reply` on an ASGI `send`.

    A stream's status line waits for the first event, an error, or the end of the hold; after that a timer sends
    comments into the silence. `base` are headers that every answer carries. `close` must be called at the end.
    """

    def __init__(
        self,
        send: Send,
        connection: Connection,
        surface: Surface,
        settings: ReplySettings,
        *,
        request_id: str,
        base: RawHeaders,
        trace: Trace,
        streaming: bool,
    ) -> None:
        self._send = send
        self._connection = connection
        self._surface = surface
        self._settings = settings
        self._request_id = request_id
        self._base = base
        self._trace = trace
        self._streaming = streaming
        self._status: int | None = None
        self._events = 0
        self._done = False
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._ticking: asyncio.Task[None] | None = None
        if streaming:
            self._loop = asyncio.get_running_loop()
            self._timer = self._loop.call_later(settings.stream_hold, self._tick)

    @property
    def status(self) -> int | None:
        """The status that has left; None while the status line is held back."""
        return self._status

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call back once when the client is no longer there."""
        self._connection.watch(callback)

    async def head(self, status: int, headers: tuple[tuple[str, str], ...]) -> None:
        """Send the status line, unless the end of the hold did."""
        if self._ticking is not None:
            await self._ticking
        if self._status is not None:
            return
        if self._timer is not None:
            # From here on it is silence that counts, not the hold.
            self._timer.cancel()
            self._last = self._loop.time()
            self._timer = self._loop.call_later(self._settings.keep_alive, self._tick)
        await self._start(status, _STREAM_HEADERS if self._streaming else _passed(headers))

    async def data(self, data: bytes) -> None:
        """Send a piece of the body."""
        if self._ticking is not None:
            await self._ticking
        if self._streaming:
            self._last = self._loop.time()
            if self._surface.numbered:
                self._events += data.count(b"\n\n")
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self) -> None:
        """End the body."""
        if self._ticking is not None:
            await self._ticking
        self._done = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def whole(self, status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> None:
        """Send a complete answer."""
        passed = _passed(headers)
        passed.append((b"content-length", b"%d" % len(body)))
        self._done = True
        await self._start(status, passed)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def fail(self, error: ApiError) -> None:
        """Say how it ended: by status while that is possible, else by an event without `[DONE]`, else by a cut (E3)."""
        if self._done or error.code in _GONE:
            self._done = True
            self._connection.abort()
            return
        if self._ticking is not None:
            await self._ticking
        self._done = True
        if self._status is None:
            body = error_body(error, self._request_id, anthropic=self._surface.anthropic)
            extra = error.headers()
            extra += [_JSON, (b"content-length", b"%d" % len(body))]
            await self._start(error.status, extra)
        elif self._streaming:
            body = self._surface.error_event(error, self._request_id, self._events)
        else:
            self._connection.abort()
            return
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    def close(self) -> None:
        """Stop the timer and forget the connection."""
        self._done = True
        self._connection.unwatch()
        if self._timer is not None:
            self._timer.cancel()
        if self._ticking is not None:
            self._ticking.cancel()

    async def _start(self, status: int, headers: RawHeaders) -> None:
        self._status = status
        trace = self._trace
        made = [*self._base, *headers]
        if self._settings.response_headers:
            if trace.provider is not None:
                made.append((b"x-iop-provider", trace.provider.encode("utf-8", "replace")))
            made.append((b"x-iop-attempts", b"%d" % trace.attempts))
            made.append((b"x-iop-queue-ms", b"%d" % trace.queue_ms))
            made.append((b"x-iop-context-class", trace.context_class.encode()))
        elif trace.attempts > 1:
            made.append((b"x-iop-attempts", b"%d" % trace.attempts))  # it may have run twice (wire §1.2.5)
        await self._send({"type": "http.response.start", "status": status, "headers": made})

    # -- the silence --------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """The hold is over, or a stream has been silent for long enough; else look again when it would be."""
        if self._done:
            return
        if self._status is not None:
            left = self._last + self._settings.keep_alive - self._loop.time()
            if left > 0.001:
                self._timer = self._loop.call_later(left, self._tick)
                return
        self._ticking = self._loop.create_task(self._fill_silence())

    async def _fill_silence(self) -> None:
        try:
            if self._status is None:
                await self._start(200, _STREAM_HEADERS)
            await self._send({"type": "http.response.body", "body": _KEEP_ALIVE, "more_body": True})
        finally:
            self._ticking = None
            self._last = self._loop.time()
            if not self._done:
                self._timer = self._loop.call_later(self._settings.keep_alive, self._tick)


def _passed(headers: tuple[tuple[str, str], ...]) -> RawHeaders:
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in headers
        if name.lower() in _PASSED
    ]
