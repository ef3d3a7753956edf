"""What a run costs the pool, counted in lines of Python that are executed: no clock, so no noise (P13)."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from iop_pool import Granted, GroupSpec, Outcome, PoolCore, PoolSpec, ProviderSpec, Queued, QueuePolicy, Request
from support.rules import rule

PAIRS = 64


class Lines:
    """Counts the lines of Python that run inside the block, generators and callees included."""

    def __init__(self) -> None:
        self.count = 0

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.count += 1
        return self._trace

    def __enter__(self) -> Lines:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)


def pool(providers: int, groups: int = 1, *, capacity: int = 4, waiting: int = 0) -> PoolCore:
    ids = [f"p{number}" for number in range(providers)]
    return PoolCore(
        PoolSpec(
            [ProviderSpec(each, capacity=capacity, queue=QueuePolicy(max_queue=waiting)) for each in ids],
            [GroupSpec(f"g{number}", ids) for number in range(groups)],
        )
    )


def lines_per_pair(core: PoolCore) -> float:
    """A mixed load: every other lease is held on, so that the loads differ and the order has to be kept."""
    core.submit(Request("g0"), 0.0)  # the index of a group is built when it is first asked
    with Lines() as lines:
        for number in range(PAIRS):
            answer = core.submit(Request("g0"), float(number))
            assert isinstance(answer, Granted)
            if number % 2:
                core.release(answer.lease, Outcome.OK, float(number))
    return lines.count / PAIRS


@rule("P13")
def test_a_run_costs_the_same_among_ten_providers_and_among_ten_thousand() -> None:
    few, many = lines_per_pair(pool(32)), lines_per_pair(pool(8192))
    assert many <= 2 * few, (few, many)  # 256 times as many providers


@rule("P13")
def test_a_run_costs_the_same_whether_its_providers_serve_one_group_or_fifty() -> None:
    one, fifty = lines_per_pair(pool(64, 1)), lines_per_pair(pool(64, 50))
    assert fifty <= 2 * one, (one, fifty)


@rule("P13")
@pytest.mark.parametrize("waiting", [100, 10_000])
def test_the_length_of_the_line_costs_nothing(waiting: int) -> None:
    def cost(length: int) -> int:
        core = pool(1, capacity=1, waiting=length + 1)
        holder = core.submit(Request("g0"), 0.0)
        assert isinstance(holder, Granted)
        for _ in range(length):
            assert isinstance(core.submit(Request("g0"), 0.0), Queued)
        with Lines() as lines:
            assert isinstance(core.submit(Request("g0"), 1.0), Queued)
            (granted,) = core.release(holder.lease, Outcome.OK, 1.0)
        assert isinstance(granted, Granted)
        return lines.count

    assert cost(waiting) <= 2 * cost(5)
