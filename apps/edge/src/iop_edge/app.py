"""Composition root: builds every part from one config, owns the task group, signals and shutdown (design §3)."""

from __future__ import annotations

import gc
import importlib.metadata
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.abc
from attrs import frozen
from prometheus_client import CollectorRegistry

from iop_config import EdgeConfig, Loaded
from iop_edge.admin.refresh import RefreshEngine, RefreshRequest
from iop_edge.admin.server import serve_admin
from iop_edge.admin.status import status_body
from iop_edge.bootstrap import BootstrapFacts, serve_bootstrap
from iop_edge.console import ConsoleSources, serve_console
from iop_edge.fleet import Fleet
from iop_edge.http.app import Deps, build_app
from iop_edge.http.server import HttpLimits, serve
from iop_edge.metering import Meter
from iop_edge.metrics import serve_metrics
from iop_edge.nodes.auth import NodeAuth
from iop_edge.nodes.registry import NodeRegistry
from iop_edge.nodes.server import NodeServer, join_address, split_address
from iop_edge.nodes.values import TlsFiles
from iop_edge.runtime import EdgeRuntime
from iop_edge.service import RunService
from iop_edge.snapshot import SnapshotCell, build_snapshot
from iop_edge.state import StateError, StateFolder
from iop_edge.watch import file_changes
from iop_pool import Pool

__all__ = ["EdgeApp", "StartError", "version"]

log = logging.getLogger("iop.edge")

GRACE_SECONDS = 30.0  # a shutdown waits so long for running requests (wire §1.7)
_LAST_WORDS_SECONDS = 2.0  # for the last error events and cancels
_TLS_POLL_SECONDS = 5.0

T = TypeVar("T")


class StartError(Exception):
    """The Edge cannot start; the text names the place, the problem and what would be right."""


@frozen
class Options:
    """What the command line adds to the config."""

    paths: tuple[Path, ...]
    """The main file, then the overlays; absolute, and read again by each refresh."""
    watch: bool = False
    """Apply when a file changes (R13)."""


