"""The `echo` adapter: answers with the last message, word by word; for demos, tests and a first look (N5)."""

from __future__ import annotations

import re
from typing import ClassVar

from iop_node.adapters.base import JSON_HEAD, STREAM_HEAD, AdapterContext, ProbeResult, ProbeTarget, RunOutput
from iop_node.adapters.chat import read_request, renderer
from iop_node.link import Health, RunOrder, Usage
from iop_node.settings import AdapterSettings

__all__ = ["EchoAdapter"]

_WORD = re.compile(r"\s*\S+|\s+$")


class EchoAdapter:
    """Implements `Adapter`. A token is a word."""

    kinds: ClassVar[frozenset[str]] = frozenset({"echo"})

    def __init__(self, settings: AdapterSettings, context: AdapterContext) -> None:
        self._settings = settings

    async def run(self, order: RunOrder, out: RunOutput) -> None:
        """Answer with the last message's text."""
        writer = renderer(order.operation, self._settings.kind, order.target, order.run_id)
        request = read_request(order)
        out.contacted()
        words = _WORD.findall(request.last_text)
        usage = Usage(sum(len(m.text.split()) for m in request.messages), len(words), from_runtime=True)
        if not order.streaming:
            out.usage = usage
            out.head(200, JSON_HEAD)
            await out.data(writer.whole(request.last_text, usage))
            return
        out.head(200, STREAM_HEAD)
        await out.data(writer.begin())
        for count, word in enumerate(words, start=1):
            await out.data(writer.text(word))
            out.usage = Usage(usage.input_tokens, count, from_runtime=True)
        await out.data(writer.end(usage, include_usage=order.include_usage))

    async def probe(self, target: ProbeTarget) -> ProbeResult:
        """It is always there."""
        return ProbeResult(Health.HEALTHY)

    async def close(self) -> None:
        """Nothing is held."""
