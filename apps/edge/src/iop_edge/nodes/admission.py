"""Who may have a session: the first frame, the protocol version, fencing and its flap guard (wire §1.2.6, §1.5)."""

from __future__ import annotations

from collections import deque

from attrs import frozen

from iop_edge.nodes.convert import NodeInfo, info_from
from iop_wire import runtime_pb2 as pb
from iop_wire.framing import FrameReader, FrameWriter, WireError
from iop_wire.version import PROTOCOL_MAX, PROTOCOL_MIN

_FLAP_WINDOW_S = 120.0
_FLAPS_MAX = 3


@frozen
class Refusal:
    """Why there is no session: told in a SessionEnd, or for a version that shares nothing with ours as a status."""

    message: str
    reason: pb.SessionEndReason | None = None
    retry_after_ms: int = 0

    def frame(self) -> bytes:
        """Return the one frame of a stream that is refused."""
        writer: FrameWriter[pb.EdgeFrame] = FrameWriter()
        end = pb.SessionEnd(reason=self.reason, message=self.message, retry_after_ms=self.retry_after_ms)
        return writer.seal(pb.EdgeFrame(session_end=end))


@frozen
class Greeting:
    """A Node introduced itself, in a protocol that both sides speak."""

    info: NodeInfo
    protocol: int


def read_hello(reader: FrameReader[pb.NodeFrame], data: bytes, node_id: str) -> Greeting | Refusal:
    """Return what the first frame says; `node_id` is the one that the token belongs to."""
    try:
        frame = reader.read(data)
    except WireError as error:
        return Refusal(f"the first frame cannot be read: {error}", pb.SESSION_END_REASON_PROTOCOL_ERROR)
    if frame.WhichOneof("body") != "hello":
        return Refusal("the first frame must be Hello", pb.SESSION_END_REASON_PROTOCOL_ERROR)
    hello = frame.hello
    if hello.node_id != node_id:
        text = "Hello names another Node than the one whose token was given"
        return Refusal(text, pb.SESSION_END_REASON_PROTOCOL_ERROR)
    highest = min(PROTOCOL_MAX, hello.protocol_max)
    if highest < max(PROTOCOL_MIN, hello.protocol_min):
        older = "the Node" if hello.protocol_max < PROTOCOL_MIN else "the Edge"
        return Refusal(
            f"no common protocol: this Edge speaks {PROTOCOL_MIN}-{PROTOCOL_MAX}, "
            f"the Node {hello.protocol_min}-{hello.protocol_max}; upgrade {older}"
        )
    return Greeting(info_from(hello), highest)


def who(info: NodeInfo) -> str:
    """Return how a message names the process behind a session."""
    return f"{info.hostname or 'unknown host'} (pid {info.pid})"


class FlapGuard:
    """Remembers which instances took a Node's place from each other, so that two do not fence each other for ever."""

    def __init__(self) -> None:
        self._takeovers: dict[str, deque[tuple[float, bytes]]] = {}

    def judge(self, newcomer: NodeInfo, current: NodeInfo, now: float) -> Refusal | None:
        """Return a refusal when these two keep alternating; else note that the newcomer takes the place."""
        if newcomer.instance_id == current.instance_id:
            return None
        takeovers = self._takeovers.setdefault(newcomer.node_id, deque(maxlen=4 * _FLAPS_MAX))
        while takeovers and takeovers[0][0] <= now - _FLAP_WINDOW_S:
            takeovers.popleft()
        pair = (newcomer.instance_id, current.instance_id)
        if sum(instance in pair for _, instance in takeovers) >= _FLAPS_MAX:
            text = (
                f"Node {newcomer.node_id} runs twice: {who(current)} stays connected, {who(newcomer)} is refused; "
                "stop one of them or give it an id and a token of its own"
            )
            return Refusal(text, pb.SESSION_END_REASON_DUPLICATE_NODE)
        takeovers.append((now, newcomer.instance_id))
        return None
