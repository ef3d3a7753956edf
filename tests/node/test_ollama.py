"""The `ollama` adapter against a stand-in: nothing is cut in silence, probes load nothing (N5, N7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from iop_node.adapters.base import Adapter, ProbeTarget
from iop_node.link import Health, Usage
from iop_node.settings import AdapterSettings, OllamaSettings, SecretPair
from support.adapters import adapter_of, execute, failure, order
from support.rawruntime import RawRuntime, Request, answers, event, raw_runtime
from support.rules import rule

pytestmark = pytest.mark.anyio

TARGET = ProbeTarget("p", ("served",))


class Ollama:
    """What the stand-in says: installed models, loaded ones with their windows, and parameters of a Modelfile."""

    def __init__(self, **fields: Any) -> None:
        self.installed: list[str] = fields.get("installed", ["served:latest"])
        self.loaded: dict[str, int] = fields.get("loaded", {})
        self.parameters: str = fields.get("parameters", "")

    async def tags(self, request: Request) -> None:
        await request.answer(200, {"models": [{"name": name} for name in self.installed]})

    async def ps(self, request: Request) -> None:
        models = [{"name": name, "context_length": window} for name, window in self.loaded.items()]
        await request.answer(200, {"models": models})

    async def show(self, request: Request) -> None:
        assert request.json == {"model": "served"}
        await request.answer(200, {"parameters": self.parameters})


@asynccontextmanager
async def ollama(**fields: Any) -> AsyncIterator[tuple[Adapter, RawRuntime]]:
    said = Ollama(**fields)
    async with raw_runtime(fields.get("script", answers("one", " two"))) as runtime:
        runtime.routes |= {"/api/tags": said.tags, "/api/ps": said.ps, "/api/show": said.show}
        headers = (SecretPair("Authorization", "Bearer s"),)
        detail = OllamaSettings(runtime.url, headers=headers, context_size=fields.get("context_size"))
        async with adapter_of(AdapterSettings("a", "ollama", detail)) as adapter:
            yield adapter, runtime


@rule("N5", "C24")
async def test_runs_go_through_the_openai_surface_below_the_root() -> None:
    async with ollama() as (adapter, runtime):
        got = await execute(adapter)
        (run,) = [request for request in runtime.requests if request.path.startswith("/v1")]
    assert (run.path, run.headers["authorization"]) == ("/v1/chat/completions", "Bearer s")
    assert (got.text, got.usage) == ("one two", Usage(7, 3, from_runtime=True))


@rule("N5", "E13")
@pytest.mark.parametrize(
    "known",
    [
        {"loaded": {"served:latest": 4096}},
        {"parameters": "stop x\nnum_ctx                        4096\n"},
        {"context_size": 4096},
        {"loaded": {"served:latest": 131072}, "context_size": 4096},
    ],
    ids=["loaded", "Modelfile", "config", "the smaller of both"],
)
async def test_what_ollama_would_cut_in_silence_is_refused_before_it_is_sent(known: dict[str, Any]) -> None:
    async with ollama(**known) as (adapter, runtime):
        error = await failure(adapter, order(input_tokens_estimate=5000))
        assert not [request for request in runtime.requests if request.path.startswith("/v1")]
        assert (await execute(adapter, order(input_tokens_estimate=4096))).text == "one two"
    assert (error.upstream_status, error.retryable, error.maybe_executed, error.outcome) == (
        400,
        False,
        False,
        "client_error",
    )
    assert "4096" in error.message
    assert b"context_length_exceeded" in error.upstream_body


@rule("N5")
@pytest.mark.parametrize("loaded", [{}, {"other:latest": 10}, {"served:7b": 10}])
async def test_without_a_known_window_nothing_is_refused(loaded: dict[str, int]) -> None:
    async with ollama(loaded=loaded) as (adapter, _):
        assert (await execute(adapter, order(input_tokens_estimate=10**6))).text == "one two"


@rule("E12", "P14")
async def test_a_stream_that_stops_without_its_end_is_a_failure() -> None:
    async def swallow(request: Request) -> None:
        await request.stream(event({"choices": [{"index": 0, "delta": {"content": "half"}}]}))

    async with ollama(script=swallow) as (adapter, _):
        error = await failure(adapter)
    assert (error.code, error.maybe_executed, error.outcome) == ("upstream_error", True, "broken")


@rule("N7")
async def test_the_probe_asks_what_is_installed_and_loads_nothing() -> None:
    async with ollama(installed=["served:latest", "x:7b"], loaded={"served:latest": 8192}) as (adapter, runtime):
        found = await adapter.probe(TARGET)
        assert (found.health, found.context_tokens) == (Health.HEALTHY, 8192)
        found = await adapter.probe(ProbeTarget("p", ("served", "absent")))
        assert (found.health, found.message) == (Health.HEALTHY, "absent is not installed")
        found = await adapter.probe(ProbeTarget("p", ("x",)))
        assert found.health is Health.UNHEALTHY
        assert found.message == "x is not installed; Ollama has served:latest, x:7b"
        asked = {request.path for request in runtime.requests}
    assert asked <= {"/api/tags", "/api/ps", "/api/show"}


@rule("N7")
async def test_the_probe_of_what_is_no_ollama_or_not_there_says_so() -> None:
    async with (
        raw_runtime() as runtime,
        adapter_of(AdapterSettings("a", "ollama", OllamaSettings(runtime.url))) as adapter,
    ):
        assert (await adapter.probe(TARGET)).message == "/api/tags answered 404; is this an Ollama?"
    async with adapter_of(AdapterSettings("a", "ollama", OllamaSettings("http://127.0.0.1:9"))) as adapter:
        found = await adapter.probe(TARGET)
    assert found.health is Health.UNHEALTHY
    assert "cannot be reached" in found.message
