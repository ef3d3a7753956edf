"""Request bodies in parts: cut by the Edge, put together again by the Node (wire §1.1 RunPayload)."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from iop_wire.limits import PAYLOAD_MAX, PAYLOAD_PART


class PayloadPartError(Exception):
    """The parts of one body do not fit together: that run fails, the session lives on."""


@frozen
class Part:
    """One piece of a body."""

    offset: int
    data: bytes
    last: bool


def split_payload(body: bytes, part_max: int = PAYLOAD_PART) -> Iterator[Part]:
    """Yield the parts of a body in order, the last one marked; each is cut only when it is asked for."""
    for offset in range(0, len(body), part_max):
        data = body[offset : offset + part_max]
        yield Part(offset, data, last=offset + len(data) == len(body))


class PayloadAssembly:
    """A body that arrives in parts, `total` bytes in all."""

    def __init__(self, total: int) -> None:
        """PayloadPartError when `total` is more than a request may have."""
        if total > PAYLOAD_MAX:
            raise PayloadPartError(f"a body of {total} bytes is above {PAYLOAD_MAX}")
        self._total = total
        self._parts: list[bytes] = []
        self._have = 0

    def add(self, offset: int, data: bytes, last: bool) -> bytes | None:
        """Take the next part; return the whole body once complete. PayloadPartError for a gap or a wrong length."""
        if offset != self._have:
            raise PayloadPartError(f"part at offset {offset} where {self._have} was expected")
        self._have += len(data)
        if self._have > self._total or last != (self._have == self._total) or not data:
            raise PayloadPartError(f"parts reach {self._have} of {self._total} bytes, last={last}")
        self._parts.append(data)
        return b"".join(self._parts) if last else None
