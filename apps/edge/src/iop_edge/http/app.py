"""The ASGI application of the client listener: routes, keys, errors and headers of every answer (E2-E4, E14, P15).

Plain ASGI: the paths are few and fixed, and a framework's routing and middleware would cost more than the rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from attrs import frozen
from starlette.types import ASGIApp, Receive, Scope, Send
from ulid import ULID

from iop_config import OpenAIConfig
from iop_edge.auth import Authenticator, Principal, ProviderTokens
from iop_edge.errors import ApiError
from iop_edge.http.body import BODY_BYTES, BODY_PROGRESS, flag_of, include_usage, parse_body, read_body, text_of
from iop_edge.http.cors import Cors
from iop_edge.http.embeddings import fitter
from iop_edge.http.models import model_body, models_body
from iop_edge.http.sse import HttpReply, RawHeaders, ReplySettings, connection_of
from iop_edge.http.surfaces import SURFACES, Surface, error_body
from iop_edge.nodes.run import Operation
from iop_edge.order import Order, Trace
from iop_edge.service import RunService

__all__ = ["Deps", "build_app", "new_request_id"]

log = logging.getLogger("iop.edge.http")

# Headers of the client that a runtime may want; its Authorization is never among them (wire §3).
_FORWARDED = (b"anthropic-version", b"anthropic-beta", b"openai-beta", b"traceparent", b"tracestate")
_MODELS = "/v1/models"
_JSON = (b"content-type", b"application/json")


def new_request_id() -> str:
    """Return a fresh ULID: it sorts by time."""
    return str(ULID())


@frozen
class Deps:
    """What the listener stands on. `openai` is restart-required (R3), so it is read once."""

    service: RunService
    openai: OpenAIConfig
    new_id: Callable[[], str] = new_request_id
    """Makes request ids; a run's id on the wire, so they must differ."""
    body_bytes: int = BODY_BYTES
    body_progress: float = BODY_PROGRESS


def build_app(deps: Deps) -> ASGIApp:
    """Return the ASGI app: the OpenAI and Anthropic surfaces, `/healthz` and `/readyz`."""
    return _App(deps)


