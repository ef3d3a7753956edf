"""The async face, on asyncio and trio: blocks, outcomes, hand-off, time, a cancel at every instant (P4, P8, P12)."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Awaitable, Callable
from itertools import product

import anyio
import pytest
from anyio.lowlevel import checkpoint

from iop_pool import (
    GroupSpec,
    Health,
    Lease,
    Outcome,
    Pool,
    PoolSpec,
    ProviderSpec,
    QueueFull,
    QueuePolicy,
    QueueTimeout,
    Unavailable,
    UnknownModel,
)
from support.rules import rule

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def spec(*, capacity: int = 1, max_queue: int = 9, queue_timeout_ms: int = 0) -> PoolSpec:
    queue = QueuePolicy(max_queue=max_queue, queue_timeout_ms=queue_timeout_ms)
    return PoolSpec([ProviderSpec("p", capacity=capacity, queue=queue)], [GroupSpec("m", ["p"])])


def balance(pool: Pool) -> tuple[int, int, int, int]:
    """What must be zero when nobody is there any more: leases, waiters, leaks, in flight."""
    status = pool.status()
    pool.core.check_invariants()
    return status.leases, status.waiting, status.leaked_slots, sum(one.in_flight for one in status.providers)


async def until(condition: Callable[[], bool], turns: int = 1000) -> None:
    """Let the others run until something holds; bounded by turns, not by time."""
    for _ in range(turns):
        if condition():
            return
        await checkpoint()
    raise AssertionError("it never came to hold")


class CrashError(Exception):
    """What a caller's own code raises."""


# -- the block --------------------------------------------------------------------------------------------------------


@rule("P8", "P14")
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, Outcome.OK),
        (ConnectionError(), Outcome.BROKEN),
        (TimeoutError(), Outcome.BROKEN),
        (CrashError(), Outcome.CANCELLED),
        (ExceptionGroup("x", [CrashError(), ConnectionResetError()]), Outcome.BROKEN),
        (ExceptionGroup("x", [CrashError()]), Outcome.CANCELLED),
    ],
)
async def test_how_the_block_ends_says_how_the_run_ended(error: Exception | None, outcome: Outcome) -> None:
    pool = Pool(spec())
    with contextlib.suppress(ConnectionError, TimeoutError, CrashError, ExceptionGroup):
        async with pool.acquire("m") as lease:
            assert (lease.provider, lease.group, lease.long, lease.queue_ms) == ("p", "m", False, 0)
            if error is not None:
                raise error
    totals = pool.status().providers[0].totals
    assert {one: getattr(totals, one.value) for one in Outcome if getattr(totals, one.value)} == {outcome: 1}
    assert balance(pool) == (0, 0, 0, 0)


@rule("P14")
async def test_what_the_block_says_itself_counts() -> None:
    pool = Pool(spec())
    with contextlib.suppress(ConnectionError):
        async with pool.acquire("m") as lease:
            lease.outcome = Outcome.BUSY
            raise ConnectionError
    assert pool.status().providers[0].totals.busy == 1


@rule("P5", "P6", "P7")
async def test_a_refusal_is_an_exception_of_its_kind() -> None:
    pool = Pool(spec(max_queue=0))
    with pytest.raises(UnknownModel, match="nobody"):
        await pool.acquire_lease("nobody")
    async with pool.acquire("m"):
        with pytest.raises(QueueFull) as full:
            await pool.acquire_lease("m")
        assert full.value.retry_after_ms is not None
    pool.reconfigure(spec().all_disabled())
    with pytest.raises(Unavailable):
        await pool.acquire_lease("m")
    assert balance(pool) == (0, 0, 0, 0)


@rule("P7")
async def test_a_waiter_gives_up_when_its_time_is_over() -> None:
    pool = Pool(spec(queue_timeout_ms=20), clock=anyio.current_time)
    async with pool.acquire("m"):
        with anyio.fail_after(20), pytest.raises(QueueTimeout):
            await pool.acquire_lease("m")
        assert pool.status().waiting == 0
    assert balance(pool) == (0, 0, 0, 0)


@rule("P7")
async def test_a_later_waiter_with_less_patience_does_not_wait_for_the_first() -> None:
    # Time is kept by one of the waiters; one who comes with an earlier end must wake it.
    pool = Pool(spec(queue_timeout_ms=60_000), clock=anyio.current_time)
    async with anyio.create_task_group() as group, pool.acquire("m"):
        group.start_soon(pool.acquire_lease, "m")
        await until(lambda: pool.status().waiting == 1)
        with anyio.fail_after(20), pytest.raises(QueueTimeout):
            await pool.acquire_lease("m", deadline=anyio.current_time() + 0.02)
        assert pool.status().waiting == 1
        group.cancel_scope.cancel()
    assert balance(pool) == (0, 0, 0, 0)


@rule("P7")
@pytest.mark.parametrize("how", ["served", "cancelled"])
async def test_who_kept_the_time_and_left_is_followed_by_another(how: str) -> None:
    pool = Pool(spec(queue_timeout_ms=200), clock=anyio.current_time)
    first, scope = await pool.acquire_lease("m"), anyio.CancelScope()
    done: list[str] = []

    async def keeper() -> None:
        with scope:
            lease = await pool.acquire_lease("m")
            await until(lambda: done == ["the other gave up"], turns=1_000_000)
            lease.release()

    async def other() -> None:
        with pytest.raises(QueueTimeout):
            await pool.acquire_lease("m")
        done.append("the other gave up")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(keeper)
            await until(lambda: pool.status().waiting == 1)
            group.start_soon(other)
            await until(lambda: pool.status().waiting == 2)
            if how == "served":
                first.release()
            else:
                scope.cancel()
    first.release()
    assert done == ["the other gave up"]
    assert balance(pool) == (0, 0, 0, 0)


