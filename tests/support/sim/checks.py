"""What must hold: looked at after each step (online), and read off the history afterwards by one who saw nothing."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from iop_edge.nodes.effects import OverReason
from iop_edge.nodes.live import LiveSession
from iop_pool import CoreLease, Waiter
from iop_wire.limits import INITIAL_CREDIT
from support.sim.world import Violation

if TYPE_CHECKING:
    from support.sim.gateway import SimPool
    from support.sim.stream import Stream
    from support.sim.universe import Universe


class Checks:
    """The invariants of reliability.md on a running universe."""

    def __init__(self, universe: Universe) -> None:
        self.universe = universe
        self._load: dict[str, int] = {}

    # ------------------------------------------------------------ at a grant

    def granted(self, pool: SimPool, lease: CoreLease, waiter: Waiter | None) -> None:
        """I1, I4, I5: a slot was given to someone; was it there, and was it theirs?"""
        provider = pool.core._providers[lease.provider_id]
        if len(provider.leases) > provider.spec.capacity:
            raise Violation(
                "I1", f"{provider.id} has {len(provider.leases)} runs and a capacity of {provider.spec.capacity}"
            )
        long = provider.spec.long_context_capacity
        if lease.long and long is not None and len(provider.long_leases) > long:
            raise Violation("I1", f"{provider.id} has {len(provider.long_leases)} long runs of {long}")
        self._usable(pool, provider.spec.node or "")
        groups = {group.id: group.providers for group in pool.core.spec.groups}
        order = waiter.order if waiter is not None else (lease.arrival, lease.id)
        for other in pool.waiting:
            if not other.waiting or other.order >= order or lease.provider_id in other.exclude:
                continue
            if lease.provider_id not in groups.get(other.group, ()):
                continue
            room = lease.long or long is None or len(provider.long_leases) < long
            if not other.long or room:
                who = "a newcomer" if waiter is None else f"waiter {order}"
                raise Violation("I4", f"{who} got {lease.provider_id}, which waiter {other.order} waits for")

    def _usable(self, pool: SimPool, node_id: str) -> None:
        """A run is only ever given to a Node that is there, speaks, and is not leaving (P1, N6)."""
        live = pool.edge.registry.session(node_id)
        if not isinstance(live, LiveSession) or live.machine.over is not None:
            raise Violation("I1", f"a slot of {node_id} is given away, which is not connected")
        if live.machine.suspect or live.machine.draining:
            raise Violation("I1", f"a slot of {node_id} is given away, which is {live.machine.state.value}")

    def session_over(self, live: LiveSession, stream: Stream) -> None:
        """A session ended; was it for a reason?"""
        over = live.machine.over
        assert over is not None
        world, faults = self.universe.world, self.universe.first_faults
        world.note("session-over", live.node_id, live.epoch, over.reason.value)
        if over.reason is OverReason.SILENT and stream.up.unread:
            raise Violation("I13", f"{live.node_id} is called silent, and its frames wait to be read")
        excuses = {"slow_stop", "freeze_node", "freeze_edge", "stall", "vanish", "lossy", "reset"}
        if over.reason is OverReason.UNRESPONSIVE and not faults.on & excuses:
            raise Violation("I13", f"{live.node_id} is called unresponsive, and nothing is wrong with it")
        if over.reason is OverReason.PROTOCOL and not faults.has("lossy"):
            raise Violation("I9", f"{live.node_id} broke the protocol: {over.message}")

    # ------------------------------------------------------------ after each step

    def after_step(self) -> None:
        """Look at the world; only where something was touched."""
        edge = self.universe.edge
        if edge is None or not edge.alive:
            return
        pool = edge.pool
        if pool.touched:
            pool.touched = False
            self._pool(pool)
            self._slots()

    def _pool(self, pool: SimPool) -> None:
        try:
            pool.core.check_invariants()
        except AssertionError as error:
            raise Violation("I3", str(error)) from None
        waiting = defaultdict(int)
        for waiter in pool.waiting:
            waiting[waiter.group] += 1
        for group in pool.core.spec.groups:
            if waiting[group.id] > self.universe.bounds.get(group.id, 0):
                raise Violation("I5", f"{waiting[group.id]} wait for {group.id}")

    def _slots(self) -> None:
        """Whatever occupies a runtime of a connected Node is backed by a lease: the heart of I1 and P8."""
        edge = self.universe.edge
        assert edge is not None
        for node in self.universe.processes():
            if not node.work or node.session is None:
                continue
            live = edge.registry.session(node.node_id)
            if not isinstance(live, LiveSession) or self.universe.streams_of.get(id(live)) is not node.stream:
                continue
            stopping = edge.fleet._nodes[node.node_id].stopping
            for key in node.work:
                if key not in live.machine.attempts and key not in stopping:
                    raise Violation("I1", f"{key} occupies a runtime of {node.name} and no slot")
            for attempt in live.machine.attempts.values():
                if attempt.buffered > INITIAL_CREDIT:
                    raise Violation("I9", f"{attempt.key} has {attempt.buffered} bytes buffered")

    def fingerprint(self) -> tuple[object, ...]:
        """What a frame of a session that is over must not change (I10)."""
        edge = self.universe.edge
        assert edge is not None
        core = edge.pool.core
        return (
            tuple(sorted(lease.id for one in core._all_providers() for lease in one.leases)),
            len(edge.pool.waiting),
            tuple((row.node_id, row.state, row.epoch, row.generation) for row in edge.registry.rows()),
            len(self.universe.world.history),
        )

    # ------------------------------------------------------------ when everything is over

    def at_rest(self) -> None:
        """I11, I12, I13: all clients are gone and the faults stopped a while ago."""
        universe = self.universe
        edge = universe.edge
        assert edge is not None
        for row in edge.registry.rows():
            node = universe.current(row.node_id)
            if not row.connected or node.session is None:
                raise Violation("I13", f"{row.node_id} is {row.state} though nothing is wrong any more")
            desired = edge.fleet.desired(row.node_id)
            shown = (row.config_version, row.generation)
            if shown != (node.applied_version, node.applied_generation):
                raise Violation("I12", f"{row.node_id} has {node.applied_generation}, the Edge shows {shown}")
            if desired is None or desired.version != row.config_version:
                raise Violation("I13", f"{row.node_id} has not got the configuration in force")
            if edge.fleet.acked_generation(row.node_id) != desired.generation:
                raise Violation("I13", f"{row.node_id} has not acknowledged generation {desired.generation}")
            if row.runs or row.active_runs:
                raise Violation("I11", f"{row.node_id} still has {row.runs} runs, says {row.active_runs}")
        core = edge.pool.core
        held = [lease for provider in core._all_providers() for lease in provider.leases]
        if held:
            raise Violation("I11", f"slots are still held: {held[:3]}")
        if edge.clients or edge.pool.waiting or edge.pool._unclaimed:
            raise Violation("I11", f"{len(edge.clients)} clients and {len(edge.pool.waiting)} waiters are left")
        if edge.registry._pushing or any(not push.done() for push in edge.pushes):
            raise Violation("I11", "a push has no outcome")
        for node in universe.processes():
            if node.work or node.orphans:
                raise Violation("I11", f"{node.name} still executes {sorted(node.work)}")
            if node.session is not None and (node.session.active_runs or not node.session.flushed):
                raise Violation("I11", f"{node.name} still has something to tell")


def check_history(history: list[tuple[Any, ...]], cli: frozenset[str]) -> list[str]:
    """Read a whole history and return what is wrong with it; `cli`: the providers whose runs are never repeated.

    Knows nothing of the cores: only who was invoked, granted, sent, executed, told, in which order.
    """
    wrong: list[str] = []
    terminal: dict[str, str] = {}
    attempts: dict[str, int] = {}
    forwarded: dict[str, int] = {}
    executed: dict[tuple[str, int], int] = defaultdict(int)
    executed_by_cli: dict[str, int] = defaultdict(int)
    open_runs: set[tuple[str, int]] = set()
    sent: dict[tuple[str, int], str] = {}
    ended: set[tuple[str, int]] = set()
    invoked: set[str] = set()
    for _, what, *rest in history:
        if what == "invoke":
            invoked.add(rest[0])
        elif what == "send":
            run_id, number, provider = rest
            if run_id in terminal:
                wrong.append(f"I6: {run_id} is sent after its client was told {terminal[run_id]}")
            if run_id in forwarded:
                wrong.append(
                    f"I8: {run_id} is sent again after bytes of attempt {forwarded[run_id]} reached the client"
                )
            if executed_by_cli[run_id]:
                wrong.append(f"I8: {run_id} is sent again after a CLI had executed it")
            if number != attempts.get(run_id, 0) + 1:
                wrong.append(f"I8: attempt {number} of {run_id} follows attempt {attempts.get(run_id, 0)}")
            attempts[run_id] = number
            sent[run_id, number] = provider
        elif what == "exec":
            _, key, provider = rest
            executed[key] += 1
            if executed[key] > 1:
                wrong.append(f"I8: {key} is executed {executed[key]} times")
            if key not in sent:
                wrong.append(f"I8: {key} is executed and was never sent")
            if provider in cli:
                executed_by_cli[key[0]] += 1
            if executed_by_cli[key[0]] > 1:
                wrong.append(f"I8: a CLI executes {key[0]} again")
            open_runs.add(key)
        elif what == "exec-end":
            key = rest[1]
            if key not in open_runs:
                wrong.append(f"I8: {key} stops and did not run")
            open_runs.discard(key)
        elif what == "first-byte":
            forwarded[rest[0]] = rest[1]
        elif what == "end":
            key = (rest[0], rest[1])
            if key in ended:
                wrong.append(f"I2: {key} has a second end")
            ended.add(key)
        elif what == "terminal":
            run_id, how, number = rest
            if run_id in terminal:
                wrong.append(f"I6: {run_id} is told {how} after {terminal[run_id]}")
            if number != attempts.get(run_id, 0):
                wrong.append(f"I8: {run_id} says {number} attempts and had {attempts.get(run_id, 0)}")
            terminal[run_id] = how
    wrong += [f"I6: {run_id} was never told how it ended" for run_id in sorted(invoked - terminal.keys())]
    wrong += [f"I11: {key} never stopped running" for key in sorted(open_runs)]
    return wrong
