"""The console's listener: one page without external resources, one JSON document, and a guard on `Host`."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import ipaddress
import re
import socket
from collections.abc import Callable, Mapping, Sequence

import anyio
import msgspec
from anyio.abc import TaskStatus
from attrs import frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from iop_edge.http.server import HttpLimits, serve
from iop_edge.metering import RunRecord

__all__ = ["ConsoleSources", "console_app", "serve_console"]

_LIMITS = HttpLimits(max_connections=256, ignored_body_bytes=64 * 1024)
_BLOCK = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


@frozen
class ConsoleSources:
    """What the page shows; each is asked once per poll and must not wait."""

    status: Callable[[], Mapping[str, object]]
    """What `GET /status` of the admin API answers; already without secrets."""
    recent_runs: Callable[[], Sequence[RunRecord]] = tuple
    """The admitted requests that ended last, the newest last (`Meter.recent`)."""
    recent_refreshes: Callable[[], Sequence[Mapping[str, object]]] = tuple
    """The last refreshes: `RefreshResult.to_plain()` and, where known, `trigger` and `at`; the newest last."""


async def serve_console(
    sources: ConsoleSources,
    *,
    host: str,
    port: int,
    shutdown: anyio.Event | None = None,
    task_status: TaskStatus[tuple[str, int]] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the console until `shutdown` is set or this is cancelled; `task_status` gets the real host and port.

    Read-only: nothing but GET and HEAD is answered. Raises OSError where the address cannot be bound.
    """
    app = console_app(sources, names=(host,))
    await serve(app, host=host, port=port, limits=_LIMITS, shutdown=shutdown, grace=1.0, task_status=task_status)


def console_app(sources: ConsoleSources, *, names: Sequence[str] = ()) -> ASGIApp:
    """Return the ASGI app: `/` is the page, `/console.json` what it polls; `names`: more host names to answer to."""
    page = importlib.resources.files(__package__).joinpath("page.html").read_text("utf-8")
    headers = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": _policy(page),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    body = page.encode()

    async def home(_: Request) -> Response:
        return Response(body, headers=headers)

    async def data(_: Request) -> Response:
        return Response(
            console_json(sources),
            headers={
                "content-type": "application/json",
                "cache-control": "no-store",
                "x-content-type-options": "nosniff",
            },
        )

    return _HostGuard(Starlette(routes=[Route("/", home), Route("/console.json", data)]), names)


def console_json(sources: ConsoleSources) -> bytes:
    """Return what the page polls: the status, and the newest runs and refreshes first."""
    return msgspec.json.encode(
        {
            "status": sources.status(),
            "runs": list(sources.recent_runs())[::-1],
            "refreshes": list(sources.recent_refreshes())[::-1],
        }
    )


def _policy(page: str) -> str:
    """Allow the page's own style and script by their hashes, and nothing else but its poll."""
    allowed: dict[str, list[str]] = {"style": [], "script": []}
    for kind, text in _BLOCK.findall(page):
        allowed[kind].append(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'")
    return (
        f"default-src 'none'; style-src {' '.join(allowed['style'])}; script-src {' '.join(allowed['script'])}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class _HostGuard:
    """Answers only to addresses and to the names of this machine.

    A page elsewhere that has its own name resolve to this listener (DNS rebinding) comes with that name as `Host`.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        self._app = app
        self._names = {"localhost", socket.gethostname().lower(), *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._known(scope):
            answer = PlainTextResponse("this console answers to its address, or to its machine's own name\n", 403)
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _known(self, scope: Scope) -> bool:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            return False
        name = _host_name(hosts[0])
        if name in self._names or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _host_name(host: str) -> str:
    """Return the name or address of a Host header, without the port and the brackets of IPv6."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host
