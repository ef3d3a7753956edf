"""One attempt of a run inside a session: what arrived and waits to be taken, its credit, its one end (wire §1.2)."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from iop_edge.nodes.run import Chunk, End, Head, RunSpec
from iop_wire.credit import ReceiveCredit
from iop_wire.limits import INITIAL_CREDIT


class Attempt:
    """State of one attempt; `session.py` alone changes it."""

    __slots__ = (
        "_chunks",
        "_head",
        "accepted",
        "buffered",
        "cancel_due",
        "credit",
        "end",
        "ended",
        "key",
        "notify",
        "on_end",
        "sent",
        "seq",
        "spec",
        "taken_at",
    )

    def __init__(self, spec: RunSpec, on_end: Callable[[End], None], now: float) -> None:
        self.spec = spec
        self.key = (spec.run_id, spec.attempt)
        self.on_end = on_end
        self.notify: Callable[[], None] | None = None
        """Wakes whoever waits for the next item; set by the shell."""
        self.credit = ReceiveCredit(INITIAL_CREDIT)
        self.seq = 0
        self.sent = False
        """Its request was handed to the writer: the Node may be executing it."""
        self.accepted = False
        self.cancel_due: float | None = None
        """A cancel is under way; when its end has not come by then, the Node is unresponsive (P8)."""
        self.end: End | None = None
        """What the reader is told last. Set before `ended` when the Edge itself gave the run up."""
        self.ended = False
        """The Terminal came, or the session is over: the slot was given back."""
        self.buffered = 0
        """Bytes that wait to be taken."""
        self.taken_at = now
        """When bytes were last taken, or began to wait."""
        self._head: Head | None = None
        self._chunks: list[bytes] = []

    def put_head(self, head: Head) -> None:
        """The runtime answered."""
        if self.end is None:
            self._head = head

    def put_chunk(self, data: bytes, now: float) -> None:
        """Bytes arrived; those of a run that was given up are dropped."""
        if self.end is not None:
            return
        if not self._chunks:
            self.taken_at = now
        self._chunks.append(data)
        self.buffered += len(data)

    def give_up(self, end: End) -> None:
        """Decide the end before the Node confirms it; what waits is dropped, since the stream is broken anyway."""
        if self.end is None:
            self.end = end
            self._head = None
            self._chunks.clear()
            self.buffered = 0

    def finish(self, end: End) -> End:
        """The attempt ended; return the end that counts: the one decided earlier, with what the Terminal adds to it."""
        if self.end is not None:
            end = evolve(
                self.end,
                usage=end.usage,
                started=end.started or self.end.started,
                session_lost=end.session_lost,
            )
        self.end = end
        self.ended = True
        return end

    def take(self, now: float) -> Head | Chunk | End | None:
        """Return the next item, ready chunks joined; None when nothing has arrived."""
        if self._head is not None:
            head, self._head = self._head, None
            return head
        if self._chunks:
            chunks = self._chunks
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            self._chunks = []
            self.buffered = 0
            self.taken_at = now
            return Chunk(data)
        return self.end
