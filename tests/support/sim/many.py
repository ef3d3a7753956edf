"""Many seeds of the simulation on all cores: every report, and every violation with its seed."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from support.sim.universe import Report, simulate
from support.sim.world import Violation

Outcome = tuple[int, Report | str]  # the seed, and its report or what it violated

_CHUNK = 25


def _play(seeds: Sequence[int]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for seed in seeds:
        try:
            outcomes.append((seed, simulate(seed)))
        except Violation as violation:
            outcomes.append((seed, str(violation)))
    return outcomes


def play(seeds: Sequence[int], workers: int | None = None) -> Iterator[Outcome]:
    """Play them all, in their order; in this process where there are few."""
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    if len(chunks) == 1:
        yield from _play(seeds)
        return
    # Spawned, not forked: the parent has threads and a gRPC that does not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=context) as pool:
        for outcomes in pool.map(_play, chunks):
            yield from outcomes
