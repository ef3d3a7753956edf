"""Starting, joining and stopping as an operator sees it: one plain line for each trouble, and nothing is cut short."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import httpx2
import openai
import pytest

from support.fake_runtime import answer
from support.rules import rule
from support.stack import BIN, Stack, eventually, openai_config, running


def started(stack: Stack, capacity: int = 2) -> str:
    """A runtime, an Edge and a Node that serve; the runtime's root URL."""
    runtime = stack.runtime()
    stack.edge(openai_config(stack.token_hash, base_url=runtime, capacity=capacity))
    stack.node()
    stack.wait_available("p")
    return runtime


@rule("N6", "E3")
def test_an_edge_that_is_told_to_stop_finishes_what_runs_and_refuses_what_waits(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        runtime = started(stack, capacity=1)
        edge = stack.processes[1]

        async def ask(client: openai.AsyncOpenAI, name: str) -> str:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": f"name={name} tokens=40 gap_ms=20"}], stream=True
            )
            return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

        async def run() -> tuple[str, BaseException | str]:
            async with stack.async_client() as client:
                first = asyncio.ensure_future(ask(client, "a"))
                await asyncio.to_thread(eventually, "one at work", lambda: stack.stats(runtime)["active"] == 1)
                second = asyncio.ensure_future(ask(client, "b"))
                await asyncio.to_thread(
                    eventually, "one waits", lambda: stack.status()["models"][0]["queue_length"] == 1
                )
                edge.send(signal.SIGTERM)
                done = await asyncio.gather(first, second, return_exceptions=True)
                assert isinstance(done[0], str), done
                return done[0], done[1]

        whole, refused = asyncio.run(run())
        assert whole == answer(40, "a")
        assert isinstance(refused, openai.InternalServerError)
        assert (refused.status_code, refused.code) == (503, "edge_shutdown")
        assert refused.response.headers["retry-after"]
        assert edge.wait(10) == 0


@rule("N6")
def test_a_node_that_is_told_to_stop_finishes_what_runs(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        runtime = started(stack)
        node = stack.processes[2]

        async def run() -> str:
            async with stack.async_client() as client:
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "tokens=40 gap_ms=20"}], stream=True
                )
                text = ""
                async for chunk in stream:
                    if not text:
                        node.send(signal.SIGTERM)
                    text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
                return text

        assert asyncio.run(run()) == answer(40)
        assert node.wait(10) == 0
        assert stack.stats(runtime)["aborted"] == 0
        eventually("the Edge sees that it left", lambda: not stack.status()["nodes"][0]["connected"])


@rule("N1", "N4")
def test_a_node_with_a_wrong_token_says_so_plainly_and_keeps_trying(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        stack.edge(openai_config(stack.token_hash, base_url="http://127.0.0.1:9", capacity=1))
        stack.token = stack.token[:-4] + "AAAA"
        node = stack.node(wait=False)
        eventually("it says why", lambda: "token" in node.output)
        assert node.alive()
        assert "Traceback" not in node.output
        assert stack.token not in node.output


@rule("N4", "P5")
def test_a_node_may_start_before_the_edge_and_finds_it(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        runtime = stack.runtime()
        config = openai_config(stack.token_hash, base_url=runtime, capacity=1)
        edge = stack.edge(config)
        host, port = stack.addresses["grpc"].rsplit(":", 1)
        edge.send(signal.SIGTERM)
        assert edge.wait(20) == 0
        stack.processes.remove(edge)
        node = stack.node(wait=False)
        eventually("it says that nobody is there", lambda: f"{host}:{port}" in node.output)
        stack.edge(config.replace('server: {listen: "127.0.0.1:0"}', f'server: {{listen: "{host}:{port}"}}'))
        node.wait_for("iop-node: ready")
        stack.wait_available("p")


@rule("P5", "E3")
def test_without_a_node_a_request_waits_for_the_grace_and_is_then_refused_with_the_reason(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        config = openai_config(stack.token_hash, base_url="http://127.0.0.1:9", capacity=1)
        stack.edge(config.replace('listen: "127.0.0.1:0"}', 'listen: "127.0.0.1:0", reconnect_grace_ms: 100}', 1))
        with httpx2.Client(trust_env=False, timeout=30) as http:
            assert http.get(f"http://{stack.addresses['openai']}/healthz").status_code == 200
            assert http.get(f"http://{stack.addresses['openai']}/readyz").status_code == 503
        with stack.client() as client, pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert (caught.value.status_code, caught.value.code) == (503, "unavailable")
        assert "p" in caught.value.message


@rule("C19", "R15")
def test_a_broken_config_does_not_start_and_says_where(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        stack.config.write_text("edge: {id: x}\nservre: {}\n")
        code, text = stack.iop_edge("run")
        assert code == 4
        assert "edge.yaml:2:1: " in text
        assert "server" in text
        assert "Traceback" not in text


@rule("R12")
def test_a_port_that_is_taken_is_one_line_with_the_place_in_the_config(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        started(stack)
        config = openai_config(stack.token_hash, base_url="http://127.0.0.1:9", capacity=1)
        stack.config.write_text(
            config.replace('openai: {listen: "127.0.0.1:0"', f'openai: {{listen: "{stack.addresses["openai"]}"')
        )
        stack.env["IOP_STATE_DIR"] = str(tmp_path / "other")
        code, text = stack.iop_edge("run")
        assert code == 1
        assert "openai.listen" in text.splitlines()[-1]
        assert "Traceback" not in text


def test_the_programs_name_their_version() -> None:
    for program in ("iop-edge", "iop-node"):
        assert (BIN / program).exists()
