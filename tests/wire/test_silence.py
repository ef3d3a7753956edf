"""How long a peer has been silent: its time, not ours (wire §1.3, G7)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_wire.silence import SilenceWatch
from support.rules import rule


@given(st.lists(st.tuples(st.floats(0.01, 1.9), st.booleans()), max_size=60))
def test_looks_that_come_in_time_count_every_second(steps: list[tuple[float, bool]]) -> None:
    watch, now, heard = SilenceWatch(0.0), 0.0, 0.0
    for passed, frame in steps:
        now += passed
        if frame:
            watch.heard(now)
            heard = now
        assert watch.look(now) == pytest.approx(now - heard)


@rule("N4")
@given(st.floats(2.5, 86_400))
def test_a_stall_of_this_process_is_not_held_against_the_peer(stall: float) -> None:
    watch = SilenceWatch(0.0)
    assert watch.look(5.0 - 4.0) == pytest.approx(1.0)
    # The next look should have come a moment later: at most two seconds of that gap count.
    assert watch.look(1.0 + stall) == pytest.approx(3.0)
    assert watch.look(1.0 + stall + 0.25) == pytest.approx(3.25)


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.booleans()), max_size=40))
def test_silence_is_never_negative_nor_longer_than_it_was(steps: list[tuple[float, bool]]) -> None:
    watch, now, heard = SilenceWatch(0.0), 0.0, 0.0
    for passed, frame in steps:
        now += passed
        if frame:
            watch.heard(now)
            heard = now
        assert 0.0 <= watch.look(now) <= now - heard + 1e-9


def test_a_peer_that_stays_silent_is_dead_after_stalls_too() -> None:
    watch, now = SilenceWatch(0.0), 0.0
    for _ in range(10):
        now += 30.0
        silent = watch.look(now)
    assert silent == pytest.approx(20.0)
