"""Which provider a run gets: candidates, the least loaded, priority, and the rotation."""

from __future__ import annotations

import pytest

from iop_pool import ConnectionState, ContextClass, Granted, Health, ProviderSpec, Queued
from support.core_driver import LONG, pool
from support.rules import rule


@rule("P1")
def test_a_provider_is_a_candidate_up_to_its_capacity_and_not_one_run_further() -> None:
    driver = pool(ProviderSpec("a", capacity=3))
    driver.fill(3)
    assert isinstance(driver.ask(), Queued)
    assert driver.of("a").in_flight == 3


@rule("P1")
@pytest.mark.parametrize(
    "spoil",
    [
        lambda driver: driver.change(driver.spec_of("a", enabled=False)),
        lambda driver: driver.take(driver.core.set_connected("n", ConnectionState.SUSPECT, driver.now)),
        lambda driver: driver.take(driver.core.set_connected("n", ConnectionState.DISCONNECTED, driver.now)),
        lambda driver: driver.take(driver.core.set_health("a", Health.EJECTED, driver.now)),
        lambda driver: driver.change(groups={"m": "b"}),
        lambda driver: driver.get("only-a"),
    ],
    ids=["disabled", "suspect", "disconnected", "ejected", "does not serve it", "full"],
)
def test_what_is_no_candidate_gets_no_run(spoil) -> None:  # type: ignore[no-untyped-def]
    driver = pool(
        ProviderSpec("a", node="n", priority=0), ProviderSpec("b", priority=9), groups={"m": "a b", "only-a": "a"}
    )
    driver.take(driver.core.set_connected("n", ConnectionState.CONNECTED, driver.now))
    assert driver.explain().winner == "a"
    spoil(driver)
    assert driver.get().provider_id == "b"


@rule("P1")
def test_a_provider_of_a_node_is_no_candidate_before_the_node_came() -> None:
    driver = pool(ProviderSpec("a", node="n"), ProviderSpec("b", priority=9))
    assert driver.get().provider_id == "b"


@rule("P2")
def test_the_lowest_load_wins_whatever_the_priority() -> None:
    driver = pool(ProviderSpec("a", capacity=9, priority=0), ProviderSpec("b", capacity=9, priority=5))
    assert [driver.get().provider_id for _ in range(4)] == ["a", "b", "a", "b"]


@rule("P2")
def test_of_equally_loaded_ones_the_lowest_priority_number_wins() -> None:
    driver = pool(ProviderSpec("a", priority=2), ProviderSpec("b", priority=1), ProviderSpec("c", priority=0))
    assert [lease.provider_id for lease in driver.fill(3)] == ["c", "b", "a"]


@rule("P2")
def test_load_is_counted_in_runs_and_not_as_a_share_of_the_capacity() -> None:
    driver = pool(ProviderSpec("big", capacity=100), ProviderSpec("small", capacity=2))
    assert [lease.provider_id for lease in driver.fill(4)] == ["big", "small", "big", "small"]


@rule("P2")
def test_equally_good_ones_take_turns_in_config_order() -> None:
    driver = pool(*(ProviderSpec(name) for name in "abc"))
    chosen = []
    for _ in range(7):
        lease = driver.get()
        chosen.append(lease.provider_id)
        driver.end(lease)
    assert "".join(chosen) == "abcabca"


@rule("P2")
def test_a_choice_without_a_tie_moves_the_rotation_too() -> None:
    driver = pool(*(ProviderSpec(name, capacity=9) for name in "abc"))
    a, b, c = driver.fill(3)
    for lease in (a, c):
        driver.end(lease)
    first = driver.get()
    assert first.provider_id == "a"  # after c
    driver.end(b)
    second = driver.get()
    assert (second.provider_id, second.tied) == ("b", ("b", "c"))  # after a
    driver.end(second)
    driver.end(first)
    assert driver.get().provider_id == "c"


@rule("P2")
def test_the_rotation_goes_on_after_the_last_choice_even_where_that_one_is_not_tied() -> None:
    driver = pool(*(ProviderSpec(name, capacity=9) for name in "abcd"))
    leases = driver.fill(4)
    driver.end(leases[1])
    assert driver.get().provider_id == "b"  # the only one: no tie
    for one in (leases[0], leases[2], leases[3]):
        driver.end(one)
    assert driver.get().provider_id == "c"


