"""Healthy, degraded, ejected, half-open: what outcomes and probes make of a provider."""

from __future__ import annotations

import pytest

from iop_pool import Health, HealthPolicy, Outcome, ProviderSpec, Queued, Reason
from support.core_driver import CoreDriver, pool
from support.rules import rule

QUICK = HealthPolicy(eject_after=3, backoff_ms=500, backoff_max_ms=4000)


def fail(driver: CoreDriver, times: int, name: str = "a") -> None:
    for _ in range(times):
        driver.take(driver.core.report_outcome(name, Outcome.BROKEN, driver.now))


def ejected(**more: object) -> CoreDriver:
    """A pool whose only provider has just been ejected."""
    driver = pool(ProviderSpec("a", capacity=3), health=QUICK, **more)
    fail(driver, 3)
    assert driver.of("a").health == "ejected"
    return driver


@rule("P10")
def test_a_degraded_provider_is_used_only_when_no_healthy_candidate_is_free() -> None:
    driver = pool(ProviderSpec("a", capacity=9, priority=0), ProviderSpec("b", capacity=2, priority=7))
    driver.take(driver.core.set_health("a", Health.DEGRADED, driver.now))
    assert [lease.provider_id for lease in driver.fill(4)] == ["b", "b", "a", "a"]


@rule("P10")
def test_among_degraded_ones_the_order_is_the_usual_one() -> None:
    driver = pool(*(ProviderSpec(name, capacity=2) for name in "abc"))
    for name in "abc":
        driver.take(driver.core.set_health(name, Health.DEGRADED, driver.now))
    assert [lease.provider_id for lease in driver.fill(4)] == ["a", "b", "c", "a"]


@rule("P10", "P14")
def test_consecutive_failures_eject_and_not_one_sooner() -> None:
    driver = pool(ProviderSpec("a"), health=QUICK)
    fail(driver, 2)
    assert driver.get().provider_id == "a"
    fail(driver, 1)
    assert isinstance(driver.ask(), Queued)
    assert driver.of("a").totals.ejections == 1


@rule("P14")
@pytest.mark.parametrize("between", [Outcome.OK, Outcome.CLIENT_ERROR])
def test_an_answer_in_between_ends_the_series(between: Outcome) -> None:
    driver = pool(ProviderSpec("a"), health=QUICK)
    fail(driver, 2)
    driver.end(driver.get(), between)
    fail(driver, 2)
    assert driver.of("a").health == "healthy"


@rule("P14")
@pytest.mark.parametrize("between", [Outcome.BUSY, Outcome.CANCELLED])
def test_what_says_nothing_of_its_health_neither_ends_the_series_nor_adds_to_it(between: Outcome) -> None:
    driver = pool(ProviderSpec("a"), health=QUICK)
    fail(driver, 2)
    for _ in range(5):
        driver.end(driver.get(), between)
    assert driver.of("a").consecutive_failures == 2
    fail(driver, 1)
    assert driver.of("a").health == "ejected"


@rule("P14")
@pytest.mark.parametrize("outcome", [one for one in Outcome if one is not Outcome.BROKEN])
def test_only_broken_counts_against_a_provider(outcome: Outcome) -> None:
    driver = pool(ProviderSpec("a"), health=HealthPolicy(eject_after=1))
    for _ in range(20):
        driver.end(driver.get(), outcome)
    assert driver.of("a").health == "healthy"
    assert getattr(driver.of("a").totals, outcome.value) == 20


@rule("P10")
def test_an_ejected_provider_is_half_open_after_the_backoff_and_takes_one_trial_run() -> None:
    driver = ejected()
    line = [driver.line_up() for _ in range(2)]
    driver.tick(0.499)
    assert driver.served == []
    assert driver.tick(0.001) == line[:1]
    assert driver.of("a").half_open
    assert driver.reasons() == {"a": Reason.TRIAL_UNDER_WAY}
    trial = line[0].lease
    assert trial is not None
    assert driver.end(trial) == line[1:]
    assert (driver.of("a").health, driver.of("a").half_open) == ("healthy", False)


@rule("P10")
def test_each_failed_trial_doubles_the_backoff_up_to_its_cap() -> None:
    driver = ejected()
    delays = []
    for _ in range(5):
        due = driver.core.next_deadline()
        assert due is not None
        delays.append(due - driver.now)
        driver.tick(due - driver.now)
        driver.end(driver.get(), Outcome.BROKEN)
    assert delays == [0.5, 1.0, 2.0, 4.0, 4.0]


@rule("P10")
def test_the_backoff_starts_small_again_once_it_was_well_for_long() -> None:
    driver = ejected()
    driver.tick(0.5)
    driver.end(driver.get(), Outcome.BROKEN)
    driver.tick(1.0)
    driver.end(driver.get(), Outcome.OK)
    driver.tick(3.9)
    fail(driver, 3)
    due = driver.core.next_deadline()
    assert due == driver.now + 2.0  # well for less than the longest backoff: its past still counts
    driver.tick(2.0)
    driver.end(driver.get(), Outcome.OK)
    driver.tick(4.0)
    fail(driver, 3)
    assert driver.core.next_deadline() == driver.now + 0.5


