"""Composition root of the Node: the host behind one connection, signals, a status file, shutdown in order (N2, N6)."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import logging
import os
import signal
import tempfile
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import attrs

from iop_node.adapters.base import AdapterContext
from iop_node.connection import Connection, LinkPhase, LinkStatus
from iop_node.dial import DialSettings
from iop_node.host import NodeHost

__all__ = ["GRACE_SECONDS", "NodeApp", "status_path", "version"]

log = logging.getLogger("iop.node")

GRACE_SECONDS = 30.0  # a shutdown waits so long for running requests (wire §1.7)


class NodeApp:
    """One Node process from its start to its end. `run` is called once, on asyncio."""

    def __init__(self, settings: DialSettings, folder: Path) -> None:
        """`folder` is this Node's own: its status, and what adapters keep. Raises DialError."""
        self._folder = folder
        self._host = NodeHost(AdapterContext(folder, version()))
        self._connection = Connection(settings, self._host, node_version=version(), on_status=self._link_changed)
        self._settings = settings
        self._announce: Callable[[str], None] | None = None
        self._stopping = asyncio.Event()
        self._exit_code = 0
        self._hurry: asyncio.Task[None] | None = None

    async def run(self, announce: Callable[[str], None]) -> int:
        """Serve until SIGTERM or SIGINT; return the exit code. `announce` gets the ready line, once."""
        self._announce = announce
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_stop, number)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._connection.run())
                group.create_task(self._drain())
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            if self._hurry is not None:
                await asyncio.gather(self._hurry, return_exceptions=True)
            # Last, when nobody sends runs any more: their children and connections (§1.7).
            await self._host.close()
            status_path(self._folder).unlink(missing_ok=True)
        return self._exit_code

    def _told_to_stop(self, number: signal.Signals) -> None:
        if not self._stopping.is_set():
            log.info("%s: finishing what runs, for at most %.0f s", signal.Signals(number).name, GRACE_SECONDS)
            self._stopping.set()
        elif self._hurry is None:
            log.warning("%s again: stopping at once", signal.Signals(number).name)
            self._exit_code = 128 + number
            self._hurry = asyncio.ensure_future(self._connection.drain(0))

    async def _drain(self) -> None:
        await self._stopping.wait()
        await self._connection.drain(GRACE_SECONDS)

    def _link_changed(self, status: LinkStatus) -> None:
        self._keep(status)
        if status.phase is LinkPhase.READY and self._announce is not None:
            version_in_force = self._host.applied_version[:12] or "none"
            self._announce(f"iop-node: ready edge={status.edge} config={version_in_force}")
            self._announce = None

    def _keep(self, status: LinkStatus) -> None:
        """Leave the state where `iop-node status` finds it; a folder that cannot be written costs only that."""
        plain = attrs.asdict(status, value_serializer=lambda _i, _f, v: v.value if isinstance(v, Enum) else v)
        registry = self._host.registry
        plain |= {
            "pid": os.getpid(),
            "node_version": version(),
            "config_version": self._host.applied_version,
            "config_generation": self._host.applied_generation,
            "adapters": sorted(registry.adapters),
            "providers": sorted(registry.providers),
        }
        try:
            _replace(status_path(self._folder), json.dumps(plain))
        except OSError as error:
            log.debug("the status file cannot be written: %s", error.strerror)


def status_path(folder: Path) -> Path:
    """Where a Node leaves its state."""
    return folder / "status.json"


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".status-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def version() -> str:
    """The installed version of iop-node."""
    return importlib.metadata.version("iop-node")
