"""A hundred refreshes while 32 clients stream: no request fails, and each stream is the one of a run without them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import openai

from support.fake_runtime import answer
from support.rules import rule
from support.stack import Stack, eventually, openai_config, running

CLIENTS = 32
REFRESHES = 100


def config_of(stack: Stack, runtime: str, capacity: int, *, extra_model: bool = False) -> str:
    """The config with one capacity or another, and with a model more or less."""
    config = openai_config(stack.token_hash, base_url=runtime, capacity=capacity)
    return config.replace("nodes:\n", "  - id: also-m\n    providers: {p: served}\nnodes:\n") if extra_model else config


@rule("R2", "R7", "R8", "R11", "R14")
def test_a_hundred_refreshes_lose_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        runtime = stack.runtime()
        stack.edge(config_of(stack, runtime, 8))
        stack.node()
        stack.wait_available("p")

        async def keep_asking(client: openai.AsyncOpenAI, name: str, stop: asyncio.Event) -> int:
            asked = 0
            while not stop.is_set():
                stream = await client.chat.completions.create(
                    model="m",
                    messages=[{"role": "user", "content": f"name={name} tokens=30 gap_ms=4"}],
                    stream=True,
                )
                text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
                assert text == answer(30, name)
                asked += 1
            return asked

        async def load() -> list[int]:
            stop = asyncio.Event()
            async with stack.async_client() as client:
                tasks = [asyncio.ensure_future(keep_asking(client, f"c{n}-", stop)) for n in range(CLIENTS)]
                try:
                    await asyncio.to_thread(refresh_all)
                finally:
                    stop.set()
                return await asyncio.gather(*tasks)

        def refresh_all() -> None:
            for number in range(REFRESHES):
                code, result = stack.refresh(config_of(stack, runtime, 4 + number % 5, extra_model=number % 2 == 1))
                assert (code, result["status"], result["live_applied"]) == (200, "applied", True), result
                assert [node["state"] for node in result["nodes"]] == ["acked"], result

        asked = asyncio.run(load())
        assert min(asked) >= 1
        eventually("every counter at rest", stack.is_idle)
        # Lowering a capacity never lets more in than the larger of the two (P9).
        assert stack.stats(runtime)["most_active"] <= 8
        assert stack.provider("p")["capacity"] == 4 + (REFRESHES - 1) % 5
        (node,) = stack.status()["nodes"]
        assert node["acknowledged"]


@rule("R3", "R4", "R5", "R13")
def test_what_needs_a_restart_changes_nothing_and_the_exit_code_says_so(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        runtime = stack.runtime()
        stack.edge(config_of(stack, runtime, 2))
        stack.node()
        stack.wait_available("p")
        moved = config_of(stack, runtime, 3).replace('openai: {listen: "127.0.0.1:0"', 'openai: {listen: "127.0.0.1:1"')
        stack.config.write_text(moved)

        code, text = stack.iop_edge("config", "refresh")
        assert code == 3, text
        assert "openai.listen" in text
        assert "--allow-partial" in text
        assert stack.provider("p")["capacity"] == 2

        code, text = stack.iop_edge("config", "refresh", "--allow-partial", "--wait", "10", "--output", "json")
        result = json.loads(text)
        assert code == 3
        assert (result["live_applied"], result["pending_restart_paths"]) == (True, ["openai.listen"])
        assert stack.provider("p")["capacity"] == 3
        assert stack.status()["pending_restart_paths"] == ["openai.listen"]

        stack.config.write_text(config_of(stack, runtime, 3))
        code, text = stack.iop_edge("config", "refresh")
        assert code == 0, text
        assert stack.status()["pending_restart_paths"] == []


@rule("R4", "R11", "R13", "C19")
def test_a_broken_file_is_rejected_with_its_places_and_the_edge_serves_on(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        runtime = stack.runtime()
        good = config_of(stack, runtime, 2)
        stack.edge(good)
        stack.node()
        stack.wait_available("p")
        before = stack.status()["config_version"]
        stack.config.write_text(good.replace("capacity: 2", "capacity: many"))
        code, text = stack.iop_edge("config", "refresh")
        assert code == 4, text
        assert "edge.yaml:" in text
        assert "capacity" in text
        assert "Traceback" not in text
        assert stack.status()["config_version"] == before
        with stack.client() as client:
            got = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "tokens=2"}])
        assert got.choices[0].message.content == answer(2)


@rule("R9", "R13")
def test_without_an_edge_the_commands_say_so_in_one_line(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        stack.config.write_text(openai_config(stack.token_hash, base_url="http://127.0.0.1:9", capacity=1))
        for command in (["status"], ["config", "refresh"], ["explain", "m"]):
            code, text = stack.iop_edge(*command)
            assert code == 7, (command, text)
            assert len(text.splitlines()) <= 2, text
            assert "Traceback" not in text
