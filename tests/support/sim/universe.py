"""One seed played from beginning to end: faults first, then peace, then nothing may be left over."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attrs import frozen

from iop_node.link import Health, RunOrder
from support.sim.checks import Checks, check_history
from support.sim.gateway import Client, EdgeProcess
from support.sim.machine import NodeProcess
from support.sim.plan import Faults, Plan, calm, draw_faults
from support.sim.stream import Stream
from support.sim.world import Violation, World

_CHAOS_S = 45.0
_READY_S = 35.0
"""How long a Node may take to be READY again once nothing is wrong (I13)."""
_REST_S = 40.0
"""Until the last cancel must be confirmed or its session given up (33 s for llama.cpp), and the slot is free."""


@frozen
class Report:
    """What became of one seed."""

    seed: int
    steps: int
    events: Counter[str]
    """What happened how often: `session-over lost`, `terminal ok`, …"""
    digest: str
    """Of the whole history: the same seed has the same."""

    @property
    def clients(self) -> dict[str, int]:
        """How the requests ended."""
        return {name.partition(" ")[2]: number for name, number in self.events.items() if name.startswith("terminal ")}


class Universe:
    """The whole of it."""

    def __init__(self, seed: int, faults: Faults | None = None) -> None:
        self.world = World(seed)
        rng = self.world.rng
        self.faults = self.first_faults = faults or draw_faults(rng)
        self.plan = Plan(rng, self.faults)
        self.checks = Checks(self)
        self.world.after_step = self.checks.after_step
        self.streams: list[Stream] = []
        self.streams_of: dict[int, Stream] = {}
        self.bodies: dict[str, bytes] = {}
        """What each request sent."""
        self.bounds: dict[str, int] = {}
        self.cli: frozenset[str] = frozenset(one.id for one in self.plan.settings if one.category == "cli")
        self.quiet = False
        self.edge: EdgeProcess | None = None
        self._edges: list[EdgeProcess] = []
        self._numbers = 0
        self._clients = 0
        self.nodes: dict[str, list[NodeProcess]] = {}
        self._start_edge()
        for node_id in self.plan.nodes:
            self.nodes[node_id] = []
            self._start_node(node_id)

    # ------------------------------------------------------------ what the parts ask

    def processes(self) -> Iterator[NodeProcess]:
        """Every Node process that lives."""
        for processes in self.nodes.values():
            yield from (process for process in processes if process.alive)

    def current(self, node_id: str) -> NodeProcess:
        """The process of this Node that is connected; else the newest one."""
        alive = [process for process in self.nodes[node_id] if process.alive]
        connected = [process for process in alive if process.session is not None]
        return (connected or alive)[-1]

    def executing(self, node: NodeProcess, order: RunOrder) -> None:
        """A runtime was given work."""
        if node.draining:
            raise Violation("N6", f"{node.name} shuts down and was made to start {order.run_id}")
        self.world.note("exec", node.name, (order.run_id, order.attempt), order.provider_id)
        if order.body != self.bodies[order.run_id]:
            raise Violation("I9", f"{order.run_id} arrived with another body than it left with")

    # ------------------------------------------------------------ the story

    def play(self) -> Report:
        """Let it all happen; raises Violation."""
        world = self.world
        start = world.now
        for _ in range(self.faults.clients):
            world.at(start + world.between(0.5, _CHAOS_S), self._client)
        world.after(world.rng.expovariate(1 / self.faults.every), self._fault)
        if self.faults.has("refresh"):
            world.after(world.between(1.0, 8.0), self._refresh)
        self._raise_bounds()
        world.run(start + _CHAOS_S)
        self._peace()
        world.run(start + _CHAOS_S + _READY_S)
        assert self.edge is not None
        for client in list(self.edge.clients):
            self.edge.enter(client.leave)
        world.run(start + _CHAOS_S + _READY_S + _REST_S)
        self.checks.at_rest()
        wrong = check_history(world.history, self.cli)
        if wrong:
            raise Violation(wrong[0].partition(":")[0], wrong[0])
        digest = hashlib.sha256(repr(world.history).encode()).hexdigest()[:16]
        events = Counter(_kind(entry) for entry in world.history)
        events.update(f"fault {name}" for name in self.first_faults.on)
        return Report(world.seed, world.steps, events, digest)

    def bury(self) -> None:
        """Forget the slots of a universe that ended badly, so that no lease complains that it was not given back."""
        for edge in self._edges:
            if edge.alive:
                edge.die()

    def _client(self) -> None:
        if self.edge is not None and self.edge.alive:
            self._clients += 1
            self.edge.enter(Client, self.edge, self._clients)

    def _start_edge(self) -> None:
        self._numbers += 1
        self.edge = EdgeProcess(self, self._numbers)
        self._edges.append(self.edge)

    def _start_node(self, node_id: str) -> None:
        self._numbers += 1
        self.nodes[node_id].append(NodeProcess(self, node_id, self._numbers))

    def _raise_bounds(self) -> None:
        """Remember the largest bound that any generation had: a lower one never evicts (P9)."""
        spec = self.plan.spec
        bound = {one.id: one.max_queue(spec.default_max_queue) for one in spec.providers}
        for group in spec.groups:
            self.bounds[group.id] = max(self.bounds.get(group.id, 0), sum(bound[name] for name in group.providers))

    def _refresh(self) -> None:
        if self.quiet:
            return
        if self.edge is not None and self.edge.alive:
            self.edge.enter(self._refresh_now, self.edge, False)
        # Now and then one right after another, so that pushes overtake answers.
        self.world.after(self.world.rng.choice((0.0, 0.05, 2.0, 9.0)) + self.world.rng.random() * 3, self._refresh)

    def _refresh_now(self, edge: EdgeProcess, final: bool) -> None:
        # The Edge may have stood still until there was peace.
        if final or not self.quiet:
            edge.refresh(final=final)
            self._raise_bounds()

    # ------------------------------------------------------------ faults

    def _fault(self) -> None:
        if self.quiet:
            return
        world = self.world
        kinds = [name for name in sorted(self.faults.on) if hasattr(self, f"_do_{name}")]
        if kinds:
            getattr(self, f"_do_{world.rng.choice(kinds)}")()
        world.after(world.rng.expovariate(1 / self.faults.every), self._fault)

    def _some_stream(self) -> Stream | None:
        live = [process.stream for process in self.processes() if process.stream is not None]
        return self.world.rng.choice(live) if live else None

    def _some_node(self) -> NodeProcess | None:
        alive = list(self.processes())
        return self.world.rng.choice(alive) if alive else None

    def _do_reset(self) -> None:
        if (stream := self._some_stream()) is not None:
            self.world.note("reset")
            stream.reset()

    def _do_vanish(self) -> None:
        if (stream := self._some_stream()) is not None:
            self.world.note("vanish")
            stream.vanish()

    def _do_stall(self) -> None:
        if (stream := self._some_stream()) is not None:
            self.world.note("stall")
            stream.stall(self.world.rng.choice((1.0, 6.0, 12.0, 20.0)))

    def _do_lossy(self) -> None:
        if (stream := self._some_stream()) is not None:
            self.world.note("lossy")
            stream.lose_or_repeat()

    def _do_kill(self) -> None:
        if (node := self._some_node()) is not None:
            node.kill()
            self.world.after(self.world.between(0.1, 8.0), self._come_back, node.node_id)

    def _do_drain(self) -> None:
        if (node := self._some_node()) is not None:
            node.enter(self._terminate, node, self.world.between(0.1, 5.0))
            self.world.after(self.world.between(3.0, 12.0), self._come_back, node.node_id)

    def _terminate(self, node: NodeProcess, grace: float) -> None:
        # It may have stood still until there was peace.
        if not self.quiet:
            node.drain(grace)

    def _come_back(self, node_id: str) -> None:
        alive = [process for process in self.nodes[node_id] if process.alive]
        if not alive:
            self._start_node(node_id)
        elif all(process.leaving for process in alive):
            self.world.after(1.0, self._come_back, node_id)

    def _do_twin(self) -> None:
        node_id = self.world.rng.choice(self.plan.nodes)
        if sum(process.alive for process in self.nodes[node_id]) == 1:
            self.world.note("twin", node_id)
            self._start_node(node_id)
            self.world.after(self.world.between(5.0, 25.0), self._separate, node_id)

    def _separate(self, node_id: str) -> None:
        """Somebody notices that the Node runs twice, and stops one of the two."""
        alive = [process for process in self.nodes[node_id] if process.alive]
        if len(alive) > 1:
            alive[0].kill()
            self.world.after(1.0, self._come_back, node_id)

    def _do_freeze_node(self) -> None:
        if (node := self._some_node()) is not None:
            node.freeze(self.world.rng.choice((3.0, 10.0, 20.0)))

    def _do_freeze_edge(self) -> None:
        if self.edge is not None and self.edge.alive:
            self.edge.freeze(self.world.rng.choice((1.0, 6.0, 17.0)))

    def _do_restart_edge(self) -> None:
        if self.edge is not None and self.edge.alive:
            self._end_edge()
            self.world.after(self.world.between(0.2, 6.0), self._edge_again)

    def _end_edge(self) -> None:
        edge = self.edge
        assert edge is not None
        edge.die()
        for process in self.processes():
            if process.stream is not None:
                process.stream.edge_died()

    def _edge_again(self) -> None:
        if self.edge is None or not self.edge.alive:
            self.plan.restarted()
            self._start_edge()

    def _do_sick(self) -> None:
        if (node := self._some_node()) is not None:
            node.enter(node.get_well_or_ill)

    # ------------------------------------------------------------ peace

    def _peace(self) -> None:
        """From here on nothing goes wrong any more."""
        self.quiet = True
        self.world.note("peace")
        self.faults = calm(self.faults)
        self._edge_again()
        assert self.edge is not None
        self.edge.thaw()
        for node_id in self.plan.nodes:
            for process in self.nodes[node_id]:
                if process.alive and process.leaving:
                    process.kill()
            self._separate(node_id)
            if not any(process.alive for process in self.nodes[node_id]):
                self._start_node(node_id)
        for process in self.processes():
            process.thaw()
            process.enter(process.report, dict.fromkeys(process.health, Health.HEALTHY))
        for stream in self.streams:
            stream.heal()
        self.edge.enter(self._refresh_now, self.edge, True)


_DETAIL = {"session-over": 4, "node-over": 3, "config": 3, "terminal": 3, "end": 4, "built": 3, "exec-end": 4}
"""Which field of an entry tells two of its kind apart."""


def _kind(entry: tuple[Any, ...]) -> str:
    detail = _DETAIL.get(entry[1])
    return f"{entry[1]} {entry[detail]}".rstrip() if detail is not None else str(entry[1])


@contextmanager
def running_loop() -> Iterator[None]:
    """Let futures be made: the registry asks for the running loop, which here never runs."""
    loop = asyncio.new_event_loop()
    asyncio.events._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio.events._set_running_loop(None)
        loop.close()


def simulate(seed: int, faults: Faults | None = None) -> Report:
    """Play one seed; a Violation carries the end of its story."""
    logging.disable(logging.ERROR)
    enabled = gc.isenabled()
    gc.disable()
    try:
        with running_loop():
            universe = Universe(seed, faults)
            try:
                return universe.play()
            except Violation as violation:
                story = "\n".join("  " + " ".join(map(str, entry)) for entry in universe.world.history[-30:])
                violation.add_note(f"seed {seed}; replay: IOP_SEED={seed} pytest tests/simulation\n{story}")
                raise
            finally:
                universe.bury()
    finally:
        logging.disable(logging.NOTSET)
        if enabled:
            gc.enable()
