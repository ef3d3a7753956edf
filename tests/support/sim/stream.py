"""One gRPC stream as the two ends see it: in order, bounded, late, cut, or silently going nowhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from attrs import define

from support.sim.plan import Faults
from support.sim.world import Process, World

_KEEPALIVE_S = 30.0
"""HTTP/2 pings notice a dead connection after so long (wire §1.3)."""


@define
class End:
    """What one end of the stream is told."""

    process: Process
    received: Callable[[bytes], object]
    closed: Callable[[], object]
    """The stream is over, as far as this end can see."""
    writable: Callable[[], object]
    """There is room for more frames."""


class Direction:
    """Frames on their way to `to`."""

    def __init__(self, world: World, faults: Faults) -> None:
        self.world = world
        self.faults = faults
        self.to: End | None = None
        self.sender: End | None = None
        self.queue: deque[bytes | None] = deque()
        self.bytes = 0
        self.stalled_until = 0.0
        self.cut = False
        self.closed = False
        self.lose_next = False
        self.repeat_next = False
        self._clear_at = 0.0

    @property
    def room(self) -> bool:
        return not self.closed and (not self.queue or self.bytes < self.faults.window)

    def put(self, data: bytes | None) -> None:
        """Send a frame; None is the end of the stream."""
        if self.closed:
            return
        self.closed = data is None
        self.queue.append(data)
        self.bytes += len(data or b"")
        self._clear_at = max(self._clear_at, self.world.now + self.world.between(*self.faults.latency))
        self.world.at(self._clear_at, self._arrive)

    def _arrive(self) -> None:
        if self.cut or not self.queue or self.to is None:
            return
        if self.world.now < self.stalled_until:
            self.world.at(self.stalled_until, self._arrive)
            return
        to = self.to
        if to.process.alive and self.world.now < to.process.frozen_until:
            # Nobody reads: it stays in the pipe, and the writer at the other end has no room.
            self.world.at(to.process.frozen_until, self._arrive)
            return
        data = self.queue.popleft()
        self.bytes -= len(data or b"")
        if data is None:
            to.process.enter(to.closed)
            return
        if self.lose_next:
            self.lose_next = False
            return
        to.process.enter(to.received, data)
        if self.repeat_next:
            self.repeat_next = False
            to.process.enter(to.received, data)
        if self.sender is not None:
            self.world.soon(self.sender.process.enter, self.sender.writable)

    @property
    def unread(self) -> bool:
        """Whether frames have arrived that nobody has read yet."""
        return bool(self.queue) and not self.cut and self.world.now >= max(self.stalled_until, self._clear_at)

    def lose(self) -> None:
        """Whatever is under way is gone, and nothing comes through any more."""
        self.cut = True
        self.queue.clear()
        self.bytes = 0


class Stream:
    """Both directions of one connection."""

    def __init__(self, world: World, faults: Faults) -> None:
        self.world = world
        self.up = Direction(world, faults)
        self.down = Direction(world, faults)
        self.over = False

    def connect(self, node: End, edge: End) -> None:
        self.up.to, self.up.sender = edge, node
        self.down.to, self.down.sender = node, edge

    def stall(self, seconds: float) -> None:
        """Packets come late, in one direction or in both."""
        for direction in self.world.rng.choice(((self.up,), (self.down,), (self.up, self.down))):
            direction.stalled_until = max(direction.stalled_until, self.world.now + seconds)

    def lose_or_repeat(self) -> None:
        """One frame of one direction."""
        direction = self.world.rng.choice((self.up, self.down))
        if self.world.chance(0.5):
            direction.lose_next = True
        else:
            direction.repeat_next = True

    def reset(self) -> None:
        """The connection breaks; each end notices in its own time."""
        if self.over:
            return
        self.over = True
        for direction in (self.up, self.down):
            direction.closed = True
            if self.world.chance(0.5):
                direction.lose()
            if direction.to is not None:
                self.world.after(self.world.between(0.0, 0.4), self._notice, direction)

    def vanish(self) -> None:
        """Packets disappear: silence, and in the end the transport's own pings, tell."""
        if self.over:
            return
        for direction in (self.up, self.down):
            direction.lose()
            self.world.after(_KEEPALIVE_S, self._notice, direction)

    def node_died(self) -> None:
        """Its kernel closes the connection."""
        self.over = True
        if not self.up.cut:
            self.world.after(self.world.between(0.0, 0.01), self._notice, self.up)

    def edge_died(self) -> None:
        """The same at the other end."""
        self.over = True
        if not self.down.cut:
            self.world.after(self.world.between(0.0, 0.01), self._notice, self.down)

    def node_closed(self) -> None:
        """The Node cancelled its call: the Edge learns it unless the network swallows that too."""
        self.over = True
        self.up.put(None)

    def edge_closed(self) -> None:
        """The handler returned."""
        self.over = True
        self.down.put(None)

    def heal(self) -> None:
        """The network works again: what hangs is reset."""
        for direction in (self.up, self.down):
            direction.stalled_until = self.world.now
            direction.lose_next = direction.repeat_next = False
            for _ in range(len(direction.queue)):
                self.world.soon(direction._arrive)
        if self.up.cut or self.down.cut:
            self.over = False
            self.reset()

    def _notice(self, direction: Direction) -> None:
        direction.lose()
        if direction.to is not None:
            direction.to.process.enter(direction.to.closed)
