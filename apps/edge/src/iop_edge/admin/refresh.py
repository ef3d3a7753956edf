"""RefreshEngine: one refresh at a time, and everything that can fail before the one swap (R5, R7-R9, R11, R15)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

import anyio
import anyio.to_thread
import attrs
from attrs import define, field, frozen

import iop_config
from iop_config import ConfigError, Loaded, Problem
from iop_edge.admin.runtime import Runtime, SnapshotView
from iop_edge.state import StagedConfig, StateError, StateFolder
from iop_refresh import (
    NodeResult,
    NodeState,
    RefreshPlan,
    RefreshResult,
    ResultProblem,
    Source,
    Status,
    plan,
)

__all__ = ["LastRefresh", "RefreshEngine", "RefreshRequest"]

log = logging.getLogger("iop.edge.refresh")
audit = logging.getLogger("iop.edge.audit")

WAIT_MS = 2_000
WAIT_MS_MAX = 600_000
_RECENT_MAX = 20
_LOGGED_MAX = 20  # problems of one refresh that a log gets; the result has them all

SnapshotT = TypeVar("SnapshotT", bound=SnapshotView)


@frozen(kw_only=True)
class RefreshRequest:
    """What is asked for; the default applies the files that `run` was started with."""

    mode: str = "apply"
    """`apply` or `dry_run`; any other word is rejected (R4)."""
    config: str | None = field(default=None, repr=False)
    """A config sent inline; None reads the files."""
    allow_partial: bool = False
    expected_version: str | None = None
    """The version that must be running (R11)."""
    expected_candidate: str | None = None
    """The version that the proposed config must have: what a dry run showed."""
    wait_ms: int = WAIT_MS
    """How long to wait for the Nodes, outside the lock; 0 does not wait."""


@frozen
class LastRefresh:
    """What the status and the metrics say of the newest attempt that was no dry run."""

    status: Status
    trigger: str
    at: float
    """Seconds since the epoch."""


@define
class _Attempt:
    """One refresh while it runs: what is known so far, and how long each step took."""

    request: RefreshRequest
    trigger: str
    peer: str
    clock: Callable[[], float]
    step: str = "start"
    timings: dict[str, float] = field(factory=dict)

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        self.step = step
        started = self.clock()
        try:
            yield
        finally:
            self.timings[step] = (self.clock() - started) * 1000

    @property
    def dry_run(self) -> bool:
        return self.request.mode == "dry_run"


@frozen
class _Prepared(Generic[SnapshotT]):
    """All that comes before the swap; nothing of it has touched what is in force."""

    loaded: Loaded
    plan: RefreshPlan
    snapshot: SnapshotT | None
    """The whole next generation; None where nothing comes into force."""
    staged: StagedConfig | None


class _RejectedError(Exception):
    """The refresh ends here, with these problems and nothing changed."""

    def __init__(self, *problems: ResultProblem) -> None:
        super().__init__()
        self.problems = problems


class RefreshEngine(Generic[SnapshotT]):
    """Applies proposed configs to one running Edge; used by the admin API, SIGHUP and `run --watch` alike."""

    def __init__(
        self,
        runtime: Runtime[SnapshotT],
        state: StateFolder,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`clock` measures steps, `wall` dates them; both in seconds."""
        self._runtime = runtime
        self._state = state
        self._clock = clock
        self._wall = wall
        self._lock = anyio.Lock()
        self._pending: frozenset[str] = frozenset()
        self.totals: Counter[tuple[str, str]] = Counter()
        """Attempts that were no dry runs, by status and trigger."""
        self.last: LastRefresh | None = None
        self.recent: deque[Mapping[str, object]] = deque(maxlen=_RECENT_MAX)
        """The newest results, dry runs included, as plain objects with `trigger` and `at`; for the console."""
        self.last_success_at = 0.0
        """Seconds since the epoch; 0: none yet."""

    @property
    def pending_restart_paths(self) -> tuple[str, ...]:
        """What the config that was offered last says and only a restart brings into force (R5)."""
        return tuple(sorted(self._pending))

    async def refresh(self, request: RefreshRequest, *, trigger: str, peer: str = "") -> RefreshResult:
        """Compare, and unless it is a dry run apply, the files or the config sent with the request.

        Never raises for a bad config or a failing step: that is a result with status `rejected` and nothing changed.
        One at a time; who waited reads the files afresh (R11). `trigger` and `peer` are for the audit line.
        """
        config = request.config
        runtime = self._runtime
        load = runtime.load_files if config is None else functools.partial(runtime.load_inline, config)
        return await self._run(request, load, trigger, peer)

    async def rollback(self, request: RefreshRequest, *, trigger: str = "rollback", peer: str = "") -> RefreshResult:
        """Refresh from the config that the last-good one replaced; rejected where none is kept (R15)."""
        return await self._run(request, self._load_previous, trigger, peer)

    def _load_previous(self) -> Loaded:
        kept = self._state.previous()
        if kept is None:
            raise _RejectedError(
                ResultProblem("nothing_earlier", "no earlier config is kept; one is after the first applied change")
            )
        return self._runtime.load_kept(kept.documents)

    # -- one attempt ------------------------------------------------------------------------------------------------

    async def _run(self, request: RefreshRequest, load: Callable[[], Loaded], trigger: str, peer: str) -> RefreshResult:
        attempt = _Attempt(request, trigger, peer, self._clock)
        started = self._clock()
        pushes: Mapping[str, asyncio.Future[NodeResult]] = {}
        async with self._lock:
            attempt.timings["queue"] = (self._clock() - started) * 1000
            try:
                result, pushes = await self._locked(attempt, load)
            except _RejectedError as error:
                result = self._result(attempt, status=Status.REJECTED, problems=error.problems)
            except ConfigError as error:
                result = self._result(attempt, status=Status.REJECTED, problems=map(_problem, error.problems))
            except StateError as error:
                result = self._result(
                    attempt, status=Status.REJECTED, problems=[ResultProblem("state_folder", str(error))]
                )
            except Exception as error:
                result = self._result(attempt, status=Status.REJECTED, problems=[_internal(attempt.step, error)])
            self._count(attempt, result)
        self._write_audit(attempt, result)
        if pushes:
            with attempt.timed("wait"):
                result = attrs.evolve(result, nodes=await _outcomes(result.nodes, pushes, request.wait_ms))
        attempt.timings["total"] = (self._clock() - started) * 1000
        result = attrs.evolve(result, timings_ms=dict(attempt.timings))
        self.recent.append({**result.to_plain(), "trigger": trigger, "at": self._wall()})
        return result

    async def _locked(
        self, attempt: _Attempt, load: Callable[[], Loaded]
    ) -> tuple[RefreshResult, Mapping[str, asyncio.Future[NodeResult]]]:
        request, before = attempt.request, self._runtime.snapshot
        if request.mode not in ("apply", "dry_run"):
            raise _RejectedError(ResultProblem("unknown_mode", "the mode is neither apply nor dry_run", path="mode"))
        if request.expected_version is not None and request.expected_version != before.version:
            raise _RejectedError(_conflict("running", request.expected_version, before.version, "expected_version"))
        read_at = self._wall()
        prepared = await anyio.to_thread.run_sync(self._prepare, attempt, load, before)
        pushes: Mapping[str, asyncio.Future[NodeResult]] = {}
        warnings = [_problem(warning) for warning in prepared.loaded.warnings]
        if not attempt.dry_run and not prepared.plan.problems:
            # From here on nothing may stop it half way: neither a failure nor a client that left.
            with anyio.CancelScope(shield=True):
                if prepared.snapshot is not None:
                    with attempt.timed("swap"):
                        changed = self._runtime.swap(prepared.snapshot)
                    pushes = self._push(changed, warnings)
                self._pending = prepared.plan.pending_restart_paths
                if prepared.staged is not None:
                    warnings += await self._commit(prepared.staged)
        result = self._describe(attempt, before, prepared, warnings, read_at)
        return result, pushes

    def _prepare(self, attempt: _Attempt, load: Callable[[], Loaded], before: SnapshotT) -> _Prepared[SnapshotT]:
        """Everything that can fail. Runs in a thread, so that the requests being served do not wait for it."""
        request, runtime = attempt.request, self._runtime
        with attempt.timed("load"):
            loaded = load()
        if request.expected_candidate is not None and request.expected_candidate != loaded.version:
            raise _RejectedError(
                _conflict("proposed", request.expected_candidate, loaded.version, "expected_candidate")
            )
        with attempt.timed("plan"):
            planned = plan(
                before.config,
                loaded.config,
                fingerprint_key=runtime.digest_key,
                allow_partial=request.allow_partial,
                places=loaded,
            )
        snapshot, staged = None, None
        if planned.effective is not None:
            with attempt.timed("build"):
                version = loaded.version
                if planned.effective is not loaded.config:
                    version = iop_config.config_version(planned.effective, runtime.digest_key)
                snapshot = runtime.build(planned.effective, version)
            if not attempt.dry_run:
                with attempt.timed("keep"):
                    staged = self._state.stage(loaded.version, loaded.sources)
        return _Prepared(loaded, planned, snapshot, staged)

    def _push(
        self, node_ids: frozenset[str], warnings: list[ResultProblem]
    ) -> Mapping[str, asyncio.Future[NodeResult]]:
        try:
            return self._runtime.push(node_ids)
        except Exception as error:
            # The new generation is in force; a Node that does not hear of it now gets it with its next Welcome.
            warnings.append(_internal("push", error, "the config is in force, but its nodes were not told"))
            return {}

    async def _commit(self, staged: StagedConfig) -> list[ResultProblem]:
        try:
            await anyio.to_thread.run_sync(staged.commit)
        except StateError as error:
            # It is in force and serves; that a rollback would not find it is for the operator to know.
            return [ResultProblem("state_folder", f"the config is in force, but is not kept as last-good: {error}")]
        return []

    # -- what is said about it --------------------------------------------------------------------------------------

    def _result(self, attempt: _Attempt, *, status: Status, **fields: object) -> RefreshResult:
        running = self._runtime.snapshot
        known: dict[str, object] = {
            "dry_run": attempt.dry_run,
            "config_version_before": running.version,
            "config_version_after": running.version,
            "generation": running.generation,
            "pending_restart_paths": self.pending_restart_paths,
            "nodes": tuple(
                NodeResult(node, NodeState.UNCHANGED, acked_generation=view.acked_generation)
                for node, view in self._runtime.nodes().items()
            ),
        }
        return RefreshResult(status=status, **{**known, **fields})  # type: ignore[arg-type]

    def _describe(
        self,
        attempt: _Attempt,
        before: SnapshotT,
        prepared: _Prepared[SnapshotT],
        warnings: list[ResultProblem],
        read_at: float,
    ) -> RefreshResult:
        planned, loaded = prepared.plan, prepared.loaded
        following = prepared.snapshot if prepared.snapshot is not None else before
        return self._result(
            attempt,
            status=planned.status,
            changed=planned.changed,
            live_applied=planned.live_applied,
            config_version_before=before.version,
            config_version_candidate=loaded.version,
            source=_source(loaded, read_at),
            changes=planned.changes,
            changed_nodes=planned.changed_nodes,
            changed_providers=planned.changed_providers,
            changed_models=planned.changed_models,
            live_paths=planned.live_paths,
            restart_required_paths=planned.restart_required_paths,
            pending_restart_paths=self._pending if planned.problems else planned.pending_restart_paths,
            problems=planned.problems,
            warnings=warnings,
            nodes=tuple(self._node_results(attempt, before, following)),
        )

    def _node_results(self, attempt: _Attempt, before: SnapshotT, following: SnapshotT) -> Iterator[NodeResult]:
        """Where each Node stands at the swap; in a dry run, where it would."""
        views = self._runtime.nodes()
        for node_id, payload in following.payloads.items():
            view, earlier = views.get(node_id), before.payloads.get(node_id)
            acked = view.acked_generation if view is not None else 0
            if earlier is not None and earlier.version == payload.version:
                yield NodeResult(node_id, NodeState.UNCHANGED, acked_generation=acked)
            elif view is None or not view.connected:
                yield NodeResult(node_id, NodeState.DISCONNECTED, acked_generation=acked)
            else:
                sent = 0 if attempt.dry_run else payload.generation
                yield NodeResult(node_id, NodeState.PENDING, sent_generation=sent, acked_generation=acked)

    def _count(self, attempt: _Attempt, result: RefreshResult) -> None:
        if attempt.dry_run:
            return
        self.totals[result.status.value, attempt.trigger] += 1
        self.last = LastRefresh(result.status, attempt.trigger, self._wall())
        if result.status is Status.APPLIED or result.live_applied:
            self.last_success_at = self.last.at

    def _write_audit(self, attempt: _Attempt, result: RefreshResult) -> None:
        """One line per attempt, rejected ones too; paths are names, values are not said."""
        rejected = result.status is Status.REJECTED
        words = {
            "trigger": attempt.trigger,
            "peer": attempt.peer or "-",
            "mode": "dry_run" if attempt.dry_run else "apply",
            "status": result.status.value,
            "live_applied": str(result.live_applied).lower(),
            "before": result.config_version_before,
            "candidate": result.config_version_candidate or "-",
            "after": result.config_version_after,
            "generation": result.generation,
            "live": len(result.live_paths),
            "restart": len(result.restart_required_paths),
            "pending": len(result.pending_restart_paths),
            "problems": len(result.problems),
            "nodes": ",".join(result.changed_nodes) or "-",
            "paths": " ".join(sorted({change.path for change in result.changes})[:_LOGGED_MAX]) or "-",
        }
        level = logging.WARNING if rejected else logging.INFO
        audit.log(level, "refresh %s", " ".join(f"{name}={value}" for name, value in words.items()))
        if attempt.dry_run:
            return
        for problem in result.problems[:_LOGGED_MAX]:
            where = f"{problem.file}:{problem.line}:{problem.column}: " if problem.line else ""
            log.error("%s%s: %s [%s]", where, problem.path or "config", problem.message, problem.code)
        if result.pending_restart_paths:
            log.warning("these wait for a restart: %s", " ".join(result.pending_restart_paths[:_LOGGED_MAX]))


