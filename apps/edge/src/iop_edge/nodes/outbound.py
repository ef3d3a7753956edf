"""What the Edge's end of a session has to send: whole frames by priority, requests and their bodies in turns."""

from __future__ import annotations

from collections.abc import Iterator

from iop_edge.nodes.attempt import Attempt
from iop_edge.nodes.convert import request_message
from iop_wire import runtime_pb2 as pb
from iop_wire.outbox import Lane, Lanes, Turns
from iop_wire.payload import Part, split_payload


class _Outgoing:
    """A run's request and then its body, a frame a turn."""

    __slots__ = ("attempt", "parts")

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.parts: Iterator[Part] | None = None

    def next(self) -> tuple[pb.EdgeFrame, bool]:
        """Return the next frame and whether it was the last."""
        spec = self.attempt.spec
        if self.parts is None:
            request = request_message(spec)
            self.attempt.sent = True
            self.parts = split_payload(spec.body)
            return pb.EdgeFrame(run_request=request), not request.payload_bytes
        part = next(self.parts)
        payload = pb.RunPayload(
            run_id=spec.run_id, attempt=spec.attempt, offset=part.offset, data=part.data, last=part.last
        )
        return pb.EdgeFrame(run_payload=payload), part.last


class Outbound:
    """The order of everything that leaves (wire §1.2.3); large bodies take turns with other runs' requests."""

    def __init__(self) -> None:
        self._lanes: Lanes[pb.EdgeFrame] = Lanes()
        self._requests: Turns[tuple[str, int], _Outgoing] = Turns()

    def put(self, lane: Lane, frame: pb.EdgeFrame) -> None:
        """Queue a whole frame."""
        self._lanes.put(lane, frame)

    def put_request(self, attempt: Attempt) -> None:
        """Queue a run."""
        self._requests.add(attempt.key, _Outgoing(attempt))

    def withdraw(self, attempt: Attempt) -> None:
        """Send nothing more of this run: neither its request nor the rest of its body."""
        self._requests.remove(attempt.key)

    def clear(self) -> None:
        """Forget everything."""
        self._lanes.clear()
        self._requests.clear()

    def next(self) -> pb.EdgeFrame | None:
        """Return the next frame, without its number."""
        return self._lanes.pop_urgent() or self._lanes.pop_credit() or self._request() or self._lanes.pop_last()

    def _request(self) -> pb.EdgeFrame | None:
        turn = self._requests.first()
        if turn is None:
            return None
        key, outgoing = turn
        frame, last = outgoing.next()
        if last:
            self._requests.remove(key)
        else:
            self._requests.rotate(key)
        return frame
