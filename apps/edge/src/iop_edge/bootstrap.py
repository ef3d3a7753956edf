"""`bootstrap.listen`: `join.sh` and the files of `artifact_dir`, so that a new machine can join with one line (N1)."""

from __future__ import annotations

import html
import importlib.resources
import os
import re
import shlex
from pathlib import Path
from urllib.parse import quote

import anyio
from anyio.abc import TaskStatus
from attrs import frozen
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from iop_edge.http.server import HttpLimits, serve

__all__ = ["BootstrapFacts", "bootstrap_app", "serve_bootstrap"]

_LIMITS = HttpLimits(max_connections=256, ignored_body_bytes=64 * 1024)
_HOST = re.compile(r"[A-Za-z0-9.\-]+(?::\d{1,5})?|\[[0-9A-Fa-f:.]+\](?::\d{1,5})?")


@frozen
class BootstrapFacts:
    """What the join script says, and where its files are."""

    edge_address: str
    """host:port that a Node dials: `server.advertise`, else the listener's own address."""
    url: str | None = None
    """`bootstrap.advertise_url`; None: the address by which the script was asked for."""
    artifact_dir: Path | None = None
    """The folder whose files are served, not those below it; None: none are."""


async def serve_bootstrap(
    facts: BootstrapFacts,
    *,
    host: str,
    port: int,
    shutdown: anyio.Event | None = None,
    task_status: TaskStatus[tuple[str, int]] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `shutdown` is set or this is cancelled; `task_status` gets the real host and port.

    Whoever reaches the listener gets the files: nothing secret belongs into that folder, and the script holds no
    token. Raises OSError where the address cannot be bound.
    """
    app = bootstrap_app(facts)
    await serve(app, host=host, port=port, limits=_LIMITS, shutdown=shutdown, grace=5.0, task_status=task_status)


def bootstrap_app(facts: BootstrapFacts) -> Starlette:
    """Return the ASGI app: `/join.sh`, `/files/` (a list that pip's `--find-links` reads) and `/files/NAME`."""
    template = importlib.resources.files("iop_edge").joinpath("join.sh").read_text("utf-8")

    async def join(request: Request) -> Response:
        url = (facts.url or f"http://{_own_host(request)}").rstrip("/")
        script = template.replace("@EDGE@", shlex.quote(facts.edge_address)).replace("@URL@", shlex.quote(url))
        return PlainTextResponse(script, media_type="text/x-shellscript", headers={"cache-control": "no-cache"})

    async def listing(_: Request) -> Response:
        names = await anyio.to_thread.run_sync(_file_names, facts.artifact_dir)
        links = "".join(f'<a href="{quote(name)}">{html.escape(name)}</a><br>\n' for name in names)
        page = f"<!doctype html><meta charset=utf-8><title>iop-edge: files</title>\n{links}"
        return Response(page, headers={"content-type": "text/html; charset=utf-8", "cache-control": "no-cache"})

    async def file(request: Request) -> Response:
        name: str = request.path_params["name"]
        # A name is looked up among those that there are, never joined to a path first: nothing leads out of the folder.
        names = await anyio.to_thread.run_sync(_file_names, facts.artifact_dir)
        if facts.artifact_dir is None or name not in names:
            raise HTTPException(404, "there is no such file here; /files/ lists those that are")
        return FileResponse(
            facts.artifact_dir / name,
            media_type="application/octet-stream",
            headers={"x-content-type-options": "nosniff", "cache-control": "no-cache"},
        )

    async def home(_: Request) -> Response:
        return PlainTextResponse("iop-edge: /join.sh joins a machine, /files/ lists what it is made of\n")

    return Starlette(
        routes=[Route("/", home), Route("/join.sh", join), Route("/files/", listing), Route("/files/{name}", file)]
    )


def _file_names(folder: Path | None) -> list[str]:
    """The regular files of the folder, by name: no links, nothing hidden, nothing below it."""
    if folder is None:
        return []
    try:
        with os.scandir(folder) as entries:
            found = [
                entry.name for entry in entries if entry.is_file(follow_symlinks=False) and entry.name[0] not in "._"
            ]
    except OSError:
        return []
    return sorted(found)


def _own_host(request: Request) -> str:
    """The Host of the request, which goes into a script: whatever is no plain host and port is refused."""
    host = request.headers.get("host", "")
    if _HOST.fullmatch(host) is None:
        raise HTTPException(400, "host: not a host name or address; set bootstrap.advertise_url, or ask by name")
    return host