class _App:
    def __init__(self, deps: Deps) -> None:
        openai = deps.openai
        self._deps = deps
        self._service = deps.service
        self._auth = Authenticator(openai.principal_tokens)
        self._provider_tokens = ProviderTokens(openai.provider_auth)
        self._cors = Cors(openai.cors_origins, self._provider_tokens.header)
        self._settings = ReplySettings(
            stream_hold=openai.stream_hold_ms / 1000,
            keep_alive=openai.keep_alive_ms / 1000,
            response_headers=openai.response_headers,
        )
        self._created = int(time.time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request_id = self._deps.new_id()
        path: str = scope["path"]
        method: str = scope["method"]
        headers: dict[bytes, bytes] = dict(scope["headers"])
        base: RawHeaders = [(b"x-request-id", request_id.encode())]
        surface = SURFACES.get(path) or SURFACES.get(path.rstrip("/"))
        anthropic = surface is not None and surface.anthropic
        if anthropic:
            base.append((b"request-id", request_id.encode()))
        origin = headers.get(b"origin")
        if origin is not None:
            base += self._cors.response_headers(origin)
        try:
            if surface is not None and method == "POST":
                await self._run(surface, headers, scope, receive, send, request_id, base)
                return
            status, extra, body = self._plain(surface, path, method, headers)
        except ApiError as error:
            status, extra = error.status, error.headers()
            if status in (408, 413):
                # What is left of the body is not waited for.
                extra.append((b"connection", b"close"))
            extra.append(_JSON)
            body = error_body(error, request_id, anthropic=anthropic)
        await _answer(send, status, [*base, *extra], body)

    # -- what needs no run --------------------------------------------------------------------------------------

    def _plain(
        self, surface: Surface | None, path: str, method: str, headers: Mapping[bytes, bytes]
    ) -> tuple[int, RawHeaders, bytes]:
        if method == "OPTIONS" and path.startswith("/v1/") and self._cors.enabled:
            return 204, self._cors.preflight(headers), b""
        if surface is not None:
            raise _method_not_allowed(path, "POST")
        path = path.rstrip("/") or "/"
        if path == _MODELS or path.startswith(_MODELS + "/"):
            _read_only(path, method)
            self._auth.check(headers)
            catalog = self._service.catalog
            if path == _MODELS:
                return 200, [_JSON], models_body(catalog, self._created)
            return 200, [_JSON], model_body(catalog, path[len(_MODELS) + 1 :], self._created)
        if path in ("/", "/healthz"):
            _read_only(path, method)
            return 200, [_JSON], b'{"status":"ok"}'
        if path == "/readyz":
            _read_only(path, method)
            if self._service.ready:
                return 200, [_JSON], b'{"status":"ready"}'
            if self._service.closing:
                raise ApiError("edge_shutdown", "this edge is shutting down")
            raise ApiError("unavailable", "no model can be served: no provider is available")
        hint = f"; did you mean /v1{path}?" if f"/v1{path}" in SURFACES or f"/v1{path}" == _MODELS else ""
        raise ApiError("not_found", f"there is no {path[:200]!r} here{hint}")

    # -- runs ---------------------------------------------------------------------------------------------------

    async def _run(
        self,
        surface: Surface,
        headers: dict[bytes, bytes],
        scope: Scope,
        receive: Receive,
        send: Send,
        request_id: str,
        base: RawHeaders,
    ) -> None:
        deps = self._deps
        connection = connection_of(scope, receive)
        try:
            principal = self._auth.check(headers)
            secret_headers = self._provider_tokens.secret_headers(headers)
            data = await read_body(
                receive,
                headers,
                limit=deps.body_bytes,
                progress=deps.body_progress,
                complete=connection.body_complete,
            )
            order = _order(surface, data, headers, request_id, principal, secret_headers)
        except ApiError as error:
            self._service.meter.refused(error.outcome)
            raise
        del data  # the pieces in the order keep what is needed of it
        trace = Trace()
        reply = HttpReply(
            send,
            connection,
            surface,
            self._settings,
            request_id=request_id,
            base=base,
            trace=trace,
            streaming=order.streaming,
        )
        try:
            await self._service.submit_run(order, reply, trace)
        except ApiError as error:
            await reply.fail(error)
        except Exception:
            log.exception("a fault of this edge", extra={"facts": {"request_id": request_id}})
            await reply.fail(ApiError("internal_error", f"a fault of this edge; its log names request {request_id}"))
        finally:
            reply.close()


def _order(
    surface: Surface,
    data: bytes,
    headers: Mapping[bytes, bytes],
    request_id: str,
    principal: Principal | None,
    secret_headers: tuple[tuple[str, str], ...],
) -> Order:
    """Check a body and make it an order. Raises ApiError 400."""
    body = parse_body(data)
    model = text_of(body, "model")
    surface.check(body)
    streaming = surface.streams and flag_of(body, "stream")
    forwarded = tuple(
        (name.decode("latin-1"), headers[name].decode("latin-1")) for name in _FORWARDED if name in headers
    )
    return Order(
        request_id=request_id,
        operation=surface.operation,
        model=model,
        body=body,
        streaming=streaming,
        include_usage=streaming and include_usage(body),
        principal=principal,
        headers=forwarded,
        secret_headers=secret_headers,
        refit=fitter(body) if surface.operation is Operation.EMBEDDINGS else None,
    )


async def _answer(send: Send, status: int, headers: RawHeaders, body: bytes) -> None:
    if status != 204:
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _method_not_allowed(path: str, allowed: str) -> ApiError:
    return ApiError("method_not_allowed", f"{path[:200]} takes {allowed} only")


def _read_only(path: str, method: str) -> None:
    if method not in ("GET", "HEAD"):
        raise _method_not_allowed(path, "GET")
