"""A runtime for tests that speaks the OpenAI API over real HTTP and behaves as it is told, request by request.

`python -m support.fake_runtime --port 0` prints `ready 127.0.0.1:PORT`. What a request gets is written in its last
message as words of the form `key=value`; anything else in it is ignored:

    tokens=8      pieces of the answer
    gap_ms=1      between two of them
    wait_ms=0     before the first
    name=a        the answer is `a0 a1 a2 …`
    do=…          refuse (hang up), silent, slow_headers, cut (hang up before the first piece), cut:3 (after three),
                  malformed:3, error (an error object in a 200), error:3 (the same as the fourth event), status:503

`GET /stats` counts what ran: active, most_active, started, finished, aborted. `POST /behave {"text": "do=status:503"}`
is put before each later message, for clients that do not choose their words; an empty text ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from attrs import define, field

SERVED = "served"


@define
class Stats:
    """What the runtime has seen since it started."""

    active: int = 0
    most_active: int = 0
    started: int = 0
    finished: int = 0
    aborted: int = 0
    bodies: list[dict[str, Any]] = field(factory=list)
    headers: list[dict[str, str]] = field(factory=list)


@define
class Order:
    """How one request is to be answered."""

    tokens: int = 8
    gap_ms: float = 1.0
    wait_ms: float = 0.0
    name: str = "t"
    do: str = ""

    @property
    def act(self) -> tuple[str, int]:
        """The behaviour and its number."""
        word, _, number = self.do.partition(":")
        return word, int(number or 0)

    @property
    def answer(self) -> str:
        """The whole text of a well answered request."""
        return answer(self.tokens, self.name)


def answer(tokens: int = 8, name: str = "t") -> str:
    """The text that a request with these words is answered with."""
    return " ".join(f"{name}{number}" for number in range(tokens))


def read_order(text: str) -> Order:
    """Read the words of a message."""
    order = Order()
    for word in text.split():
        key, equals, value = word.partition("=")
        if equals and key in ("tokens", "gap_ms", "wait_ms", "name", "do"):
            setattr(order, key, type(getattr(order, key))(value))
    return order


def last_text(body: dict[str, Any]) -> str:
    """The last message's text, or the prompt."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return str(body.get("prompt", ""))
    content = messages[-1].get("content") if isinstance(messages[-1], dict) else ""
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content)


class Runtime:
    """The HTTP application and its counters."""

    def __init__(self) -> None:
        self.stats = Stats()
        self.behave = ""
        self.app = web.Application(client_max_size=128 * 2**20)
        self.app.add_routes(
            [
                web.get("/v1/models", self.models),
                web.get("/health", self.health),
                web.get("/stats", self.get_stats),
                web.post("/behave", self.set_behave),
                web.post("/v1/chat/completions", self.chat),
            ]
        )

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": SERVED, "object": "model"}]})

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def get_stats(self, request: web.Request) -> web.Response:
        stats = self.stats
        return web.json_response(
            {
                "active": stats.active,
                "most_active": stats.most_active,
                "started": stats.started,
                "finished": stats.finished,
                "aborted": stats.aborted,
                "bodies": stats.bodies[-20:],
                "headers": stats.headers[-20:],
            }
        )

    async def set_behave(self, request: web.Request) -> web.Response:
        self.behave = (await request.json())["text"]
        return web.json_response({})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        stats = self.stats
        stats.bodies.append(body)
        stats.headers.append(dict(request.headers))
        stats.started += 1
        stats.active += 1
        stats.most_active = max(stats.most_active, stats.active)
        whole = False
        try:
            answered = await self._answer(request, body, read_order(f"{self.behave} {last_text(body)}"))
            whole = True
            return answered
        except ConnectionResetError:
            return web.Response()  # it left while the head was written; this reaches nobody
        finally:
            stats.active -= 1
            if whole:
                stats.finished += 1
            else:
                stats.aborted += 1

    async def _answer(self, request: web.Request, body: dict[str, Any], order: Order) -> web.StreamResponse:
        word, number = order.act
        if word == "refuse":
            _hang_up(request)
        if word == "status":
            error = {"message": f"the runtime says {number}", "type": "server_error", "code": None}
            headers = {"Retry-After": "1"} if number in (429, 503) else {}
            return web.json_response({"error": error}, status=number, headers=headers)
        if word in ("silent", "slow_headers"):
            await asyncio.sleep(order.wait_ms / 1000 or 3600)
        if body.get("stream"):
            return await self._stream(request, body, order)
        await asyncio.sleep((order.wait_ms + order.gap_ms * order.tokens) / 1000)
        if word == "cut":
            _hang_up(request)
        message = {"role": "assistant", "content": order.answer}
        return web.json_response(
            {
                "id": "chatcmpl-fake",
                "object": "chat.completion",
                "created": 1,
                "model": body.get("model", SERVED),
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": _usage(order),
            }
        )

    async def _stream(self, request: web.Request, body: dict[str, Any], order: Order) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        word, number = order.act
        sent = 0
        async for piece in _pieces(order):
            if sent >= number and word == "cut":
                _hang_up(request)
            if sent >= number and word == "malformed":
                await response.write(b"data: {not json\n\n")
                _hang_up(request)
            if sent >= number and word == "error":
                await response.write(b'data: {"error": {"message": "the runtime broke", "code": 500}}\n\n')
                return response
            await response.write(_event(body, {"content": piece}))
            sent += 1
        await response.write(_event(body, {}, finish="stop"))
        options = body.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage"):
            await response.write(_event(body, None, usage=_usage(order)))
        await response.write(b"data: [DONE]\n\n")
        return response


async def _pieces(order: Order) -> AsyncIterator[str]:
    await asyncio.sleep(order.wait_ms / 1000)
    for number in range(order.tokens):
        if number:
            await asyncio.sleep(order.gap_ms / 1000)
        yield f"{' ' if number else ''}{order.name}{number}"


def _usage(order: Order) -> dict[str, int]:
    return {"prompt_tokens": 7, "completion_tokens": order.tokens, "total_tokens": 7 + order.tokens}


def _event(
    body: dict[str, Any],
    delta: dict[str, str] | None,
    *,
    finish: str | None = None,
    usage: dict[str, int] | None = None,
) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    chunk: dict[str, Any] = {
        "id": "chatcmpl-fake",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": body.get("model", SERVED),
        "choices": choices,
    }
    if usage is not None:
        chunk["usage"] = usage
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _hang_up(request: web.Request) -> None:
    """Close the connection under the request, as a crashed runtime does."""
    if request.transport is not None:
        request.transport.abort()
    raise asyncio.CancelledError


async def _main(port: int) -> None:
    # handler_cancellation: a client that leaves must be noticed, that is what the counters are for.
    runner = web.AppRunner(Runtime().app, handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    assert runner.addresses
    print(f"ready 127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    asyncio.run(_main(parser.parse_args().port))
