"""A streamed answer put together into the plain one (N8): llama.cpp frees its slot only where a stream is dropped."""

from __future__ import annotations

from typing import Any

import msgspec

from iop_node.adapters.sse import Event

__all__ = ["Aggregate", "AggregateError"]

_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class AggregateError(Exception):
    """The events do not make an answer; the text says why."""


class Aggregate:
    """Collects the events of one stream; `body` is the answer that the runtime would have given without streaming."""

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._top: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._final: dict[str, Any] | None = None

    def add(self, event: Event) -> None:
        """Take the next event. Raises AggregateError for one that is no JSON object."""
        if event.data == b"[DONE]":
            return
        try:
            body = msgspec.json.decode(event.data)
        except (msgspec.DecodeError, RecursionError):
            raise AggregateError("an event of the stream is not JSON") from None
        if not isinstance(body, dict):
            raise AggregateError("an event of the stream is not a JSON object")
        match self._operation:
            case "messages":
                self._message_event(body)
            case "responses":
                if body.get("type") in ("response.completed", "response.incomplete", "response.failed"):
                    self._final = body.get("response")
            case _:
                self._chunk(body)

    @property
    def body(self) -> bytes:
        """The whole answer as JSON. Raises AggregateError where nothing came that could be one."""
        if self._operation == "responses":
            if not isinstance(self._final, dict):
                raise AggregateError("the stream ended without its final response")
            return msgspec.json.encode(self._final)
        if self._operation == "messages":
            if not self._top:
                raise AggregateError("the stream ended without a message")
            return msgspec.json.encode({**self._top, "content": [self._blocks[n] for n in sorted(self._blocks)]})
        if not self._choices:
            raise AggregateError("the stream ended without a choice")
        kind = "chat.completion" if self._operation == "chat_completions" else "text_completion"
        choices = [self._choices[index] for index in sorted(self._choices)]
        return msgspec.json.encode({**self._top, "object": kind, "choices": choices})

    # -- chat completions, completions ---------------------------------------------------------------------------

    def _chunk(self, body: dict[str, Any]) -> None:
        for key, value in body.items():
            if key not in ("choices", "object") and value is not None:
                self._top[key] = value
        for part in body.get("choices") or ():
            index = part.get("index", 0)
            if self._operation == "chat_completions":
                choice = self._choices.setdefault(
                    index,
                    {"index": index, "message": {"role": "assistant", "content": None}, "finish_reason": None},
                )
                self._delta(choice["message"], part.get("delta") or {})
            else:
                choice = self._choices.setdefault(index, {"index": index, "text": "", "finish_reason": None})
                choice["text"] += part.get("text") or ""
            for key, value in part.items():
                if key in ("index", "delta", "text") or value is None:
                    continue
                if key == "logprobs" and isinstance(value, dict):
                    _join_lists(choice.setdefault("logprobs", {}), value)
                else:
                    choice[key] = value

    def _delta(self, message: dict[str, Any], delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if key == "tool_calls":
                for call in value or ():
                    _tool_call(message.setdefault("tool_calls", []), call)
            elif key in _TEXTS and isinstance(value, str):
                # Pieces are joined; an empty one still says that there is a text.
                message[key] = (message.get(key) or "") + value
            elif value is not None:
                message[key] = value

    # -- messages ---------------------------------------------------------------------------------------------------

    def _message_event(self, body: dict[str, Any]) -> None:
        match body.get("type"):
            case "message_start":
                self._top = dict(body.get("message") or {})
            case "content_block_start":
                block = dict(body.get("content_block") or {})
                self._blocks[body.get("index", 0)] = block
            case "content_block_delta":
                self._block_delta(self._blocks.setdefault(body.get("index", 0), {}), body.get("delta") or {})
            case "content_block_stop":
                block = self._blocks.get(body.get("index", 0), {})
                if "_json" in block:
                    block["input"] = _json_or_text(block.pop("_json"))
            case "message_delta":
                self._top.update(body.get("delta") or {})
                usage = body.get("usage")
                if isinstance(usage, dict):
                    self._top["usage"] = {**(self._top.get("usage") or {}), **usage}

    def _block_delta(self, block: dict[str, Any], delta: dict[str, Any]) -> None:
        match delta.get("type"):
            case "text_delta":
                block["text"] = block.get("text", "") + delta.get("text", "")
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta.get("thinking", "")
            case "signature_delta":
                block["signature"] = delta.get("signature", "")
            case "input_json_delta":
                block["_json"] = block.get("_json", "") + delta.get("partial_json", "")


def _tool_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    index = part.get("index", len(calls))
    while len(calls) <= index:
        calls.append({"type": "function", "function": {"name": "", "arguments": ""}})
    call = calls[index]
    for key, value in part.items():
        if key == "function" and isinstance(value, dict):
            function = call["function"]
            function["name"] = function["name"] or value.get("name") or ""
            function["arguments"] += value.get("arguments") or ""
        elif key != "index" and value is not None:
            call[key] = value


def _join_lists(into: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, list) and isinstance(into.get(key), list):
            into[key] = into[key] + value
        elif value is not None or key not in into:
            into[key] = value


def _json_or_text(text: str) -> object:
    try:
        return msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, RecursionError):
        return text
