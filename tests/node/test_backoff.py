"""How long a Node waits before it dials again, from why it must (N4, wire §1.4)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_node.backoff import Backoff, Cause
from support.rules import rule


class Highest:
    """Always the upper bound; remembers both."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        self.asked.append((a, b))
        return b


@rule("N4")
def test_the_cap_doubles_up_to_half_a_minute_with_full_jitter() -> None:
    rng = Highest()
    backoff = Backoff(rng)
    for _ in range(9):
        backoff.delay(Cause.UNREACHABLE)
    assert rng.asked == [(0.0, cap) for cap in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0)]


@rule("N4")
@pytest.mark.parametrize("cause", [Cause.REFUSED, Cause.VERSION, Cause.DUPLICATE])
def test_what_only_a_person_can_change_is_asked_slowly(cause: Cause) -> None:
    rng = Highest()
    backoff = Backoff(rng)
    for _ in range(5):
        backoff.delay(cause)
    assert rng.asked == [(30.0, 60.0), (60.0, 120.0), (120.0, 240.0), (150.0, 300.0), (150.0, 300.0)]


@rule("N4")
def test_only_a_minute_of_ready_starts_the_count_anew() -> None:
    rng = Highest()
    backoff = Backoff(rng)
    for _ in range(4):
        backoff.delay(Cause.LOST)
    backoff.ready_for(59.9)
    assert backoff.delay(Cause.LOST) == 8.0
    backoff.ready_for(60.0)
    assert backoff.delay(Cause.LOST) == 0.5


@rule("N4")
def test_a_fenced_node_waits_and_a_closing_edge_says_how_long() -> None:
    rng = Highest()
    backoff = Backoff(rng)
    backoff.delay(Cause.FENCED)
    backoff.delay(Cause.EDGE_SHUTDOWN, 3.5)
    assert rng.asked == [(5.0, 10.0), (0.0, 3.5)]


def test_an_edge_that_closes_again_and_again_is_not_dialled_in_a_tight_loop() -> None:
    backoff = Backoff(Highest())
    delays = [backoff.delay(Cause.EDGE_SHUTDOWN, 0.0) for _ in range(8)]
    assert delays[:3] == [0.0, 0.0, 0.0]
    assert delays[-1] == 30.0


@rule("N4")
@given(st.lists(st.sampled_from(list(Cause)), max_size=60), st.integers())
def test_whatever_happens_the_next_dial_comes(causes: list[Cause], seed: int) -> None:
    backoff = Backoff(Random(seed))
    for cause in causes:
        assert 0.0 <= backoff.delay(cause, 5.0) <= 300.0
