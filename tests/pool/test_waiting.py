"""Who waits, who is next, and who is told at once that waiting is of no use."""

from __future__ import annotations

import pytest

from iop_pool import (
    ConnectionState,
    Granted,
    Health,
    Outcome,
    ProviderReason,
    ProviderSpec,
    Queued,
    Reason,
    RefusalKind,
)
from support.core_driver import pool
from support.rules import rule

CONNECTED, DISCONNECTED = ConnectionState.CONNECTED, ConnectionState.DISCONNECTED


@rule("P4")
def test_the_first_to_arrive_is_the_first_to_be_served() -> None:
    driver = pool(ProviderSpec("a"))
    lease = driver.get()
    line = [driver.line_up() for _ in range(4)]
    for _ in line:
        driver.end(lease)
        granted = driver.served[-1].lease
        assert granted is not None
        lease = granted
    assert driver.served == line


@rule("P4")
def test_the_slot_is_handed_over_before_the_waiter_wakes_so_a_newcomer_finds_none() -> None:
    driver = pool(ProviderSpec("a"))
    lease = driver.get()
    waiter = driver.line_up()
    assert driver.end(lease) == [waiter]
    assert driver.of("a").in_flight == 1
    assert isinstance(driver.ask(), Queued)


@rule("P4")
def test_arrival_counts_across_groups_that_share_a_provider() -> None:
    driver = pool(ProviderSpec("a"), groups={"m": "a", "w": "a", "x": "a"})
    lease = driver.get()
    line = [driver.line_up(group) for group in ("w", "m", "x", "m", "w")]
    while driver.end(lease):
        granted = driver.served[-1].lease
        assert granted is not None
        lease = granted
    assert driver.served == line


@rule("P4")
def test_groups_with_different_line_ups_share_one_line_at_the_provider_that_they_share() -> None:
    driver = pool(*(ProviderSpec(name) for name in "abc"), groups={"m": "a b", "w": "b c", "x": "c"})
    a, b, c = driver.get("m"), driver.get("m"), driver.get("x")
    first, second, third = driver.line_up("w"), driver.line_up("m"), driver.line_up("x")
    assert driver.end(b) == [first]
    assert driver.end(c) == [third]
    assert driver.end(a) == [second]


@rule("P4")
def test_a_long_waiter_is_passed_over_but_served_first_when_its_slot_frees() -> None:
    driver = pool(ProviderSpec("a", capacity=2, long_context_capacity=1))
    long, normal = driver.get(long=True), driver.get()
    first, second, third = driver.line_up(long=True), driver.line_up(), driver.line_up()
    assert driver.end(normal) == [second]
    assert driver.end(long) == [first]
    assert third.waiting


@rule("P4")
def test_a_long_waiter_that_was_passed_over_often_is_still_the_first_once_it_can_be_served() -> None:
    driver = pool(ProviderSpec("a", capacity=2, long_context_capacity=1))
    long, normal = driver.get(long=True), driver.get()
    waiting_long = driver.line_up(long=True)
    for _ in range(20):
        waiter = driver.line_up()
        assert driver.end(normal) == [waiter]
        assert waiter.lease is not None
        normal = waiter.lease
    driver.line_up()
    assert driver.end(long) == [waiting_long]


@rule("P4")
def test_a_long_waiter_takes_its_turn_where_a_newer_normal_one_waits_for_the_same_slot() -> None:
    driver = pool(ProviderSpec("a", capacity=1, long_context_capacity=1))
    lease = driver.get()
    long, normal = driver.line_up(long=True), driver.line_up()
    assert driver.end(lease) == [long]
    assert normal.waiting


@rule("P4")
def test_a_newcomer_passes_one_that_its_slot_cannot_serve() -> None:
    driver = pool(ProviderSpec("a", capacity=2, long_context_capacity=1))
    driver.get(long=True)
    waiter = driver.line_up(long=True)
    assert isinstance(driver.ask(), Granted)
    assert waiter.waiting


@rule("P4", "E7")
def test_a_retry_waits_at_its_old_place() -> None:
    driver = pool(ProviderSpec("a"), ProviderSpec("b"))
    first, other = driver.get(), driver.get()
    newer = driver.line_up()
    driver.end(first, Outcome.BROKEN)
    assert driver.served == [newer]
    newest = driver.line_up()
    retry = driver.line_up(exclude={first.provider_id}, arrival=first.arrival)
    assert driver.end(other) == [retry]
    assert newest.waiting


@rule("P4")
def test_a_waiter_is_passed_over_by_a_slot_of_a_provider_that_it_excludes() -> None:
    driver = pool(ProviderSpec("a"), ProviderSpec("b"))
    a, b = driver.fill(2)
    picky, other = driver.line_up(exclude={"a"}), driver.line_up()
    assert driver.end(a) == [other]
    assert driver.end(b) == [picky]


@rule("P4")
def test_several_freed_slots_go_to_the_oldest_each_by_the_order_of_selection() -> None:
    driver = pool(*(ProviderSpec(name, node="n", capacity=2) for name in "ab"))
    driver.take(driver.core.set_connected("n", CONNECTED, 0.0))
    driver.take(driver.core.set_connected("n", ConnectionState.SUSPECT, 0.0))
    line = [driver.line_up() for _ in range(6)]
    assert driver.take(driver.core.set_connected("n", CONNECTED, 1.0)) == line[:4]
    assert [waiter.lease.provider_id for waiter in line[:4] if waiter.lease] == ["a", "b", "a", "b"]


