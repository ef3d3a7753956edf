"""kill -9 on a Node under load: a client gets a whole answer or exactly one error event, and the Node comes back."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path

import httpx2

from support.fake_runtime import answer
from support.rules import rule
from support.stack import Stack, eventually, openai_config, running

CLIENTS = 24


async def ask(client: httpx2.AsyncClient, stack: Stack, number: int) -> tuple[str, str]:
    """How one streaming client fared: `whole`, `event` (one error event), or `status` (an error before the stream)."""
    body = {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": f"name=c{number}- tokens=40 gap_ms=20"}],
    }
    response = await client.post(f"{stack.base_url}/chat/completions", json=body)
    if response.status_code != 200:
        return "status", response.json()["error"]["code"]
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    if events[-1] == "[DONE]":
        chunks = [json.loads(event) for event in events[:-1]]
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
        assert text == answer(40, f"c{number}-")
        return "whole", ""
    errors = [json.loads(event)["error"]["code"] for event in events if "error" in json.loads(event)]
    assert len(errors) == 1, events[-3:]
    return "event", errors[0]


@rule("E3", "E11", "N4", "P8")
def test_a_killed_node_costs_one_error_per_running_client_and_its_return_serves_again(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        runtime = stack.runtime()
        edge = stack.edge(openai_config(stack.token_hash, base_url=runtime, capacity=4))
        node = stack.node()
        stack.wait_available("p")

        async def load() -> list[tuple[str, str]]:
            limits = httpx2.Limits(max_connections=None)
            async with httpx2.AsyncClient(trust_env=False, timeout=60, limits=limits) as client:
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
