"""How many may wait and for how long: every case of the policy's fall-back, as tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from iop_pool import Outcome, ProviderSpec, Queued, QueuePolicy, RefusalKind, Refused
from support.core_driver import CoreDriver, pool
from support.rules import rule

NOTHING = QueuePolicy()


@rule("P6", "P7")
@pytest.mark.parametrize(
    ("own", "adapter", "bound", "timeout_ms"),
    [
        # neither place says anything: the runtime defaults
        (NOTHING, NOTHING, 64, 30_000),
        # the provider's own
        (QueuePolicy(5, 700), NOTHING, 5, 700),
        (QueuePolicy(5, 0), NOTHING, 5, None),
        (QueuePolicy(5), NOTHING, 5, None),
        (QueuePolicy(None, 700), NOTHING, 64, 700),
        (QueuePolicy(None, 0), NOTHING, 64, None),
        (QueuePolicy(0), NOTHING, 0, None),
        (QueuePolicy(0, 700), NOTHING, 0, 700),
        # the adapter instance's, where the provider is silent
        (NOTHING, QueuePolicy(6, 800), 6, 800),
        (NOTHING, QueuePolicy(6), 6, None),
        (NOTHING, QueuePolicy(6, 0), 6, None),
        (NOTHING, QueuePolicy(None, 800), 64, 800),
        (NOTHING, QueuePolicy(None, 0), 64, None),
        # field by field
        (QueuePolicy(5, 700), QueuePolicy(6, 800), 5, 700),
        (QueuePolicy(5), QueuePolicy(6, 800), 5, 800),
        (QueuePolicy(5), QueuePolicy(None, 800), 5, 800),
        (QueuePolicy(None, 700), QueuePolicy(6, 800), 6, 700),
        (QueuePolicy(None, 700), QueuePolicy(6), 6, 700),
        (QueuePolicy(5), QueuePolicy(6), 5, None),
        # said to be 0 is said: the adapter instance is not asked
        (QueuePolicy(5, 0), QueuePolicy(6, 800), 5, None),
        (QueuePolicy(0, 700), QueuePolicy(6, 800), 0, 700),
        (QueuePolicy(None, 0), QueuePolicy(6, 800), 6, None),
    ],
)
def test_each_field_falls_back_by_itself(
    own: QueuePolicy, adapter: QueuePolicy, bound: int, timeout_ms: int | None
) -> None:
    driver = pool(ProviderSpec("a", queue=own, adapter_queue=adapter))
    seen = driver.explain()
    assert (seen.queue_bound, seen.queue_timeout_ms) == (bound, timeout_ms)
    driver.get()
    for _ in range(bound):
        driver.line_up()
    assert driver.no().kind is RefusalKind.QUEUE_FULL
    due = driver.core.next_deadline()
    assert due == (timeout_ms / 1000 if timeout_ms is not None and bound else None)


def three(*policies: QueuePolicy, **more: object) -> CoreDriver:
    """A group of that many providers, all of them full."""
    driver = pool(
        *(ProviderSpec(f"p{number}", queue=policy) for number, policy in enumerate(policies)),
        **more,
    )
    driver.fill(len(policies))
    return driver


@rule("P6")
@pytest.mark.parametrize(
    ("policies", "bound"),
    [
        ([QueuePolicy(1), QueuePolicy(2), QueuePolicy(3)], 6),
        ([QueuePolicy(0), QueuePolicy(0)], 0),
        ([QueuePolicy(0), QueuePolicy(2)], 2),
        ([NOTHING, QueuePolicy(1)], 65),
    ],
)
def test_the_bounds_of_the_providers_add_up(policies: list[QueuePolicy], bound: int) -> None:
    driver = three(*policies)
    for _ in range(bound):
        driver.line_up()
    assert driver.no().kind is RefusalKind.QUEUE_FULL
    assert driver.of_group().queue_bound == driver.of_group().queue_length == bound


@rule("P6")
def test_only_providers_that_could_serve_the_request_add_to_the_bound() -> None:
    driver = pool(
        ProviderSpec("a", queue=QueuePolicy(1)),
        ProviderSpec("short", long_context_capacity=0, queue=QueuePolicy(10)),
        ProviderSpec("off", enabled=False, queue=QueuePolicy(10)),
        ProviderSpec("far", node="n", queue=QueuePolicy(10)),
    )
    assert driver.explain().queue_bound == 11
    assert driver.explain(long=True).queue_bound == 1
    assert driver.explain(exclude={"short"}).queue_bound == 1


@rule("P6")
def test_long_and_normal_waiters_count_together() -> None:
    driver = pool(ProviderSpec("a", queue=QueuePolicy(2)))
    driver.get()
    driver.line_up(long=True)
    driver.line_up()
    assert driver.no().kind is RefusalKind.QUEUE_FULL
    assert driver.no(long=True).kind is RefusalKind.QUEUE_FULL


@rule("P6")
def test_a_shared_provider_adds_its_bound_to_each_group_and_their_waiters_do_not_count_together() -> None:
    driver = pool(ProviderSpec("a", queue=QueuePolicy(1)), groups={"m": "a", "w": "a"})
    driver.get("m")
    driver.line_up("m")
    assert isinstance(driver.ask("w"), Queued)
    assert isinstance(driver.ask("w"), Refused)


@rule("P6")
def test_who_left_and_who_was_served_make_room() -> None:
    driver = pool(ProviderSpec("a", queue=QueuePolicy(1)))
    lease = driver.get()
    driver.core.cancel(driver.line_up(), driver.now)
    served = driver.line_up()
    assert driver.end(lease) == [served]
    assert isinstance(driver.ask(), Queued)


@rule("P6")
def test_a_free_slot_is_given_even_where_nobody_may_wait() -> None:
    driver = pool(ProviderSpec("a", queue=QueuePolicy(0)))
    driver.end(driver.get())
    assert driver.get().provider_id == "a"


@rule("P6")
def test_the_retry_estimate_follows_the_durations_seen_the_line_and_the_capacity() -> None:
    def estimate(*, seconds: float, waiting: int, capacity: int) -> int | None:
        driver = pool(ProviderSpec("a", capacity=capacity, queue=QueuePolicy(waiting)))
        lease = driver.get()
        driver.tick(seconds)
        driver.end(lease)
        driver.fill(capacity)
        for _ in range(waiting):
            driver.line_up()
        return driver.no().retry_after_ms

    assert estimate(seconds=2.0, waiting=3, capacity=1) == 8000
    assert estimate(seconds=2.0, waiting=3, capacity=4) == 2000
    assert estimate(seconds=0.5, waiting=3, capacity=4) == 500
    assert estimate(seconds=0.0, waiting=3, capacity=1) == 100
    assert estimate(seconds=3600.0, waiting=3, capacity=1) == 120_000


@rule("P6")
def test_only_runs_that_went_well_teach_how_long_a_run_lasts() -> None:
    driver = pool(ProviderSpec("a", queue=QueuePolicy(0)))
    for seconds, outcome in ((50.0, Outcome.BROKEN), (50.0, Outcome.CANCELLED), (4.0, Outcome.OK)):
        lease = driver.get()
        driver.tick(seconds)
        driver.end(lease, outcome)
    driver.get()
    assert driver.no().retry_after_ms == 4000
    assert driver.of("a").service_ms == 4000


@rule("P7")
@pytest.mark.parametrize(
    ("policies", "timeout_ms"),
    [
        ([QueuePolicy(1, 500), QueuePolicy(1, 900), QueuePolicy(1, 700)], 900),
        ([QueuePolicy(1, 500), QueuePolicy(1, 0)], None),
        ([QueuePolicy(1, 500), QueuePolicy(1)], None),
        ([QueuePolicy(1, 500), NOTHING], 30_000),
        ([QueuePolicy(1, 50_000), NOTHING], 50_000),
        ([NOTHING, NOTHING], 30_000),
    ],
)
def test_a_group_waits_for_the_longest_of_its_timeouts(policies: list[QueuePolicy], timeout_ms: int | None) -> None:
    driver = three(*policies)
    waiter = driver.line_up()
    assert driver.explain().queue_timeout_ms == timeout_ms
    assert waiter.deadline == (None if timeout_ms is None else timeout_ms / 1000)


@rule("P7")
def test_the_wait_ends_at_the_timeout_and_not_before() -> None:
    driver = three(QueuePolicy(9, 500))
    waiter = driver.line_up()
    driver.tick(0.499)
    assert waiter.waiting
    driver.tick(0.001)
    assert [(one.kind, one.waiter) for one in driver.refused] == [(RefusalKind.QUEUE_TIMEOUT, waiter)]
    assert driver.of_group().totals.queue_timeout == 1
    assert driver.core.next_deadline() is None


@rule("P7")
def test_without_a_timeout_only_the_caller_ends_the_wait() -> None:
    driver = three(QueuePolicy(9, 0))
    waiter = driver.line_up()
    driver.tick(1e9)
    assert waiter.waiting
    driver.core.cancel(waiter, driver.now)
    assert driver.of_group().totals.cancelled == 1


@rule("P7")
@pytest.mark.parametrize(
    "shorten",
    [
        lambda driver: driver.line_up(deadline=0.2),
        lambda driver: driver.line_up(exclude={"p1"}),
        lambda driver: driver.line_up(exclude={"p1"}, deadline=7.0),
    ],
    ids=["its own deadline", "without the patient provider", "whichever comes first"],
)
def test_a_request_may_wait_less_than_its_group(shorten: Callable[[CoreDriver], object]) -> None:
    driver = three(QueuePolicy(9, 200), QueuePolicy(9, 9000))
    shorten(driver)
    assert driver.core.next_deadline() == 0.2


@rule("P7")
def test_a_deadline_that_is_over_still_gets_a_free_slot_but_no_place_in_line() -> None:
    driver = pool(ProviderSpec("a"))
    driver.tick(5.0)
    driver.get()
    answer = driver.ask(deadline=5.0)
    assert isinstance(answer, Refused)
    assert answer.kind is RefusalKind.QUEUE_TIMEOUT


@rule("P7")
def test_waiters_whose_time_is_over_at_once_are_refused_in_the_order_of_their_deadlines() -> None:
    driver = three(QueuePolicy(9, 9000))
    late, soon, middle = (driver.line_up(deadline=at) for at in (3.0, 1.0, 2.0))
    driver.tick(10.0)
    assert [one.waiter for one in driver.refused] == [soon, middle, late]


@rule("P7")
def test_the_runtime_default_may_be_no_timeout() -> None:
    driver = pool(ProviderSpec("a"), default_queue_timeout_ms=0, default_max_queue=3)
    assert (driver.explain().queue_bound, driver.explain().queue_timeout_ms) == (3, None)
