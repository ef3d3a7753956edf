"""The metrics listener: what a scraper reads of the pool, the Nodes and the Meter, and that its size is bounded."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from iop_edge.metering import Meter, RunRecord
from iop_edge.metrics import StatusCollector, serve_metrics
from support.edge_status import StatusRig
from support.fake_edge_node import EdgeRig, answers, config, model, node, provider
from support.rules import rule

ROOT = Path(__file__).resolve().parent.parent.parent
TWO = config(
    node("n1", provider("a", capacity=4, long_context_capacity=1), provider("off", enabled=False, capacity=3)),
    node("n2", provider("b", capacity=2)),
    models=(model("m", "a", "b"), model("other", "off")),
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def read(rig: StatusRig) -> Callable[..., float | None]:
    """Scrape once; the result looks a sample up."""
    registry = CollectorRegistry()
    registry.register(StatusCollector(rig.runtime.status))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    return value


@asynccontextmanager
async def listening(registry: CollectorRegistry, status: Callable[[], Mapping[str, object]]) -> AsyncIterator[str]:
    async with anyio.create_task_group() as group:

        async def listen(*, task_status: Any) -> None:
            await serve_metrics(registry, status, host="127.0.0.1", port=0, task_status=task_status)

        host, port = await group.start(listen)
        yield f"http://{host}:{port}"
        group.cancel_scope.cancel()


@rule("P11")
@pytest.mark.anyio
async def test_capacity_load_and_queue_are_what_the_status_says() -> None:
    rig = StatusRig(TWO)
    rig.connect("n1")
    lease = await rig.pool.acquire_lease("m", input_tokens=200_000)
    value = read(rig)
    assert value("iop_provider_in_flight", provider="a", node="n1") == 1
    assert value("iop_provider_long_in_flight", provider="a", node="n1") == 1
    assert value("iop_provider_capacity", provider="a", node="n1") == 4
    assert value("iop_provider_long_context_capacity", provider="a", node="n1") == 1
    assert value("iop_provider_long_context_capacity", provider="b", node="n2") is None
    assert value("iop_provider_status", provider="a", node="n1", status="available") == 1
    assert value("iop_provider_status", provider="b", node="n2", status="disconnected") == 1
    assert value("iop_provider_granted_total", provider="a", node="n1") == 1
    assert value("iop_model_decisions_total", model="m", decision="granted") == 1
    assert value("iop_leases") == 1
    lease.release()
    assert value("iop_provider_in_flight", provider="a", node="n1") == 0
    assert value("iop_provider_outcomes_total", provider="a", node="n1", outcome="ok") == 1


@rule("P11")
def test_a_disabled_provider_shows_no_capacity() -> None:
    value = read(StatusRig(TWO))
    labels = {"provider": "off", "node": "n1"}
    assert value("iop_provider_capacity", **labels) == 0
    assert value("iop_provider_status", **labels, status="disabled") == 1
    assert value("iop_provider_health", **labels, health="disabled") == 1


def test_each_state_is_one_sample_per_word_and_exactly_one_holds() -> None:
    rig = StatusRig(TWO)
    rig.connect("n1", healthy=False)
    registry = CollectorRegistry()
    registry.register(StatusCollector(rig.runtime.status))
    for family in registry.collect():
        if family.name in ("iop_provider_status", "iop_provider_health", "iop_node_state"):
            held: dict[str, float] = {}
            for sample in family.samples:
                owner = sample.labels.get("provider") or sample.labels["node"]
                held[owner] = held.get(owner, 0) + sample.value
            assert held
            assert set(held.values()) == {1.0}, family.name
    assert read(rig)("iop_provider_health", provider="a", node="n1", health="ejected") == 1


@rule("E9")
@pytest.mark.anyio
async def test_a_scrape_holds_meter_pool_nodes_and_process() -> None:
    registry = CollectorRegistry()
    meter = Meter(registry=registry, leaked_slots=lambda: 0)
    meter.record(
        RunRecord(
            time=datetime.now(UTC), request_id="r", surface="chat", model="m", provider="a", principal_ref="team",
            token_ref="key", input_tokens=5, output_tokens=6, duration_ms=20, first_event_ms=10,
        )
    )  # fmt: skip
    rig = StatusRig(TWO)
    async with listening(registry, rig.runtime.status) as url, httpx2.AsyncClient(trust_env=False) as http:
        answer = await http.get(f"{url}/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        found = samples(answer.text)
        names = {name for name, _ in found}
        assert {"iop_runs_total", "iop_tokens_total", "iop_leaked_slots", "iop_provider_in_flight"} <= names
        assert {"iop_node_connected", "iop_model_queue_length", "process_cpu_seconds_total"} <= names
        owner = (("model", "m"), ("principal_ref", "team"), ("provider", "a"))
        assert (
            found["iop_tokens_total", (("direction", "input"), *owner, ("source", "estimate"), ("token_ref", "key"))]
            == 5
        )

        modern = await http.get(f"{url}/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        assert modern.headers["content-type"].startswith("application/openmetrics-text")
        assert {family.name for family in parse_openmetrics(modern.text)} >= {"iop_runs", "iop_provider_capacity"}
        for strange in ("application/openmetrics-text; version=x", "text/plain; version=", "; ; =", "*/*"):
            assert (await http.get(f"{url}/metrics", headers={"accept": strange})).status_code == 200, strange
        assert (await http.post(f"{url}/metrics")).status_code == 405
        assert (await http.get(f"{url}/secret")).status_code == 404


@rule("E9")
@pytest.mark.anyio
async def test_what_clients_send_makes_no_new_series() -> None:
    rig = EdgeRig(config(node("n", provider("p", capacity=8))), answers())
    registry = CollectorRegistry()
    registry.register(rig.meter)

    def count() -> int:
        return sum(len(family.samples) for family in registry.collect())

    async with rig.serving() as url, httpx2.AsyncClient(base_url=url, trust_env=False) as http:

        async def ask(name: object) -> None:
            body = {"model": name, "messages": [{"role": "user", "content": "hi"}], "user": str(name)}
            await http.post("/v1/chat/completions", json=body, headers={"x-title": str(name)})

        for name in ("m", "unknown", 7):
            await ask(name)
        await http.post("/v1/chat/completions", content=b"{")
        before = count()
        for number in range(30):
            await ask(f"model-{number}")
        await http.post("/v1/chat/completions", content=b"{" * 9)
        assert count() == before


def test_the_reference_page_names_every_family_with_its_labels() -> None:
    registry = CollectorRegistry()
    meter = Meter(registry=registry, leaked_slots=lambda: 0)
    meter.record(
        RunRecord(
            time=datetime.now(UTC), request_id="r", surface="chat", model="m", input_tokens=1, first_event_ms=1
        )
    )  # fmt: skip
    meter.attempt("a", "ok")
    meter.refused("invalid_json")
    rig = StatusRig(TWO)
    rig.connect("n1")
    registry.register(StatusCollector(rig.runtime.status))
    page = (ROOT / "docs/reference/metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(iop_\w+)` \| [\w ]+ \| ([^|]*) \|", page, re.MULTILINE))
    wanted = {}
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        # Not from the samples: a family whose rows are all null has none.
        labels: tuple[str, ...] = family._labelnames  # type: ignore[attr-defined]
        wanted[name] = ", ".join(f"`{label}`" for label in labels) or "–"
    assert rows == wanted
