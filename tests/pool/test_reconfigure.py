"""A new configuration on a live pool: what it admits at once, what goes on, and what becomes of those who wait."""

from __future__ import annotations

import itertools

import pytest

from iop_pool import (
    ConnectionState,
    Health,
    HealthPolicy,
    LeaseState,
    Outcome,
    ProviderSpec,
    QueuePolicy,
    Reason,
    RefusalKind,
    RetiredStatus,
)
from support.core_driver import LONG, pool
from support.rules import rule


@rule("P9")
@pytest.mark.parametrize(
    ("before", "load", "after"), [(b, n, a) for b, a in itertools.permutations(range(1, 5), 2) for n in range(b + 1)]
)
def test_a_capacity_admits_what_is_free_under_it_and_no_more(before: int, load: int, after: int) -> None:
    """All cuts and raises from a capacity to another at each load, with more waiting than could ever be served."""
    driver = pool(ProviderSpec("a", capacity=before), ProviderSpec("b", capacity=1, node="n"))
    leases = driver.fill(load)
    blockers = driver.fill(before - load)
    for _ in range(6):
        driver.line_up()
    served = driver.change(driver.spec_of("a", capacity=after))
    assert len(served) == max(0, after - before)
    for lease in (*leases, *blockers):
        free_before = after - driver.of("a").in_flight
        assert free_before <= 0
        served = driver.end(lease)
        assert len(served) == (1 if driver.of("a").in_flight <= after and free_before == 0 else 0)
        assert driver.of("a").in_flight <= max(after, before)
    assert driver.of("a").in_flight == after


@rule("P9")
def test_a_raise_after_a_cut_below_the_load_wakes_only_as_many_as_fit() -> None:
    driver = pool(ProviderSpec("a", capacity=5))
    driver.fill(5)
    for _ in range(9):
        driver.line_up()
    assert driver.change(driver.spec_of("a", capacity=2)) == []
    assert driver.change(driver.spec_of("a", capacity=5)) == []
    assert len(driver.change(driver.spec_of("a", capacity=7))) == 2


@rule("P9")
@pytest.mark.parametrize(
    ("before", "after", "served"),
    [(1, 2, 1), (2, 1, 0), (0, 1, 1), (1, 0, 0), (None, 1, 0), (1, None, 3), (0, None, 3)],
)
def test_long_slots_change_while_runs_hold_them(before: int | None, after: int | None, served: int) -> None:
    driver = pool(ProviderSpec("a", capacity=4, long_context_capacity=before), ProviderSpec("b", queue=QueuePolicy(9)))
    holders = [driver.get("m", long=True) for _ in range((4 if before is None else before) + 1)]
    assert len([lease for lease in holders if lease.provider_id == "b"]) == 1
    line = [driver.line_up(long=True) for _ in range(3)]
    room = 4 - driver.of("a").in_flight
    assert len(driver.change(driver.spec_of("a", long_context_capacity=after))) == min(served, room)
    for lease in holders:
        driver.end(lease)
    while any(waiter.lease and waiter.lease.state is LeaseState.HELD for waiter in line):
        for waiter in line:
            if waiter.lease is not None:
                driver.end(waiter.lease)
    assert (driver.of("a").long_in_flight, driver.of_group().queue_length) == (0, 0)


@rule("P9")
def test_a_long_capacity_cut_below_the_long_runs_admits_no_long_run_until_they_fall_below() -> None:
    driver = pool(ProviderSpec("a", capacity=4, long_context_capacity=3))
    leases = driver.fill(3, long=True)
    driver.change(driver.spec_of("a", long_context_capacity=1))
    long, normal = driver.line_up(long=True), driver.get()
    assert [driver.end(lease) for lease in leases] == [[], [], [long]]
    assert normal.state is LeaseState.HELD


