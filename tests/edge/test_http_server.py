"""The listener's limits: heads, bodies, connections, readers that take nothing, shutdown (E3, design §8)."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream

from iop_edge.http import Deps, HttpLimits, build_app, serve
from iop_edge.nodes.run import Chunk
from support.fake_edge_node import (
    COMPLETED,
    JSON_HEAD,
    STREAM_HEAD,
    EdgeRig,
    Script,
    answers,
    chat_chunk,
    config,
    hangs,
    node,
    provider,
    sse,
)
from support.rules import rule

pytestmark = pytest.mark.anyio
CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Both loops: the limits stand on what a transport does."""
    return "asyncio", {"use_uvloop": request.param}


def rig_of(script: Script | None = None, **fields: Any) -> EdgeRig:
    return EdgeRig(config(node("n", provider("p", capacity=8)), **fields), script or answers())


@asynccontextmanager
async def connected(rig: EdgeRig, **kwargs: Any) -> AsyncIterator[tuple[SocketStream, int]]:
    async with rig.serving(**kwargs) as url:
        port = int(url.rsplit(":", 1)[1])
        with anyio.fail_after(10):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                yield stream, port


def post(body: bytes, *headers: bytes, length: int | None = None) -> bytes:
    lines = [b"POST /v1/chat/completions HTTP/1.1", b"host: x", *headers]
    lines.append(b"content-length: %d" % (len(body) if length is None else length))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def read_all(stream: SocketStream) -> bytes:
    text = b""
    try:
        async for piece in stream:
            text += piece
    except anyio.BrokenResourceError:
        pass
    return text


async def read_answer(stream: SocketStream) -> tuple[int, dict[str, str], Any]:
    """One answer with a content-length."""
    text = b""
    while b"\r\n\r\n" not in text:
        text += await stream.receive()
    head, _, body = text.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    while len(body) < int(headers["content-length"]):
        body += await stream.receive()
    return int(lines[0].split(" ")[1]), headers, json.loads(body)


async def refused(stream: SocketStream) -> tuple[int, str]:
    status, headers, body = await read_answer(stream)
    assert headers["x-request-id"]
    code: str = body["error"]["code"]
    return status, code


@rule("E3")
@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000,
        b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 12_000 + b"\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        post(b"", *[b"x-%d: y" % number for number in range(9000)]),
    ],
)
async def test_a_head_above_64_kib_is_431(head: bytes) -> None:
    rig = rig_of()
    async with connected(rig) as (stream, _):
        await stream.send(head)
        assert await refused(stream) == (431, "head_too_large")
    assert not rig.sessions["n"].runs


@rule("E3")
async def test_a_large_head_below_the_limit_and_a_large_body_in_one_read_pass() -> None:
    async with connected(rig_of()) as (stream, _):
        body = CHAT[:-1] + b',"x":"' + b"a" * 200_000 + b'"}'
        await stream.send(post(body, b"x: " + b"b" * 60_000))
        status, _, _ = await read_answer(stream)
        assert status == 200
        # A second request on the same connection is counted anew.
        await stream.send(post(CHAT, b"x: " + b"b" * 60_000))
        status, _, _ = await read_answer(stream)
        assert status == 200


@rule("E3")
async def test_what_is_not_http_is_400_in_our_form() -> None:
    async with connected(rig_of()) as (stream, _):
        await stream.send(b"hello there\r\n\r\n")
        assert await refused(stream) == (400, "invalid_request")
        assert await read_all(stream) == b""


@rule("E3")
async def test_a_head_that_does_not_come_is_408_and_closed() -> None:
    async with connected(rig_of(), limits=HttpLimits(head_timeout=0.05)) as (stream, _):
        await stream.send(b"GET / HTTP/1.1\r\nx: ")
        assert await refused(stream) == (408, "head_timeout")
        assert await read_all(stream) == b""


@rule("E3")
async def test_a_body_that_stops_is_408_and_closed() -> None:
    async with connected(rig_of(), body_progress=0.05) as (stream, _):
        await stream.send(post(b'{"model', length=100))
        assert await refused(stream) == (408, "body_timeout")
        assert await read_all(stream) == b""


