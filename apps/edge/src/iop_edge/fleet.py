"""Fleet: turns what happens to Nodes into what the pool must know: connected, healthy, acknowledged (R14, P8-P10)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from attrs import field, mutable

from iop_edge.nodes.payload import NodePayload
from iop_edge.nodes.values import NodeHealth, ProviderState, PushOutcome, PushState, StoppingAttempt
from iop_pool import ConnectionState, Health, Lease, Outcome, Pool, PoolSpec, ProviderSpec

log = logging.getLogger("iop.edge.nodes")

_HEALTH = {
    NodeHealth.UNKNOWN: Health.UNKNOWN,
    NodeHealth.HEALTHY: Health.HEALTHY,
    NodeHealth.DEGRADED: Health.DEGRADED,
    NodeHealth.UNHEALTHY: Health.EJECTED,
}


@mutable
class _Node:
    """What is known of one Node's configuration in its present session."""

    desired: NodePayload
    connected: bool = False
    acked_generation: int = 0  # of this session; 0: nothing yet
    acknowledged: NodePayload | None = None
    """What it has confirmed last: so much may run there, whatever the newest config says."""
    unconfirmed: list[NodePayload] = field(factory=list)
    """What was put in force after that: any of it may be in force on the Node by now, or at any moment."""
    stopping: dict[tuple[str, int], Lease] = field(factory=dict)
    states: dict[str, ProviderState] = field(factory=dict)
    last_result: PushOutcome | None = None


