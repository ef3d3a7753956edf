"""What one acquire and release costs: by providers, by groups, with and without a queue, beside semaphores (P13).

    python bench/pool.py [--repeat N] [--pairs N]

The floors are a bare `asyncio.Semaphore` pair and an `anyio.CapacityLimiter` pair under the same load, in turns
with the rest, so that a noisy machine hits all. Goals: the core at most 8 times the semaphore; 10 000 providers at most
3 times 10. Medians, in microseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable

import anyio

from iop_pool import Granted, GroupSpec, Outcome, Pool, PoolCore, PoolSpec, ProviderSpec, Queued, QueuePolicy, Request

SIZES = (10, 100, 1_000, 10_000)
GROUPS = (1, 5, 50)
GOAL_FLOOR, GOAL_GROWTH = 8.0, 3.0


def spec(providers: int, groups: int = 1, *, capacity: int = 4, waiting: int = 64) -> PoolSpec:
    """So many providers, all of them in each of the groups."""
    ids = [f"p{number}" for number in range(providers)]
    return PoolSpec(
        [ProviderSpec(name, capacity=capacity, queue=QueuePolicy(max_queue=waiting)) for name in ids],
        [GroupSpec(f"g{number}", ids) for number in range(groups)],
    )


def core_pairs(providers: int, groups: int) -> Callable[[int], float]:
    """Acquire and release on the core; half of the capacity is taken by others, so that the order matters."""
    core = PoolCore(spec(providers, groups))
    for number in range(2 * providers):
        assert isinstance(core.submit(Request(f"g{number % groups}"), 0.0), Granted)
    requests = [Request(f"g{number}") for number in range(groups)]
    submit, release = core.submit, core.release

    def run(pairs: int) -> float:
        began = time.perf_counter()
        for number in range(pairs):
            granted = submit(requests[number % groups], 0.0)
            release(granted.lease, Outcome.OK, 0.0)  # type: ignore[union-attr]
        return time.perf_counter() - began

    return run


def queued_pairs(providers: int, waiters: int) -> Callable[[int], float]:
    """All is full and so many wait: each release hands its slot on, and one more comes to wait."""
    core = PoolCore(spec(providers, capacity=1, waiting=waiters + 10))
    request = Request("g0")
    leases = []
    for _ in range(providers):
        granted = core.submit(request, 0.0)
        assert isinstance(granted, Granted)
        leases.append(granted.lease)
    for _ in range(waiters):
        assert isinstance(core.submit(request, 0.0), Queued)

    def run(pairs: int) -> float:
        began = time.perf_counter()
        for _ in range(pairs):
            core.submit(request, 0.0)
            (decision,) = core.release(leases.pop(), Outcome.OK, 0.0)
            leases.append(decision.lease)  # type: ignore[union-attr]
        return time.perf_counter() - began

    return run


def face_pairs(providers: int) -> Callable[[int], float]:
    """`async with pool.acquire()`, uncontended."""
    pool = Pool(spec(providers))

    async def loop(pairs: int) -> float:
        began = time.perf_counter()
        for _ in range(pairs):
            async with pool.acquire("g0"):
                pass
        return time.perf_counter() - began

    return lambda pairs: asyncio.run(loop(pairs))


def semaphore_pairs() -> Callable[[int], float]:
    """`async with asyncio.Semaphore`, uncontended: the floor."""

    async def loop(pairs: int) -> float:
        semaphore = asyncio.Semaphore(4)
        began = time.perf_counter()
        for _ in range(pairs):
            async with semaphore:
                pass
        return time.perf_counter() - began

    return lambda pairs: asyncio.run(loop(pairs))


def limiter_pairs() -> Callable[[int], float]:
    """`async with anyio.CapacityLimiter`, uncontended."""

    async def loop(pairs: int) -> float:
        limiter = anyio.CapacityLimiter(4)
        began = time.perf_counter()
        for _ in range(pairs):
            async with limiter:
                pass
        return time.perf_counter() - began

    return lambda pairs: asyncio.run(loop(pairs))


def main() -> None:
    """Measure all in turns; print a line each, and what became of the goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="rounds, of which the median is taken (5)")
    parser.add_argument("--pairs", type=int, default=10_000, help="pairs a round (10000)")
    given = parser.parse_args()
    floor = "asyncio.Semaphore"
    cases: dict[str, Callable[[int], float]] = {floor: semaphore_pairs(), "anyio.CapacityLimiter": limiter_pairs()}
    for size in SIZES:
        for groups in GROUPS:
            cases[f"core, {size} providers, {groups} groups"] = core_pairs(size, groups)
    for waiters in (10, 10_000):
        cases[f"core, 10 providers, {waiters} waiters"] = queued_pairs(10, waiters)
    cases["face, 10 providers"] = face_pairs(10)
    cases["face, 10000 providers"] = face_pairs(10_000)
    for case in cases.values():
        case(given.pairs)  # what is built when first asked is built
    rounds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(given.repeat):
        for name, case in cases.items():
            rounds[name].append(case(given.pairs) / given.pairs * 1e6)
    cost = {name: statistics.median(times) for name, times in rounds.items()}
    for name, each in cost.items():
        print(f"{name:36} {each:8.2f} µs  {each / cost[floor]:6.1f} × semaphore")
    first, last = cost["core, 10 providers, 1 groups"], cost["core, 10000 providers, 1 groups"]
    print(f"goal: core ≤ {GOAL_FLOOR} × semaphore: {first / cost[floor]:.1f}")
    print(f"goal: 10 000 providers ≤ {GOAL_GROWTH} × 10: {last / first:.2f}")


if __name__ == "__main__":
    main()