async def _outcomes(
    nodes: tuple[NodeResult, ...], pushes: Mapping[str, asyncio.Future[NodeResult]], wait_ms: int
) -> tuple[NodeResult, ...]:
    """Wait for the Nodes' answers, so long at most; who has not answered stays `pending`."""
    if wait_ms > 0:
        await asyncio.wait(set(pushes.values()), timeout=wait_ms / 1000)
    return tuple(
        pushes[node.node].result() if node.node in pushes and pushes[node.node].done() else node for node in nodes
    )


def _conflict(which: str, expected: str, found: str, path: str) -> ResultProblem:
    return ResultProblem(
        "conflict",
        f"the {which} config is {found}, not {_shown(expected)} as expected",
        path=path,
        suggestion="look at a dry run, then try again with its version",
    )


def _shown(word: str) -> str:
    """What a client sent, fit for a line of a log."""
    return "".join(c for c in word[:80] if c.isprintable()) or "an empty text"


def _problem(problem: Problem) -> ResultProblem:
    return ResultProblem(
        code=problem.code,
        message=problem.message,
        path=problem.path,
        file=problem.file,
        line=problem.line,
        column=problem.column,
        suggestion=problem.suggestion,
    )


def _internal(step: str, error: Exception, so: str = "nothing has changed") -> ResultProblem:
    """A defect of ours. The log gets where it is, not the exception's text: that may hold a value (C23)."""
    places = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False)
    where = " <- ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in reversed(places))
    log.error("step %s failed: %s at %s", step, type(error).__name__, where)
    return ResultProblem("internal", f"the step {step} failed with {type(error).__name__}; {so}")


def _source(loaded: Loaded, read_at: float) -> Source:
    digest = hashlib.sha256()
    for source in loaded.sources:
        digest.update(source.text)
    return Source(
        path=loaded.sources[0].path if loaded.sources else "",
        size=sum(source.size for source in loaded.sources),
        hash=f"sha256:{digest.hexdigest()}",
        read_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(read_at)),
    )
