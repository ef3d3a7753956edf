"""How long a peer has been silent, by monotonic receive time alone (wire §1.3)."""

from __future__ import annotations

_OWN_STALL = 2.0


class SilenceWatch:
    """Adds up the time without a frame, between looks that come several times a second.

    A look that is late by seconds means that this process itself stood still (a blocked loop, SIGSTOP): the peer may
    have spoken meanwhile and its frames wait to be read. Only `_OWN_STALL` seconds of such a gap count as its silence.
    """

    __slots__ = ("_heard_at", "_looked_at")

    def __init__(self, now: float) -> None:
        self._heard_at = now
        self._looked_at = now

    def heard(self, now: float) -> None:
        """A frame arrived."""
        self._heard_at = now

    def look(self, now: float) -> float:
        """Return the seconds of silence that count."""
        stall = now - self._looked_at - _OWN_STALL
        if stall > 0:
            self._heard_at = min(now, self._heard_at + stall)
        self._looked_at = now
        return now - self._heard_at
