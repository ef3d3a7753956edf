"""Frames as bytes: size guard, parsing, and the contiguous numbering of each direction (wire §1.1, G11, G15)."""

from __future__ import annotations

from typing import Generic, TypeVar

from google.protobuf.message import DecodeError

from iop_wire.limits import CONFIG_FRAME_MAX, FRAME_MAX
from iop_wire.runtime_pb2 import EdgeFrame, NodeFrame

_WHOLE_STATE = frozenset({"hello", "welcome", "config_refresh", "config_result", "provider_status"})

F = TypeVar("F", NodeFrame, EdgeFrame)


class WireError(Exception):
    """The peer broke the protocol: the session ends. The text is for both sides' logs and holds no content."""


class FrameTooLargeError(Exception):
    """A frame of our own is above its cap and was not sent; its number is still free."""

    def __init__(self, body: str, size: int, limit: int) -> None:
        super().__init__(f"frame {body} has {size} bytes, more than {limit}")
        self.body = body
        self.size = size
        self.limit = limit


def frame_limit(body: str | None) -> int:
    """Return the largest size of a frame with this body."""
    return CONFIG_FRAME_MAX if body in _WHOLE_STATE else FRAME_MAX


class FrameReader(Generic[F]):
    """Turns received bytes into frames of one direction, in order without a gap."""

    def __init__(self, frame_type: type[F]) -> None:
        self._type: type[F] = frame_type
        self._last = 0

    def read(self, data: bytes) -> F:
        """Return the frame; WireError when it is too large, not a frame, or out of sequence."""
        if len(data) > CONFIG_FRAME_MAX:
            raise WireError(f"a frame of {len(data)} bytes is above {CONFIG_FRAME_MAX}")
        frame: F = self._type()
        try:
            frame.ParseFromString(data)
        except DecodeError:
            # Without the cause: its text may quote the bytes.
            raise WireError(f"{len(data)} bytes that are no {self._type.__name__}") from None
        if len(data) > FRAME_MAX and len(data) > frame_limit(frame.WhichOneof("body")):
            raise WireError(f"a frame of {len(data)} bytes is above {FRAME_MAX}")
        if frame.frame_seq != self._last + 1:
            raise WireError(f"frame {frame.frame_seq} after frame {self._last}: one was lost or repeated")
        self._last += 1
        return frame


class FrameWriter(Generic[F]):
    """Numbers the frames of one direction and serialises them."""

    def __init__(self) -> None:
        self._last = 0

    @property
    def count(self) -> int:
        """How many frames were sealed."""
        return self._last

    def seal(self, frame: F) -> bytes:
        """Return the bytes to send, as the next frame; FrameTooLargeError when gRPC must never see them."""
        frame.frame_seq = self._last + 1
        data = frame.SerializeToString()
        if len(data) > FRAME_MAX:
            body = frame.WhichOneof("body")
            if len(data) > (limit := frame_limit(body)):
                raise FrameTooLargeError(body or "without a body", len(data), limit)
        self._last += 1
        return data