@rule("P4")
async def test_a_free_slot_belongs_to_the_first_in_line_before_it_wakes() -> None:
    pool = Pool(spec())
    order: list[str] = []

    async def come(name: str) -> None:
        async with pool.acquire("m"):
            order.append(name)

    async with anyio.create_task_group() as group:
        first = await pool.acquire_lease("m")
        for number, name in enumerate("abc", 1):
            group.start_soon(come, name)
            await until(lambda number=number: pool.status().waiting == number)  # type: ignore[misc]
        first.release()
        # Nobody has run since: the slot is taken all the same, so a newcomer stands at the end of the line.
        assert pool.status().providers[0].in_flight == 1
        group.start_soon(come, "late")
    assert order == ["a", "b", "c", "late"]
    assert balance(pool) == (0, 0, 0, 0)


@rule("P9", "P10")
@pytest.mark.parametrize("how", ["capacity", "health", "connected"])
async def test_whatever_frees_a_slot_wakes_who_waits(how: str) -> None:
    pool = Pool(spec())
    if how == "health":
        pool.set_health("p", Health.EJECTED)
    held = await pool.acquire_lease("m") if how == "capacity" else None
    if how == "connected":
        pool.set_acknowledged("p", False)
    got: list[Lease] = []

    async def come() -> None:
        got.append(await pool.acquire_lease("m"))

    async with anyio.create_task_group() as group:
        group.start_soon(come)
        await until(lambda: pool.status().waiting == 1)
        if how == "capacity":
            pool.reconfigure(spec(capacity=2))
        elif how == "health":
            pool.set_health("p", Health.HEALTHY)
        else:
            pool.set_acknowledged("p", True)
    got[0].release()
    if held is not None:
        held.release()
    assert balance(pool) == (0, 0, 0, 0)


# -- owned slots ------------------------------------------------------------------------------------------------------


@rule("P8")
async def test_a_slot_is_returned_once_however_often_it_is_said() -> None:
    pool = Pool(spec(capacity=2))
    one, two = await pool.acquire_lease("m"), await pool.acquire_lease("m")
    one.begin_cancel()
    assert pool.status().providers[0].cancelling == 1
    for _ in range(3):
        one.release(Outcome.CANCELLED)
    assert pool.status().providers[0].in_flight == 1
    two.release()
    assert balance(pool) == (0, 0, 0, 0)


@rule("P8")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_lease_that_is_forgotten_is_counted_and_keeps_its_slot() -> None:
    pool = Pool(spec(capacity=2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        await pool.acquire_lease("m")
        gc.collect()
    assert balance(pool) == (1, 0, 1, 1)


@rule("P8")
async def test_an_audit_finds_what_the_owner_does_not_know() -> None:
    pool = Pool(spec(capacity=2))
    known, unknown = await pool.acquire_lease("m"), await pool.acquire_lease("m")
    assert [lease.id for lease in pool.audit([known])] == [unknown.core_lease.id]
    assert pool.status().leaked_slots == 1
    unknown.release()
    known.release()
    assert balance(pool) == (0, 0, 0, 0)


# -- a cancel at every instant ----------------------------------------------------------------------------------------

TURNS = 7


async def turns(count: int) -> None:
    for _ in range(count):
        await checkpoint()


async def block(pool: Pool) -> None:
    async with pool.acquire("m"):
        await checkpoint()


async def by_hand(pool: Pool) -> None:
    lease = await pool.acquire_lease("m")
    try:
        await checkpoint()
    finally:
        lease.release()


@rule("P8", "P12")
@pytest.mark.parametrize("take", [block, by_hand])
@pytest.mark.parametrize("timeout_ms", [0, 60_000])
async def test_a_cancel_at_any_instant_leaves_nothing_behind(
    take: Callable[[Pool], Awaitable[None]], timeout_ms: int
) -> None:
    for released, cancelled, victim in product(range(TURNS), range(TURNS), range(3)):
        pool = Pool(spec(queue_timeout_ms=timeout_ms), clock=anyio.current_time)
        scopes = [anyio.CancelScope() for _ in range(3)]
        ended: list[int] = []

        async def come(
            number: int, pool: Pool = pool, scopes: list[anyio.CancelScope] = scopes, ended: list[int] = ended
        ) -> None:
            with scopes[number]:
                await take(pool)
                ended.append(number)

        async def cancel(after: int, scope: anyio.CancelScope) -> None:
            await turns(after)
            scope.cancel()

        holder = await pool.acquire_lease("m")
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for number in range(3):
                    group.start_soon(come, number)
                group.start_soon(cancel, cancelled, scopes[victim])
                await turns(released)
                holder.release()
        assert set(ended) >= {0, 1, 2} - {victim}, "who was not cancelled was served"
        assert balance(pool) == (0, 0, 0, 0), (released, cancelled, victim)


@rule("P8")
async def test_a_cancelled_crowd_leaves_nothing_behind() -> None:
    for after in range(TURNS):
        pool = Pool(spec(capacity=2, queue_timeout_ms=60_000), clock=anyio.current_time)
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(block, pool)
            await turns(after)
            group.cancel_scope.cancel()
        assert balance(pool) == (0, 0, 0, 0), after
        async with pool.acquire("m") as lease:
            assert lease.provider == "p"
