"""One owned slot per run: held, cancelling, free; returned once, never by time, and counted where it is lost."""

from __future__ import annotations

import pytest

from iop_pool import CoreLease, LeaseState, Outcome, ProviderSpec, RetiredStatus
from support.core_driver import pool
from support.rules import rule


@rule("P8")
def test_a_slot_is_held_then_cancelling_then_free() -> None:
    driver = pool(ProviderSpec("a"))
    lease = driver.get()
    states = [lease.state]
    driver.core.begin_cancel(lease, driver.now)
    states.append(lease.state)
    driver.end(lease, Outcome.CANCELLED)
    states.append(lease.state)
    assert states == [LeaseState.HELD, LeaseState.CANCELLING, LeaseState.FREE]


@rule("P8")
def test_while_cancelling_the_slot_still_counts() -> None:
    driver = pool(ProviderSpec("a"))
    lease = driver.get()
    waiter = driver.line_up()
    driver.core.begin_cancel(lease, driver.now)
    driver.tick(20.0)
    assert (driver.of("a").in_flight, driver.of("a").cancelling, waiter.waiting) == (1, 1, True)
    assert driver.end(lease, Outcome.CANCELLED) == [waiter]
    assert (driver.of("a").in_flight, driver.of("a").cancelling) == (1, 0)


@rule("P8")
def test_a_slot_is_never_freed_by_time() -> None:
    driver = pool(ProviderSpec("a"))
    held, cancelling = driver.get(), driver.core.occupy("a", False, driver.now)
    driver.core.begin_cancel(held, driver.now)
    driver.tick(1e12)
    assert driver.of("a").in_flight == 2
    assert {held.state, cancelling.state} == {LeaseState.CANCELLING}


@rule("P8")
def test_a_second_release_counts_nothing_and_serves_nobody() -> None:
    driver = pool(ProviderSpec("a"))
    lease = driver.get()
    driver.line_up()
    left = driver.line_up()
    driver.end(lease)
    before = driver.core.status(driver.now)
    assert driver.end(lease, Outcome.BROKEN) == []
    assert driver.core.status(driver.now) == before
    assert left.waiting


@rule("P8")
def test_to_begin_cancelling_a_slot_that_is_free_does_not_bring_it_back() -> None:
    driver = pool(ProviderSpec("a"))
    lease = driver.get()
    driver.end(lease)
    driver.core.begin_cancel(lease, driver.now)
    assert lease.state is LeaseState.FREE


@rule("P8")
def test_a_cancel_between_grant_and_pick_up_hands_the_slot_on() -> None:
    driver = pool(ProviderSpec("a"))
    lease = driver.get()
    first, second = driver.line_up(), driver.line_up()
    driver.end(lease)
    assert first.lease is not None
    assert driver.take(driver.core.cancel(first, driver.now)) == [second]
    assert driver.take(driver.core.cancel(first, driver.now)) == []
    assert driver.of("a").in_flight == 1
    assert driver.of("a").totals.cancelled == 1


@rule("P8")
def test_cancelling_a_waiter_twice_or_after_its_refusal_is_harmless() -> None:
    driver = pool(ProviderSpec("a"))
    driver.get()
    cancelled, timed_out = driver.line_up(), driver.line_up(deadline=1.0)
    driver.core.cancel(cancelled, driver.now)
    driver.tick(1.0)
    for waiter in (cancelled, timed_out):
        assert driver.take(driver.core.cancel(waiter, driver.now)) == []
    assert driver.of_group().totals.cancelled == 1
    assert driver.of_group().queue_length == 0


@rule("P8")
def test_the_run_of_an_earlier_session_occupies_its_slot_even_beyond_the_capacity() -> None:
    driver = pool(ProviderSpec("a", capacity=2, long_context_capacity=1))
    lease, occupied = driver.get(long=True), driver.core.occupy("a", True, driver.now)
    extra = driver.core.occupy("a", False, driver.now)
    assert occupied.state is LeaseState.CANCELLING
    assert (driver.of("a").in_flight, driver.of("a").long_in_flight, driver.of("a").cancelling) == (3, 2, 2)
    waiter = driver.line_up()
    assert driver.end(extra) == []
    assert driver.end(occupied) == [waiter]
    assert driver.end(lease) == []


@rule("P8")
def test_a_slot_of_a_provider_that_is_not_configured_is_counted_until_it_ends() -> None:
    driver = pool(ProviderSpec("a"))
    lease = driver.core.occupy("gone", False, driver.now)
    again = driver.core.occupy("gone", False, driver.now)
    assert driver.core.status(driver.now).retired == (RetiredStatus("gone", in_flight=2, cancelling=2),)
    driver.end(lease)
    driver.end(again)
    assert driver.core.status(driver.now).retired == ()


@rule("P8")
def test_load_is_the_number_of_live_leases_and_nothing_else() -> None:
    driver = pool(ProviderSpec("a", capacity=5))
    live: set[CoreLease] = set(driver.fill(5))
    for lease in list(live)[:3]:
        driver.end(lease)
        live.remove(lease)
        assert driver.of("a").in_flight == len(live) == driver.core.status(driver.now).leases


@rule("P8")
def test_a_lease_without_a_live_run_is_counted_as_leaked_until_it_comes_back() -> None:
    driver = pool(ProviderSpec("a", capacity=3))
    kept, lost, _ = driver.fill(3)
    assert [*driver.core.audit({kept, _})] == [lost]
    assert driver.core.status(driver.now).leaked_slots == 1
    assert driver.of("a").in_flight == 3  # counted, not repaired
    driver.end(lost)
    assert driver.core.status(driver.now).leaked_slots == 0


@rule("P8")
def test_a_lease_that_its_owner_lost_is_leaked_and_a_released_one_cannot_be() -> None:
    driver = pool(ProviderSpec("a", capacity=2))
    lost, released = driver.fill(2)
    driver.end(released)
    driver.core.mark_leaked(lost)
    driver.core.mark_leaked(released)
    assert driver.core.status(driver.now).leaked_slots == 1
    driver.end(lost)
    assert driver.core.status(driver.now).leaked_slots == 0


@rule("P8")
def test_the_pool_finds_its_own_contradictions() -> None:
    driver = pool(ProviderSpec("a", capacity=2, long_context_capacity=1))
    lease = driver.get(long=True)
    driver.core.check_invariants()
    lease._provider.long_leases.clear()
    with pytest.raises(AssertionError, match="long slots"):
        driver.core.check_invariants()