@rule("P10", "P14")
@pytest.mark.parametrize(
    ("outcome", "health"),
    [
        (Outcome.OK, "healthy"),
        (Outcome.CLIENT_ERROR, "healthy"),
        (Outcome.BUSY, "healthy"),
        (Outcome.BROKEN, "ejected"),
        (Outcome.CANCELLED, "ejected"),
    ],
)
def test_how_a_trial_run_ends_decides(outcome: Outcome, health: str) -> None:
    driver = ejected()
    driver.tick(0.5)
    driver.end(driver.get(), outcome)
    assert driver.of("a").health == health
    # A caller that left proved nothing: the next run may try at once.
    assert driver.of("a").half_open is (outcome is Outcome.CANCELLED)


@rule("P10")
def test_runs_that_began_before_the_ejection_do_not_make_the_backoff_longer() -> None:
    driver = pool(ProviderSpec("a", capacity=9), health=QUICK)
    leases = driver.fill(9)
    for lease in leases:
        driver.end(lease, Outcome.BROKEN)
    assert driver.core.next_deadline() == 0.5
    assert driver.of("a").totals.ejections == 1


@rule("P14")
def test_a_run_that_is_producing_tokens_is_proof_of_life() -> None:
    driver = ejected()
    driver.tick(0.5)
    trial = driver.get()
    waiter = driver.line_up()
    assert driver.take(driver.core.report_outcome("a", Outcome.OK, driver.now)) == [waiter]
    assert driver.of("a").health == "healthy"
    driver.end(trial, Outcome.BROKEN)
    assert (driver.of("a").health, driver.of("a").consecutive_failures) == ("healthy", 1)


@rule("P10")
def test_a_trial_that_was_decided_by_its_first_token_is_no_trial_of_a_later_ejection() -> None:
    driver = ejected()
    driver.tick(0.5)
    driver.get()
    driver.take(driver.core.report_outcome("a", Outcome.OK, driver.now))
    driver.take(driver.core.set_health("a", Health.EJECTED, driver.now))
    driver.tick(10.0)
    assert driver.get().provider_id == "a"


@rule("P10")
@pytest.mark.parametrize("outcome", [Outcome.BROKEN, Outcome.BUSY])
def test_a_trial_that_a_probe_overtook_decides_nothing(outcome: Outcome) -> None:
    driver = ejected()
    driver.tick(0.5)
    trial = driver.get()
    driver.take(driver.core.set_health("a", Health.EJECTED, driver.now))
    due = driver.core.next_deadline()
    driver.end(trial, outcome)
    assert (driver.of("a").health, driver.core.next_deadline()) == ("ejected", due)


@rule("P10")
@pytest.mark.parametrize("found", [Health.HEALTHY, Health.DEGRADED])
def test_a_probe_brings_an_ejected_provider_back_before_its_backoff_is_over(found: Health) -> None:
    driver = ejected()
    waiter = driver.line_up()
    assert driver.take(driver.core.set_health("a", found, driver.now)) == [waiter]
    assert driver.of("a").health == found
    assert driver.core.next_deadline() is None


@rule("P10")
def test_a_probe_that_fails_again_does_not_restart_the_backoff() -> None:
    driver = ejected()
    due = driver.core.next_deadline()
    driver.tick(0.3)
    driver.take(driver.core.set_health("a", Health.EJECTED, driver.now))
    assert driver.core.next_deadline() == due
    driver.tick(0.2)
    driver.take(driver.core.set_health("a", Health.EJECTED, driver.now))  # half-open now: a trial that failed
    assert driver.core.next_deadline() == driver.now + 1.0


@rule("P10")
def test_a_provider_that_must_be_proven_takes_no_run_before() -> None:
    driver = pool(ProviderSpec("a", probe_required=True))
    waiter = driver.line_up()
    assert driver.reasons() == {"a": Reason.UNPROVEN}
    assert driver.take(driver.core.set_health("a", Health.HEALTHY, driver.now)) == [waiter]


@rule("P10", "P14")
def test_an_outcome_proves_it_as_well() -> None:
    driver = pool(ProviderSpec("a", probe_required=True))
    waiter = driver.line_up()
    assert driver.take(driver.core.report_outcome("a", Outcome.OK, driver.now)) == [waiter]


@rule("P10")
def test_unknown_means_unproven_only_where_a_proof_is_asked_for() -> None:
    driver = pool(ProviderSpec("a", probe_required=True), ProviderSpec("b"))
    for name in "ab":
        driver.take(driver.core.set_health(name, Health.HEALTHY, driver.now))
        driver.take(driver.core.set_health(name, Health.UNKNOWN, driver.now))
    assert (driver.of("a").health, driver.of("b").health) == ("unknown", "healthy")


@rule("P10")
def test_what_is_said_of_a_provider_that_is_not_there_is_ignored() -> None:
    driver = pool(ProviderSpec("a"))
    before = driver.core.status(driver.now)
    driver.take(driver.core.set_health("z", Health.EJECTED, driver.now))
    driver.take(driver.core.report_outcome("z", Outcome.BROKEN, driver.now))
    assert driver.core.status(driver.now) == before


@rule("P10", "P9")
def test_the_backoff_of_a_removed_provider_wakes_nobody() -> None:
    driver = ejected()
    spec = driver.core.spec
    driver.take(driver.core.reconfigure(type(spec)([ProviderSpec("b")], []), driver.now))
    assert driver.core.next_deadline() is None


@rule("P10")
def test_a_half_open_provider_ranks_like_the_others() -> None:
    driver = pool(ProviderSpec("a", capacity=3), ProviderSpec("b", capacity=3), health=QUICK)
    fail(driver, 3)
    assert driver.fill(2)[1].provider_id == "b"
    driver.tick(0.5)
    assert driver.get().provider_id == "a"
    assert driver.get().provider_id == "b"  # one trial run at a time
