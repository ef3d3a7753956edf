"""Who is connected: one session per Node, the push of configuration, rows for the status (R8, R9, N4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from iop_wire import runtime_pb2

from iop_edge.nodes.run import NodeSession
from iop_edge.nodes.values import NodeRow, ProviderState, PushOutcome, StoppingAttempt


class FleetEvents(Protocol):
    """Where the registry tells what happens to the Nodes. Every call is synchronous and must not block or raise.

    When a session ends, `lost` comes first and the `on_end` of its attempts after it, so that a slot which they give
    back is never granted on the Node that just left. With a fence, `connected` of the new session follows in the same
    step.
    """

    def connected(
        self,
        node_id: str,
        epoch: int,
        provider_states: tuple[ProviderState, ...],
        stopping_attempts: tuple[StoppingAttempt, ...],
    ) -> None:
        """A session is up. `provider_states` is complete; the stopping attempts keep their slots occupied (§1.6)."""

    def suspect(self, node_id: str) -> None:
        """Silent for 7.5 s: no new runs, please; the running ones go on."""

    def recovered(self, node_id: str) -> None:
        """A suspect Node spoke again."""

    def draining(self, node_id: str) -> None:
        """The Node is shutting down: no new runs for the rest of this session."""

    def lost(self, node_id: str, reason: str) -> None:
        """The session is over (its stopping attempts with it); `reason` in words for the log and the status."""

    def provider_health(self, node_id: str, states: tuple[ProviderState, ...]) -> None:
        """Providers whose state changed."""

    def config_result(self, node_id: str, outcome: PushOutcome) -> None:
        """A push (or the payload of the Welcome: `push_id` "") was acked, nacked, or not answered in time."""

    def stopping_ended(self, node_id: str, attempt: StoppingAttempt) -> None:
        """An attempt of an earlier session released its runtime."""


PayloadFor = Callable[[str], runtime_pb2.NodeConfigPayload | None]
"""The payload in force for a Node id, asked at each Welcome; None: the Node has no configuration here."""


class NodeRegistry:
    """Every Node of the config and its session, if any.

    Works on one asyncio loop. `node_ids` are the Nodes of the config (rows of absent ones say disconnected).
    """

    def __init__(
        self,
        events: FleetEvents,
        payload_for: PayloadFor,
        *,
        node_ids: tuple[str, ...],
        edge_id: str,
        edge_version: str,
    ) -> None:
        raise NotImplementedError

    def session(self, node_id: str) -> NodeSession | None:
        """Return the live session of a Node, suspect and draining ones included; None while disconnected."""
        raise NotImplementedError

    def push(self, node_id: str, payload: runtime_pb2.NodeConfigPayload) -> asyncio.Future[PushOutcome]:
        """Send a Node its new configuration (R8); the future always gets a result, at the latest after 10 s.

        One push is in flight per Node; a newer one takes the place of one that still waits (§1.1).
        """
        raise NotImplementedError

    def rows(self) -> tuple[NodeRow, ...]:
        """Return a row per Node, in the order of `node_ids`."""
        raise NotImplementedError
