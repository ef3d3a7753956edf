"""The admin listener: loopback or a unix socket; parse, call the engine or the runtime, render (R1, R12)."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import struct
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qs

import anyio
import anyio.abc
import anyio.to_thread
import attrs
from starlette.types import ASGIApp, Receive, Scope, Send

import iop_config
from iop_edge.admin.guard import BODY_BYTES_MAX, Refusal, check_loopback, hosts_of, refusal_of, too_large
from iop_edge.admin.refresh import WAIT_MS, WAIT_MS_MAX, RefreshEngine, RefreshRequest
from iop_edge.admin.runtime import Runtime, SnapshotView
from iop_edge.admin.status import status_body
from iop_edge.http.server import HttpLimits, serve
from iop_edge.nodes.server import join_address, split_address
from iop_refresh import SCHEMA_VERSION, RefreshResult, Status

__all__ = ["AdminApp", "serve_admin"]

log = logging.getLogger("iop.edge.admin")

SnapshotT = TypeVar("SnapshotT", bound=SnapshotView)

_LIMITS = HttpLimits(max_connections=64, ignored_body_bytes=BODY_BYTES_MAX)
_BODY_SECONDS = 30.0  # without any progress
_INPUT_TOKENS_MAX = 2**31 - 1
_HEADERS = (
    (b"content-type", b"application/json; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)


async def serve_admin(
    engine: RefreshEngine[SnapshotT],
    runtime: Runtime[SnapshotT],
    *,
    listen: str | None,
    unix_socket: str | None,
    status_extra: Callable[[], dict[str, object]],
    task_status: anyio.abc.TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; `task_status` gets `host:port`, or `unix:PATH` where there is no TCP listener.

    Raises ValueError for an address that is not loopback (R12), OSError for one that cannot be bound.
    """
    app = AdminApp(engine, runtime, status_extra)
    async with anyio.create_task_group() as group:
        addresses = []
        if listen is not None:
            host, port = split_address(listen)
            bound = await group.start(_serve_tcp, app, check_loopback(host), port)
            addresses.append(join_address(*bound))
        if unix_socket is not None:
            await group.start(_serve_unix, app, unix_socket)
            addresses.append(f"unix:{unix_socket}")
        task_status.started(addresses[0] if addresses else "")


async def _serve_tcp(
    app: AdminApp[Any], host: str, port: int, *, task_status: anyio.abc.TaskStatus[tuple[str, int]]
) -> None:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(64)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    # Port 0 is known only now, and the Host header names it.
    hosts = hosts_of(host, listener.getsockname()[1])
    await serve(app.guarded(hosts), sock=listener, limits=_LIMITS, task_status=task_status)


async def _serve_unix(app: AdminApp[Any], path: str, *, task_status: anyio.abc.TaskStatus[object]) -> None:
    listener = _bind_unix(path)
    inode = os.stat(path).st_ino
    try:
        await serve(app.guarded(None), sock=listener, limits=_LIMITS, task_status=task_status)
    finally:
        with contextlib.suppress(OSError):
            if os.stat(path).st_ino == inode:  # a younger Edge may have taken the name over
                os.unlink(path)


def _bind_unix(path: str) -> socket.socket:
    """Listen on a socket file of mode 0600; one that a dead process left is replaced."""
    if _is_left_over(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        os.chmod(path, 0o600)  # before listen(): nobody can have connected earlier
        listener.listen(64)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _is_left_over(path: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path).st_mode):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(1.0)
                try:
                    probe.connect(path)
                except ConnectionRefusedError:
                    return True
    return False


class _AnswerError(Exception):
    """A request that is answered with an error and nothing else."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.refusal = Refusal(status, code, message)


class AdminApp(Generic[SnapshotT]):
    """The routes, behind the guard."""

    def __init__(
        self,
        engine: RefreshEngine[SnapshotT],
        runtime: Runtime[SnapshotT],
        about: Callable[[], dict[str, object]],
    ) -> None:
        """`about` gives the part `edge` of the status."""
        self._engine = engine
        self._runtime = runtime
        self._about = about

    def guarded(self, hosts: frozenset[str] | None) -> ASGIApp:
        """Return the ASGI app of one listener; `hosts` is what its Host header may say, None for a unix socket."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            assert scope["type"] == "http", scope["type"]
            refusal = refusal_of(scope["method"], scope["path"], scope["headers"], hosts)
            peer = _peer(scope, unix=hosts is None)
            if refusal is None and peer is None:
                refusal = Refusal(403, "foreign_user", "the socket is for the user who runs the edge")
            if refusal is None:
                try:
                    await self._route(scope, receive, send, peer or "")
                    return
                except _AnswerError as error:
                    refusal = error.refusal
                except Exception as error:
                    # The text of an exception may hold a value of the config.
                    log.error("%s %s failed with %s", scope["method"], scope["path"], type(error).__name__)
                    refusal = Refusal(500, "internal", f"the request failed with {type(error).__name__}")
            elif refusal.status == 403:
                log.warning("admin request from %s refused: %s", peer, refusal.message)
            await _send_error(send, refusal)

        return app

    async def _route(self, scope: Scope, receive: Receive, send: Send, peer: str) -> None:
        match scope["path"]:
            case "/refresh":
                request = await _read_request(scope, receive, takes_config=True)
                await self._answer(send, await self._engine.refresh(request, trigger="http", peer=peer))
            case "/rollback":
                request = await _read_request(scope, receive, takes_config=False)
                await self._answer(send, await self._engine.rollback(request, peer=peer))
            case "/status":
                await self._send_json(send, status_body(self._engine, self._runtime, self._about))
            case "/config":
                config = self._runtime.snapshot.config
                await self._send_json(send, await anyio.to_thread.run_sync(iop_config.to_plain, config))
            case "/explain":
                await self._send_json(send, self._explain(scope))

    def _explain(self, scope: Scope) -> dict[str, object]:
        query = parse_qs(scope["query_string"].decode("latin-1"))
        model = query.get("model", [""])[-1]
        tokens = query.get("input_tokens", ["0"])[-1]
        if not model:
            raise _AnswerError(400, "bad_request", "say which model: /explain?model=ID")
        if not (tokens.isascii() and tokens.isdecimal() and int(tokens) <= _INPUT_TOKENS_MAX):
            raise _AnswerError(400, "bad_request", "input_tokens is a count of tokens")
        try:
            return self._runtime.explain(model, int(tokens))
        except LookupError as error:
            raise _AnswerError(404, "unknown_model", str(error.args[0])) from None

    async def _answer(self, send: Send, result: RefreshResult) -> None:
        status = 200
        if result.status is Status.REJECTED:
            status = 412 if result.guard_failed else 422
        await _send(send, status, result.to_json().encode() + b"\n", etag=result.config_version_after)

    async def _send_json(self, send: Send, body: Mapping[str, object]) -> None:
        text = json.dumps(body, ensure_ascii=False, indent=2).encode() + b"\n"
        await _send(send, 200, text, etag=self._runtime.snapshot.version)


