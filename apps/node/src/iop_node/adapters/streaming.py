"""A runtime's event stream on its way to the client: the first event judged, the others looked through (E11, E12)."""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec

from iop_node.adapters.aggregate import Aggregate, AggregateError
from iop_node.adapters.base import JSON_HEAD, RunOutput
from iop_node.adapters.failures import broken, in_band
from iop_node.adapters.sse import Event, EventSplitter, TooLongError
from iop_node.adapters.usage import StreamScan, error_in
from iop_node.link import RunOrder, Usage

__all__ = ["StreamRelay"]

_DONE = b"data: [DONE]\n\n"
_LEFT_OPEN_S = 1.0


class StreamRelay:
    """One stream. A client that did not ask for one gets the events put together into a plain answer (N8)."""

    def __init__(self, order: RunOrder, out: RunOutput) -> None:
        self.answering = False
        """Whether the runtime has begun to answer: then it surely works on this run."""
        self._order = order
        self._out = out
        self._scan = StreamScan(order.operation)
        self._whole = None if order.streaming else Aggregate(order.operation)
        self._sent = False

    async def relay(self, response: aiohttp.ClientResponse, headers: tuple[tuple[str, str], ...]) -> None:
        """Pass the stream on until it is complete; RunFailedError for one that is none or breaks off."""
        splitter = EventSplitter()
        try:
            async for data in response.content.iter_any():
                self._out.alive()
                await self._events(splitter.feed(data), response.status, headers)
                if self._scan.terminal:
                    await _read_out(response)
                    break
        except TooLongError:
            raise broken("the runtime sent an event without an end") from None
        await self._end(whole=not splitter.unfinished)

    async def _events(self, events: list[Event], status: int, headers: tuple[tuple[str, str], ...]) -> None:
        ready: list[bytes] = []
        for event in events:
            if not self.answering:
                self._check_first(event)
                self.answering = True
            error = self._scan.see(event)
            if error is not None:
                # What came before it in the same read goes first, unless the client has nothing yet: then another
                # provider may still answer as if this had never begun (E7).
                if ready and self._sent:
                    await self._out.data(b"".join(ready))
                raise in_band(error, self._order)
            # Until the runtime tells, an event counts as a token, so that a cancelled run is metered too (E9).
            self._out.usage = self._scan.usage or Usage(self._order.input_tokens_estimate, self._scan.events)
            if raw := self._passed(event):
                ready.append(raw)
            if self._scan.terminal:
                break
        if ready:
            if not self._sent:
                self._sent = True
                self._out.head(status, headers)
            await self._out.data(b"".join(ready))

    def _check_first(self, event: Event) -> None:
        """What is no JSON object, or an error, is as if the runtime had failed before it (E12)."""
        if event.data == b"[DONE]":
            raise broken("the runtime ended its stream before it said anything")
        error = error_in(event.data)
        if error is not None:
            raise in_band(error, self._order)
        try:
            msgspec.json.decode(event.data, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):
            raise broken("the runtime's first event is not a JSON object") from None

    def _passed(self, event: Event) -> bytes:
        """Return what the client gets of an event."""
        if self._whole is not None:
            try:
                self._whole.add(event)
            except AggregateError as problem:
                raise broken(f"the runtime's answer cannot be used: {problem}") from None
            return b""
        if self._order.operation in ("chat_completions", "completions"):
            if event.name == b"ping":
                return b""
            if not self._order.include_usage and self._scan.usage_only(event):
                return b""  # asked for by us, for the meter; a client that did not ask indexes choices[0]
            if self._order.operation == "chat_completions" and b'"reasoning' in event.data:
                return _both_reasonings(event)
        return event.raw

    async def _end(self, *, whole: bool) -> None:
        scan = self._scan
        if not self.answering:
            raise broken("the runtime ended its stream before the first event")
        if not scan.terminal:
            if not scan.finished or not whole:
                raise broken("the runtime ended its stream in the middle of the answer")
            if self._sent:
                await self._out.data(_DONE)
        if self._whole is not None:
            try:
                body = self._whole.body
            except AggregateError as problem:
                raise broken(f"the runtime's answer cannot be used: {problem}") from None
            self._out.head(200, JSON_HEAD)
            await self._out.data(body)


def _both_reasonings(event: Event) -> bytes:
    """Give the thinking under both of its names: clients know one or the other (backends §0.6)."""
    try:
        body = msgspec.json.decode(event.data)
        changed = False
        for choice in body["choices"]:
            delta = choice["delta"]
            for name, other in (("reasoning", "reasoning_content"), ("reasoning_content", "reasoning")):
                if isinstance(delta.get(name), str) and other not in delta:
                    delta[other] = delta[name]
                    changed = True
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError, AttributeError):
        return event.raw
    return b"data: " + msgspec.json.encode(body) + b"\n\n" if changed else event.raw


async def _read_out(response: aiohttp.ClientResponse) -> None:
    """Read to the end, so that the connection can be used again; a runtime that leaves it open loses it."""
    try:
        async with asyncio.timeout(_LEFT_OPEN_S):
            async for _ in response.content.iter_any():
                pass
    except (TimeoutError, aiohttp.ClientError, ConnectionError):
        response.close()
