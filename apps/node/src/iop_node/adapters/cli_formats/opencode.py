"""`opencode-json`: what `opencode run --format json` prints. The `step_finish` of the last step is the end."""

from __future__ import annotations

from collections.abc import Iterator

from iop_node.adapters.cli_formats.base import (
    Event,
    Json,
    LineParser,
    Reasoning,
    count_at,
    object_at,
    status_at,
    text_at,
)
from iop_node.link import Usage

__all__ = ["OpencodeParser"]


class OpencodeParser(LineParser):
    """A step that ends to call tools is followed by another; tokens are told per step and summed."""

    def _take(self, kind: str, event: Json) -> Iterator[Event]:
        if kind not in ("step_start", "text", "reasoning", "tool_use", "step_finish", "error"):
            return
        self._began = True
        yield from self._named(text_at(event, "sessionID"))
        part = object_at(event, "part")
        match kind:
            case "step_start":
                self._final = False
            case "text":
                yield from self._say(text_at(part, "text"), new=True)
            case "reasoning":
                if thought := text_at(part, "text"):
                    yield Reasoning(thought)
            case "step_finish":
                self._step(part)
            case "error":
                error = object_at(event, "error")
                data = object_at(error, "data")
                message = text_at(data, "message") or text_at(error, "message") or text_at(error, "name")
                self._fail(message, status_at(data, "statusCode"))

    def _step(self, part: Json) -> None:
        tokens = object_at(part, "tokens")
        cache = object_at(tokens, "cache")
        before = self._usage or Usage()
        read = count_at(cache, "read")
        self._usage = Usage(
            before.input_tokens + count_at(tokens, "input") + read + count_at(cache, "write"),
            before.output_tokens + count_at(tokens, "output") + count_at(tokens, "reasoning"),
            before.cached_input_tokens + read,
            from_runtime=True,
        )
        reason = text_at(part, "reason")
        if reason != "tool-calls":
            self._final = True
            self._finish_reason = "length" if reason == "length" else "stop"