@rule("P2")
def test_each_group_has_its_own_rotation_and_its_own_order() -> None:
    driver = pool(*(ProviderSpec(name, capacity=9) for name in "abc"), groups={"m": "a b c", "w": "c b a"})
    seen = {"m": "", "w": ""}
    for _ in range(4):
        for group in seen:
            lease = driver.get(group)
            seen[group] += lease.provider_id
            driver.end(lease)
    assert seen == {"m": "abca", "w": "cbac"}


@rule("P2")
def test_a_provider_that_is_shared_counts_with_the_runs_of_all_groups() -> None:
    driver = pool(ProviderSpec("a", capacity=9), ProviderSpec("b", capacity=9), groups={"m": "a b", "w": "a"})
    driver.fill(2, "w")
    assert [lease.provider_id for lease in driver.fill(3)] == ["b", "b", "a"]


@rule("P3")
@pytest.mark.parametrize(
    ("tokens", "context_class"),
    [(0, ContextClass.NORMAL), (LONG - 1, ContextClass.NORMAL), (LONG, ContextClass.LONG), (LONG * 9, "long")],
)
def test_a_request_is_long_from_the_threshold_on(tokens: int, context_class: str) -> None:
    driver = pool(ProviderSpec("a"))
    answer = driver.ask(tokens=tokens)
    assert isinstance(answer, Granted)
    assert answer.lease.context_class == context_class


@rule("P3")
def test_a_long_run_holds_a_general_and_a_long_slot_and_returns_both() -> None:
    driver = pool(ProviderSpec("a", capacity=2, long_context_capacity=1))
    lease = driver.get(long=True)
    assert (driver.of("a").in_flight, driver.of("a").long_in_flight) == (1, 1)
    driver.end(lease)
    assert (driver.of("a").in_flight, driver.of("a").long_in_flight) == (0, 0)
    assert driver.get(long=True).provider_id == "a"


@rule("P1", "P3")
def test_the_long_slots_bound_long_runs_alone() -> None:
    driver = pool(ProviderSpec("a", capacity=3, long_context_capacity=1))
    driver.get(long=True)
    waiter = driver.line_up(long=True)
    assert driver.get().provider_id == "a"
    assert waiter.waiting


@rule("P3")
def test_normal_runs_may_take_all_general_slots_and_then_a_long_run_waits_too() -> None:
    driver = pool(ProviderSpec("a", capacity=2, long_context_capacity=2))
    normal = driver.fill(2)
    waiter = driver.line_up(long=True)
    assert driver.end(normal[0]) == [waiter]


@rule("P3")
def test_where_long_slots_are_not_counted_a_long_run_takes_a_general_slot_only() -> None:
    driver = pool(ProviderSpec("a", capacity=2))
    driver.fill(2, long=True)
    assert isinstance(driver.ask(), Queued)


@rule("P3")
def test_a_long_run_goes_where_a_long_slot_is_free_even_if_another_provider_is_idler() -> None:
    driver = pool(ProviderSpec("a", capacity=9, long_context_capacity=0), ProviderSpec("b", capacity=9))
    driver.fill(4)
    assert driver.get(long=True).provider_id == "b"
    assert driver.get(long=True).provider_id == "b"


@rule("P2", "E7")
def test_a_provider_already_tried_is_left_out_and_the_next_best_is_chosen() -> None:
    driver = pool(*(ProviderSpec(name) for name in "abc"))
    assert driver.get(exclude={"a", "not there"}).provider_id == "b"


@rule("P2")
def test_a_new_order_of_the_same_providers_is_the_new_rotation() -> None:
    driver = pool(*(ProviderSpec(name) for name in "abc"))
    driver.end(driver.get())
    driver.change(groups={"m": "c a b"})
    lease = driver.get()
    assert lease.provider_id == "b"  # after a, in the new order
    driver.end(lease)
    assert driver.get().provider_id == "c"
