"""Adapter instances in force: built aside, swapped whole, the old ones closed once their runs ended (N3)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from attrs import Factory, field, frozen

from iop_node.adapters import ADAPTERS
from iop_node.adapters.base import Adapter, AdapterContext, BuildError
from iop_node.link import ConfigFault
from iop_node.settings import AdapterSettings, NodeSettings, ProviderSettings

__all__ = ["Registry", "RegistryError", "Running", "build", "retire"]

log = logging.getLogger("iop.node.config")

Factories = Mapping[str, Callable[[AdapterSettings, AdapterContext], Adapter]]


class RegistryError(Exception):
    """A registry that cannot be built; nothing was swapped (N3)."""

    def __init__(self, faults: tuple[ConfigFault, ...]) -> None:
        super().__init__("; ".join(f"{fault.path}: {fault.message}" for fault in faults))
        self.faults = faults


class Running:
    """One adapter instance with the number of runs that are in it. Carried over from registry to registry."""

    def __init__(self, settings: AdapterSettings, adapter: Adapter) -> None:
        self.settings = settings
        self.adapter = adapter
        self.last_proof: float | None = None
        """When it last produced something, on the loop's clock: proof of life for the probes (N7, P14)."""
        self._runs = 0
        self._retired = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def runs(self) -> int:
        """How many runs are in it."""
        return self._runs

    def enter(self) -> None:
        """A run begins."""
        self._runs += 1
        self._idle.clear()

    def leave(self) -> None:
        """A run is over."""
        self._runs -= 1
        if not self._runs:
            self._idle.set()

    def proven(self, now: float) -> None:
        """It answered."""
        self.last_proof = now

    async def drain(self) -> None:
        """Wait for the last run, then close it. Its runs' own deadlines bound this (N3)."""
        await self._idle.wait()
        await self.adapter.close()


@frozen
class Registry:
    """One generation: the instances by key, the providers by id."""

    settings: NodeSettings = field(factory=lambda: NodeSettings("", 0))
    adapters: Mapping[str, Running] = Factory(dict)
    providers: Mapping[str, ProviderSettings] = Factory(dict)


@frozen
class Built:
    """A registry that is ready to be swapped in, and what became of the instances."""

    registry: Registry
    carried_over: tuple[str, ...]
    rebuilt: tuple[str, ...]
    retired: tuple[Running, ...]
    """Instances of the old registry that the new one does not have: to be drained."""


async def build(
    settings: NodeSettings, old: Registry, context: AdapterContext, factories: Factories = ADAPTERS
) -> Built:
    """Build a registry beside the old one. An instance whose settings did not change is carried over as it is.

    Raises RegistryError with every fault; whatever was made until then is closed again, the old one untouched.
    """
    adapters: dict[str, Running] = {}
    carried: list[str] = []
    made: list[Running] = []
    faults: list[ConfigFault] = []
    for wanted in settings.adapters:
        if not wanted.enabled:
            continue
        present = old.adapters.get(wanted.key)
        if present is not None and present.settings == wanted:
            adapters[wanted.key] = present
            carried.append(wanted.key)
            continue
        try:
            running = Running(wanted, factories[wanted.kind](wanted, context))
        except BuildError as error:
            faults.append(ConfigFault(f"adapters[{wanted.key}].{error.path}", error.code, str(error)))
            continue
        made.append(running)
        adapters[wanted.key] = running
    if faults:
        for running in made:
            await running.adapter.close()
        raise RegistryError(tuple(faults))
    kept = {id(running) for running in adapters.values()}
    return Built(
        Registry(settings, adapters, {provider.id: provider for provider in settings.providers}),
        carried_over=tuple(sorted(carried)),
        rebuilt=tuple(sorted(running.settings.key for running in made)),
        retired=tuple(running for running in old.adapters.values() if id(running) not in kept),
    )


async def retire(running: Running) -> None:
    """Drain one instance of an old registry; a failure to close it is logged and harms nobody."""
    if running.runs:
        log.info("adapter %s drains: %d runs", running.settings.key, running.runs)
    try:
        await running.drain()
    except Exception:
        log.exception("adapter %s could not be closed", running.settings.key)
