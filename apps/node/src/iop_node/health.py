"""The probes of every provider, each in its own rhythm; changes are reported as they happen (N7)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from iop_node.adapters.base import ProbeResult, ProbeTarget
from iop_node.link import Health, ProviderState
from iop_node.registry import Registry, Running
from iop_node.settings import ProviderSettings

__all__ = ["Prober"]

log = logging.getLogger("iop.node.health")

_SOONER_S = 1.0  # while a provider is not well, so that its return is noticed at once
_BOUND_S = 15.0  # for one probe, whatever the adapter does

Report = Callable[[tuple[ProviderState, ...]], None]


class Prober:
    """Keeps a state per provider. `follow` gives it the registry in force, `watch` the one who is told of changes."""

    def __init__(self) -> None:
        self._states: dict[str, ProviderState] = {}
        self._tasks: dict[str, tuple[ProviderSettings, Running, asyncio.Task[None]]] = {}
        self._report: Report | None = None

    @property
    def states(self) -> tuple[ProviderState, ...]:
        """The state of every provider that is probed; `unknown` until the first proof."""
        return tuple(self._states.values())

    def watch(self, report: Report) -> None:
        """From now on tell `report` about changes."""
        self._report = report

    def follow(self, registry: Registry) -> None:
        """Probe what this registry has, and nothing else. A provider that did not change keeps state and rhythm."""
        wanted = {
            provider.id: (provider, running)
            for provider in registry.providers.values()
            if provider.enabled and provider.probe and (running := registry.adapters.get(provider.adapter)) is not None
        }
        for provider_id, (provider, running, task) in list(self._tasks.items()):
            now = wanted.get(provider_id)
            if now is None or now[1] is not running or _probing(now[0]) != _probing(provider):
                task.cancel()
                del self._tasks[provider_id], self._states[provider_id]
        for provider_id, (provider, running) in wanted.items():
            if provider_id not in self._tasks:
                self._states[provider_id] = ProviderState(provider_id, Health.UNKNOWN)
                task = asyncio.ensure_future(self._probe(provider, running))
                self._tasks[provider_id] = (provider, running, task)

    async def close(self) -> None:
        """Stop every probe."""
        tasks = [task for _, _, task in self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _probe(self, provider: ProviderSettings, running: Running) -> None:
        interval = provider.probe_interval
        loop = asyncio.get_running_loop()
        while True:
            state = self._states[provider.id]
            proof = running.last_proof
            # What is at work needs no probe, and a busy runtime may be slow to answer one (P14).
            if state.health is not Health.HEALTHY or proof is None or loop.time() - proof >= interval:
                found = await _bounded(running, provider)
                # Runs that answered meanwhile explain a silence (P14).
                if not (found.silent and running.last_proof is not None and running.last_proof != proof):
                    self._learn(provider.id, found)
            well = self._states[provider.id].health is Health.HEALTHY
            await asyncio.sleep(interval if well else min(interval, _SOONER_S))

    def _learn(self, provider_id: str, probe: ProbeResult) -> None:
        state = ProviderState(provider_id, probe.health, probe.message, probe.context_tokens, probe.runtime_slots)
        before = self._states[provider_id]
        if state == before:
            return
        self._states[provider_id] = state
        if state.health is not before.health:
            why = f": {state.message}" if state.message else ""
            level = logging.INFO if state.health is Health.HEALTHY else logging.WARNING
            log.log(level, "provider %s is %s%s", provider_id, state.health.value, why)
        if self._report is not None:
            self._report((state,))


async def _bounded(running: Running, provider: ProviderSettings) -> ProbeResult:
    try:
        async with asyncio.timeout(_BOUND_S):
            return await running.adapter.probe(ProbeTarget(provider.id, provider.models, provider.context_size))
    except TimeoutError:
        return ProbeResult(Health.UNHEALTHY, silent=True, message=f"no answer within {_BOUND_S:.0f} s")
    except Exception:
        log.exception("the probe of provider %s failed", provider.id)
        return ProbeResult(Health.UNHEALTHY, "the probe failed; the Node's log has the details")


def _probing(provider: ProviderSettings) -> Mapping[str, object]:
    """What a probe depends on."""
    return {"models": provider.models, "interval": provider.probe_interval, "adapter": provider.adapter}
