"""One listener of the Edge by itself, on a free port of loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio


@asynccontextmanager
async def listening(serve: Callable[..., Awaitable[None]], subject: object) -> AsyncIterator[str]:
    """`serve(subject, host=…, port=…, task_status=…)` until the end of the block; gives its root URL."""
    async with anyio.create_task_group() as group:

        async def listen(*, task_status: Any) -> None:
            await serve(subject, host="127.0.0.1", port=0, task_status=task_status)

        host, port = await group.start(listen)
        yield f"http://{host}:{port}"
        group.cancel_scope.cancel()