# -- requests ---------------------------------------------------------------------------------------------------------


async def _read_request(scope: Scope, receive: Receive, *, takes_config: bool) -> RefreshRequest:
    try:
        body = json.loads(await _read_body(receive))
    except (ValueError, RecursionError):
        raise _AnswerError(400, "bad_request", "the body is not JSON") from None
    if not isinstance(body, dict):
        raise _AnswerError(400, "bad_request", 'the body is a JSON object such as {"mode": "dry_run"}')
    kinds: dict[str, type] = {"mode": str, "allow_partial": bool, "wait_ms": int}
    kinds |= {"expected_version": str, "expected_candidate": str}
    if takes_config:
        kinds["config"] = str
    given: dict[str, Any] = {}
    for name, value in body.items():
        kind = kinds.get(name)
        if kind is None:
            raise _AnswerError(400, "bad_request", f"unknown key {json.dumps(name)}; known are {', '.join(kinds)}")
        if value is None and name not in ("mode", "allow_partial"):
            continue  # as if it were absent
        if type(value) is not kind:
            raise _AnswerError(400, "bad_request", f"{name} must be of the type {_JSON_NAMES[kind]}")
        given[name] = value
    # Without a mode nothing is applied by guess: the engine rejects the empty one (R4).
    given.setdefault("mode", "")
    if not 0 <= given.setdefault("wait_ms", WAIT_MS) <= WAIT_MS_MAX:
        raise _AnswerError(400, "bad_request", f"wait_ms is from 0 to {WAIT_MS_MAX}")
    matches = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"if-match"]
    return _with_if_match(RefreshRequest(**given), matches)


_JSON_NAMES = {str: "string", bool: "boolean", int: "integer"}


def _with_if_match(request: RefreshRequest, matches: list[str]) -> RefreshRequest:
    """Take `If-Match: "VERSION"` for `expected_version`; `*` is any. Where the two differ neither can be right."""
    if not matches or matches == ["*"]:
        return request
    said = matches[0].strip().removeprefix("W/").strip('"')
    if len(matches) > 1 or "," in said:
        raise _AnswerError(400, "bad_request", "If-Match names one version")
    if request.expected_version not in (None, said):
        raise _AnswerError(400, "bad_request", "If-Match and expected_version name different versions")
    return attrs.evolve(request, expected_version=said)


async def _read_body(receive: Receive) -> bytes:
    parts, size, more = [], 0, True
    while more:
        with anyio.move_on_after(_BODY_SECONDS) as scope:
            message = await receive()
        if scope.cancelled_caught:
            raise _AnswerError(408, "body_timeout", f"no part of the body came for {_BODY_SECONDS:.0f} s")
        if message["type"] == "http.disconnect":
            raise _AnswerError(400, "bad_request", "the client left before the body was complete")
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > BODY_BYTES_MAX:
            refusal = too_large()
            raise _AnswerError(refusal.status, refusal.code, refusal.message)
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def _peer(scope: Scope, *, unix: bool) -> str | None:
    """Who asks, for the audit line; None for another user's process on the unix socket."""
    if not unix:
        client = scope.get("client")
        return join_address(*client) if client else "loopback"
    uid = _peer_uid(scope)
    if uid is None:
        return "unix"
    return f"uid:{uid}" if uid in (0, os.geteuid()) else None


def _peer_uid(scope: Scope) -> int | None:
    option = getattr(socket, "SO_PEERCRED", None)
    connection: Any = scope.get("extensions", {}).get("iop.connection")
    if option is None or connection is None:
        return None
    peer = connection.transport.get_extra_info("socket")
    if peer is None:
        return None
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
    return int(uid)


# -- answers ----------------------------------------------------------------------------------------------------------


async def _send_error(send: Send, refusal: Refusal) -> None:
    body = {
        "schema_version": SCHEMA_VERSION,
        "status": "error",
        "code": refusal.code,
        "message": refusal.message,
    }
    await _send(send, refusal.status, json.dumps(body, ensure_ascii=False, indent=2).encode() + b"\n", refusal.allow)


async def _send(send: Send, status: int, body: bytes, allow: str = "", *, etag: str = "") -> None:
    headers = [*_HEADERS, (b"content-length", str(len(body)).encode())]
    if allow:
        headers.append((b"allow", allow.encode()))
    if etag:
        headers.append((b"etag", f'"{etag}"'.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
