"""Config pushes of one session: one under way, one that waits, answers that come late (wire §1.1, R9)."""

from __future__ import annotations

from attrs import frozen

from iop_edge.nodes.values import PushOutcome, PushState
from iop_wire import runtime_pb2 as pb


@frozen
class _UnderWay:
    push_id: str
    due: float


class Pushes:
    """Which push waits, which was sent, which outcome each one got. The Welcome's payload is the push ""."""

    def __init__(self, answer_bound: float) -> None:
        self._bound = answer_bound
        self._under_way: _UnderWay | None = None
        self._waiting: pb.NodeConfigRefreshRequest | None = None
        self._unanswered: set[str] = set()
        self.last: PushOutcome | None = None
        """The newest outcome; None while the first one is on its way."""

    def welcomed(self, now: float) -> None:
        """The Welcome carried a payload: its answer is due like that of any push."""
        self._under_way = _UnderWay("", now + self._bound)

    def queue(self, push_id: str, payload: pb.NodeConfigPayload) -> PushOutcome | None:
        """Let a push wait for its turn; return the outcome of the one whose place it took."""
        passed = self._waiting
        self._waiting = pb.NodeConfigRefreshRequest(push_id=push_id, payload=payload)
        return PushOutcome(passed.push_id, PushState.SUPERSEDED) if passed is not None else None

    def next(self, now: float) -> pb.NodeConfigRefreshRequest | None:
        """Return the push to send now, if one waits and none is under way."""
        if self._under_way is not None or self._waiting is None:
            return None
        sending, self._waiting = self._waiting, None
        self._under_way = _UnderWay(sending.push_id, now + self._bound)
        return sending

    def answered(self, outcome: PushOutcome) -> bool | None:
        """Note an answer: False in time, True late, None for an id that this stream is not waiting for."""
        if self._under_way is not None and self._under_way.push_id == outcome.push_id:
            self._under_way = None
            self.last = outcome
            return False
        if outcome.push_id in self._unanswered:
            self._unanswered.discard(outcome.push_id)
            if self.last is not None and self.last.push_id == outcome.push_id:
                self.last = outcome
            return True
        return None

    def expire(self, now: float) -> list[PushOutcome]:
        """Give up waiting for an answer that is overdue; it still counts when it comes."""
        under_way = self._under_way
        if under_way is None or now < under_way.due:
            return []
        self._under_way = None
        self._unanswered.add(under_way.push_id)
        self.last = PushOutcome(under_way.push_id, PushState.NO_ANSWER)
        return [self.last]

    def abandon(self) -> list[PushOutcome]:
        """The session is over: whatever had no outcome gets one."""
        left = [self._under_way.push_id] if self._under_way is not None else []
        if self._waiting is not None:
            left.append(self._waiting.push_id)
        self._under_way = self._waiting = None
        return [PushOutcome(push_id, PushState.DISCONNECTED) for push_id in left]
