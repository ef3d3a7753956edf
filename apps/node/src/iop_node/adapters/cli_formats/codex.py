"""`codex-jsonl`: what `codex exec --json` prints. Items come whole; `turn.completed` or `turn.failed` is the end."""

from __future__ import annotations

import re
from collections.abc import Iterator

from iop_node.adapters.cli_formats.base import Event, Json, LineParser, Reasoning, count_at, object_at, text_at
from iop_node.link import Usage

__all__ = ["CodexParser"]

_STATUS = re.compile(r"\b(?:status|code|HTTP)\b\D{0,12}([45]\d\d)\b")


class CodexParser(LineParser):
    """An `error` event and an `error` item are not final: "Reconnecting" is one of them."""

    def _take(self, kind: str, event: Json) -> Iterator[Event]:
        self._began = self._began or kind.startswith(("thread.", "turn.", "item.")) or kind == "error"
        match kind:
            case "thread.started":
                yield from self._named(text_at(event, "thread_id"))
            case "turn.started":
                self._final = False  # what ended was an earlier turn
            case "item.completed":
                yield from self._item(object_at(event, "item"))
            case "error":
                self._hint = text_at(event, "message")
            case "turn.completed":
                usage = object_at(event, "usage")
                self._usage = Usage(
                    count_at(usage, "input_tokens"),
                    count_at(usage, "output_tokens"),
                    count_at(usage, "cached_input_tokens"),
                    from_runtime=True,
                )
                self._final = True
            case "turn.failed":
                message = text_at(object_at(event, "error"), "message") or self._hint
                found = _STATUS.search(message)
                self._fail(message, int(found[1]) if found else None)

    def _item(self, item: Json) -> Iterator[Event]:
        match text_at(item, "type"):
            case "agent_message":
                yield from self._say(text_at(item, "text"), new=True)
            case "reasoning":
                if thought := text_at(item, "text"):
                    yield Reasoning(thought)
            case "error":
                self._hint = text_at(item, "message")
