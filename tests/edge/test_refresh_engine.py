"""The refresh pipeline with every part real but the Nodes: a failure at any step changes nothing (R4, R7, R11, R15)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import iop_config
from iop_edge.admin import refresh as engine_module
from iop_edge.admin.refresh import RefreshEngine, RefreshRequest
from iop_edge.app import EdgeApp, Options
from iop_edge.state import StateError, StateFolder
from iop_refresh import RefreshResult, Status
from support.edits import CONFIG, edited
from support.rules import rule

pytestmark = pytest.mark.anyio

RAISED = edited(("capacity: 4", "capacity: 5"))
SECRET = "canary-of-a-failure"


class Edge:
    """An Edge that listens nowhere, on a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "edge.yaml"
        self.folder = folder / "state"
        self.file.write_text(CONFIG)
        self.state = StateFolder(self.folder)
        loaded = iop_config.load(self.file, digest_key=self.state.digest_key())
        self.app = EdgeApp(loaded, self.state, Options(paths=(self.file,)))
        self.state.keep(loaded.version, loaded.sources)
        self.engine: RefreshEngine[Any] = self.app._engine
        self.runtime = self.app._runtime

    async def apply(self, text: str | None = None, **fields: Any) -> RefreshResult:
        if text is not None:
            self.file.write_text(text)
        async with asyncio.timeout(20):
            return await self.engine.refresh(RefreshRequest(**fields), trigger="test")

    def fingerprint(self) -> object:
        """All that a refresh may change."""
        status = self.app._pool.status()
        return (
            self.runtime.snapshot,
            [(one.id, one.capacity, one.in_flight) for one in status.providers],
            [(group.id, group.providers) for group in status.groups],
            {node: self.app._fleet.desired(node) for node in ("n1", "n2")},
            self.engine.pending_restart_paths,
            (self.state.last_good(), self.state.previous()),
        )

    @property
    def capacity(self) -> int:
        return next(one.capacity for one in self.app._pool.status().providers if one.id == "a")


@pytest.fixture
async def edge(tmp_path: Path) -> Edge:
    return Edge(tmp_path)


def raises(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


STEPS: dict[str, Callable[[pytest.MonkeyPatch, Edge, Exception], None]] = {
    "load": lambda patch, edge, error: patch.setattr(edge.runtime, "load_files", raises(error)),
    "plan": lambda patch, edge, error: patch.setattr(engine_module, "plan", raises(error)),
    "build": lambda patch, edge, error: patch.setattr(edge.runtime, "build", raises(error)),
    "keep": lambda patch, edge, error: patch.setattr(edge.state, "stage", raises(error)),
}
"""Everything before the swap, in order."""


@rule("R4", "R11")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "error", [RuntimeError(SECRET), MemoryError(SECRET), KeyError(SECRET)], ids=lambda e: type(e).__name__
)
async def test_a_failure_before_the_swap_changes_nothing_and_the_next_refresh_works(
    edge: Edge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str, error: Exception
) -> None:
    before = edge.fingerprint()
    with monkeypatch.context() as patch:
        STEPS[step](patch, edge, error)
        result = await edge.apply(RAISED)
    assert (result.status, result.live_applied, result.changed) == (Status.REJECTED, False, False)
    (problem,) = result.problems
    assert problem.code == "internal"
    assert problem.message == f"the step {step} failed with {type(error).__name__}; nothing has changed"
    assert SECRET not in str(result) + caplog.text
    assert edge.fingerprint() == before
    after = await edge.apply()
    assert (after.status, after.live_applied, edge.capacity) == (Status.APPLIED, True, 5)