@rule("P9")
@pytest.mark.parametrize(
    "end_service",
    [
        lambda driver: driver.change(driver.spec_of("a", enabled=False)),
        lambda driver: driver.take(driver.core.set_connected("n", ConnectionState.DISCONNECTED, driver.now)),
        lambda driver: driver.take(driver.core.set_health("a", Health.EJECTED, driver.now)),
        lambda driver: driver.change(groups={"m": "b"}),
    ],
    ids=["disabled", "node lost", "ejected", "out of the group"],
)
def test_no_run_ends_because_its_provider_is_out_of_use(end_service) -> None:  # type: ignore[no-untyped-def]
    driver = pool(ProviderSpec("a", node="n"), ProviderSpec("b"))
    driver.take(driver.core.set_connected("n", ConnectionState.CONNECTED, driver.now))
    lease = driver.get()
    end_service(driver)
    assert (lease.provider_id, lease.state) == ("a", LeaseState.HELD)
    assert driver.of("a").in_flight == 1
    driver.end(lease)
    assert driver.of("a").in_flight == 0
    assert driver.get().provider_id == "b"


@rule("P9")
def test_the_runs_of_a_removed_provider_go_on_and_are_counted_until_they_end() -> None:
    driver = pool(ProviderSpec("a", capacity=2), ProviderSpec("b"))
    first, _, second = driver.fill(3)
    spec = driver.core.spec
    driver.take(
        driver.core.reconfigure(
            type(spec)(spec.providers[1:], [type(spec.groups[0])("m", ["b"])], long_context_threshold_tokens=LONG),
            driver.now,
        )
    )
    driver.core.begin_cancel(second, driver.now)
    assert driver.core.status(driver.now).retired == (RetiredStatus("a", in_flight=2, cancelling=1),)
    driver.end(first)
    driver.end(second)
    assert driver.core.status(driver.now).retired == ()
    assert driver.core.status(driver.now).leases == 1


@rule("P9")
def test_a_provider_that_comes_back_starts_with_the_runs_of_its_earlier_life() -> None:
    driver = pool(ProviderSpec("a", capacity=2), ProviderSpec("b"))
    back = driver.spec_of("a")
    spec = driver.core.spec
    leases = [driver.get(exclude={"b"}), driver.get(exclude={"b"})]
    without = type(spec)(spec.providers[1:], [type(spec.groups[0])("m", ["b"])])
    driver.take(driver.core.reconfigure(without, driver.now))
    driver.get()
    waiter = driver.line_up()
    assert driver.change(back, groups={"m": "a b"}) == []
    assert driver.of("a").in_flight == 2
    assert driver.end(leases[0]) == [waiter]
    assert driver.core.status(driver.now).retired == ()


@rule("P9")
def test_waiters_of_a_group_that_lost_every_provider_are_unavailable() -> None:
    driver = pool(ProviderSpec("a"), ProviderSpec("b"))
    driver.fill(2)
    line = [driver.line_up(), driver.line_up()]
    driver.change(driver.spec_of("a", enabled=False), driver.spec_of("b", enabled=False))
    assert [(one.kind, one.waiter) for one in driver.refused] == [(RefusalKind.UNAVAILABLE, w) for w in line]
    assert [entry.reason for entry in driver.refused[0].reasons] == [Reason.DISABLED] * 2


@rule("P9")
def test_waiters_of_a_model_that_was_removed_are_told_that_there_is_no_such_model() -> None:
    driver = pool(ProviderSpec("a"), groups={"m": "a", "w": "a"})
    driver.get()
    gone, stays = driver.line_up("w"), driver.line_up("m")
    driver.change(groups={"m": "a"})
    assert [(one.kind, one.waiter) for one in driver.refused] == [(RefusalKind.UNKNOWN_MODEL, gone)]
    assert stays.waiting
    assert driver.core.next_deadline() == stays.deadline


@rule("P9")
def test_a_lowered_queue_bound_evicts_nobody_but_lets_nobody_in() -> None:
    driver = pool(ProviderSpec("a", queue=QueuePolicy(3)))
    driver.get()
    line = [driver.line_up() for _ in range(3)]
    driver.change(driver.spec_of("a", queue=QueuePolicy(1)))
    assert driver.refused == []
    assert all(waiter.waiting for waiter in line)
    assert driver.no().kind is RefusalKind.QUEUE_FULL


