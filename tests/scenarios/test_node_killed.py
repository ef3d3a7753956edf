"""kill -9 on a Node under load: a client gets a whole answer or exactly one error event, and the Node comes back."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import httpx2

from support.fake_runtime import answer
from support.raw_client import ask, many_connections
from support.rules import rule
from support.stack import eventually, openai_config, running

CLIENTS = 24


@rule("E3", "E11", "N4", "P8")
def test_a_killed_node_costs_one_error_per_running_client_and_its_return_serves_again(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        runtime = stack.runtime()
        edge = stack.edge(openai_config(stack.token_hash, base_url=runtime, capacity=4))
        node = stack.node()
        stack.wait_available("p")

        async def load() -> list[tuple[str, str]]:
            async with many_connections() as client:
                tasks = [asyncio.ensure_future(ask(client, stack, number)) for number in range(CLIENTS)]
                await asyncio.to_thread(eventually, "runs at work", lambda: stack.stats(runtime)["active"] == 4)
                node.send(signal.SIGKILL)
                await asyncio.to_thread(node.wait, 10)
                # It comes back while the others still wait for it; the Edge is not touched.
                await asyncio.to_thread(stack.node)
                return await asyncio.gather(*tasks)

        outcomes = asyncio.run(load())
        counts = Counter(kind for kind, _ in outcomes)
        # Those whose run was at work lose it; whoever waited is served by the Node's return.
        assert counts["event"] + counts["status"] == 4, outcomes
        assert {code for kind, code in outcomes if kind != "whole"} == {"node_lost"}
        assert counts["whole"] == CLIENTS - 4
        eventually("every counter at rest", stack.is_idle)
        assert edge.alive()
        with stack.client() as client:
            after = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "tokens=3"}])
        assert after.choices[0].message.content == answer(3)


@rule("E7")
def test_a_run_that_had_no_byte_yet_goes_to_another_provider(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        good, bad = stack.runtime(), stack.runtime(name="bad")
        second = f"""\
      - id: q
        type: openai_compat
        category: local_inference
        base_url: {bad}/v1
        models: [served]
        capacity: 4
        health: {{probe: false}}
"""
        config = openai_config(stack.token_hash, base_url=good, capacity=4, extra=second)
        stack.edge(config.replace("{p: served}", "{q: served, p: served}"))
        stack.node()
        stack.wait_available("p", "q")
        with httpx2.Client(trust_env=False, timeout=30) as http:
            http.post(f"{bad}/behave", json={"text": "do=refuse"})
        with stack.client() as client:
            for number in range(4):
                raw = client.chat.completions.with_raw_response.create(
                    model="m", messages=[{"role": "user", "content": f"tokens=2 name=n{number}"}]
                )
                assert raw.parse().choices[0].message.content == answer(2, f"n{number}")
                assert raw.headers["x-iop-provider"] == "p"
        eventually("every counter at rest", stack.is_idle)
