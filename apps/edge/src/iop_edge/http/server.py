"""uvicorn inside the Edge's own task group, with the listener's limits (design §8)."""

from __future__ import annotations

import socket

import anyio
from anyio.abc import TaskStatus
from attrs import frozen
from starlette.types import ASGIApp

__all__ = ["HttpLimits", "serve"]


@frozen
class HttpLimits:
    """Bounds of one listener; times in seconds, sizes in bytes."""

    max_connections: int = 4096
    head_bytes: int = 64 * 1024
    head_timeout: float = 10.0
    idle_timeout: float = 75.0
    stall_timeout: float = 60.0


async def serve(
    app: ASGIApp,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    sock: socket.socket | None = None,
    limits: HttpLimits = HttpLimits(),  # noqa: B008 -- frozen
    shutdown: anyio.Event | None = None,
    grace: float = 30.0,
    task_status: TaskStatus[tuple[str, int]] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` until `shutdown` is set or this is cancelled; `task_status` gets the real host and port.

    After `shutdown`: no new connections, idle ones are closed, the others may finish within `grace` seconds. Installs
    no signal handler. Raises OSError where the address cannot be bound.
    """
    raise NotImplementedError
