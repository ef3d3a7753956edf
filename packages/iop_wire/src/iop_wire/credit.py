"""Per-run credit: how many response bytes may be under way, seen from both ends (wire §1.2.4).

Pieces are at most half of the window and a grant is due at the latest when a quarter of it was taken. So whenever the
sender lacks credit for its next piece, more than half of the window is under way, and taking that brings a grant: the
two can never wait for each other.
"""

from __future__ import annotations

from iop_wire.limits import CHUNK_MAX


class SendCredit:
    """The sender's account: what it may still send."""

    __slots__ = ("_available", "piece_max")

    def __init__(self, initial: int) -> None:
        self._available = max(initial, 2)
        self.piece_max = min(CHUNK_MAX, self._available // 2)
        """Largest piece that this window lets through in one go."""

    @property
    def available(self) -> int:
        """Bytes that may be sent now."""
        return self._available

    def spend(self, size: int) -> bool:
        """Take `size` from the account, if there is enough."""
        if size > self._available:
            return False
        self._available -= size
        return True

    def grant(self, size: int) -> None:
        """The receiver took bytes and allows as many new ones."""
        self._available += size


class ReceiveCredit:
    """The receiver's account: what the sender may still send, and what is due to be granted."""

    __slots__ = ("_allowed", "_due", "_threshold")

    def __init__(self, initial: int) -> None:
        self._allowed = max(initial, 2)
        self._due = 0
        self._threshold = max(1, self._allowed // 4)

    def received(self, size: int) -> bool:
        """Note received bytes; False when the sender had no credit for them."""
        if size > self._allowed:
            return False
        self._allowed -= size
        return True

    def taken(self, size: int) -> int:
        """The consumer took `size` bytes; return how many to grant now, 0 for none yet: few grants, not one a chunk."""
        self._due += size
        if self._due < self._threshold:
            return 0
        granted, self._due = self._due, 0
        self._allowed += granted
        return granted