class Fleet:
    """Implements `nodes.registry.FleetEvents` for one pool. Synchronous throughout: no await, no I/O."""

    def __init__(self, pool: Pool, spec: PoolSpec, payloads: Mapping[str, NodePayload]) -> None:
        self._pool = pool
        self._spec = spec
        self._nodes = {node_id: _Node(payload) for node_id, payload in payloads.items()}
        for node_id in self._nodes:
            self._say_acknowledged(node_id)

    # -- refresh ------------------------------------------------------------------------------------------------

    def swap(self, spec: PoolSpec, payloads: Mapping[str, NodePayload]) -> frozenset[str]:
        """Put a new generation into the pool (R14); returns the connected Nodes whose payload changed (R8).

        Limits are said before the new capacities, so that nothing slips through between the two.
        """
        changed = set()
        for node_id, payload in payloads.items():
            node = self._nodes.setdefault(node_id, _Node(payload))
            if node.desired is not payload and node.desired.version != payload.version and node.connected:
                changed.add(node_id)
                node.unconfirmed.append(payload)
            node.desired = payload
        self._spec = spec
        # Limits that close first, limits that open last: a lifted one would count with the capacity that is going out.
        for node_id in self._nodes:
            self._say_acknowledged(node_id, opening=False)
        self._pool.reconfigure(spec)
        for node_id in self._nodes:
            self._say_acknowledged(node_id)
        return frozenset(changed)

    def acked_generation(self, node_id: str) -> int:
        """The payload generation that this Node confirmed in this session; 0 for none.

        A run is sent under this one, not under the newest: between a swap and its ACK the pool routes by what both
        generations allow, so a Node that is still building the new registry must not refuse the run as behind.
        """
        node = self._nodes.get(node_id)
        return node.acked_generation if node is not None else 0

    def desired(self, node_id: str) -> NodePayload | None:
        """The payload in force for a Node id; None for one that the config does not have."""
        node = self._nodes.get(node_id)
        return node.desired if node is not None else None

    def connected_nodes(self) -> frozenset[str]:
        """The Nodes that have a session."""
        return frozenset(node_id for node_id, node in self._nodes.items() if node.connected)

    def provider_states(self, node_id: str) -> Mapping[str, ProviderState]:
        """What the Node's probes said last, by provider id."""
        node = self._nodes.get(node_id)
        return node.states if node is not None else {}

    def last_result(self, node_id: str) -> PushOutcome | None:
        """The newest answer to a push, if there was one in this session."""
        node = self._nodes.get(node_id)
        return node.last_result if node is not None else None

    def occupied(self) -> Iterator[Lease]:
        """The slots of attempts of earlier sessions that their Nodes are still stopping (wire §1.6)."""
        return (lease for node in self._nodes.values() for lease in node.stopping.values())

    def _providers(self, node_id: str) -> Iterator[ProviderSpec]:
        return (provider for provider in self._spec.providers if provider.node == node_id)

    def _say_acknowledged(self, node_id: str, *, opening: bool = True) -> None:
        node = self._nodes[node_id]
        settled = opening and node.connected and node.acked_generation == node.desired.generation
        for provider in self._providers(node_id):
            limit = self._limit(node, provider)
            same = opening and limit == (provider.capacity if provider.enabled else 0)
            self._pool.set_acknowledged(provider.id, settled or same, capacity_limit=limit)

    def _limit(self, node: _Node, provider: ProviderSpec) -> int:
        """How much may run at a provider whichever of the possible configurations is in force on its Node (R14)."""
        if node.acknowledged is None:
            return 0
        return min(_capacity(payload, provider) for payload in (node.acknowledged, *node.unconfirmed))

    # -- what the registry tells -------------------------------------------------------------------------------

    def connected(
        self,
        node_id: str,
        epoch: int,
        provider_states: tuple[ProviderState, ...],
        stopping_attempts: tuple[StoppingAttempt, ...],
    ) -> None:
        """A session is up: nothing is acknowledged in it yet, and earlier attempts keep their slots (§1.6)."""
        node = self._nodes.get(node_id)
        if node is None:
            return
        node.connected, node.acked_generation, node.last_result = True, 0, None
        node.acknowledged, node.unconfirmed = None, [node.desired]
        node.states.clear()
        self._free_stopping(node)
        for attempt in stopping_attempts:
            node.stopping[attempt.run_id, attempt.attempt] = self._pool.occupy(attempt.provider_id, long=attempt.long)
        for provider in self._providers(node_id):
            if provider.probe_required:
                self._pool.set_health(provider.id, Health.UNKNOWN)
        self._say_acknowledged(node_id)
        self.provider_health(node_id, provider_states)
        self._pool.set_connected(node_id, ConnectionState.CONNECTED)
        log.info("node %s connected (session %d, %d attempts still stopping)", node_id, epoch, len(stopping_attempts))

    def suspect(self, node_id: str) -> None:
        """Silent: no new runs, the running ones go on."""
        log.warning("node %s is silent; it gets no new runs", node_id)
        self._pool.set_connected(node_id, ConnectionState.SUSPECT)

    def recovered(self, node_id: str) -> None:
        """It spoke again."""
        log.info("node %s answers again", node_id)
        self._pool.set_connected(node_id, ConnectionState.CONNECTED)

    def draining(self, node_id: str) -> None:
        """It is shutting down: like silent, for the rest of the session."""
        log.info("node %s is draining; it gets no new runs", node_id)
        self._pool.set_connected(node_id, ConnectionState.SUSPECT)

    def lost(self, node_id: str, reason: str) -> None:
        """The session is over; with it all that this session had confirmed or still occupied."""
        node = self._nodes.get(node_id)
        if node is None:
            return
        log.warning("node %s is gone: %s", node_id, reason)
        node.connected, node.acked_generation = False, 0
        self._pool.set_connected(node_id, ConnectionState.DISCONNECTED)
        self._free_stopping(node)

    def provider_health(self, node_id: str, states: tuple[ProviderState, ...]) -> None:
        """Feed the probes' findings to the pool (N7); a state for a provider that is not this Node's is ignored."""
        node = self._nodes.get(node_id)
        if node is None:
            return
        own = {provider.id for provider in self._providers(node_id)}
        for state in states:
            if state.provider_id not in own:
                continue
            before = node.states.get(state.provider_id)
            node.states[state.provider_id] = state
            if before is None or before.health is not state.health:
                why = f": {state.message}" if state.message else ""
                log.info("provider %s is %s%s", state.provider_id, state.health.value, why)
            self._pool.set_health(state.provider_id, _HEALTH[state.health])

    def config_result(self, node_id: str, outcome: PushOutcome) -> None:
        """An ACK makes the Node's generation count; after a NACK what it confirmed before stays in force (R9)."""
        node = self._nodes.get(node_id)
        if node is None or not node.connected:
            return
        node.last_result = outcome
        if outcome.state is PushState.ACKED:
            self._acked(node, outcome)
            self._say_acknowledged(node_id)
        elif outcome.state is PushState.NACKED:
            for fault in outcome.faults:
                log.error("node %s refused its configuration: %s: %s", node_id, fault.path, fault.message)

    def _acked(self, node: _Node, outcome: PushOutcome) -> None:
        """A Node confirmed one of the payloads that it may have; which, its version and generation say together.

        Both: a content that comes back after another one has the same version, but is not yet the one in force there.
        A Node that ran under an earlier Edge may say a generation of that one, for a content that it already had.
        """
        known = node.unconfirmed if node.acknowledged is None else [node.acknowledged, *node.unconfirmed]
        named = [payload for payload in known if payload.version == outcome.version]
        confirmed = next((payload for payload in named if payload.generation == outcome.generation), None)
        if confirmed is None:
            if not named:
                return
            confirmed = named[0]
        node.acknowledged, node.acked_generation = confirmed, confirmed.generation
        node.unconfirmed = [payload for payload in node.unconfirmed if payload.generation > confirmed.generation]

    def stopping_ended(self, node_id: str, attempt: StoppingAttempt) -> None:
        """An attempt of an earlier session released its runtime."""
        node = self._nodes.get(node_id)
        lease = node.stopping.pop((attempt.run_id, attempt.attempt), None) if node is not None else None
        if lease is not None:
            lease.release(Outcome.CANCELLED)

    def _free_stopping(self, node: _Node) -> None:
        stopping, node.stopping = node.stopping, {}
        for lease in stopping.values():
            lease.release(Outcome.CANCELLED)


def _capacity(payload: NodePayload, provider: ProviderSpec) -> int:
    """What a Node that has this payload admits."""
    for entry in payload.message.providers:
        if entry.id == provider.id:
            return entry.capacity if entry.enabled else 0
    # What the Node never hears of (a route's stand-in) is settled as soon as the Node has any configuration.
    return provider.capacity