@rule("P9")
def test_a_changed_threshold_classes_waiters_anew_in_both_directions() -> None:
    driver = pool(ProviderSpec("a", capacity=3, long_context_capacity=1))
    driver.get(long=True)
    waiter = driver.line_up(tokens=LONG)
    assert waiter.long
    assert driver.change(long_context_threshold_tokens=LONG + 1) == [waiter]
    assert waiter.lease is not None
    assert not waiter.lease.long
    driver.get()
    late = driver.line_up(tokens=10)
    driver.change(long_context_threshold_tokens=10)
    assert late.long
    assert driver.end(waiter.lease) == []  # a general slot is free, the long one is not


@rule("P9")
def test_a_changed_timeout_counts_from_when_the_wait_began() -> None:
    driver = pool(ProviderSpec("a", queue=QueuePolicy(9, 10_000)))
    driver.get()
    waiter = driver.line_up()
    driver.tick(3.0)
    driver.change(driver.spec_of("a", queue=QueuePolicy(9, 5000)))
    assert waiter.deadline == 5.0
    driver.change(driver.spec_of("a", queue=QueuePolicy(9, 0)))
    assert (waiter.deadline, driver.core.next_deadline()) == (None, None)
    driver.change(driver.spec_of("a", queue=QueuePolicy(9, 2000)))
    driver.tick(0.0)
    assert [one.kind for one in driver.refused] == [RefusalKind.QUEUE_TIMEOUT]


@rule("P9")
def test_a_shorter_timeout_does_not_extend_the_deadline_of_the_request_itself() -> None:
    driver = pool(ProviderSpec("a", queue=QueuePolicy(9, 1000)))
    driver.get()
    waiter = driver.line_up(deadline=4.0)
    driver.change(driver.spec_of("a", queue=QueuePolicy(9, 0)))
    assert waiter.deadline == 4.0


@rule("P9")
def test_waiters_keep_their_arrival_through_a_change() -> None:
    driver = pool(ProviderSpec("a", capacity=1), groups={"m": "a", "w": "a"})
    driver.get()
    line = [driver.line_up(group) for group in ("w", "m", "w", "m")]
    driver.change(driver.spec_of("a", priority=3), groups={"w": "a", "m": "a"})
    assert driver.change(driver.spec_of("a", capacity=4)) == line[:3]


@rule("P9")
def test_a_new_provider_and_a_provider_new_to_the_group_serve_those_who_wait() -> None:
    driver = pool(ProviderSpec("a"), ProviderSpec("b"), groups={"m": "a", "w": "b"})
    driver.get()
    line = [driver.line_up(), driver.line_up()]
    assert driver.change(groups={"m": "a b", "w": "b"}) == line[:1]
    assert driver.change(ProviderSpec("c"), groups={"m": "a b c", "w": "b"}) == line[1:]


@rule("P9")
def test_an_enabled_provider_serves_those_who_wait() -> None:
    driver = pool(ProviderSpec("a"), ProviderSpec("b", enabled=False))
    driver.get()
    waiter = driver.line_up()
    assert driver.change(driver.spec_of("b", enabled=True)) == [waiter]


@rule("P9")
def test_a_provider_moved_to_another_node_is_as_that_node_is() -> None:
    driver = pool(ProviderSpec("a", node="n"), ProviderSpec("b", node="o"), groups={"m": "a", "w": "b"})
    driver.take(driver.core.set_connected("o", ConnectionState.CONNECTED, driver.now))
    assert driver.no().kind is RefusalKind.UNAVAILABLE
    driver.change(driver.spec_of("a", node="o"))
    assert driver.get().provider_id == "a"


@rule("P9")
def test_a_node_that_connected_before_the_spec_named_it_is_remembered() -> None:
    driver = pool(ProviderSpec("a"))
    driver.take(driver.core.set_connected("new", ConnectionState.CONNECTED, driver.now))
    driver.change(ProviderSpec("b", node="new"), groups={"m": "b"})
    assert driver.get().provider_id == "b"