@rule("R15", "R11")
async def test_a_state_folder_that_cannot_be_written_is_said_before_anything_changes(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = edge.fingerprint()
    monkeypatch.setattr(edge.state, "stage", raises(StateError("no space left on device")))
    result = await edge.apply(RAISED)
    assert result.status is Status.REJECTED
    assert [problem.code for problem in result.problems] == ["state_folder"]
    assert edge.fingerprint() == before


@rule("R15")
async def test_what_fails_after_the_swap_is_a_warning_for_the_config_is_in_force(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge.runtime, "push", raises(RuntimeError(SECRET)))
    monkeypatch.setattr(edge.state, "_commit", raises(StateError("no space left on device")))
    result = await edge.apply(RAISED)
    assert (result.status, result.live_applied, edge.capacity) == (Status.APPLIED, True, 5)
    assert [warning.code for warning in result.warnings] == ["internal", "state_folder"]
    assert SECRET not in str(result)


@rule("R11")
async def test_one_at_a_time_none_dropped_and_who_waited_reads_afresh(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, entered = threading.Event(), asyncio.Event()
    loop, real, reads = asyncio.get_running_loop(), edge.runtime.load_files, []

    def load() -> iop_config.Loaded:
        loaded = real()
        reads.append(loaded.config.nodes[0].providers[0].capacity)
        if len(reads) == 1:
            loop.call_soon_threadsafe(entered.set)
            assert gate.wait(20)
        return loaded

    monkeypatch.setattr(edge.runtime, "load_files", load)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        first = group.create_task(edge.apply(RAISED))
        await entered.wait()
        second = group.create_task(edge.apply())
        third = group.create_task(edge.apply(mode="dry_run"))
        await asyncio.sleep(0)
        edge.file.write_text(edited(("capacity: 4", "capacity: 6")))
        gate.set()
    assert reads == [5, 6, 6]
    assert [task.result().status for task in (first, second, third)] == [Status.APPLIED] * 3
    assert [task.result().live_applied for task in (first, second, third)] == [True, True, False]
    assert edge.capacity == 6


@rule("R11")
async def test_a_client_that_leaves_before_the_swap_changes_nothing_and_frees_the_lock(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, entered = threading.Event(), asyncio.Event()
    loop, real = asyncio.get_running_loop(), edge.runtime.load_files

    def load() -> iop_config.Loaded:
        loop.call_soon_threadsafe(entered.set)
        assert gate.wait(20)
        return real()

    before = edge.fingerprint()
    with monkeypatch.context() as patch:
        patch.setattr(edge.runtime, "load_files", load)
        task = asyncio.ensure_future(edge.apply(RAISED))
        await entered.wait()
        task.cancel()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert edge.fingerprint() == before
    assert (await edge.apply()).live_applied


@rule("R11")
async def test_guards_refuse_with_a_conflict_and_change_nothing(edge: Edge) -> None:
    dry = await edge.apply(RAISED, mode="dry_run")
    before = edge.fingerprint()
    for fields in ({"expected_version": "x"}, {"expected_candidate": dry.config_version_before}):
        result = await edge.apply(**fields)
        assert result.status is Status.REJECTED
        assert [problem.code for problem in result.problems] == ["conflict"]
        assert edge.fingerprint() == before
    done = await edge.apply(expected_version=dry.config_version_before, expected_candidate=dry.config_version_candidate)
    assert done.live_applied


@rule("R8", "R4")
async def test_an_apply_without_a_difference_still_replaces_the_snapshot_and_pushes_nothing(edge: Edge) -> None:
    before = edge.runtime.snapshot
    result = await edge.apply("# another comment\n" + CONFIG)
    assert (result.status, result.changed, result.live_applied) == (Status.APPLIED, False, False)
    after = edge.runtime.snapshot
    assert after is not before
    assert after.version == before.version
    assert after.payloads == before.payloads


@rule("R5")
async def test_what_waits_for_a_restart_is_shown_until_the_file_is_put_back(edge: Edge) -> None:
    mixed = edited(("capacity: 4", "capacity: 5"), ("http://127.0.0.1:8090", "http://127.0.0.1:8091"))
    refused = await edge.apply(mixed)
    assert (refused.status, refused.live_applied, edge.capacity) == (Status.RESTART_REQUIRED, False, 4)
    partial = await edge.apply(mixed, allow_partial=True)
    assert (partial.status, partial.live_applied, edge.capacity) == (Status.RESTART_REQUIRED, True, 5)
    assert edge.engine.pending_restart_paths == partial.pending_restart_paths != ()
    back = await edge.apply(RAISED)
    assert back.status is Status.APPLIED
    assert edge.engine.pending_restart_paths == ()


@rule("R13", "C23")
async def test_each_attempt_is_one_audit_line_without_a_value(edge: Edge, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="iop.edge.audit")
    await edge.apply(RAISED)
    await edge.apply("edge: [")
    await edge.apply(RAISED.replace("Bearer canary-one", "Bearer canary-two"))
    lines = [record.getMessage() for record in caplog.records if record.name == "iop.edge.audit"]
    assert len(lines) == 3
    assert [line.split("status=")[1].split()[0] for line in lines] == ["applied", "rejected", "restart_required"]
    assert "canary" not in caplog.text
