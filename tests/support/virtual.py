"""An asyncio loop whose clock jumps to the next timer: deadlines of minutes are tested in no time, and always alike."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

Backend = tuple[str, dict[str, Callable[[], asyncio.AbstractEventLoop]]]


class _Jumping(selectors.DefaultSelector):
    """Never waits for a timer: it moves the clock instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            # Only another thread could end this wait.
            events = super().select(5)
            assert events, "every task waits, and no timer is set: nothing will ever happen"
            return events
        self.now += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time begins at 1000 and passes only while everybody waits."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """See `AbstractEventLoop`."""
        return self._jumping.now


VIRTUAL: Backend = ("asyncio", {"loop_factory": VirtualLoop})
"""What the fixture `anyio_backend` of a module returns to have it."""
