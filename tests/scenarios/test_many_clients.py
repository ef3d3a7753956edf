"""64 clients stream at once from a provider that runs four: never more than four reach it, and nobody is cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from support.fake_runtime import answer
from support.rules import rule
from support.stack import Stack, eventually, openai_config, running

CLIENTS = 64
CAPACITY = 4


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder: Path = tmp_path_factory.mktemp("many")
    with running(folder) as made:
        runtime = made.runtime()
        made.edge(openai_config(made.token_hash, base_url=runtime, capacity=CAPACITY))
        made.node()
        made.wait_available("p")
        yield made


def runtime_of(stack: Stack) -> str:
    return f"http://127.0.0.1:{stack.processes[0].wait_for('ready 127.0.0.1:')}"


async def streamed(client: openai.AsyncOpenAI, text: str) -> str:
    """The whole text of one streamed answer."""
    stream = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}], stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    return "".join(pieces)


@rule("P1", "P4", "P8")
def test_a_capacity_of_four_holds_against_64_streaming_clients_and_everyone_gets_the_whole_answer(stack: Stack) -> None:
    runtime = runtime_of(stack)

    async def run() -> list[str]:
        async with stack.async_client() as client:
            asked = (streamed(client, f"name=c{n}- tokens=12 gap_ms=3") for n in range(CLIENTS))
            return await asyncio.gather(*asked)

    before = stack.stats(runtime)["started"]
    got = asyncio.run(run())
    assert got == [answer(12, f"c{n}-") for n in range(CLIENTS)]
    stats = stack.stats(runtime)
    assert stats["started"] - before == CLIENTS
    assert stats["most_active"] == CAPACITY  # never more, and no slot idles while someone waits
    eventually("every counter at rest", stack.is_idle)


@rule("E8", "P8")
def test_clients_that_leave_free_their_slots_and_their_place_in_the_queue(stack: Stack) -> None:
    runtime = runtime_of(stack)

    async def leave_early() -> None:
        async with stack.async_client() as client:

            async def come(count: int) -> list[asyncio.Future[str]]:
                return [asyncio.ensure_future(streamed(client, "tokens=2000 gap_ms=5")) for _ in range(count)]

            async def leave(tasks: list[asyncio.Future[str]]) -> None:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

            runs = await come(CAPACITY)
            await asyncio.to_thread(eventually, "they run", lambda: stack.status()["leases"] == CAPACITY)
            waiters = await come(12)
            await asyncio.to_thread(eventually, "they wait", lambda: queued(stack) == 12)
            await leave(waiters)
            await asyncio.to_thread(eventually, "nobody waits", lambda: queued(stack) == 0)
            await leave(runs)

    before = stack.stats(runtime)["started"]
    asyncio.run(leave_early())
    eventually("every counter at rest", stack.is_idle)
    eventually("the runtime at rest", lambda: stack.stats(runtime)["active"] == 0)
    # Nobody who waited was sent to the runtime after it had left.
    assert stack.stats(runtime)["started"] - before == CAPACITY


def queued(stack: Stack) -> int:
    return sum(row["queue_length"] for row in stack.status()["models"])


@rule("E1", "E2")
def test_the_plain_and_the_streamed_answer_are_the_same_text(stack: Stack) -> None:
    with stack.client() as client:
        plain = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "tokens=5 name=x"}])
        assert plain.choices[0].message.content == answer(5, "x")
        assert plain.usage is not None
        assert plain.usage.completion_tokens == 5
        with client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "tokens=5 name=x"}], stream=True
        ) as stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert text == answer(5, "x")


@rule("C4", "E1")
def test_inside_there_is_the_served_name_and_outside_the_model_id(stack: Stack) -> None:
    with stack.client() as client:
        assert [model.id for model in client.models.list()] == ["m"]
        assert client.models.retrieve("m").id == "m"
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "tokens=1"}])
    assert stack.stats(runtime_of(stack))["bodies"][-1]["model"] == "served"
