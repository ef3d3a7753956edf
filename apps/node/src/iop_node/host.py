"""The Node behind its session: implements `link.Host` over the registry, the runs and the probes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from iop_node.adapters.base import AdapterContext
from iop_node.health import Prober
from iop_node.link import ConfigOutcome, ProviderState, RunEnd, RunOrder, RunSink, StoppingAttempt
from iop_node.registry import Factories, Registry, RegistryError, build, retire
from iop_node.runs import Runs
from iop_node.settings import NodeSettings
from iop_wire.limits import Timing

__all__ = ["NodeHost"]

log = logging.getLogger("iop.node.config")


class NodeHost:
    """One per process. `configure` is called by one session at a time."""

    def __init__(
        self, context: AdapterContext, *, timing: Timing | None = None, factories: Factories | None = None
    ) -> None:
        self._context = context
        self._factories = factories
        self._registry = Registry()
        self._runs = Runs(timing)
        self._prober = Prober()
        self._draining: dict[asyncio.Task[None], str] = {}

    @property
    def registry(self) -> Registry:
        """What is in force."""
        return self._registry

    @property
    def applied_version(self) -> str:
        """See `link.Host`."""
        return self._registry.settings.version

    @property
    def applied_generation(self) -> int:
        """See `link.Host`."""
        return self._registry.settings.generation

    @property
    def active_runs(self) -> int:
        """See `link.Host`."""
        return self._runs.active

    # -- configuration ------------------------------------------------------------------------------------------------

    async def configure(self, settings: NodeSettings) -> ConfigOutcome:
        """See `link.Host`: everything that can fail comes before the one assignment."""
        old = self._registry
        if settings.version and settings.version == old.settings.version:
            # The number may be new all the same: it counts per Edge process.
            self._registry = Registry(settings, old.adapters, old.providers)
            return ConfigOutcome(True, settings.version, settings.generation, carried_over=tuple(sorted(old.adapters)))
        try:
            if self._factories is None:
                built = await build(settings, old, self._context)
            else:
                built = await build(settings, old, self._context, self._factories)
        except RegistryError as error:
            for fault in error.faults:
                log.error("the configuration is refused: %s: %s", fault.path, fault.message)
            return ConfigOutcome(False, old.settings.version, old.settings.generation, error.faults)
        self._registry = built.registry
        self._runs.replaced(old)
        for running in built.retired:
            task = asyncio.ensure_future(retire(running))
            self._draining[task] = running.settings.key
            task.add_done_callback(lambda done: self._draining.pop(done, None))
        self._prober.follow(built.registry)
        log.info(
            "configuration %s in force: %d providers, adapters built %s, carried over %s",
            settings.version[:12], len(settings.providers), _names(built.rebuilt), _names(built.carried_over),
        )  # fmt: skip
        return ConfigOutcome(
            True,
            settings.version,
            settings.generation,
            carried_over=built.carried_over,
            rebuilt=built.rebuilt,
            draining=tuple(sorted(running.settings.key for running in built.retired if running.runs)),
        )

    # -- runs ---------------------------------------------------------------------------------------------------------

    def start(self, order: RunOrder, sink: RunSink) -> None:
        """See `link.Host`. The run keeps the registry that it began with."""
        self._runs.start(order, sink, self._registry)

    def cancel(self, run_id: str, attempt: int, reason: str) -> None:
        """See `link.Host`."""
        self._runs.cancel(run_id, attempt, reason)

    def session_lost(self) -> None:
        """See `link.Host`."""
        self._runs.session_lost()

    def stopping_attempts(self) -> tuple[StoppingAttempt, ...]:
        """See `link.Host`."""
        return self._runs.stopping_attempts()

    def watch_stopping(self, on_end: Callable[[StoppingAttempt, RunEnd], None]) -> None:
        """See `link.Host`."""
        self._runs.watch_stopping(on_end)

    # -- health -------------------------------------------------------------------------------------------------------

    def provider_states(self) -> tuple[ProviderState, ...]:
        """See `link.Host`."""
        return self._prober.states

    def watch_health(self, report: Callable[[tuple[ProviderState, ...]], None]) -> None:
        """See `link.Host`."""
        self._prober.watch(report)

    async def close(self) -> None:
        """Stop probes and runs, then the adapters, last of all (§1.7)."""
        await self._prober.close()
        await self._runs.close()
        for task in list(self._draining):
            task.cancel()
        await asyncio.gather(*self._draining, return_exceptions=True)
        for running in self._registry.adapters.values():
            try:
                await running.adapter.close()
            except Exception:
                log.exception("adapter %s could not be closed", running.settings.key)


def _names(keys: tuple[str, ...]) -> str:
    return ", ".join(keys) or "none"
