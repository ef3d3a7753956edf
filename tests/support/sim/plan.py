"""What a seed decides before anything happens: the layout, the faults and how often, and each configuration."""

from __future__ import annotations

import hashlib
import random

from attrs import define, evolve, frozen

from iop_edge.nodes.payload import NodePayload
from iop_edge.routing import Target
from iop_pool import GroupSpec, PoolSpec, ProviderSpec, QueuePolicy
from iop_wire import runtime_pb2 as pb

FAULTS = (
    "reset",  # the connection breaks; each side notices for itself
    "vanish",  # packets disappear; only silence tells
    "stall",  # packets come late, in order
    "lossy",  # a frame is lost or comes twice: not TCP's doing, but programs can (G11)
    "kill",  # kill -9 of a Node; another process comes back
    "drain",  # SIGTERM of a Node
    "freeze_node",  # SIGSTOP for 3, 10 or 20 s
    "freeze_edge",  # the Edge's loop is blocked
    "restart_edge",  # the Edge dies and is started again
    "twin",  # a second process with the same id and token
    "refresh",
    "slow_build",  # a Node takes longer than the push answer may
    "nack",
    "leave",  # clients go away
    "slow_reader",
    "runtime_error",
    "runtime_hang",
    "slow_stop",  # a runtime that does not stop in time
    "big_body",
    "sick",  # health of providers changes
)


@frozen
class Faults:
    """Which faults this seed has (swarm: never all, so that none hides another) and how dense its life is."""

    on: frozenset[str]
    every: float
    """Seconds between two faults of the network or of a process, on average."""
    clients: int
    latency: tuple[float, float]
    window: int
    """Bytes that one direction of a stream takes before its writer waits."""

    def has(self, name: str) -> bool:
        return name in self.on


def draw_faults(rng: random.Random) -> Faults:
    """Return the faults of one seed."""
    share = rng.choice((0.15, 0.35, 0.6, 0.9))
    on = frozenset(name for name in FAULTS if rng.random() < share)
    return Faults(
        on=on,
        every=rng.choice((1.5, 4.0, 10.0)),
        clients=rng.choice((15, 30, 45)),
        latency=rng.choice(((0.0005, 0.003), (0.01, 0.2), (0.0, 0.6))),
        window=rng.choice((1, 64, 1024)) * 1024,
    )


@define
class Setting:
    """One provider as the configuration has it now."""

    id: str
    node: str
    category: str
    kind: str
    capacity: int = 2
    long: int | None = None
    enabled: bool = True
    priority: int = 0
    max_queue: int | None = None
    queue_timeout_ms: int | None = None
    probe_required: bool = False
    revision: int = 0
    """A setting of its adapter that the pool does not see."""


class Plan:
    """The configuration, generation after generation."""

    def __init__(self, rng: random.Random, faults: Faults) -> None:
        self.rng = rng
        self.faults = faults
        self.nodes = tuple(f"n{number}" for number in range(rng.choice((1, 2, 2, 3))))
        self.settings: list[Setting] = []
        for node in self.nodes:
            for number in range(rng.choice((1, 1, 2))):
                kind = rng.choice(("vllm", "vllm", "llama_cpp", "cli"))
                category = "cli" if kind == "cli" else "local_inference"
                setting = Setting(f"{node}-p{number}", node, category, kind)
                self._redraw(setting)
                setting.probe_required = rng.random() < 0.2
                self.settings.append(setting)
        ids = [setting.id for setting in self.settings]
        self.groups = [GroupSpec("all", ids)]
        if len(ids) > 1:
            self.groups.append(GroupSpec("some", rng.sample(ids, k=rng.randint(1, len(ids) - 1))))
        self.threshold = 1000
        self.bad: set[str] = set()
        """Nodes whose next payload cannot be built there."""
        self.payloads: dict[str, NodePayload] = {}
        self.build()

    def restarted(self) -> None:
        """The Edge was started anew: generations are counted from 1 again."""
        self.payloads = {}
        self.build()

    def build(self) -> None:
        """Make pool spec, payloads and targets of the settings, as `build_snapshot` does."""
        self.spec = PoolSpec(
            providers=[self._provider(setting) for setting in self.settings],
            groups=self.groups,
            long_context_threshold_tokens=self.threshold,
            default_max_queue=8,
            reconnect_grace_ms=10_000,
        )
        self.payloads = {node: self._payload(node) for node in self.nodes}
        self.targets = {
            setting.id: Target(
                setting.id, setting.node, f"{setting.id}-adapter", setting.kind, None, setting.category, "m"
            )
            for setting in self.settings
        }

    def change(self, *, final: bool = False) -> None:
        """Draw the next configuration; the `final` one is sound and leaves no provider out."""
        rng = self.rng
        self.bad.clear()
        for setting in self.settings:
            if final:
                setting.enabled = True
                setting.revision += 1
            elif rng.random() < 0.6:
                self._redraw(setting)
        if not final and self.faults.has("nack") and rng.random() < 0.3:
            self.bad.add(rng.choice(self.nodes))
        if rng.random() < 0.2:
            self.threshold = rng.choice((500, 1000, 1500))
        self.build()

    def _redraw(self, setting: Setting) -> None:
        rng = self.rng
        setting.capacity = rng.choice((1, 1, 2, 3, 4))
        setting.long = rng.choice((None, None, 1, setting.capacity))
        setting.enabled = rng.random() < 0.9
        setting.priority = rng.choice((0, 0, 1))
        setting.max_queue = rng.choice((None, None, 0, 2, 20))
        setting.queue_timeout_ms = rng.choice((None, None, 2000, 20_000))
        if rng.random() < 0.3:
            setting.revision += 1

    def _provider(self, setting: Setting) -> ProviderSpec:
        return ProviderSpec(
            id=setting.id,
            node=setting.node,
            capacity=setting.capacity,
            long_context_capacity=setting.long,
            priority=setting.priority,
            enabled=setting.enabled,
            queue=QueuePolicy(setting.max_queue, setting.queue_timeout_ms),
            probe_required=setting.probe_required,
        )

    def _payload(self, node: str) -> NodePayload:
        message = pb.NodeConfigPayload()
        for setting in self.settings:
            if setting.node != node:
                continue
            adapter = message.adapters.add(key=f"{setting.id}-adapter", kind=setting.kind, enabled=True)
            adapter.request_timeout_ms = 1000 + setting.revision
            message.providers.add(
                id=setting.id,
                adapter=adapter.key,
                category=setting.category,
                models=["m"],
                enabled=setting.enabled,
                capacity=setting.capacity,
            )
        if node in self.bad:
            message.adapters.add(key="cannot-be-built", kind="cli", enabled=True)
        version = hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()[:16]
        previous = self.payloads.get(node)
        if previous is not None and previous.version == version:
            return previous
        message.config_version = version
        message.generation = previous.generation + 1 if previous is not None else 1
        return NodePayload(node, version, message.generation, message)


def calm(faults: Faults) -> Faults:
    """Return the same life without faults."""
    return evolve(faults, on=frozenset(), latency=(0.0005, 0.003))
