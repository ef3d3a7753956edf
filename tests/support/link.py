"""Both ends of the wire without I/O: a clock by hand, a recording fleet, a Node whose frames move when told."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from iop_edge.nodes.admission import Refusal
from iop_edge.nodes.attempt import Attempt
from iop_edge.nodes.live import LiveSession
from iop_edge.nodes.registry import NodeRegistry
from iop_edge.nodes.run import Chunk, End, Head, Operation, RunSpec
from iop_edge.nodes.values import ProviderState, PushOutcome, StoppingAttempt
from iop_node.link import ConfigOutcome, RunOrder
from iop_node.link import StoppingAttempt as NodeStopping
from iop_node.outbound import OutRun
from iop_node.session import CancelRun, Configure, Effect, Identity, NodeSession, Over, StartRun, Vitals
from iop_wire import runtime_pb2 as pb
from iop_wire.framing import FrameReader, FrameWriter


@define
class Clock:
    """Time that moves only when told."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@define
class Fleet:
    """Records what the registry tells (`FleetEvents`)."""

    told: list[tuple[object, ...]] = field(factory=list)

    def connected(
        self, node_id: str, epoch: int, states: tuple[ProviderState, ...], stopping: tuple[StoppingAttempt, ...]
    ) -> None:
        self.told.append(("connected", node_id, epoch, states, stopping))

    def suspect(self, node_id: str) -> None:
        self.told.append(("suspect", node_id))

    def recovered(self, node_id: str) -> None:
        self.told.append(("recovered", node_id))

    def draining(self, node_id: str) -> None:
        self.told.append(("draining", node_id))

    def lost(self, node_id: str, reason: str) -> None:
        self.told.append(("lost", node_id, reason))

    def provider_health(self, node_id: str, states: tuple[ProviderState, ...]) -> None:
        self.told.append(("provider_health", node_id, states))

    def config_result(self, node_id: str, outcome: PushOutcome) -> None:
        self.told.append(("config_result", node_id, outcome))

    def stopping_ended(self, node_id: str, attempt: StoppingAttempt) -> None:
        self.told.append(("stopping_ended", node_id, attempt))

    def names(self) -> list[object]:
        """Return the kinds of what was told, in order."""
        return [entry[0] for entry in self.told]


def payload(version: str = "v1", generation: int = 1, kind: str = "echo") -> pb.NodeConfigPayload:
    """Return a small configuration with one adapter "a" and one provider "p"."""
    message = pb.NodeConfigPayload(config_version=version, generation=generation)
    message.adapters.add(key="a", kind=kind, enabled=True)
    message.providers.add(id="p", adapter="a", models=["m"], enabled=True, capacity=4)
    return message


def spec(run_id: str = "r1", attempt: int = 1, body: bytes = b"{}", generation: int = 0, adapter: str = "a") -> RunSpec:
    """Return an attempt to be sent."""
    return RunSpec(
        run_id=run_id,
        attempt=attempt,
        adapter=adapter,
        target="m",
        operation=Operation.CHAT_COMPLETIONS,
        body=body,
        streaming=True,
        generation=generation,
        provider_id="p",
    )