class EdgeApp:
    """One Edge from its start to its end; made on the asyncio loop where `run` is called, once."""

    def __init__(self, loaded: Loaded, state: StateFolder, options: Options) -> None:
        """Build all parts that need no I/O. `loaded` is what `options.paths` gave, or the last-good config (R15)."""
        self._options = options
        self._state = state
        self._loaded = loaded
        digest_key = state.digest_key()
        first = build_snapshot(loaded.config, loaded.version, digest_key)
        self._live: EdgeConfig = first.live
        self._cell = SnapshotCell(first)
        self._pool = Pool(first.pool)
        self._fleet = Fleet(self._pool, first.pool, first.payloads)
        self._registry = NodeRegistry(
            self._fleet,
            self._payload_for,
            node_ids=tuple(node.id for node in self._live.nodes),
            edge_id=self._live.edge.id,
            edge_version=version(),
        )
        self._runtime = EdgeRuntime(
            self._cell,
            self._pool,
            self._fleet,
            self._registry,
            paths=options.paths,
            digest_key=digest_key,
            live_leases=lambda: self._service.live_leases,
        )
        self._collectors = CollectorRegistry()
        self._meter = Meter(
            self._path(self._live.openai.usage_log), registry=self._collectors, leaked_slots=self._runtime.leaked_slots
        )
        self._service = RunService(
            snapshot=lambda: self._cell.current,
            pool=self._pool,
            session=self._registry.session,
            generation_of=self._fleet.acked_generation,
            meter=self._meter,
        )
        self._engine = RefreshEngine(self._runtime, state)
        self._started_at = time.time()
        self._http_shutdown = anyio.Event()
        self._stopping = anyio.Event()
        self._grace = anyio.CancelScope()
        self._exit_code = 0
        self._addresses: dict[str, str] = {}

    def _payload_for(self, node_id: str) -> Any:
        payload = self._cell.current.payloads.get(node_id)
        return payload.message if payload is not None else None

    def _path(self, path: str | None) -> str | None:
        """Resolve a path of the config from the main file's folder."""
        return None if path is None else str(self._options.paths[0].parent / path)

    # -- life -----------------------------------------------------------------------------------------------------

    async def run(self, announce: Callable[[str], None]) -> int:
        """Serve until SIGTERM or SIGINT; return the exit code. `announce` gets the ready line.

        Raises StartError where a listener or a certificate cannot be used; then nothing was served.
        """
        nodes = self._node_server()
        failure: StartError | None = None
        try:
            async with anyio.create_task_group() as group:
                await group.start(self._signals, group)
                group.start_soon(self._meter.run)
                try:
                    await self._start_listeners(group, nodes)
                    await anyio.to_thread.run_sync(self._keep_config)
                    self._say_ready(announce)
                    if self._live.server.tls is not None:
                        group.start_soon(self._watch_tls, nodes)
                    if self._options.watch:
                        group.start_soon(self._watch_files)
                    await self._stopping.wait()
                    await self._shut_down(nodes)
                finally:
                    with anyio.CancelScope(shield=True):
                        await nodes.stop()
                group.cancel_scope.cancel()
        except BaseExceptionGroup as group_error:
            # One plain reason is what an operator needs; anything else is a defect and keeps its traceback.
            starts, others = group_error.split(StartError)
            if others is not None or starts is None:
                raise
            failure = _first(starts)
        finally:
            self._state.remove_runtime()
        if failure is not None:
            raise failure
        return self._exit_code

    def _keep_config(self) -> None:
        """What serves is what a later start may fall back to (R15)."""
        try:
            self._state.keep(self._loaded.version, self._loaded.sources)
        except StateError as error:
            log.warning("the config is not kept as last-good: %s", error)

    async def _start_listeners(self, group: anyio.abc.TaskGroup, nodes: NodeServer) -> None:
        """Open every listener that the config names: Nodes and operators before clients."""
        live = self._live
        self._addresses["grpc"] = await _listening("server.listen", nodes.start)
        admin = live.admin
        self._addresses["admin"] = await _listening(
            "admin.listen" if admin.listen is not None else "admin.unix_socket",
            lambda: group.start(self._serve_admin),
        )
        self._state.write_runtime(self._addresses["admin"])
        await self._start_side_listeners(group)
        if live.openai.enabled:
            app = build_app(Deps(service=self._service, openai=live.openai))
            limits = HttpLimits(max_connections=live.openai.max_connections)
            self._addresses["openai"] = await self._listen(
                group,
                "openai.listen",
                live.openai.listen,
                lambda host, port, task_status: serve(
                    app,
                    host=host,
                    port=port,
                    limits=limits,
                    shutdown=self._http_shutdown,
                    grace=_LAST_WORDS_SECONDS,
                    task_status=task_status,
                ),
            )

    async def _start_side_listeners(self, group: anyio.abc.TaskGroup) -> None:
        """Metrics, console and bootstrap, where the config asks for them."""
        live = self._live
        if live.metrics.listen is not None:
            self._addresses["metrics"] = await self._listen(
                group,
                "metrics.listen",
                live.metrics.listen,
                lambda host, port, task_status: serve_metrics(
                    self._collectors, self._status, host=host, port=port, task_status=task_status
                ),
            )
        if live.console.enabled:
            sources = ConsoleSources(self._status, self._meter.recent, lambda: tuple(self._engine.recent))
            self._addresses["console"] = await self._listen(
                group,
                "console.listen",
                live.console.listen,
                lambda host, port, task_status: serve_console(sources, host=host, port=port, task_status=task_status),
            )
        if live.bootstrap.listen is not None:
            folder = self._path(live.bootstrap.artifact_dir)
            facts = BootstrapFacts(
                live.server.advertise or self._addresses["grpc"],
                live.bootstrap.advertise_url,
                Path(folder) if folder is not None else None,
            )
            self._addresses["bootstrap"] = await self._listen(
                group,
                "bootstrap.listen",
                live.bootstrap.listen,
                lambda host, port, task_status: serve_bootstrap(facts, host=host, port=port, task_status=task_status),
            )

    async def _serve_admin(self, *, task_status: anyio.abc.TaskStatus[str]) -> None:
        await serve_admin(
            self._engine,
            self._runtime,
            listen=self._live.admin.listen,
            unix_socket=self._path(self._live.admin.unix_socket),
            status_extra=self._about,
            task_status=task_status,
        )

    async def _listen(
        self,
        group: anyio.abc.TaskGroup,
        place: str,
        listen: str,
        serving: Callable[[str, int, anyio.abc.TaskStatus[tuple[str, int]]], Coroutine[Any, Any, None]],
    ) -> str:
        """Start one HTTP listener; returns the address that it really has."""

        async def task(*, task_status: anyio.abc.TaskStatus[tuple[str, int]]) -> None:
            host, port = split_address(listen)
            await serving(host, port, task_status)

        host, port = await _listening(f"{place} {listen}", lambda: group.start(task))
        return join_address(host, port)

    def _say_ready(self, announce: Callable[[str], None]) -> None:
        # What was built until here lives as long as the process: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        order = ("openai", "grpc", "admin", "metrics", "console", "bootstrap")
        shown = " ".join(f"{name}={self._addresses[name]}" for name in order if name in self._addresses)
        announce(f"iop-edge: ready {shown}")
        for name, enabled in (("a2a", self._live.a2a.enabled), ("control_plane", self._live.control_plane.enabled)):
            if enabled:
                log.warning("%s.enabled is true, but this version does not serve it: nothing listens there", name)

    def _status(self) -> dict[str, object]:
        """What `GET /status` of the admin API answers."""
        return status_body(self._engine, self._runtime, self._about)

    def _about(self) -> dict[str, object]:
        """The part `edge` of `GET /status`."""
        identity, logging_ = self._live.edge, self._live.logging
        return {
            "id": identity.id,
            "name": identity.name,
            "version": version(),
            "started_at": self._started_at,
            "uptime_s": round(time.time() - self._started_at, 3),
            "listeners": dict(self._addresses),
            "logging": {"level": logging_.level, "format": logging_.format},
            "stopping": self._service.closing,
        }

    # -- signals and files ------------------------------------------------------------------------------------------

    async def _signals(
        self, group: anyio.abc.TaskGroup, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
            task_status.started()
            async for number in received:
                if number == signal.SIGHUP:
                    group.start_soon(self._refresh, "sighup")
                elif not self._stopping.is_set():
                    log.info("%s: finishing what runs, for at most %.0f s", number.name, GRACE_SECONDS)
                    self._stopping.set()
                else:
                    log.warning("%s again: stopping at once", number.name)
                    self._exit_code = 128 + number
                    self._grace.cancel()

    async def _refresh(self, trigger: str) -> None:
        """Apply the files; the engine logs what came of it (R13)."""
        await self._engine.refresh(RefreshRequest(), trigger=trigger)

    async def _watch_files(self) -> None:
        loaded = [source.sha256 for source in self._loaded.sources]
        async for _ in file_changes(self._options.paths, loaded):
            await self._refresh("watch")

    # -- TLS ----------------------------------------------------------------------------------------------------------

    def _node_server(self) -> NodeServer:
        server = self._live.server
        hashes = {
            node.id: tuple(h for h in (node.token_hash_sha256, node.previous_token_hash_sha256) if h)
            for node in self._live.nodes
        }
        try:
            return NodeServer(
                self._registry, server.listen, NodeAuth(hashes), tls=self._tls_files(), insecure=server.insecure
            )
        except ValueError as error:
            raise StartError(f"server: {error}") from None

    def _tls_files(self) -> TlsFiles | None:
        tls = self._live.server.tls
        if tls is None:
            return None
        names = ("cert_file", "key_file", "client_ca_file")
        contents: list[bytes | None] = []
        for name in names:
            path = self._path(getattr(tls, name))
            try:
                contents.append(Path(path).read_bytes() if path is not None else None)
            except OSError as error:
                raise StartError(f"server.tls.{name}: {path}: {error.strerror}") from None
        certificate, key, client_ca = contents
        assert certificate is not None
        assert key is not None
        return TlsFiles(certificate, key, client_ca)

    async def _watch_tls(self, nodes: NodeServer) -> None:
        """Use a renewed certificate without a restart; an unusable one changes nothing and is logged once."""
        seen = self._tls_files()
        while True:
            await anyio.sleep(_TLS_POLL_SECONDS)
            try:
                files = self._tls_files()
                if files == seen or files is None:
                    continue
                seen = files
                nodes.reload_tls(files)
            except (StartError, ValueError) as error:
                log.error("the renewed certificate is not used: %s", error)
            else:
                log.info("server.tls: new connections get the renewed certificate")

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _shut_down(self, nodes: NodeServer) -> None:
        """Refuse newcomers, let what runs finish within the grace, then end it with an error event (wire §1.7)."""
        self._service.begin_shutdown()
        nodes.request_drain(GRACE_SECONDS)
        self._grace.deadline = anyio.current_time() + GRACE_SECONDS
        with self._grace:
            await self._service.wait_idle()
        self._service.abort_all()
        with anyio.move_on_after(_LAST_WORDS_SECONDS):
            await self._service.wait_idle()
        self._http_shutdown.set()


async def _listening(place: str, start: Callable[[], Awaitable[T]]) -> T:
    """Await a listener's start; an address that cannot be used becomes a StartError that names the config's place."""
    try:
        return await start()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise StartError(f"{place}: cannot listen: {reason}") from None


def _first(group: BaseExceptionGroup[StartError]) -> StartError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, StartError)
    return error


def version() -> str:
    """The installed version of iop-edge."""
    return importlib.metadata.version("iop-edge")


def main(
    loaded: Loaded, state: StateFolder, paths: Sequence[Path], *, watch: bool, announce: Callable[[str], None]
) -> int:
    """Run an Edge to its end on uvloop; the exit code. Raises StartError."""

    async def serve_until_told() -> int:
        return await EdgeApp(loaded, state, Options(paths=tuple(paths), watch=watch)).run(announce)

    return anyio.run(serve_until_told, backend_options={"use_uvloop": True})
