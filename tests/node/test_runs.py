"""Active runs: one end each, deadlines, cancels that are bounded, and what outlives its session (N6, N8, E9, E12)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar

import pytest
from attrs import define, evolve, field

from iop_node.adapters.base import ProbeResult, ProbeTarget, RunFailedError, RunOutput
from iop_node.link import EndKind, Health, RunEnd, RunError, RunOrder, StoppingAttempt, Usage
from iop_node.registry import Registry, Running
from iop_node.runs import Runs
from iop_node.settings import AdapterSettings, EchoSettings, NodeSettings, ProviderSettings
from support.adapters import order
from support.rules import rule
from support.virtual import VIRTUAL, Backend

pytestmark = pytest.mark.anyio

Script = Callable[[RunOrder, RunOutput], Awaitable[None]]


@pytest.fixture
def anyio_backend() -> Backend:
    return VIRTUAL


class Scripted:
    """An adapter that does what the test says."""

    kinds: ClassVar[frozenset[str]] = frozenset({"echo"})

    def __init__(self, script: Script) -> None:
        self.script = script

    async def run(self, order: RunOrder, out: RunOutput) -> None:
        await self.script(order, out)

    async def probe(self, target: ProbeTarget) -> ProbeResult:
        return ProbeResult(Health.HEALTHY)

    async def close(self) -> None:
        pass


@define
class Sink:
    """Implements `link.RunSink`; `gate`, while closed, gives no credit."""

    told: list[object] = field(factory=list)
    ended: asyncio.Event = field(factory=asyncio.Event)
    gate: asyncio.Event = field(factory=asyncio.Event)
    ends: list[RunEnd] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.gate.set()

    def accepted(self) -> None:
        self.told.append("accepted")

    def head(self, status: int, headers: tuple[tuple[str, str], ...]) -> None:
        self.told.append(status)

    async def chunk(self, data: bytes) -> None:
        await self.gate.wait()
        self.told.append(data)

    def end(self, end: RunEnd) -> None:
        self.ends.append(end)
        self.ended.set()

    async def result(self) -> RunEnd:
        await self.ended.wait()
        assert len(self.ends) == 1
        return self.ends[0]


ADAPTER = AdapterSettings("a", "echo", EchoSettings())
PROVIDER = ProviderSettings("p", "a", models=("served",), capacity=2)


class Rig:
    """Runs over one scripted adapter."""

    def __init__(
        self, script: Script, adapter: AdapterSettings = ADAPTER, provider: ProviderSettings = PROVIDER
    ) -> None:
        self.runs = Runs()
        self.running = Running(adapter, Scripted(script))
        settings = NodeSettings("v", 1, (adapter,), (provider,))
        self.registry = Registry(settings, {"a": self.running}, {"p": provider})

    def start(self, given: RunOrder | None = None) -> Sink:
        sink = Sink()
        self.runs.start(given or order(), sink, self.registry)
        return sink


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def answer(order: RunOrder, out: RunOutput) -> None:
    out.contacted()
    out.head(200, ())
    await out.data(b"x")
    out.usage = Usage(7, 3, from_runtime=True)


async def silent(order: RunOrder, out: RunOutput) -> None:
    out.contacted()
    await asyncio.Event().wait()


async def one_word(order: RunOrder, out: RunOutput) -> None:
    out.contacted()
    out.head(200, ())
    await out.data(b"x")
    await asyncio.Event().wait()


# -- ends -------------------------------------------------------------------------------------------------------------


@rule("N5")
async def test_a_run_is_accepted_answered_and_ended_once() -> None:
    rig = Rig(answer)
    sink = rig.start()
    end = await sink.result()
    assert sink.told == ["accepted", 200, b"x"]
    assert end == RunEnd(EndKind.COMPLETED, usage=Usage(7, 3, from_runtime=True), started=True)
    assert rig.runs.active == 0


async def test_a_failure_of_the_adapter_is_the_end_with_what_was_counted() -> None:
    error = RunError("upstream_error", "it broke", retryable=True, maybe_executed=True)

    async def script(order: RunOrder, out: RunOutput) -> None:
        out.contacted()
        out.usage = Usage(5, 2)
        raise RunFailedError(error)

    end = await Rig(script).start().result()
    assert end == RunEnd(EndKind.FAILED, usage=Usage(5, 2), error=error, started=True)


async def test_a_bug_in_an_adapter_is_an_end_too_and_says_nothing_of_the_inside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(order: RunOrder, out: RunOutput) -> None:
        raise ValueError("canary-inside")

    rig = Rig(script)
    end = await rig.start().result()
    assert end.kind is EndKind.FAILED
    assert end.error is not None
    assert "canary" not in end.error.message
    assert not end.started
    assert not end.error.maybe_executed
    assert rig.runs.active == 0


# -- refusals ---------------------------------------------------------------------------------------------------------


@rule("P8")
async def test_a_run_above_the_capacity_is_refused_and_was_not_executed() -> None:
    rig = Rig(silent)
    sinks = [rig.start(order(run_id=f"r{number}")) for number in range(3)]
    end = await sinks[2].result()
    assert end.error is not None
    assert (end.error.code, end.error.retryable, end.error.maybe_executed) == ("no_capacity", True, False)
    assert "accepted" not in sinks[2].told
    rig.runs.cancel("r0", 1, "client_gone")
    await sinks[0].result()
    again = rig.start(order(run_id="r3"))
    await turns()
    assert again.ends == []
    await rig.runs.close()


@rule("R11", "R14", "P9")
async def test_a_run_that_was_admitted_before_a_cut_is_let_in_after_it() -> None:
    # The pool granted three of three; the push that says one overtook the last two on their way.
    rig = Rig(silent, provider=evolve(PROVIDER, capacity=3))
    sinks = [rig.start(order(run_id="r0"))]
    old = rig.registry
    rig.registry = Registry(old.settings, old.adapters, {"p": evolve(PROVIDER, capacity=1)})
    rig.runs.replaced(old)
    sinks += [rig.start(order(run_id=f"r{number}")) for number in (1, 2, 3)]
    await turns()
    assert [sink.ends == [] for sink in sinks] == [True, True, True, False]  # not above what was ever allowed
    await asyncio.sleep(10)
    late = await rig.start(order(run_id="r4")).result()
    assert late.error is not None
    assert late.error.message == 'provider "p" already runs 1'
    await rig.runs.close()


@rule("R11", "C8")
async def test_a_run_that_was_admitted_before_its_provider_was_disabled_is_let_in_after_it() -> None:
    rig = Rig(answer)
    old = rig.registry
    rig.registry = Registry(old.settings, old.adapters, {"p": evolve(PROVIDER, enabled=False)})
    rig.runs.replaced(old)
    assert (await rig.start().result()).kind is EndKind.COMPLETED
    await asyncio.sleep(10)
    late = await rig.start().result()
    assert late.error is not None
    assert late.error.code == "provider_not_found"


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"adapter": "b"}, "adapter_not_found"), ({"provider_id": "q"}, "provider_not_found")],
)
async def test_what_this_node_does_not_have_is_refused(fields: dict[str, str], code: str) -> None:
    end = await Rig(answer).start(order(**fields)).result()
    assert end.error is not None
    assert (end.kind, end.error.code, end.error.retryable) == (EndKind.FAILED, code, True)
    assert end.error.outcome == "cancelled"


@rule("C16")
async def test_a_run_of_a_model_route_has_no_provider_and_no_capacity() -> None:
    rig = Rig(answer)
    ends = [await rig.start(order(run_id=f"r{n}", provider_id="", target="any")).result() for n in range(5)]
    assert {end.kind for end in ends} == {EndKind.COMPLETED}


# -- deadlines --------------------------------------------------------------------------------------------------------


@rule("E12", "P14")
async def test_a_runtime_that_says_nothing_is_found_and_counts_as_broken() -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    end = await Rig(silent, evolve(ADAPTER, first_event_timeout=300.0, idle_timeout=1.0)).start().result()
    assert loop.time() - begun == pytest.approx(300)
    assert end.error is not None
    assert (end.kind, end.error.code) == (EndKind.FAILED, "first_event_timeout")
    assert (end.error.outcome, end.error.retryable, end.error.maybe_executed) == ("broken", True, True)


@rule("E12")
async def test_a_runtime_that_only_says_that_it_lives_has_not_answered() -> None:
    async def script(order: RunOrder, out: RunOutput) -> None:
        out.contacted()
        while True:
            await asyncio.sleep(5)
            out.alive()

    loop = asyncio.get_running_loop()
    begun = loop.time()
    end = await Rig(script, evolve(ADAPTER, first_event_timeout=60.0)).start().result()
    assert end.error is not None
    assert end.error.code == "first_event_timeout"
    assert loop.time() - begun == pytest.approx(60)


@rule("E12")
async def test_silence_after_the_first_event_is_an_idle_timeout() -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    end = await Rig(one_word, evolve(ADAPTER, first_event_timeout=300.0, idle_timeout=120.0)).start().result()
    assert loop.time() - begun == pytest.approx(120)
    assert end.error is not None
    assert (end.error.code, end.error.outcome) == ("idle_timeout", "broken")


@rule("E12")
async def test_an_idle_bound_holds_without_any_other() -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    end = await Rig(one_word, evolve(ADAPTER, idle_timeout=7.0)).start().result()
    assert loop.time() - begun == pytest.approx(7)
    assert end.error is not None
    assert end.error.code == "idle_timeout"


@rule("E12")
async def test_every_event_and_every_sign_of_life_starts_the_silence_anew() -> None:
    async def script(order: RunOrder, out: RunOutput) -> None:
        out.head(200, ())
        for number in range(10):
            await asyncio.sleep(50)
            if number % 2:
                await out.data(b"x")
            else:
                out.alive()

    end = await Rig(script, evolve(ADAPTER, first_event_timeout=60.0, idle_timeout=60.0)).start().result()
    assert end.kind is EndKind.COMPLETED


@rule("E12")
async def test_a_slow_client_is_not_the_runtimes_silence() -> None:
    loop = asyncio.get_running_loop()

    async def script(order: RunOrder, out: RunOutput) -> None:
        out.head(200, ())
        await out.data(b"x")
        await out.data(b"y")

    rig = Rig(script, evolve(ADAPTER, idle_timeout=10.0))
    sink = Sink()
    sink.gate.clear()
    rig.runs.start(order(), sink, rig.registry)
    loop.call_later(500, sink.gate.set)
    assert (await sink.result()).kind is EndKind.COMPLETED


@pytest.mark.parametrize(
    ("adapter", "provider", "given", "seconds"),
    [(40.0, None, 0, 40), (40.0, 20.0, 0, 20), (20.0, 40.0, 0, 40), (None, None, 15_000, 15), (40.0, None, 15_000, 15)],
    ids=["adapter", "provider-overrides", "provider-may-be-longer", "edge", "the-sooner"],
)
@rule("C24")
async def test_the_longest_that_a_run_may_take(
    adapter: float | None, provider: float | None, given: int, seconds: float
) -> None:
    rig = Rig(one_word, evolve(ADAPTER, request_timeout=adapter), evolve(PROVIDER, request_timeout=provider))
    loop = asyncio.get_running_loop()
    begun = loop.time()
    end = await rig.start(order(deadline_ms=given)).result()
    assert loop.time() - begun == pytest.approx(seconds)
    assert end.error is not None
    # It was producing: slow, which says nothing against its health (P14).
    assert (end.error.code, end.error.retryable, end.error.outcome) == ("request_timeout", False, "cancelled")


# -- cancels ----------------------------------------------------------------------------------------------------------


@rule("E8", "E9")
async def test_a_cancelled_run_ends_as_cancelled_with_what_it_had_counted() -> None:
    stopped = asyncio.Event()

    async def script(order: RunOrder, out: RunOutput) -> None:
        out.contacted()
        out.head(200, ())
        out.usage = Usage(5, 2)
        await out.data(b"x")
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    rig = Rig(script)
    sink = rig.start()
    await turns()
    rig.runs.cancel("01RUN", 1, "client_gone")
    end = await sink.result()
    assert stopped.is_set()
    assert (end.kind, end.usage, end.started) == (EndKind.CANCELLED, Usage(5, 2), True)


@rule("P8", "N8")
async def test_a_slot_counts_until_the_runtime_has_let_go() -> None:
    free = asyncio.Event()

    async def script(order: RunOrder, out: RunOutput) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await free.wait()

    rig = Rig(script)
    sink = rig.start()
    await turns()
    rig.runs.cancel("01RUN", 1, "client_gone")
    rig.runs.cancel("01RUN", 1, "client_gone")
    await turns()
    assert (sink.ends, rig.runs.active) == ([], 1)
    free.set()
    assert (await sink.result()).kind is EndKind.CANCELLED
    assert rig.runs.active == 0


@rule("N8")
@pytest.mark.parametrize(("kind", "bound"), [("echo", 2.0), ("llama_cpp", 30.0)])
async def test_an_adapter_that_does_not_stop_is_given_up_after_its_bound(kind: str, bound: float) -> None:
    cancels = 0

    async def script(order: RunOrder, out: RunOutput) -> None:
        nonlocal cancels
        while cancels < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancels += 1

    rig = Rig(script, evolve(ADAPTER, kind=kind))
    sink = rig.start()
    await turns()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    rig.runs.cancel("01RUN", 1, "client_gone")
    assert (await sink.result()).kind is EndKind.CANCELLED
    assert loop.time() - begun == pytest.approx(bound)
    await turns()
    assert cancels == 2, "cancelled again means: give up waiting"


async def test_a_cancel_of_an_unknown_or_ended_run_is_harmless() -> None:
    rig = Rig(answer)
    sink = rig.start()
    await sink.result()
    rig.runs.cancel("01RUN", 1, "late")
    rig.runs.cancel("nobody", 1, "late")
    assert len(sink.ends) == 1


async def test_a_run_that_is_cancelled_before_it_began_never_reaches_the_runtime() -> None:
    reached = False

    async def script(order: RunOrder, out: RunOutput) -> None:
        nonlocal reached
        reached = True

    rig = Rig(script)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    sink = rig.start()
    rig.runs.cancel("01RUN", 1, "client_gone")
    end = await sink.result()
    assert (end.kind, end.started, reached) == (EndKind.CANCELLED, False, False)
    assert loop.time() == begun
    assert rig.runs.active == 0
    assert rig.running.runs == 0


@rule("E7", "N6")
async def test_a_run_that_the_drain_stops_says_so_and_may_go_elsewhere() -> None:
    rig = Rig(silent)
    sink = rig.start()
    await turns()
    rig.runs.cancel("01RUN", 1, "node_draining")
    end = await sink.result()
    assert end.kind is EndKind.CANCELLED
    assert end.error is not None
    assert (end.error.code, end.error.retryable, end.error.outcome) == ("node_draining", True, "cancelled")


# -- sessions ---------------------------------------------------------------------------------------------------------


@rule("P8", "N4")
async def test_what_outlives_its_session_is_announced_and_its_end_told_to_the_next_one() -> None:
    free = asyncio.Event()

    async def script(order: RunOrder, out: RunOutput) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await free.wait()

    rig = Rig(script)
    sink = rig.start(order(long=True))
    await turns()
    rig.runs.session_lost()
    attempt = StoppingAttempt("01RUN", 1, "p", True)
    assert rig.runs.stopping_attempts() == (attempt,)
    told: list[tuple[StoppingAttempt, EndKind]] = []
    rig.runs.watch_stopping(lambda which, end: told.append((which, end.kind)))
    await turns()
    assert told == []
    free.set()
    await turns()
    assert told == [(attempt, EndKind.CANCELLED)]
    assert rig.runs.stopping_attempts() == ()
    assert sink.ends == [], "the session that started it is gone"


async def test_what_ends_before_the_next_session_is_not_announced() -> None:
    rig = Rig(silent)
    rig.start()
    await turns()
    rig.runs.session_lost()
    await turns()
    assert rig.runs.stopping_attempts() == ()
    assert rig.runs.active == 0


@rule("N6")
async def test_closing_stops_everything_within_the_bound() -> None:
    async def stubborn(order: RunOrder, out: RunOutput) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if order.run_id != "stubborn":
                    raise
                await asyncio.sleep(600)
                return

    rig = Rig(stubborn)
    rig.start(order(run_id="a"))
    rig.start(order(run_id="stubborn"))
    await turns()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await rig.runs.close()
    assert loop.time() - begun <= 3.0
