"""The `echo` adapter: answers with the last message, word by word; for demos, tests and a first look (N5)."""

from __future__ import annotations

import re

from iop_node.adapters.base import Output, Probe, completed
from iop_node.adapters.chat import read_request, renderer
from iop_node.link import Health, RunEnd, RunOrder, Usage
from iop_node.settings import AdapterSettings, ProviderSettings

__all__ = ["EchoAdapter"]

_WORD = re.compile(r"\s*\S+|\s+$")
_JSON = (("content-type", "application/json"),)
_STREAM = (("content-type", "text/event-stream"),)


class EchoAdapter:
    """Implements `Adapter`. A token is a word."""

    def __init__(self, settings: AdapterSettings) -> None:
        self._settings = settings

    async def run(self, order: RunOrder, output: Output) -> RunEnd:
        """Answer with the last message's text."""
        writer = renderer(order.operation, self._settings.kind, order.target, order.run_id)
        request = read_request(order)
        output.started()
        words = _WORD.findall(request.last_text)
        usage = Usage(sum(len(m.text.split()) for m in request.messages), len(words), from_runtime=True)
        if not order.streaming:
            output.head(200, _JSON)
            await output.chunk(writer.whole(request.last_text, usage))
            return completed(usage)
        output.head(200, _STREAM)
        await output.chunk(writer.begin())
        for word in words:
            await output.chunk(writer.text(word))
            output.produced(1)
        await output.chunk(writer.end(usage, include_usage=order.include_usage))
        return completed(usage)

    async def probe(self, provider: ProviderSettings) -> Probe:
        """It is always there."""
        return Probe(Health.HEALTHY)

    async def close(self) -> None:
        """Nothing is held."""
