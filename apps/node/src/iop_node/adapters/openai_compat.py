"""The adapter for every runtime with an OpenAI surface: vLLM, llama.cpp, SGLang, LM Studio, clouds (N5, E12, N8)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import ClassVar

import aiohttp
import msgspec

from iop_node.adapters.base import AdapterContext, BuildError, ProbeResult, ProbeTarget, RunFailedError, RunOutput
from iop_node.adapters.failures import broken, by_status, in_band, retry_after_ms
from iop_node.adapters.http import HttpClient
from iop_node.adapters.kinds import OPENAI_KINDS
from iop_node.adapters.probes import probe_openai
from iop_node.adapters.streaming import StreamRelay
from iop_node.adapters.usage import error_in, usage_of_body
from iop_node.link import RunError, RunOrder, Usage
from iop_node.settings import AdapterSettings, OpenAICompatSettings

__all__ = ["OpenAICompatAdapter"]

_PATHS: Mapping[str, str] = {
    "chat_completions": "/chat/completions",
    "completions": "/completions",
    "responses": "/responses",
    "embeddings": "/embeddings",
    "messages": "/messages",
    "count_tokens": "/messages/count_tokens",
}
_NEVER_STREAMED = frozenset({"embeddings", "count_tokens"})
# They do not notice that a client of a plain request left (N8).
_STREAMED_ALWAYS = frozenset({"llama_cpp"})
_ERROR_BYTES = 64 * 1024
# A plain answer up to this size is judged before its first byte goes on; the Edge holds as much.
_HELD_BYTES = 1024 * 1024
_TAIL_BYTES = 4096
_SLOTS_POLL_S = 0.05
_SLOTS_ANSWER = aiohttp.ClientTimeout(total=5)
_PASSED = frozenset({"content-type", "content-language", "retry-after"})


class OpenAICompatAdapter:
    """Implements `Adapter` over HTTP."""

    kinds: ClassVar[frozenset[str]] = OPENAI_KINDS

    def __init__(self, settings: AdapterSettings, context: AdapterContext) -> None:
        """Raises BuildError for settings of another kind."""
        detail = settings.detail
        if not isinstance(detail, OpenAICompatSettings):
            raise BuildError("openai_compat", "wrong-settings", "the adapter needs the address of its runtime")
        self._kind = settings.kind
        self._base_url = detail.base_url
        self._root = detail.base_url.removesuffix("/v1")
        self._own_headers = tuple((pair.name, pair.value) for pair in detail.headers)
        self._http = HttpClient()
        self._relays: set[StreamRelay] = set()
        """Streams of runs that have not been cancelled."""

    # -- runs ---------------------------------------------------------------------------------------------------------

    async def run(self, order: RunOrder, out: RunOutput) -> None:
        """Send the order to the runtime and pass on what it answers."""
        path = _PATHS.get(order.operation)
        if path is None:
            text = f"this adapter has no {order.operation}"
            raise RunFailedError(RunError("unsupported_endpoint", text, retryable=True, outcome="client_error"))
        if not order.streaming and (self._kind not in _STREAMED_ALWAYS or order.operation in _NEVER_STREAMED):
            await self._exchange(order, out, path, None)
            return
        relay = StreamRelay(order, out)
        self._relays.add(relay)
        try:
            await self._exchange(order, out, path, relay)
        except asyncio.CancelledError:
            self._relays.discard(relay)
            if self._kind == "llama_cpp":
                await self._wait_idle()
            raise
        finally:
            self._relays.discard(relay)

    async def _exchange(self, order: RunOrder, out: RunOutput, path: str, relay: StreamRelay | None) -> None:
        body = order.body if relay is None else _as_stream(order)
        out.contacted()
        response = await self._http.post(self._base_url + path, body, self._headers(order))
        try:
            if not 200 <= response.status < 300:
                raise RunFailedError(await _refusal(order, response))
            headers = tuple(
                (name.lower(), value) for name, value in response.headers.items() if name.lower() in _PASSED
            )
            if relay is not None:
                await relay.relay(response, headers)
            else:
                await _plain(order, out, response, headers)
        except (aiohttp.ClientError, ConnectionError) as error:
            raise broken(f"the runtime broke off its answer: {type(error).__name__}") from None
        finally:
            # Harmless once the answer was read to its end; else the runtime sees that nobody wants it any more.
            response.close()

    def _headers(self, order: RunOrder) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream" if order.streaming else "application/json",
            "accept-encoding": "identity",
        }
        # The caller's own token stands above the instance's (E6).
        for name, value in (*order.headers, *self._own_headers, *order.secret_headers):
            headers[name.lower()] = value
        return headers

    # -- after a cancel -----------------------------------------------------------------------------------------------

    async def _wait_idle(self) -> None:
        """Wait until llama.cpp no longer works on a run that was just left (N8, backends §0.2).

        Whoever cancelled bounds this. A server that does not tell its slots is taken to be free. What began later does
        not count. Of what was at work already, only runs that answer surely hold a slot of their own: one that has not
        said a word may still wait inside the runtime, and must not vouch for the slot of another.
        """
        before: set[tuple[int, object]] | None = None
        while True:
            # The request may not have reached its slot yet, so the first look is not at once either.
            await asyncio.sleep(_SLOTS_POLL_S)
            busy = await self._busy_slots()
            if busy is None:
                return
            before = busy if before is None else before & busy
            if len(before) <= sum(relay.answering for relay in self._relays):
                return

    async def _busy_slots(self) -> set[tuple[int, object]] | None:
        """The slots at work, each with its task; None where the server cannot be asked."""
        try:
            async with self._http.single.get(
                f"{self._root}/slots", headers=dict(self._own_headers), timeout=_SLOTS_ANSWER
            ) as response:
                if response.status != 200:
                    return None
                slots = msgspec.json.decode(await response.read())
            return {(slot["id"], slot.get("id_task")) for slot in slots if slot.get("is_processing")}
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        except (msgspec.DecodeError, AttributeError, TypeError, KeyError):
            return None

    # -- probe, close -------------------------------------------------------------------------------------------------

    async def probe(self, target: ProbeTarget) -> ProbeResult:
        """Look at the runtime without an inference (N7)."""
        return await probe_openai(self._http.single, self._kind, self._base_url, dict(self._own_headers), target)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()


def _as_stream(order: RunOrder) -> bytes:
    """Return the body as it came, but asked for as a stream with usage where that is not so already (E9, N8)."""
    chat = order.operation in ("chat_completions", "completions")
    if order.streaming and (order.include_usage or not chat):
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


async def _refusal(order: RunOrder, response: aiohttp.ClientResponse) -> RunError:
    """Read an answer with an error status."""
    body = b""
    try:
        while len(body) < _ERROR_BYTES and (more := await response.content.read(_ERROR_BYTES - len(body))):
            body += more
    except (aiohttp.ClientError, ConnectionError):
        pass  # the status says enough
    if response.status < 400:
        text = f"the runtime answered {response.status}, which is no answer; is base_url right?"
        return RunError("upstream_error", text, retryable=True)
    return by_status(response.status, body, order, retry_after_ms(response.headers.get("retry-after")))


async def _plain(
    order: RunOrder, out: RunOutput, response: aiohttp.ClientResponse, headers: tuple[tuple[str, str], ...]
) -> None:
    """Pass on an answer that is no stream: held and judged as a whole while it is small, else as it comes."""
    held = bytearray()
    sent, size, tail = False, 0, b""
    async for data in response.content.iter_any():
        out.alive()
        size += len(data)
        if not sent:
            held += data
            if len(held) <= _HELD_BYTES:
                continue
            data, sent = bytes(held), True
            held.clear()
            out.head(response.status, headers)
        tail = (tail + data)[-_TAIL_BYTES:]
        await out.data(data)
    if sent:
        out.usage = _usage_at_end(tail) or Usage(order.input_tokens_estimate, 0)
        return
    body = bytes(held)
    _judge(order, body)
    out.usage = usage_of_body(body) or Usage(order.input_tokens_estimate, size // 4)
    out.head(response.status, headers)
    await out.data(body)


def _judge(order: RunOrder, body: bytes) -> None:
    """A 200 proves nothing: what is no JSON object, or an error, is no answer (E12, backends §0.4)."""
    if b'"error"' in body and (error := error_in(body)) is not None:
        raise in_band(error, order)
    try:
        msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        raise broken("the runtime's answer is not a JSON object" if body else "the runtime's answer is empty") from None


def _usage_at_end(tail: bytes) -> Usage | None:
    """Find the tokens in the last bytes of an answer that was too large to be held."""
    text = tail.decode("utf-8", "replace")
    at = text.rfind('"usage"')
    start = text.find("{", at)
    if at < 0 or start < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        return None
    return usage_of_body(json.dumps({"usage": found}).encode())
