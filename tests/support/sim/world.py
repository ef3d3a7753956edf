"""Virtual time: an agenda of things to do, one source of randomness, a history, and processes that stop and die."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

Fn = Callable[..., object]


class Violation(AssertionError):  # noqa: N818 -- what it is, in the words of reliability.md
    """An invariant does not hold; `rule` is its number (I1 to I13)."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class World:
    """The clock and the agenda. Everything random is drawn from `rng`, so a seed is a story."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 1000.0
        self.rng = random.Random(seed)
        self.history: list[tuple[Any, ...]] = []
        self.steps = 0
        self.after_step: Callable[[], None] = lambda: None
        self._agenda: list[tuple[float, int, Fn, tuple[Any, ...]]] = []
        self._number = 0

    def clock(self) -> float:
        return self.now

    def at(self, when: float, do: Fn, *args: Any) -> None:
        """Do it at a point in time; of two at the same time the one asked for first goes first."""
        self._number += 1
        heapq.heappush(self._agenda, (max(when, self.now), self._number, do, args))

    def after(self, delay: float, do: Fn, *args: Any) -> None:
        self.at(self.now + delay, do, *args)

    def soon(self, do: Fn, *args: Any) -> None:
        """In the next turn of an event loop."""
        self.at(self.now, do, *args)

    def note(self, *what: Any) -> None:
        self.history.append((round(self.now - 1000.0, 4), *what))

    def run(self, until: float) -> None:
        """Let time pass; `after_step` looks at the world after each thing that happened."""
        agenda = self._agenda
        while agenda and agenda[0][0] <= until:
            self.now, _, do, args = heapq.heappop(agenda)
            do(*args)
            self.steps += 1
            self.after_step()
        self.now = max(self.now, until)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def between(self, low: float, high: float) -> float:
        return self.rng.uniform(low, high)


class Process:
    """Something that runs on one machine: it can stand still (SIGSTOP, a blocked loop) and it can die (SIGKILL)."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.frozen_until = 0.0

    def enter(self, do: Fn, *args: Any) -> None:
        """Do it inside the process: not at all once it is dead, and after it goes on while it stands still."""
        if not self.alive:
            return
        if self.world.now < self.frozen_until:
            self.world.at(self.frozen_until, self.enter, do, *args)
            return
        do(*args)

    def later(self, delay: float, do: Fn, *args: Any) -> None:
        self.world.after(delay, self.enter, do, *args)

    def freeze(self, seconds: float) -> None:
        self.frozen_until = max(self.frozen_until, self.world.now + seconds)
        self.world.note("freeze", self.name, round(seconds, 1))

    def thaw(self) -> None:
        self.frozen_until = min(self.frozen_until, self.world.now)
