"""The adapter for every runtime with an OpenAI surface: vLLM, llama.cpp, SGLang, LM Studio, clouds (N5, E12, N8)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from types import SimpleNamespace
from typing import ClassVar

import aiohttp
import msgspec
from attrs import define

from iop_node.adapters.aggregate import Aggregate, AggregateError
from iop_node.adapters.base import AdapterContext, BuildError, ProbeResult, ProbeTarget, RunFailedError, RunOutput
from iop_node.adapters.kinds import OPENAI_KINDS
from iop_node.adapters.probes import probe_openai
from iop_node.adapters.sse import Event, EventSplitter, TooLongError
from iop_node.adapters.usage import StreamScan, error_in, usage_of_body
from iop_node.link import RunError, RunOrder, Usage
from iop_node.settings import AdapterSettings, OpenAICompatSettings

__all__ = ["OpenAICompatAdapter", "http_session"]

log = logging.getLogger("iop.node.runs")

_PATHS: Mapping[str, str] = {
    "chat_completions": "/chat/completions",
    "completions": "/completions",
    "responses": "/responses",
    "embeddings": "/embeddings",
    "messages": "/messages",
    "count_tokens": "/messages/count_tokens",
}
_STREAMED_ALWAYS = frozenset({"llama_cpp"})
_ERROR_BYTES = 64 * 1024
_LEFT_OPEN_S = 1.0
_CONNECT_S = 10.0
_SLOTS_POLL_S = 0.1
_PASSED = frozenset({"content-type", "content-language", "retry-after"})
_DONE = b"data: [DONE]\n\n"


def http_session(*, fresh: bool = False) -> aiohttp.ClientSession:
    """Return a client as runtimes need it: no limit of connections, no total time, nothing decoded, no cookies.

    With `fresh` no connection is ever used twice.
    """
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=fresh),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[trace],
        trust_env=False,
    )


async def _note_reuse(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx["reused"] = True


@define
class _Exchange:
    """One request to the runtime and what became of it."""

    order: RunOrder
    output: RunOutput
    scan: StreamScan
    streamed: bool
    """Asked for as a stream, whatever the client wants."""


class OpenAICompatAdapter:
    """Implements `Adapter` over HTTP."""

    kinds: ClassVar[frozenset[str]] = OPENAI_KINDS

    def __init__(self, settings: AdapterSettings, context: AdapterContext) -> None:
        """Raises BuildError for an address that is none."""
        if not isinstance(settings.detail, OpenAICompatSettings):
            raise BuildError("openai_compat", "no_settings", "the adapter needs the address of its runtime")
        if not settings.detail.base_url.startswith(("http://", "https://")):
            raise BuildError("openai_compat.base_url", "bad_url", "base_url must begin with http:// or https://")
        self._settings = settings
        self._base_url = settings.detail.base_url
        self._own_headers = tuple((pair.name, pair.value) for pair in settings.detail.headers)
        self._session: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None
        self._live = 0  # runs that have not been cancelled
        self._root = self._base_url.removesuffix("/v1")

    # -- runs ---------------------------------------------------------------------------------------------------------

    async def run(self, order: RunOrder, output: RunOutput) -> None:
        """Send the order to the runtime and pass on what it answers."""
        path = _PATHS.get(order.operation)
        if path is None:
            text = f"this adapter has no {order.operation}"
            raise RunFailedError(RunError("unsupported_endpoint", text, 404, outcome="client_error"))
        streamed = order.streaming or (
            self._settings.kind in _STREAMED_ALWAYS and order.operation not in ("embeddings", "count_tokens")
        )
        exchange = _Exchange(order, output, StreamScan(order.operation), streamed)
        body = _upstream_body(order, streamed)
        self._live += 1
        cancelled = False
        try:
            await self._exchange(exchange, path, body)
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            self._live -= 1
            if cancelled and self._settings.kind == "llama_cpp":
                await self._wait_idle()

    async def _exchange(self, exchange: _Exchange, path: str, body: bytes) -> None:
        exchange.output.contacted()
        for fresh in (False, True):
            seen = {"reused": False}
            try:
                async with self._client(fresh).post(
                    self._base_url + path,
                    data=body,
                    headers=self._headers(exchange.order),
                    allow_redirects=False,
                    trace_request_ctx=seen,
                ) as response:
                    await self._answer(exchange, response)
                    return
            except aiohttp.ConnectionTimeoutError:
                text = f"the runtime did not accept a connection within {_CONNECT_S:.0f} s"
                raise RunFailedError(RunError("upstream_error", text, retryable=True)) from None
            except aiohttp.ClientConnectorError as error:
                text = f"the runtime cannot be reached: {_reason(error)}"
                raise RunFailedError(RunError("upstream_error", text, retryable=True)) from None
            except (aiohttp.ClientError, ConnectionError) as error:
                # A kept connection that the runtime has closed meanwhile: nothing of this request was read (N8).
                if seen["reused"] and not fresh:
                    continue
                text = f"the runtime broke the connection: {type(error).__name__}"
                raise RunFailedError(RunError("upstream_error", text, retryable=True, maybe_executed=True)) from None
        raise AssertionError("the second try ends the run")

    def _client(self, fresh: bool) -> aiohttp.ClientSession:
        if fresh:
            self._fresh = self._fresh or http_session(fresh=True)
            return self._fresh
        self._session = self._session or http_session()
        return self._session

    def _headers(self, order: RunOrder) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream" if order.streaming else "application/json",
            "Accept-Encoding": "identity",
        }
        # The caller's own token stands above the instance's (E6).
        for name, value in (*order.headers, *self._own_headers, *order.secret_headers):
            _replace(headers, name, value)
        return headers

    async def _answer(self, exchange: _Exchange, response: aiohttp.ClientResponse) -> None:
        if response.status >= 400 or 300 <= response.status < 400:
            raise RunFailedError(await self._error(exchange.order, response))
        if exchange.streamed:
            try:
                await self._stream(exchange, response)
            except (aiohttp.ClientError, ConnectionError) as error:
                raise RunFailedError(_cut(f"the runtime broke off its answer: {type(error).__name__}")) from None
        else:
            await self._plain(exchange, response)

    async def _plain(self, exchange: _Exchange, response: aiohttp.ClientResponse) -> None:
        """Pass on a complete answer; its size is known or not, so it goes on in pieces."""
        parts: list[bytes] = []
        first = True
        try:
            async for data in response.content.iter_any():
                if first:
                    exchange.output.head(response.status, _passed(response))
                    first = False
                parts.append(data)
                await exchange.output.data(data)
        except (aiohttp.ClientError, ConnectionError) as error:
            raise RunFailedError(_cut(f"the runtime broke off its answer: {type(error).__name__}")) from None
        if first:
            raise RunFailedError(_cut("the runtime answered without a body"))
        body = b"".join(parts)
        if len(body) <= _ERROR_BYTES and b'"error"' in body and (error_body := error_in(body)) is not None:
            raise RunFailedError(_in_band(error_body, exchange.order))
        usage = usage_of_body(body)
        if usage is not None:
            exchange.output.usage = usage

    # -- streams ------------------------------------------------------------------------------------------------------

    async def _stream(self, exchange: _Exchange, response: aiohttp.ClientResponse) -> None:
        splitter = EventSplitter()
        whole = None if exchange.order.streaming else Aggregate(exchange.order.operation)
        started = False
        async for data in response.content.iter_any():
            exchange.output.alive()
            try:
                events = splitter.feed(data)
            except TooLongError:
                raise RunFailedError(_cut("the runtime sent an event without an end")) from None
            ready: list[bytes] = []
            for event in events:
                if not started:
                    _check_first(event, exchange.order)
                    started = True
                    if whole is None:
                        exchange.output.head(response.status, _passed(response))
                raw = self._see(exchange, event, whole)
                if raw:
                    ready.append(raw)
                if exchange.scan.terminal:
                    break
            if ready:
                await exchange.output.data(b"".join(ready))
            if exchange.scan.terminal:
                await _read_out(response)
                break
        await self._stream_end(exchange, splitter, whole, started)

    def _see(self, exchange: _Exchange, event: Event, whole: Aggregate | None) -> bytes:
        """Take note of an event; return what goes on to the client."""
        scan = exchange.scan
        error = scan.see(event)
        if error is not None:
            raise RunFailedError(_in_band(error, exchange.order))
        # Until the runtime tells, an event counts as a token, so that a cancelled run is metered too (E9).
        exchange.output.usage = scan.usage or Usage(exchange.order.input_tokens_estimate, scan.events)
        if whole is not None:
            try:
                whole.add(event)
            except AggregateError as problem:
                raise RunFailedError(_cut(f"the runtime's answer cannot be used: {problem}")) from None
            return b""
        if scan.usage_only(event) and not exchange.order.include_usage:
            return b""  # asked for by us, for the meter; a client that did not ask indexes choices[0]
        if exchange.order.operation == "chat_completions":
            if event.name == b"ping":
                return b""
            if b'"reasoning' in event.data:
                return _both_reasonings(event)
        return event.raw

    async def _stream_end(
        self, exchange: _Exchange, splitter: EventSplitter, whole: Aggregate | None, started: bool
    ) -> None:
        scan = exchange.scan
        if not started:
            raise RunFailedError(_cut("the runtime ended its stream before the first event"))
        if not scan.terminal:
            if not scan.finished or splitter.unfinished:
                raise RunFailedError(_cut("the runtime ended its stream in the middle of the answer"))
            if whole is None:
                await exchange.output.data(_DONE)
        if whole is not None:
            try:
                body = whole.body
            except AggregateError as problem:
                raise RunFailedError(_cut(f"the runtime's answer cannot be used: {problem}")) from None
            exchange.output.head(200, (("content-type", "application/json"),))
            await exchange.output.data(body)

    async def _error(self, order: RunOrder, response: aiohttp.ClientResponse) -> RunError:
        """Read a refusal of the runtime."""
        try:
            body = await response.content.read(_ERROR_BYTES)
            while len(body) < _ERROR_BYTES and (more := await response.content.read(_ERROR_BYTES - len(body))):
                body += more
        except (aiohttp.ClientError, ConnectionError):
            body = b""
        if response.status < 400:
            text = f"the runtime answered {response.status}, a redirect; is base_url right?"
            return RunError("upstream_error", text, 502, retryable=True)
        return _by_status(response.status, body, order, _retry_after_ms(response.headers.get("Retry-After")))

    # -- after a cancel -----------------------------------------------------------------------------------------------

    async def _wait_idle(self) -> None:
        """Wait until llama.cpp has no more busy slots than we have live runs: then ours is free (N8, backends §0.2).

        Whoever cancelled us bounds this. A server that does not tell its slots is taken to be free.
        """
        session = self._client(fresh=True)
        try:
            while True:
                timeout = aiohttp.ClientTimeout(total=5)
                async with session.get(
                    f"{self._root}/slots", headers=dict(self._own_headers), timeout=timeout
                ) as response:
                    if response.status != 200:
                        return
                    slots = msgspec.json.decode(await response.read())
                if sum(bool(slot.get("is_processing")) for slot in slots) <= self._live:
                    return
                await asyncio.sleep(_SLOTS_POLL_S)
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError, AttributeError, TypeError):
            return

    # -- probe, close -------------------------------------------------------------------------------------------------

    async def probe(self, target: ProbeTarget) -> ProbeResult:
        """Look at the runtime without an inference (N7)."""
        session = self._client(fresh=False)
        return await probe_openai(session, self._settings.kind, self._base_url, dict(self._own_headers), target)

    async def close(self) -> None:
        """Close the connections."""
        for session in (self._session, self._fresh):
            if session is not None:
                await session.close()
        self._session = self._fresh = None


def _upstream_body(order: RunOrder, streamed: bool) -> bytes:
    """Return the body to send: as it came, but asked for as a stream with usage where that is needed (E9, N8)."""
    chat = order.operation in ("chat_completions", "completions")
    if not streamed or (order.streaming and not chat):
        return order.body
    if order.streaming and order.include_usage:
        return order.body
    try:
        top = msgspec.json.decode(order.body, type=dict[str, msgspec.Raw])
        options = msgspec.json.decode(top.get("stream_options", msgspec.Raw(b"null")))
    except (msgspec.DecodeError, RecursionError):
        return order.body
    changes: dict[str, object] = {"stream": True}
    if chat:
        changes["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    return msgspec.json.encode({**top, **changes})


def _check_first(event: Event, order: RunOrder) -> None:
    """The first event is parsed: what is no JSON, or an error, is as if the runtime had failed before it (E12)."""
    if event.data == b"[DONE]":
        raise RunFailedError(_cut("the runtime ended its stream before it said anything"))
    error = error_in(event.data)
    if error is not None:
        raise RunFailedError(_in_band(error, order))
    try:
        msgspec.json.decode(event.data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        raise RunFailedError(_cut("the runtime's first event is not a JSON object")) from None


def _both_reasonings(event: Event) -> bytes:
    """Give the thinking under both of its names: clients know one or the other (backends §0.6)."""
    try:
        body = msgspec.json.decode(event.data)
        deltas = [choice["delta"] for choice in body["choices"]]
        changed = False
        for delta in deltas:
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


def _by_status(status: int, body: bytes, order: RunOrder, retry_after_ms: int | None) -> RunError:
    """What a refusal means for another try and for the provider's health (P14)."""
    if status in (429, 503, 529):
        outcome, retryable = "busy", True
    elif status in (401, 403) and not order.secret_headers:
        # Not the caller's key but the instance's: nobody can be served here until it is set right.
        outcome, retryable = "broken", True
    elif status == 501 or status < 500:
        outcome, retryable = "client_error", status == 408
    else:
        outcome, retryable = "broken", True
    return RunError(
        "upstream_error",
        f"the runtime answered {status}",
        upstream_status=status,
        upstream_body=body,
        retry_after_ms=retry_after_ms,
        retryable=retryable,
        maybe_executed=status >= 500 and status != 503,
        outcome=outcome,
    )


def _in_band(error: bytes, order: RunOrder) -> RunError:
    """An error object inside a 200: judged by the status in it, where there is one."""
    try:
        inner = msgspec.json.decode(error)["error"]
        code = inner.get("code") if isinstance(inner, dict) else None
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError):
        code = None
    status = code if isinstance(code, int) and 400 <= code <= 599 else 500
    return _by_status(status, error, order, None)


def _cut(text: str) -> RunError:
    return RunError("upstream_error", text, retryable=True, maybe_executed=True)


def _reason(error: aiohttp.ClientConnectorError) -> str:
    return error.os_error.strerror or type(error.os_error).__name__


def _passed(response: aiohttp.ClientResponse) -> tuple[tuple[str, str], ...]:
    return tuple((name.lower(), value) for name, value in response.headers.items() if name.lower() in _PASSED)


def _replace(headers: dict[str, str], name: str, value: str) -> None:
    for present in list(headers):
        if present.lower() == name.lower():
            del headers[present]
    headers[name] = value


def _retry_after_ms(value: str | None) -> int | None:
    """Read seconds or a date; None for neither."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return round(max(0.0, min(seconds, 3600.0)) * 1000)
