"""Adapters under test: orders, settings, and a recorder in the place of the run that an adapter tells everything to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from iop_node.adapters import ADAPTERS
from iop_node.adapters.base import Adapter, AdapterContext, RunFailedError
from iop_node.link import RunError, RunOrder, Usage
from iop_node.settings import AdapterSettings, EchoSettings, KindSettings, OpenAICompatSettings, SecretPair

CONTEXT = AdapterContext(Path("/nonexistent"), "0.1.0")


class Recorder:
    """Implements `RunOutput`: keeps what it is told; `gate`, while closed, is a client that takes nothing."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.was_contacted = False
        self.heard = 0
        self.heads: list[tuple[int, dict[str, str]]] = []
        self.pieces: list[bytes] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.first = asyncio.Event()

    def contacted(self) -> None:
        self.was_contacted = True

    def alive(self) -> None:
        self.heard += 1

    def head(self, status: int, headers: tuple[tuple[str, str], ...]) -> None:
        assert not self.pieces, "the head comes before the data"
        self.heads.append((status, dict(headers)))

    async def data(self, data: bytes) -> None:
        assert self.heads, "no data without a head"
        await self.gate.wait()
        self.pieces.append(data)
        self.first.set()

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def json(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed

    @property
    def events(self) -> list[Any]:
        """The events' data, decoded where it is JSON."""
        found = []
        for block in self.body.decode().split("\n\n")[:-1]:
            text = "\n".join(line[6:] for line in block.split("\n") if line.startswith("data: "))
            found.append(json.loads(text) if text.startswith("{") else text)
        return found

    @property
    def text(self) -> str:
        """What a chat stream said."""
        return "".join(
            choice["delta"].get("content") or ""
            for event in self.events
            if isinstance(event, dict)
            for choice in event["choices"]
        )


def order(operation: str = "chat_completions", body: dict[str, Any] | None = None, **fields: Any) -> RunOrder:
    """A run; streaming unless told otherwise."""
    streaming = fields.get("streaming", True)
    content: dict[str, Any] = {"model": "served", "messages": [{"role": "user", "content": "one two three"}]}
    given = {**(content if body is None else {"model": "served", **body})}
    if streaming:
        given["stream"] = True
    made: dict[str, Any] = {
        "run_id": "01RUN",
        "attempt": 1,
        "adapter": "a",
        "target": "served",
        "operation": operation,
        "body": json.dumps(given).encode(),
        "streaming": streaming,
        "generation": 1,
        "provider_id": "p",
        "input_tokens_estimate": 5,
    }
    return RunOrder(**{**made, **fields})


def openai_settings(url: str, kind: str = "openai_compat", **headers: str) -> AdapterSettings:
    """An adapter instance `a` on the runtime at this root URL."""
    pairs = tuple(SecretPair(name.replace("_", "-"), value) for name, value in headers.items())
    return AdapterSettings("a", kind, OpenAICompatSettings(f"{url}/v1", headers=pairs))


def settings_of(kind: str, url: str = "http://127.0.0.1:9") -> AdapterSettings:
    """The least settings of a kind that speaks HTTP, or of echo."""
    detail: KindSettings = EchoSettings() if kind == "echo" else OpenAICompatSettings(f"{url}/v1")
    return AdapterSettings("a", kind, detail)


@asynccontextmanager
async def adapter_of(settings: AdapterSettings) -> AsyncIterator[Adapter]:
    """The adapter of these settings from the table, closed at the end."""
    adapter = ADAPTERS[settings.kind](settings, CONTEXT)
    try:
        yield adapter
    finally:
        await adapter.close()


async def execute(adapter: Adapter, run: RunOrder | None = None, recorder: Recorder | None = None) -> Recorder:
    """Run an order to its end, within five seconds."""
    recorder = recorder or Recorder()
    async with asyncio.timeout(5):
        await adapter.run(run or order(), recorder)
    return recorder


async def failure(adapter: Adapter, run: RunOrder | None = None, recorder: Recorder | None = None) -> RunError:
    """Run an order that fails; why."""
    try:
        await execute(adapter, run, recorder)
    except RunFailedError as error:
        return error.error
    raise AssertionError("the run did not fail")
