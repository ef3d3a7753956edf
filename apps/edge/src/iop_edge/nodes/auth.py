"""Which token belongs to which Node: only sha256 digests are held, compared in constant time (wire §3)."""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict, deque
from collections.abc import Mapping

_NOBODY = hashlib.sha256(b"no node has this token").hexdigest()
_WINDOW_S = 60.0
_FAILURES_MAX = 10
_ADDRESSES_MAX = 4096


class NodeAuth:
    """Token digests per Node id: the current one and, while rotating, the previous one. Swapped as a whole."""

    def __init__(self, hashes: Mapping[str, tuple[str, ...]]) -> None:
        """`hashes`: Node id to sha256 digests, 64 hex digits each."""
        self._hashes = self._normalised(hashes)

    @staticmethod
    def _normalised(hashes: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        return {node_id: tuple(digest.lower() for digest in digests) for node_id, digests in hashes.items()}

    def replace(self, hashes: Mapping[str, tuple[str, ...]]) -> None:
        """From now on these digests hold; sessions that are already up stay."""
        self._hashes = self._normalised(hashes)

    def knows(self, node_id: str) -> bool:
        """Whether the id is configured: for the Edge's own log, never told to the peer."""
        return node_id in self._hashes

    def check(self, node_id: str, token: str) -> bool:
        """Whether `token` is one of the Node's. An unknown id costs the same comparison as a known one."""
        given = hashlib.sha256(token.encode()).hexdigest()
        accepted = False
        for digest in self._hashes.get(node_id) or (_NOBODY,):
            # No early exit: the time must not tell which of the two digests was close.
            accepted |= hmac.compare_digest(given, digest)
        return accepted and node_id in self._hashes


class FailureLimit:
    """Counts failed logins per address. A right token always passes: many Nodes may share one address."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self.total = 0

    def failed(self, address: str, now: float) -> bool:
        """Note a failure; True when the address had too many of them in the last minute (then nothing is logged)."""
        self.total += 1
        times = self._failures.setdefault(address, deque(maxlen=_FAILURES_MAX + 1))
        self._failures.move_to_end(address)
        while len(self._failures) > _ADDRESSES_MAX:
            self._failures.popitem(last=False)
        while times and times[0] <= now - _WINDOW_S:
            times.popleft()
        times.append(now)
        return len(times) > _FAILURES_MAX
