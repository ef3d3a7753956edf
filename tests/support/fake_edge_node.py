"""The Edge's client side without wire or Node: scripted sessions, a config in code, the real pool and listener."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from attrs import define, evolve, field

from iop_config import (
    AdapterConfig,
    EdgeConfig,
    EdgeIdentity,
    FrozenMap,
    HealthConfig,
    ModelConfig,
    NodeConfig,
    OpenAIConfig,
    ProviderConfig,
)
from iop_edge.http import Deps, HttpLimits, build_app, serve
from iop_edge.metering import Meter, RunRecord
from iop_edge.nodes.run import Chunk, End, EndKind, Head, RunError, RunHandle, RunSpec, Usage, UsageSource
from iop_edge.routing import Catalog, build_catalog, pool_spec
from iop_edge.service import RunService
from iop_pool import ConnectionState, Pool

Item = Head | Chunk | End
Script = Callable[["FakeRun"], None]

COMPLETED = End(EndKind.COMPLETED, usage=Usage(7, 3, source=UsageSource.RUNTIME), started=True)
CANCELLED = End(EndKind.CANCELLED, usage=Usage(7, 1, source=UsageSource.ESTIMATE), started=True)
HASH = "0" * 64


class FakeRun:
    """One attempt as a Node would answer it; the script, or the test itself, says what comes."""

    def __init__(self, spec: RunSpec, on_end: Callable[[End], None], session: FakeSession) -> None:
        self.spec = spec
        self.session = session
        self.cancelled: list[str] = []
        self.stops_at_once = True
        """Whether a cancel is confirmed at once; else the test calls `emit(CANCELLED)` itself."""
        self.taken = 0
        self._on_end = on_end
        self._items: deque[Item] = deque()
        self._end: End | None = None
        self._wake: asyncio.Event = asyncio.Event()

    @property
    def body(self) -> dict[str, Any]:
        """The body as the runtime would parse it."""
        parsed: dict[str, Any] = json.loads(self.spec.body)
        return parsed

    @property
    def ended(self) -> bool:
        """Whether the end has arrived."""
        return self._end is not None

    def emit(self, *items: Item) -> FakeRun:
        """Let these arrive; nothing does after an end."""
        for item in items:
            if self._end is not None:
                break
            self._items.append(item)
            if isinstance(item, End):
                self._end = item
                self._on_end(item)
        self._wake.set()
        return self

    async def next(self) -> Item:
        """Give what came next; safe to cancel."""
        while not self._items:
            if self._end is not None:
                return self._end
            self._wake.clear()
            await self._wake.wait()
        self.taken += 1
        return self._items.popleft()

    def cancel(self, reason: str) -> None:
        """Note it, and stop."""
        self.cancelled.append(reason)
        if self.stops_at_once:
            self.emit(CANCELLED)


@define
class FakeSession:
    """A Node's session that hands every run to its script."""

    node_id: str
    script: Script
    epoch: int = 1
    runs: list[FakeRun] = field(factory=list)
    started: asyncio.Event = field(factory=asyncio.Event)

    def start_run(self, spec: RunSpec, on_end: Callable[[End], None]) -> RunHandle:
        """Take a run."""
        run = FakeRun(spec, on_end, self)
        self.runs.append(run)
        self.started.set()
        self.script(run)
        return run

    async def run_number(self, number: int) -> FakeRun:
        """Wait until that many runs have come, and return the last of them."""
        with anyio.fail_after(5):
            while len(self.runs) < number:
                self.started.clear()
                await self.started.wait()
        return self.runs[number - 1]


def sse(*events: object) -> bytes:
    """Return these objects as SSE events; a string stands for itself."""
    return b"".join(
        b"data: " + (event.encode() if isinstance(event, str) else json.dumps(event).encode()) + b"\n\n"
        for event in events
    )


def chat_chunk(text: str = "", *, finish: str | None = None, role: str | None = None) -> dict[str, Any]:
    """Return one chunk of a chat stream."""
    delta: dict[str, Any] = {"content": text}
    if role is not None:
        delta["role"] = role
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "served",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def chat_answer(text: str) -> dict[str, Any]:
    """Return a whole chat answer."""
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "served",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


JSON_HEAD = Head(200, (("content-type", "application/json"), ("x-secret-upstream", "no")))
STREAM_HEAD = Head(200, (("content-type", "text/event-stream"),))


def answers(text: str = "hello") -> Script:
    """Answer every run, in the way that it asks for."""

    def script(run: FakeRun) -> None:
        if run.spec.streaming:
            run.emit(
                STREAM_HEAD,
                Chunk(sse(chat_chunk(role="assistant"))),
                Chunk(sse(chat_chunk(text))),
                Chunk(sse(chat_chunk(finish="stop"), "[DONE]")),
                COMPLETED,
            )
        else:
            run.emit(JSON_HEAD, Chunk(json.dumps(chat_answer(text)).encode()), COMPLETED)

    return script


def hangs(run: FakeRun) -> None:
    """Say nothing: the test speaks for the run."""


def stubborn(run: FakeRun) -> None:
    """Say nothing, and do not stop at once when cancelled."""
    run.stops_at_once = False


