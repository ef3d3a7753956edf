"""A Node that stops without leaving: a short sleep costs nothing, a long one costs its runs once, and it comes back."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest

from support.raw_client import ask, many_connections
from support.rules import rule
from support.stack import Stack, eventually, openai_config, running

CLIENTS = 8


@rule("N4", "E11", "P8")
@pytest.mark.parametrize(("asleep", "lost"), [(3.0, 0), (18.0, 4)], ids=["short", "long"])
def test_a_frozen_node(tmp_path: Path, asleep: float, lost: int) -> None:
    with running(tmp_path) as stack:
        runtime = stack.runtime()
        stack.edge(openai_config(stack.token_hash, base_url=runtime, capacity=4))
        node = stack.node()
        stack.wait_available("p")

        async def load() -> list[tuple[str, str]]:
            async with many_connections(timeout=90) as client:
                tasks = [asyncio.ensure_future(ask(client, stack, number)) for number in range(CLIENTS)]
                await asyncio.to_thread(eventually, "runs at work", lambda: stack.stats(runtime)["active"] == 4)
                node.send(signal.SIGSTOP)
                try:
                    await asyncio.sleep(asleep)  # the fault itself, not a wait for something
                finally:
                    node.send(signal.SIGCONT)
                return await asyncio.gather(*tasks)

        outcomes = asyncio.run(load())
        counts = Counter(kind for kind, _ in outcomes)
        assert counts["whole"] == CLIENTS - lost, outcomes
        assert {code for kind, code in outcomes if kind != "whole"} <= {"node_lost"}
        eventually("every counter at rest", stack.is_idle)
        stack.wait_available("p")
        eventually("the runtime at rest", lambda: stack.stats(runtime)["active"] == 0)
        assert asyncio.run(one(stack)) == ("whole", "")


async def one(stack: Stack) -> tuple[str, str]:
    async with many_connections() as client:
        return await ask(client, stack, 99)