@rule("P9", "P2")
def test_the_rotation_goes_on_after_the_last_choice_through_a_change() -> None:
    driver = pool(*(ProviderSpec(name) for name in "abc"))
    driver.end(driver.get())
    driver.change(driver.spec_of("c", capacity=2))
    assert driver.explain().winner == "b"
    driver.change(groups={"m": "b c"})
    assert driver.explain().winner == "b"  # who was chosen last is no longer there: from the start


@rule("P9")
def test_health_and_totals_go_on_through_a_change() -> None:
    driver = pool(ProviderSpec("a", capacity=3))
    driver.end(driver.get(), Outcome.BROKEN)
    driver.end(driver.get(), Outcome.BROKEN)
    driver.change(driver.spec_of("a", capacity=4), health=HealthPolicy(eject_after=5))
    assert driver.of("a").consecutive_failures == 2
    assert (driver.of("a").totals.granted, driver.of("a").totals.broken) == (2, 2)
    assert driver.of_group().totals.granted == 2


@rule("P9")
def test_a_proof_that_is_no_longer_asked_for_is_no_longer_missing() -> None:
    driver = pool(ProviderSpec("a", probe_required=True))
    waiter = driver.line_up()
    assert driver.change(driver.spec_of("a", probe_required=False)) == [waiter]


@rule("P9")
def test_the_same_spec_again_changes_nothing() -> None:
    driver = pool(ProviderSpec("a"))
    driver.get()
    waiter = driver.line_up()
    before, lane = driver.core.status(driver.now), waiter._lane
    assert driver.change() == []
    assert driver.core.status(driver.now) == before
    assert waiter._lane is lane


@rule("P9")
def test_a_shutdown_refuses_all_and_ends_no_run() -> None:
    driver = pool(ProviderSpec("a"))
    lease = driver.get()
    waiter = driver.line_up()
    driver.take(driver.core.reconfigure(driver.core.spec.all_disabled(), driver.now))
    assert [one.waiter for one in driver.refused] == [waiter]
    assert driver.no().kind is RefusalKind.UNAVAILABLE
    assert lease.state is LeaseState.HELD


@rule("R14", "P9")
@pytest.mark.parametrize(("capacity", "limit", "admits"), [(4, 2, 2), (2, 4, 2), (3, None, 0), (3, 0, 0), (3, 3, 3)])
def test_until_its_node_acknowledged_the_smaller_capacity_counts(capacity: int, limit: int | None, admits: int) -> None:
    driver = pool(ProviderSpec("a", capacity=capacity))
    driver.take(driver.core.set_acknowledged("a", False, capacity_limit=limit, now=driver.now))
    driver.fill(admits)
    waiter = driver.line_up()
    seen = driver.of("a")
    assert (seen.admits, seen.capacity) == (admits, capacity)
    served = driver.take(driver.core.set_acknowledged("a", True, now=driver.now))
    assert served == ([waiter] if capacity > admits else [])


@rule("R14")
def test_a_limit_said_before_the_spec_holds_when_the_spec_comes() -> None:
    driver = pool(ProviderSpec("a", capacity=1))
    driver.get()
    line = [driver.line_up() for _ in range(3)]
    driver.take(driver.core.set_acknowledged("a", False, capacity_limit=1, now=driver.now))
    assert driver.change(driver.spec_of("a", capacity=3)) == []
    assert driver.take(driver.core.set_acknowledged("a", True, now=driver.now)) == line[:2]


@rule("R14")
def test_the_long_slots_have_a_limit_of_their_own_until_acknowledged() -> None:
    driver = pool(ProviderSpec("a", capacity=4))
    driver.take(driver.core.set_acknowledged("a", False, capacity_limit=4, long_limit=1, now=driver.now))
    driver.get(long=True)
    waiter = driver.line_up(long=True)
    assert driver.of("a").blocked_long is Reason.PENDING
    assert driver.get().provider_id == "a"
    assert driver.take(driver.core.set_acknowledged("a", True, now=driver.now)) == [waiter]
