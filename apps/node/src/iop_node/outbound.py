"""What a session of the Node has to send: whole frames, and the events of many runs joined into few frames."""

from __future__ import annotations

from collections import deque

from iop_wire import runtime_pb2 as pb
from iop_wire.credit import SendCredit
from iop_wire.limits import CHUNK_MAX, FRAME_TARGET
from iop_wire.outbox import Lane, Lanes, Turns

AttemptId = tuple[str, int]
Item = bytes | pb.Accepted | pb.Head | pb.Terminal
_EVENT_OVERHEAD = 64


class OutRun:
    """The outgoing half of one attempt: what waits to be sent, its numbering and its credit."""

    __slots__ = ("_pending", "_seq", "credit", "ended", "key", "muted")

    def __init__(self, key: AttemptId, credit_bytes: int) -> None:
        self.key = key
        self.credit = SendCredit(credit_bytes)
        self.ended = False
        """Its Terminal is queued: nothing may follow."""
        self.muted = False
        """Its bytes are of no use any more (cancelled, or the session is over): they are swallowed."""
        self._pending: deque[Item] = deque()
        self._seq = 0

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._pending

    def push(self, item: Item) -> None:
        """Queue an event; its number is given when it leaves, so that ready bytes can still be joined."""
        self._pending.append(item)

    def mute(self) -> None:
        """Drop the bytes that wait and swallow those to come."""
        self.muted = True
        self._pending = deque(item for item in self._pending if not isinstance(item, bytes))

    def drain_into(self, frame: pb.RunEvents, room: int) -> int:
        """Move events into the frame until `room` bytes are used up or nothing waits; return their size."""
        used = 0
        while self._pending and used < room:
            item = self._pending.popleft()
            self._seq += 1
            event = frame.events.add(run_id=self.key[0], attempt=self.key[1], seq=self._seq)
            if isinstance(item, bytes):
                data = self._join(item, min(room - used, CHUNK_MAX))
                event.chunk.data = data
                used += len(data)
            elif isinstance(item, pb.Terminal):
                item.last_seq = self._seq
                event.terminal.CopyFrom(item)
                used += item.ByteSize()
            elif isinstance(item, pb.Head):
                event.head.CopyFrom(item)
                used += item.ByteSize()
            else:
                event.accepted.SetInParent()
            used += _EVENT_OVERHEAD
        return used

    def _join(self, first: bytes, room: int) -> bytes:
        pending = self._pending
        if not (pending and isinstance(pending[0], bytes)):
            return first
        parts, size = [first], len(first)
        while pending and isinstance(following := pending[0], bytes) and size + len(following) <= room:
            parts.append(following)
            size += len(following)
            pending.popleft()
        return b"".join(parts)


class Outbound:
    """The order of everything that leaves (wire §1.2.3).

    A run whose Terminal is ready goes before the others with all that precedes it: its own events keep their order.
    """

    def __init__(self) -> None:
        self._lanes: Lanes[pb.NodeFrame] = Lanes()
        self._ending: Turns[AttemptId, OutRun] = Turns()
        self._running: Turns[AttemptId, OutRun] = Turns()

    def put(self, lane: Lane, frame: pb.NodeFrame) -> None:
        """Queue a whole frame."""
        self._lanes.put(lane, frame)

    def put_event(self, run: OutRun, item: Item) -> None:
        """Queue an event of a run."""
        run.push(item)
        if isinstance(item, pb.Terminal):
            self._running.remove(run.key)
            self._ending.add(run.key, run)
        elif not run.ended:
            self._running.add(run.key, run)

    def clear(self) -> None:
        """Forget everything."""
        self._lanes.clear()
        self._ending.clear()
        self._running.clear()

    @property
    def events_waiting(self) -> bool:
        """Whether any run still has something to send."""
        return bool(self._ending) or bool(self._running)

    def next(self) -> pb.NodeFrame | None:
        """Return the next frame, without its number."""
        return self._lanes.pop_urgent() or self._lanes.pop_credit() or self._events() or self._lanes.pop_last()

    def _events(self) -> pb.NodeFrame | None:
        if not (self._ending or self._running):
            return None
        frame = pb.NodeFrame()
        size = 0
        for turns in (self._ending, self._running):
            while size < FRAME_TARGET and (turn := turns.first()) is not None:
                key, run = turn
                size += run.drain_into(frame.run_events, FRAME_TARGET - size)
                if run.idle:
                    turns.remove(key)
                else:
                    turns.rotate(key)
        return frame if frame.run_events.events else None