class Edge:
    """A registry with a clock by hand; the payload in force is `payload`."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.fleet = Fleet()
        self.payload: pb.NodeConfigPayload | None = payload()
        self._ids = 0
        self.registry = NodeRegistry(
            self.fleet,
            lambda _node_id: self.payload,
            node_ids=("n1", "n2"),
            edge_id="edge-1",
            edge_version="0.1.0",
            clock=self.clock,
            new_id=self._new_id,
        )

    def _new_id(self) -> str:
        self._ids += 1
        return f"id{self._ids}"

    def pass_time(self, seconds: float, step: float = 0.25, also: Callable[[], None] | None = None) -> None:
        """Let time pass in ticks."""
        for _ in range(round(seconds / step)):
            self.clock.now += step
            self.registry.tick()
            if also is not None:
                also()


class Run:
    """A run as its reader sees it, without waiting."""

    def __init__(self, live: LiveSession, run_spec: RunSpec) -> None:
        self.ends: list[End] = []
        self.live = live
        self.attempt: Attempt = live.machine.start(run_spec, self.ends.append, live._clock())
        live.settle()

    def take(self) -> Head | Chunk | End | None:
        return self.live.take(self.attempt)

    def take_all(self) -> list[Head | Chunk | End]:
        """Return everything that can be taken now."""
        items: list[Head | Chunk | End] = []
        while (item := self.take()) is not None:
            items.append(item)
            if isinstance(item, End):
                break
        return items

    def cancel(self, reason: str = "client_gone") -> None:
        self.live.cancel(self.attempt, reason)


class Node:
    """The production session of a Node, dialled into an `Edge`; `exchange` moves what is ready in both directions."""

    def __init__(
        self,
        edge: Edge,
        node_id: str = "n1",
        instance: bytes = b"A" * 16,
        *,
        stopping: tuple[NodeStopping, ...] = (),
        applied: tuple[str, int] = ("", 0),
        configure: bool = True,
    ) -> None:
        self.edge = edge
        self.node_id = node_id
        self.configure = configure
        self.session = NodeSession(
            Identity(node_id, instance, "host-" + instance[:1].decode(), 7, "0.1.0"),
            applied_version=applied[0],
            applied_generation=applied[1],
            providers=(),
            stopping=stopping,
            now=edge.clock(),
        )
        self.live: LiveSession | None = None
        self.refusal: Refusal | None = None
        self.effects: list[Effect] = []
        self.orders: list[RunOrder] = []
        self.runs: dict[str, OutRun] = {}
        self.cancelled: list[tuple[str, str]] = []

    @property
    def over(self) -> Over | None:
        return self.session.over

    def to_edge(self) -> bool:
        """Move the Node's frames; returns whether there were any."""
        moved = False
        while (frame := self.session.take_frame()) is not None:
            moved = True
            if self.live is not None:
                self.live.receive(frame)
            elif self.refusal is None:
                answer = self.edge.registry.admit(self.node_id, frame, "127.0.0.1:5")
                if isinstance(answer, LiveSession):
                    self.live = answer
                else:
                    self.refusal = answer
                    if answer.reason is not None:
                        self.session.receive(answer.frame(), self.edge.clock())
        return moved

    def to_node(self) -> bool:
        """Move the Edge's frames and carry out what they cause."""
        moved = False
        while self.live is not None and (frame := self.live.machine.take_frame()) is not None:
            moved = True
            self.session.receive(frame, self.edge.clock())
        if self.live is not None:
            self.live.carry_out()
        for effect in self.session.take_effects():
            self.effects.append(effect)
            if isinstance(effect, StartRun):
                self.orders.append(effect.order)
                self.runs[effect.order.run_id] = effect.run
            elif isinstance(effect, CancelRun):
                self.cancelled.append((effect.run.key[0], effect.reason))
            elif isinstance(effect, Configure) and self.configure:
                message = effect.payload
                outcome = ConfigOutcome(True, message.config_version, message.generation)
                self.session.configured(effect.push_id, outcome)
        return moved

    def exchange(self) -> None:
        """Move everything until both ends are quiet."""
        while self.to_edge() | self.to_node():
            pass

    def tick(self) -> None:
        """Let the Node look at the clock."""
        self.session.tick(self.edge.clock(), Vitals)

    def start(self, run_spec: RunSpec) -> Run:
        """Send a run through this Node's session."""
        assert self.live is not None
        return Run(self.live, run_spec)


def joined(edge: Edge, **kwargs: object) -> Node:
    """Return a Node that is connected and configured."""
    node = Node(edge, **kwargs)  # type: ignore[arg-type]
    node.exchange()
    return node


class RawNode:
    """A Node made of hand-written frames, for what the production one never sends."""

    def __init__(self, edge: Edge, node_id: str = "n1", instance: bytes = b"R" * 16) -> None:
        self.edge = edge
        self.node_id = node_id
        self.writer: FrameWriter[pb.NodeFrame] = FrameWriter()
        self.reader: FrameReader[pb.EdgeFrame] = FrameReader(pb.EdgeFrame)
        self.hello = pb.Hello(
            protocol_min=1, protocol_max=1, node_id=node_id, instance_id=instance, hostname="raw", pid=9
        )
        self.live: LiveSession | None = None

    def join(self) -> LiveSession:
        answer = self.edge.registry.admit(self.node_id, self.writer.seal(pb.NodeFrame(hello=self.hello)), "127.0.0.1:6")
        assert isinstance(answer, LiveSession), answer
        self.live = answer
        return answer

    def send(self, **body: object) -> None:
        assert self.live is not None
        self.live.receive(self.writer.seal(pb.NodeFrame(**body)))  # type: ignore[arg-type]

    def send_events(self, *events: pb.RunEvent) -> None:
        self.send(run_events=pb.RunEvents(events=events))

    def frames(self) -> list[pb.EdgeFrame]:
        """Return what the Edge wants to send."""
        assert self.live is not None
        frames = []
        while (data := self.live.machine.take_frame()) is not None:
            frames.append(self.reader.read(data))
        return frames


def chunk_event(seq: int, data: bytes, run_id: str = "r1", attempt: int = 1) -> pb.RunEvent:
    return pb.RunEvent(run_id=run_id, attempt=attempt, seq=seq, chunk=pb.Chunk(data=data))


def terminal_event(seq: int, run_id: str = "r1", attempt: int = 1, kind: int = 1) -> pb.RunEvent:
    terminal = pb.Terminal(kind=kind, last_seq=seq, started=True)  # type: ignore[arg-type]
    return pb.RunEvent(run_id=run_id, attempt=attempt, seq=seq, terminal=terminal)
