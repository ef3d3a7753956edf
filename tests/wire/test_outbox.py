"""What waits to be sent: by priority, in order within one, in turns between runs (wire §1.2.3)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iop_wire.outbox import Lane, Lanes, Turns

LANES = st.sampled_from([Lane.CONTROL, Lane.CREDIT, Lane.LAST])


def _drain(lanes: Lanes[str]) -> list[str]:
    out: list[str] = []
    while (frame := lanes.pop_urgent() or lanes.pop_credit() or lanes.pop_last()) is not None:
        out.append(frame)
    return out


@given(st.lists(LANES))
def test_frames_leave_by_priority_and_in_order_within_one(given_lanes: list[Lane]) -> None:
    lanes: Lanes[str] = Lanes()
    frames = [(lane, f"{lane}-{number}") for number, lane in enumerate(given_lanes)]
    for lane, frame in frames:
        lanes.put(lane, frame)
    assert _drain(lanes) == [frame for _, frame in sorted(frames, key=lambda item: item[0])]


def test_a_heartbeat_goes_first_and_only_the_newest_is_kept() -> None:
    lanes: Lanes[str] = Lanes()
    for lane, frame in ((Lane.CONTROL, "push"), (Lane.HEARTBEAT, "old"), (Lane.CREDIT, "c"), (Lane.HEARTBEAT, "new")):
        lanes.put(lane, frame)
    assert _drain(lanes) == ["new", "push", "c"]


def test_nothing_is_left_after_clear() -> None:
    lanes: Lanes[str] = Lanes()
    for lane in Lane:
        lanes.put(lane, "frame")
    lanes.clear()
    assert _drain(lanes) == []


@given(st.dictionaries(st.integers(0, 9), st.integers(1, 6), min_size=1))
def test_between_two_turns_of_one_run_every_other_run_has_one(work: dict[int, int]) -> None:
    turns: Turns[int, list[int]] = Turns()
    for key, amount in work.items():
        turns.add(key, [key] * amount)
    served: list[int] = []
    while (turn := turns.first()) is not None:
        key, left = turn
        served.append(left.pop())
        if left:
            turns.rotate(key)
        else:
            turns.remove(key)
    rounds = [[key for key, amount in work.items() if amount > number] for number in range(max(work.values()))]
    assert served == [key for one in rounds for key in one]


def test_a_run_that_already_waits_keeps_its_place_and_its_queue() -> None:
    turns: Turns[str, str] = Turns()
    turns.add("a", "first")
    turns.add("b", "other")
    turns.add("a", "second")
    assert turns.first() == ("a", "first")
    assert len(turns) == 2
    assert turns.remove("a") == "first"
    assert "a" not in turns
    assert turns.remove("a") is None
    turns.clear()
    assert turns.first() is None