@rule("E3")
async def test_a_body_that_is_announced_or_found_too_large_is_413() -> None:
    rig = rig_of()
    async with connected(rig, body_bytes=1000) as (stream, port):
        await stream.send(post(b"", length=1001))
        assert await refused(stream) == (413, "body_too_large")
        async with await anyio.connect_tcp("127.0.0.1", port) as other:
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            await other.send(head + b"3e9\r\n" + b" " * 1001 + b"\r\n")
            assert await refused(other) == (413, "body_too_large")
    assert not rig.sessions["n"].runs


@rule("E3")
async def test_a_client_that_waits_for_100_continue_gets_its_413_first() -> None:
    async with connected(rig_of(), body_bytes=1000) as (stream, _):
        await stream.send(post(b"", b"expect: 100-continue", length=2000))
        assert await refused(stream) == (413, "body_too_large")


@rule("E3")
async def test_a_compressed_body_is_refused_not_misread() -> None:
    async with connected(rig_of()) as (stream, _):
        await stream.send(post(b"\x1f\x8b", b"content-encoding: gzip"))
        assert await refused(stream) == (400, "invalid_request")


@rule("E3")
async def test_one_connection_too_many_is_503_and_closed_and_the_others_live() -> None:
    async with connected(rig_of(), limits=HttpLimits(max_connections=1)) as (stream, port):
        await stream.send(post(CHAT))
        assert (await read_answer(stream))[0] == 200
        async with await anyio.connect_tcp("127.0.0.1", port) as other:
            await other.send(post(CHAT))
            status, headers, body = await read_answer(other)
            assert (status, body["error"]["code"]) == (503, "too_many_connections")
            assert headers["retry-after"]
            assert await read_all(other) == b""
        await stream.send(post(CHAT))
        assert (await read_answer(stream))[0] == 200


@rule("E3")
async def test_an_idle_connection_is_closed() -> None:
    async with connected(rig_of(), limits=HttpLimits(idle_timeout=0.05)) as (stream, _):
        assert await read_all(stream) == b""


@rule("E8", "P8")
async def test_a_reader_that_takes_nothing_is_cut_and_its_run_cancelled() -> None:
    def floods(run: Any) -> None:
        run.emit(STREAM_HEAD, *[Chunk(sse(chat_chunk("x" * 60_000)))] * 400)

    rig = rig_of(floods)
    limits = HttpLimits(stall_timeout=0.1)
    async with rig.serving(limits=limits) as url:
        port = int(url.rsplit(":", 1)[1])
        with anyio.fail_after(10):
            stream = await anyio.connect_tcp("127.0.0.1", port)
            await stream.send(post(CHAT[:-1] + b',"stream":true}'))
            run = await rig.sessions["n"].run_number(1)
            await rig.settled()
            await stream.aclose()
    assert run.cancelled == ["client_gone"]
    assert rig.meter.records[0].outcome == "client_gone"


@rule("E3")
async def test_requests_on_one_connection_are_answered_in_turn() -> None:
    async with connected(rig_of()) as (stream, _):
        await stream.send(post(CHAT) + post(CHAT))
        text = b""
        while text.count(b"HTTP/1.1 200") < 2 or not text.endswith(b"}"):
            text += await stream.receive()


@rule("E3")
async def test_a_shutdown_lets_a_run_end_and_takes_no_new_connection() -> None:
    rig = rig_of(hangs)
    app = build_app(Deps(service=rig.service, openai=rig.config.openai))
    shutdown = anyio.Event()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:

            async def listen(*, task_status: Any) -> None:
                await serve(app, shutdown=shutdown, grace=5, task_status=task_status)

            _, port = await group.start(listen)
            idle = await anyio.connect_tcp("127.0.0.1", port)
            busy = await anyio.connect_tcp("127.0.0.1", port)
            await busy.send(post(CHAT))
            run = await rig.sessions["n"].run_number(1)
            shutdown.set()
            assert await read_all(idle) == b""
            with pytest.raises(OSError, match="connect"):
                await anyio.connect_tcp("127.0.0.1", port)
            run.emit(JSON_HEAD, Chunk(b"{}"), COMPLETED)
            assert (await read_answer(busy))[0] == 200
            await idle.aclose()
            await busy.aclose()


@rule("E3")
async def test_an_address_that_is_taken_is_an_error_not_an_exit() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError):
            await serve(lambda scope, receive, send: None, port=taken.getsockname()[1])  # type: ignore[arg-type,return-value]
