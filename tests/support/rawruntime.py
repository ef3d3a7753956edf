"""A runtime made of raw bytes: each request is answered by a script, so that every kind of misbehaviour can be sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from attrs import define, field


@define
class Request:
    """One request as it arrived, and the means to answer it byte by byte."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    """Which connection it came on, from 1."""
    number: int
    """Which request of that connection it is, from 1."""
    _writer: asyncio.StreamWriter = field(repr=False)
    gone: asyncio.Event = field(factory=asyncio.Event)
    """Set once the client closed the connection."""

    @property
    def json(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed

    async def send(self, data: bytes) -> None:
        """Write raw bytes."""
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self, status: int, body: bytes | dict[str, Any], **headers: str) -> None:
        """Write a whole answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        await self.send(f"HTTP/1.1 {status} X\r\n{head}content-length: {len(data)}\r\n\r\n".encode() + data)

    async def begin_stream(self, status: int = 200) -> None:
        """Write the head of a chunked event stream."""
        await self.send(
            f"HTTP/1.1 {status} X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        )

    async def piece(self, data: bytes) -> None:
        """Write one chunk of the stream."""
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        """End the stream as HTTP wants it."""
        await self.send(b"0\r\n\r\n")

    async def stream(self, *pieces: bytes) -> None:
        """A whole chunked event stream."""
        await self.begin_stream()
        for piece in pieces:
            await self.piece(piece)
        await self.end_stream()

    def hang_up(self) -> None:
        """Cut the connection."""
        self._writer.transport.abort()


Script = Callable[[Request], Awaitable[None]]


class RawRuntime:
    """Listens on loopback; `script` answers what `routes` does not."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script
        self.routes: dict[str, Script] = {}
        self.requests: list[Request] = []
        self.came: asyncio.Condition = asyncio.Condition()
        self.url = ""
        self._connections = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._connections += 1
        connection, number = self._connections, 0
        try:
            while (request := await _read(reader, writer, connection, number + 1)) is not None:
                number += 1
                watch = asyncio.ensure_future(_watch(reader, request.gone))
                try:
                    await self._serve(request)
                finally:
                    watch.cancel()
                    await asyncio.gather(watch, return_exceptions=True)
                if writer.is_closing() or request.gone.is_set():
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _serve(self, request: Request) -> None:
        async with self.came:
            self.requests.append(request)
            self.came.notify_all()
        script = self.routes.get(request.path) or self.script
        if script is None:
            await request.answer(404, {"detail": "Not Found"})
        else:
            await script(request)

    async def request(self, number: int = 1) -> Request:
        """Wait until that many requests have come; the last of them."""
        async with asyncio.timeout(5), self.came:
            await self.came.wait_for(lambda: len(self.requests) >= number)
        return self.requests[number - 1]

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int, number: int
) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, body, connection, number, writer)


async def _watch(reader: asyncio.StreamReader, gone: asyncio.Event) -> None:
    """Notice that the client left. Reading would take a byte of its next request, so the end is polled for."""
    while not reader.at_eof():  # noqa: ASYNC110 -- the reader has no event for it
        await asyncio.sleep(0.005)
    gone.set()


@asynccontextmanager
async def raw_runtime(script: Script | None = None) -> AsyncIterator[RawRuntime]:
    """A runtime that listens, stopped at the end."""
    runtime = RawRuntime(script)
    server = await asyncio.start_server(runtime.connected, "127.0.0.1", 0, limit=2**20)
    host, port = server.sockets[0].getsockname()[:2]
    runtime.url = f"http://{host}:{port}"
    try:
        yield runtime
    finally:
        server.close()
        await runtime.stop()
        await server.wait_closed()


def event(data: object, name: str = "") -> bytes:
    """One server-sent event; a string stands for itself."""
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def chunk(text: str | None = None, *, finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    """One chunk of a chat stream."""
    delta = {} if text is None else {"content": text}
    return {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "served",
        "choices": [{"index": index, "delta": {**delta, **more}, "finish_reason": finish}],
    }


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def usage_chunk(**usage: Any) -> dict[str, Any]:
    """The chunk that ends a stream which asked for its usage."""
    return {**chunk(), "choices": [], "usage": {**USAGE, **usage}}


def answers(*words: str, usage: bool = True) -> Script:
    """A well-behaved chat runtime: streams, or answers whole, as it is asked."""

    async def script(request: Request) -> None:
        body = request.json
        if not body.get("stream"):
            message = {"role": "assistant", "content": "".join(words)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            whole = {"id": "c1", "object": "chat.completion", "created": 1, "model": "served", "choices": [choice]}
            await request.answer(200, {**whole, "usage": USAGE})
            return
        pieces = [event(chunk(role="assistant"))]
        pieces += [event(chunk(word)) for word in words]
        pieces.append(event(chunk(finish="stop")))
        if usage and (body.get("stream_options") or {}).get("include_usage"):
            pieces.append(event(usage_chunk()))
        await request.stream(*pieces, event("[DONE]"))

    return script
