"""Usage records and counters (E9)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from prometheus_client import CollectorRegistry

from iop_edge.metering import Meter, RunRecord
from support.rules import rule

FIELDS = [
    "time",
    "request_id",
    "surface",
    "model",
    "provider",
    "node",
    "principal_ref",
    "principal_alias",
    "token_ref",
    "context_class",
    "stream",
    "outcome",
    "status",
    "attempts",
    "queue_ms",
    "first_event_ms",
    "duration_ms",
    "input_tokens",
    "output_tokens",
    "usage_source",
]


def record(**fields: object) -> RunRecord:
    made: dict[str, object] = {
        "time": datetime(2026, 1, 1, 0, 0, 0, 5000, UTC),
        "request_id": "R",
        "surface": "chat_completions",
        "model": "m",
        "provider": "p",
        "principal_ref": "team",
        "token_ref": "ide",
        "duration_ms": 40,
        "first_event_ms": 20,
        "input_tokens": 7,
        "output_tokens": 3,
        "usage_source": "runtime",
    }
    return RunRecord(**{**made, **fields})  # type: ignore[arg-type]


@rule("E9")
@pytest.mark.anyio
async def test_records_are_json_lines_with_exactly_the_ruled_fields(tmp_path: Path) -> None:
    log = tmp_path / "usage.jsonl"
    meter = Meter(str(log), flush_seconds=0.01)
    async with anyio.create_task_group() as group:
        group.start_soon(meter.run)
        meter.record(record())
        with anyio.fail_after(5):
            while not log.exists() or not log.read_bytes().endswith(b"\n"):  # noqa: ASYNC110
                await anyio.sleep(0.005)
        meter.record(record(request_id="R2", outcome="client_gone", status=499))
        group.cancel_scope.cancel()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [list(line) for line in lines] == [FIELDS, FIELDS]
    assert lines[0]["time"] == "2026-01-01T00:00:00.005000Z"
    # What was pending when the Edge stopped is written too.
    assert [line["request_id"] for line in lines] == ["R", "R2"]
    assert log.stat().st_mode & 0o777 == 0o600


@rule("E9")
@pytest.mark.anyio
async def test_a_disk_that_refuses_costs_the_records_not_the_traffic(tmp_path: Path) -> None:
    meter = Meter(str(tmp_path / "absent" / "usage.jsonl"), flush_seconds=0.001)
    async with anyio.create_task_group() as group:
        group.start_soon(meter.run)
        meter.record(record())
        with anyio.fail_after(5):
            while not meter.records_lost:  # noqa: ASYNC110
                await anyio.sleep(0.005)
        group.cancel_scope.cancel()
    assert meter.records_lost == 1


@rule("E9", "P8")
def test_counters_have_the_ruled_labels_and_the_leak_gauge() -> None:
    registry = CollectorRegistry()
    meter = Meter(registry=registry, leaked_slots=lambda: 0)
    meter.record(record())
    meter.record(record(outcome="upstream_error", output_tokens=0))
    meter.attempt("p", "ok")
    meter.refused("queue_full")
    owner = {"model": "m", "provider": "p", "principal_ref": "team", "token_ref": "ide"}

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("iop_runs_total", **owner, surface="chat_completions", outcome="ok") == 1
    assert value("iop_runs_total", **owner, surface="chat_completions", outcome="upstream_error") == 1
    assert value("iop_tokens_total", **owner, direction="input", source="runtime") == 14
    assert value("iop_tokens_total", **owner, direction="output", source="runtime") == 3
    assert value("iop_attempts_total", provider="p", outcome="ok") == 1
    assert value("iop_refused_total", code="queue_full") == 1
    assert value("iop_run_duration_seconds_bucket", model="m", le="0.025") == 0
    assert value("iop_run_duration_seconds_bucket", model="m", le="0.05") == 2
    assert value("iop_leaked_slots") == 0


@rule("E9")
def test_the_backlog_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iop_edge.metering._BACKLOG", 3)
    meter = Meter("/nowhere")
    for _ in range(5):
        meter.record(record())
    assert meter.records_lost == 2