@rule("P4", "P8")
def test_who_leaves_is_not_served_and_holds_nobody_up() -> None:
    driver = pool(ProviderSpec("a"))
    lease = driver.get()
    first, second, third = (driver.line_up() for _ in range(3))
    for waiter in (first, second):
        assert driver.take(driver.core.cancel(waiter, driver.now)) == []
    assert driver.end(lease) == [third]
    assert (first.waiting, first.lease) == (False, None)


@rule("P4")
def test_many_who_left_leave_nothing_behind() -> None:
    driver = pool(ProviderSpec("a"), default_max_queue=10_000)
    driver.get()
    keep = driver.line_up()
    for _ in range(1000):
        driver.core.cancel(driver.line_up(), driver.now)
    lane = keep._lane
    assert lane is not None
    assert len(lane._heap) < 100
    assert len(driver.core._timers._heap) < 100


@rule("P5")
def test_a_model_that_is_not_there_is_refused_at_once() -> None:
    refused = pool(ProviderSpec("a")).no("other")
    assert (refused.kind, refused.group, refused.reasons) == (RefusalKind.UNKNOWN_MODEL, "other", ())


@rule("P5")
def test_a_request_that_nobody_could_ever_serve_is_refused_with_the_reason_per_provider() -> None:
    driver = pool(
        ProviderSpec("off", enabled=False),
        ProviderSpec("far", node="n"),
        ProviderSpec("short", long_context_capacity=0),
        ProviderSpec("tried"),
    )
    refused = driver.no(long=True, exclude={"tried"})
    assert refused.kind is RefusalKind.UNAVAILABLE
    assert refused.reasons == (
        ProviderReason("off", Reason.DISABLED),
        ProviderReason("far", Reason.DISCONNECTED),
        ProviderReason("short", Reason.NO_LONG_RUNS),
        ProviderReason("tried", Reason.EXCLUDED),
    )
    assert driver.of_group().totals.unavailable == 1


@rule("P5")
def test_a_group_without_providers_is_unavailable() -> None:
    assert pool(ProviderSpec("a"), groups={"m": ""}).no().kind is RefusalKind.UNAVAILABLE


@rule("P5")
@pytest.mark.parametrize("health", [Health.EJECTED, Health.UNKNOWN])
def test_a_provider_that_may_become_well_is_waited_for(health: Health) -> None:
    driver = pool(ProviderSpec("a", probe_required=True))
    driver.take(driver.core.set_health("a", health, driver.now))
    waiter = driver.line_up()
    assert driver.take(driver.core.set_health("a", Health.HEALTHY, driver.now)) == [waiter]


@rule("P5")
def test_a_lost_node_is_waited_for_during_the_grace_and_not_longer() -> None:
    driver = pool(ProviderSpec("a", node="n"), reconnect_grace_ms=2000)
    driver.take(driver.core.set_connected("n", CONNECTED, driver.now))
    driver.take(driver.core.set_connected("n", DISCONNECTED, driver.now))
    assert driver.core.next_deadline() == 2.0
    waiter = driver.line_up()
    driver.tick(1.9)
    assert waiter.waiting
    driver.tick(0.1)
    (refused,) = driver.refused
    assert (refused.waiter, refused.kind) == (waiter, RefusalKind.UNAVAILABLE)
    assert refused.reasons == (ProviderReason("a", Reason.DISCONNECTED),)
    assert driver.no().kind is RefusalKind.UNAVAILABLE


@rule("P5")
def test_a_node_that_comes_back_within_the_grace_serves_those_who_waited() -> None:
    driver = pool(ProviderSpec("a", node="n"), reconnect_grace_ms=2000)
    driver.take(driver.core.set_connected("n", CONNECTED, driver.now))
    driver.take(driver.core.set_connected("n", DISCONNECTED, driver.now))
    waiter = driver.line_up()
    driver.tick(1.0)
    assert driver.take(driver.core.set_connected("n", CONNECTED, driver.now)) == [waiter]
    driver.tick(5.0)
    assert driver.refused == []


@rule("P5")
def test_without_a_grace_a_lost_node_is_not_waited_for() -> None:
    driver = pool(ProviderSpec("a", node="n"), reconnect_grace_ms=0)
    driver.take(driver.core.set_connected("n", CONNECTED, driver.now))
    driver.get()
    waiter = driver.line_up()
    driver.take(driver.core.set_connected("n", DISCONNECTED, driver.now))
    assert [refused.waiter for refused in driver.refused] == [waiter]


@rule("P5")
def test_the_waiters_of_a_group_that_has_another_provider_stay_when_a_node_is_given_up() -> None:
    driver = pool(ProviderSpec("a", node="n"), ProviderSpec("b"), reconnect_grace_ms=1000)
    driver.take(driver.core.set_connected("n", CONNECTED, driver.now))
    driver.fill(2)
    both, only_a = driver.line_up(), driver.line_up(exclude={"b"})
    driver.take(driver.core.set_connected("n", DISCONNECTED, driver.now))
    driver.tick(1.0)
    assert [refused.waiter for refused in driver.refused] == [only_a]
    assert both.waiting


@rule("P5")
def test_a_full_provider_that_takes_long_runs_is_waited_for_and_one_that_takes_none_is_not() -> None:
    driver = pool(ProviderSpec("a", capacity=2, long_context_capacity=1), ProviderSpec("b", long_context_capacity=0))
    driver.get(long=True)
    assert isinstance(driver.ask(long=True), Queued)
    driver.change(driver.spec_of("a", long_context_capacity=0))
    assert [refused.kind for refused in driver.refused] == [RefusalKind.UNAVAILABLE]
