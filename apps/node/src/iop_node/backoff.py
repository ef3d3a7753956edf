"""How long to wait before the next dial, from why the last one ended: pure, randomness injected (N4, wire §1.4)."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

_BASE_S = 0.5
_MAX_S = 30.0
_SLOW_S = 60.0
_SLOW_MAX_S = 300.0
_STABLE_S = 60.0
_SHUTDOWNS_MAX = 3


class Uniform(Protocol):
    """The one thing asked of a random number generator (`random.Random` has it)."""

    def uniform(self, a: float, b: float) -> float:
        """Return a number between `a` and `b`."""


class Cause(StrEnum):
    """Why a dial failed or a session ended."""

    UNREACHABLE = "unreachable"
    NOT_AN_EDGE = "not_an_edge"
    TLS = "tls"
    REFUSED = "refused"
    """Wrong token or unknown id."""
    VERSION = "version"
    DUPLICATE = "duplicate"
    FENCED = "fenced"
    EDGE_SHUTDOWN = "edge_shutdown"
    LOST = "lost"
    SILENT = "silent"
    PROTOCOL = "protocol"
    UNRESPONSIVE = "unresponsive"


_SLOW = frozenset({Cause.REFUSED, Cause.VERSION, Cause.DUPLICATE})
"""Only a person changes these: asking again soon would fill two logs."""


class Backoff:
    """Full jitter over a doubling cap. Counts attempts until a session was ready for a minute."""

    def __init__(self, random: Uniform) -> None:
        self._random = random
        self._attempts = 0
        self._slow_attempts = 0

    def ready_for(self, seconds: float) -> None:
        """A session was READY this long before it ended: after a minute the count starts anew."""
        if seconds >= _STABLE_S:
            self._attempts = 0
            self._slow_attempts = 0

    def delay(self, cause: Cause, retry_after: float = 0.0) -> float:
        """Return the seconds until the next dial; `retry_after` is what a closing Edge asked for."""
        if cause in _SLOW:
            cap = min(_SLOW_MAX_S, _SLOW_S * 2.0 ** min(self._slow_attempts, 10))
            self._slow_attempts += 1
            return self._random.uniform(cap / 2, cap)
        if cause is Cause.FENCED:
            return self._random.uniform(5.0, 10.0)
        if cause is Cause.EDGE_SHUTDOWN and self._attempts < _SHUTDOWNS_MAX:
            # Not for ever: an Edge that welcomes and closes again and again would be dialled in a tight loop.
            self._attempts += 1
            return self._random.uniform(0.0, retry_after)
        cap = min(_MAX_S, _BASE_S * 2.0 ** min(self._attempts, 10))
        self._attempts += 1
        return self._random.uniform(0.0, cap)
