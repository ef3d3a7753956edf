"""`claude-stream-json`: what Claude Code, and Qwen Code after it, print with `--output-format stream-json`."""

from __future__ import annotations

from collections.abc import Iterator

from iop_node.adapters.cli_formats.base import (
    Event,
    Json,
    LineParser,
    Reasoning,
    count_at,
    object_at,
    objects_at,
    status_at,
    text_at,
)
from iop_node.link import Usage

__all__ = ["ClaudeStreamParser"]

_ERROR_TEXTS = ("API Error:", "[API Error")


class ClaudeStreamParser(LineParser):
    """Reads deltas where `--include-partial-messages` gives them, whole messages where not; both never twice.

    A failed API call arrives as a message that begins like an error, ahead of the `result` that tells (Claude Code), or
    instead of it (Qwen Code). So a message's beginning is held back while it could still be one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._streamed: set[str] = set()
        """Messages that came as deltas: their whole form says nothing new."""
        self._open = ""
        """The text so far of a message that came as deltas and has not ended."""
        self._held = ""
        self._new = False
        self._suspect = False

    def _take(self, kind: str, event: Json) -> Iterator[Event]:
        if kind not in ("system", "stream_event", "assistant", "user", "result"):
            return
        self._began = True
        yield from self._named(text_at(event, "session_id"))
        if event.get("parent_tool_use_id"):
            return  # a sub-agent talks to the agent, not to the client
        if kind == "stream_event":
            yield from self._delta(object_at(event, "event"))
        elif kind == "assistant":
            yield from self._whole(object_at(event, "message"))
        elif kind == "result":
            yield from self._result(event)

    def _delta(self, event: Json) -> Iterator[Event]:
        match text_at(event, "type"):
            case "message_start":
                self._streamed.add(text_at(object_at(event, "message"), "id"))
                self._open = ""
                yield from self._begin()
            case "content_block_delta":
                delta = object_at(event, "delta")
                if thought := text_at(delta, "thinking"):
                    yield Reasoning(thought)
                if text := text_at(delta, "text"):
                    self._open += text
                    yield from self._hold(text)
            case "message_delta":
                self._stopped(object_at(event, "delta"))
            case "message_stop":
                self._open = ""

    def _whole(self, message: Json) -> Iterator[Event]:
        self._stopped(message)
        if text_at(message, "id") in self._streamed:
            return
        for block in objects_at(message, "content"):
            if thought := text_at(block, "thinking"):
                yield Reasoning(thought)
            if text := text_at(block, "text"):
                # After a cut stream the same message is asked for again, whole: say only what is new of it.
                if self._open and text.startswith(self._open):
                    text = text[len(self._open) :]
                else:
                    yield from self._begin()
                self._open = ""
                yield from self._hold(text)

    def _begin(self) -> Iterator[Event]:
        yield from self._release()
        self._new = True
        self._suspect = True

    def _hold(self, text: str) -> Iterator[Event]:
        self._held += text
        start = self._held.lstrip()
        if self._suspect and any(start.startswith(word[: len(start)]) for word in _ERROR_TEXTS):
            self._hint = start
            return
        self._suspect = False
        yield from self._release()

    def _release(self) -> Iterator[Event]:
        text, self._held = self._held, ""
        yield from self._say(text, new=self._new)
        if text:
            self._new = False

    def _stopped(self, message: Json) -> None:
        if reason := text_at(message, "stop_reason"):
            self._finish_reason = "length" if reason == "max_tokens" else "stop"

    def _result(self, event: Json) -> Iterator[Event]:
        usage = object_at(event, "usage")
        if usage:
            cached = count_at(usage, "cache_read_input_tokens")
            total = count_at(usage, "input_tokens") + cached + count_at(usage, "cache_creation_input_tokens")
            self._usage = Usage(total, count_at(usage, "output_tokens"), cached, from_runtime=True)
        text = text_at(event, "result")
        subtype = text_at(event, "subtype")
        # `subtype` says success of an API error too; only `is_error` tells.
        if event.get("is_error") or (subtype and subtype != "success"):
            errors = event.get("errors")
            told = "; ".join(str(entry) for entry in errors) if isinstance(errors, list) else ""
            # A limit on turns or money that the task went beyond is no fault of the command.
            limit = 400 if subtype.startswith("error_max") else None
            self._fail(text or told or self._held or subtype, status_at(event, "api_error_status") or limit)
        elif self._unpaid_error(text):
            self._fail(self._held.strip() or text.strip())
        else:
            yield from self._release()
            if not self._spoke:
                yield from self._say(text, new=False)
        self._held = ""
        self._final = True

    def _unpaid_error(self, text: str) -> bool:
        """Whether the answer is Qwen Code's way to say that the API failed: the words of it, and no tokens used."""
        if self._usage is not None and self._usage.output_tokens:
            return False
        last = text.rstrip().rpartition("\n")[2]
        return any(part.lstrip().startswith(_ERROR_TEXTS) for part in (text, last, self._held))