def fails(
    code: str = "upstream_error",
    message: str = "it broke",
    *,
    kind: EndKind = EndKind.FAILED,
    session_lost: bool = False,
    before: Sequence[Item] = (),
    **fields: Any,
) -> Script:
    """Fail every run with this error, after the items `before`."""
    end = End(kind, error=RunError(code, message, **fields), started=True, session_lost=session_lost)
    return lambda run: run.emit(*before, end) and None


def in_turn(*scripts: Script) -> Script:
    """Use one script after the other; the last one stays."""
    left = list(scripts)
    return lambda run: (left.pop(0) if len(left) > 1 else left[0])(run)


def provider(name: str, **fields: Any) -> ProviderConfig:
    """Return a vLLM provider that is not probed, on the adapter instance `NAME-adapter`."""
    made: dict[str, Any] = {
        "id": name,
        "type": "vllm",
        "category": "local_inference",
        "adapter": f"{name}-adapter",
        "models": ("served",),
        "health": HealthConfig(probe=False),
    }
    return ProviderConfig(**{**made, **fields})


def node(name: str, *providers: ProviderConfig, adapters: Sequence[AdapterConfig] = (), **fields: Any) -> NodeConfig:
    """Return a Node with an adapter instance for each of its providers, unless `adapters` names them."""
    known = {adapter.name for adapter in adapters}
    made = tuple(
        AdapterConfig(name=entry.adapter, type=entry.type, base_url="http://127.0.0.1:1/v1")
        for entry in providers
        if entry.adapter is not None and entry.adapter not in known
    )
    return NodeConfig(id=name, token_hash_sha256=HASH, adapters=(*adapters, *made), providers=providers, **fields)


def model(name: str, *provider_ids: str, **fields: Any) -> ModelConfig:
    """Return a model group of these providers, each with the served name `served`."""
    return ModelConfig(id=name, providers=FrozenMap(dict.fromkeys(provider_ids, "served")), **fields)


def config(*nodes: NodeConfig, models: Sequence[ModelConfig] = (), **openai: Any) -> EdgeConfig:
    """Return a whole config; by default one model `m` of all providers of the Nodes."""
    if not models:
        models = (model("m", *(entry.id for each in nodes for entry in each.providers)),)
    return EdgeConfig(edge=EdgeIdentity(id="edge"), models=tuple(models), nodes=nodes, openai=OpenAIConfig(**openai))


@define
class _Generation:
    catalog: Catalog


class KeptRecords(Meter):
    """A meter that keeps the records for the test, and tells when one comes."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[RunRecord] = []
        self._came = asyncio.Event()

    def record(self, record: RunRecord) -> None:
        """Keep it."""
        super().record(record)
        self.records.append(record)
        self._came.set()

    async def number(self, count: int) -> RunRecord:
        """Wait until that many have come, and return the last of them."""
        with anyio.fail_after(5):
            while len(self.records) < count:
                self._came.clear()
                await self._came.wait()
        return self.records[count - 1]


class EdgeRig:
    """A service over the real pool, with one fake session per Node of the config."""

    def __init__(self, edge: EdgeConfig, scripts: dict[str, Script] | Script) -> None:
        self.config = edge
        self.pool = Pool(pool_spec(edge))
        self.meter = KeptRecords()
        self.sessions: dict[str, FakeSession] = {}
        for each in edge.nodes:
            script = scripts if callable(scripts) else scripts.get(each.id, answers())
            self.sessions[each.id] = FakeSession(each.id, script)
            self.pool.set_connected(each.id, ConnectionState.CONNECTED)
        self._generation = _Generation(build_catalog(edge))
        self.service = RunService(
            snapshot=lambda: self._generation,
            pool=self.pool,
            session=self.sessions.get,
            generation_of=lambda node_id: 5,
            meter=self.meter,
        )

    def refresh(self, edge: EdgeConfig) -> None:
        """Put another config in force, as an apply does."""
        self.config = edge
        self._generation = _Generation(build_catalog(edge))
        self.pool.reconfigure(pool_spec(edge))

    def refresh_models(self, *models: ModelConfig) -> None:
        """Put other models in force."""
        self.refresh(evolve(self.config, models=models))

    @property
    def in_flight(self) -> int:
        """Slots that are taken."""
        return sum(row.in_flight for row in self.pool.status().providers)

    async def settled(self, in_flight: int = 0) -> None:
        """Wait until so many slots are taken."""
        with anyio.fail_after(5):
            while self.in_flight != in_flight:  # noqa: ASYNC110 -- the pool has no event for it
                await anyio.sleep(0.001)

    @asynccontextmanager
    async def serving(self, *, limits: HttpLimits | None = None, **deps: Any) -> AsyncIterator[str]:
        """Serve the client listener on a free loopback port; yields its base URL without a path."""
        app = build_app(Deps(service=self.service, openai=self.config.openai, **deps))
        shutdown = anyio.Event()

        async def listen(*, task_status: Any) -> None:
            await serve(app, limits=limits or HttpLimits(), shutdown=shutdown, grace=0.0, task_status=task_status)

        async with anyio.create_task_group() as group:
            host, port = await group.start(listen)
            try:
                yield f"http://{host}:{port}"
            finally:
                shutdown.set()
