"""What every adapter kind keeps, whatever it talks to: one suite over all of them (N5, N7, N8, E9, E11)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from attrs import frozen

from iop_node.adapters import ADAPTERS
from iop_node.adapters.base import Adapter, AdapterContext, ProbeTarget, RunFailedError
from iop_node.adapters.kinds import HTTP_KINDS, KINDS, OPENAI_KINDS
from iop_node.link import Health
from iop_node.settings import (
    AdapterSettings,
    CliSettings,
    EchoSettings,
    KindSettings,
    OllamaSettings,
    OpenAICompatSettings,
)
from support.adapters import Recorder, execute, failure, order
from support.rawruntime import RawRuntime, Request, answers, raw_runtime
from support.rules import rule

pytestmark = pytest.mark.anyio

FAKE = str(Path(__file__).parent.parent / "support" / "fake_cli.py")
WORDS = "one two three"  # what `order()` asks


@frozen
class Rig:
    """An adapter, and the runtime behind it where there is one."""

    adapter: Adapter
    runtime: RawRuntime


async def health(request: Request) -> None:
    await request.answer(200, {"status": "ok"})


async def models(request: Request) -> None:
    await request.answer(200, {"data": [{"id": "served"}], "models": [{"name": "served:latest"}]})


async def slots(request: Request) -> None:
    await request.answer(200, [])  # type: ignore[arg-type]


@asynccontextmanager
async def rig_of(kind: str, folder: Path) -> AsyncIterator[Rig]:
    async with raw_runtime(answers("one", " two", " three")) as runtime:
        runtime.routes |= {
            "/health": health,
            "/v1/models": models,
            "/api/tags": models,
            "/api/ps": models,
            "/slots": slots,
        }
        detail: KindSettings
        if kind in OPENAI_KINDS:
            detail = OpenAICompatSettings(f"{runtime.url}/v1")
        elif kind == "ollama":
            detail = OllamaSettings(runtime.url)
        elif kind == "cli":
            detail = CliSettings(sys.executable, ("-ISE", FAKE, "echo"), output_format="text")
        else:
            detail = EchoSettings()
        adapter = ADAPTERS[kind](AdapterSettings("a", kind, detail), AdapterContext(folder))
        try:
            yield Rig(adapter, runtime)
        finally:
            await adapter.close()


every_kind = pytest.mark.parametrize("kind", sorted(KINDS))


@rule("N5")
def test_the_table_has_every_kind_and_no_other() -> None:
    assert ADAPTERS.keys() == KINDS


@rule("N5", "E1", "E9", "E11")
@every_kind
async def test_a_stream_has_one_head_whole_events_an_end_and_its_usage(kind: str, tmp_path: Path) -> None:
    async with rig_of(kind, tmp_path) as rig:
        got = await execute(rig.adapter)
    assert [(status, headers["content-type"]) for status, headers in got.heads] == [(200, "text/event-stream")]
    assert got.was_contacted
    assert got.text.strip() == WORDS
    assert got.events[-1] == "[DONE]"
    assert got.events[-2]["choices"][0]["finish_reason"] == "stop"
    for piece in got.pieces:
        assert piece.endswith(b"\n\n"), "a piece is whole events"
    assert got.usage is not None
    assert got.usage.output_tokens > 0


@rule("N5", "E1", "E9", "N8")
@every_kind
async def test_a_plain_answer_is_one_json_object_with_its_usage(kind: str, tmp_path: Path) -> None:
    async with rig_of(kind, tmp_path) as rig:
        got = await execute(rig.adapter, order(streaming=False))
    assert [(status, headers["content-type"]) for status, headers in got.heads] == [(200, "application/json")]
    assert got.json["choices"][0]["message"]["content"].strip() == WORDS
    assert got.usage is not None
    assert got.json["usage"]["completion_tokens"] == got.usage.output_tokens


@rule("E2")
@every_kind
async def test_a_surface_that_it_does_not_have_is_refused_so_that_another_may_be_asked(
    kind: str, tmp_path: Path
) -> None:
    async with rig_of(kind, tmp_path) as rig:
        error = await failure(rig.adapter, order("telepathy"))
    assert (error.code, error.retryable, error.maybe_executed) == ("unsupported_endpoint", True, False)
    assert error.outcome != "broken", "it says nothing of the provider's health"


@rule("N6", "N8")
@every_kind
async def test_a_cancelled_run_ends_at_once_and_says_nothing_more(kind: str, tmp_path: Path) -> None:
    async with rig_of(kind, tmp_path) as rig:
        slow = Recorder()
        slow.gate.clear()  # a client that takes nothing: the run is surely under way when it is cancelled
        task = asyncio.ensure_future(rig.adapter.run(order(), slow))
        async with asyncio.timeout(5):
            while not slow.heads:  # noqa: ASYNC110 -- a recorder has no event for it
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        said = len(slow.pieces)
        slow.gate.set()
        # The next run has the adapter to itself again.
        assert (await execute(rig.adapter)).text.strip() == WORDS
    assert len(slow.pieces) == said


@rule("N5")
@every_kind
async def test_runs_at_the_same_time_do_not_mix(kind: str, tmp_path: Path) -> None:
    async with rig_of(kind, tmp_path) as rig, asyncio.timeout(20):
        recorders = [Recorder() for _ in range(6)]
        await asyncio.gather(
            *(
                rig.adapter.run(order(run_id=f"r{number}", streaming=number % 2 == 0), recorder)
                for number, recorder in enumerate(recorders)
            )
        )
    for number, got in enumerate(recorders):
        text = got.text if number % 2 == 0 else got.json["choices"][0]["message"]["content"]
        assert text.strip() == WORDS


@rule("N7")
@every_kind
async def test_a_probe_finds_it_well_and_costs_no_inference(kind: str, tmp_path: Path) -> None:
    async with rig_of(kind, tmp_path) as rig:
        found = await rig.adapter.probe(ProbeTarget("p", ("served",)))
        assert found.health is Health.HEALTHY, found.message
        assert all(request.method == "GET" or request.path == "/api/show" for request in rig.runtime.requests)


@rule("N5", "N3")
@every_kind
async def test_it_can_be_closed_unused_and_twice(kind: str, tmp_path: Path) -> None:
    async with rig_of(kind, tmp_path) as rig:
        await rig.adapter.close()
        await rig.adapter.close()


@rule("P14", "E7")
@pytest.mark.parametrize("kind", sorted(HTTP_KINDS))
async def test_a_runtime_that_is_not_there_executed_nothing(kind: str, tmp_path: Path) -> None:
    detail = OllamaSettings("http://127.0.0.1:9") if kind == "ollama" else OpenAICompatSettings("http://127.0.0.1:9/v1")
    adapter = ADAPTERS[kind](AdapterSettings("a", kind, detail), AdapterContext(tmp_path))
    try:
        with pytest.raises(RunFailedError) as caught:
            await adapter.run(order(), Recorder())
        found = await adapter.probe(ProbeTarget("p", ("served",)))
    finally:
        await adapter.close()
    assert (caught.value.error.retryable, caught.value.error.maybe_executed) == (True, False)
    assert found.health is Health.UNHEALTHY
