"""Tokens and ends, read out of a runtime's events and answers without parsing more than those that tell (E9, E12)."""

from __future__ import annotations

from typing import Any

import msgspec
from attrs import define

from iop_node.adapters.sse import Event
from iop_node.link import Usage

__all__ = ["StreamScan", "error_in", "usage_of_body"]


@define
class StreamScan:
    """Reads one surface's stream as it passes: usage, the terminal event, an error in it, the output so far.

    Only events that can hold one of these are parsed; the others are looked through for a few byte strings.
    """

    operation: str
    usage: Usage | None = None
    finished: bool = False
    """A choice said why it ended; enough for a runtime that leaves `[DONE]` out."""
    terminal: bool = False
    """The event that completes the stream came."""
    events: int = 0

    def see(self, event: Event) -> bytes | None:
        """Take note of an event. Returns the error's JSON where it is one."""
        data = event.data
        self.events += 1
        if data == b"[DONE]":
            self.terminal = True
            return None
        if b'"error"' in data:
            error = error_in(data)
            if error is not None:
                return error
        if self.operation in ("chat_completions", "completions"):
            if (
                not self.finished
                and b'"finish_reason"' in data
                and b'"finish_reason":null' not in data.replace(b" ", b"")
            ):
                self.finished = True
            if b'"usage"' in data:
                self._note(_object(data).get("usage"))
        elif self.operation == "messages":
            self.terminal = self.terminal or event.name == b"message_stop" or b'"message_stop"' in data[:64]
            if b'"usage"' in data:
                body = _object(data)
                message = body.get("message")
                self._note(message.get("usage") if isinstance(message, dict) else body.get("usage"))
        elif event.name in (b"response.completed", b"response.incomplete") or b'"response.completed"' in data[:64]:
            self.terminal = True
            response = _object(data).get("response")
            self._note(response.get("usage") if isinstance(response, dict) else None)
        return None

    def _note(self, found: object) -> None:
        usage = _usage(found, self.usage)
        if usage is not None:
            self.usage = usage

    def usage_only(self, event: Event) -> bool:
        """Whether the event is the usage chunk of a chat stream, which a client gets only if it asked."""
        return b'"usage"' in event.data and b'"choices":[]' in event.data.replace(b" ", b"")


def error_in(data: bytes) -> bytes | None:
    """Return an error object that stands where an answer should be; None for an answer.

    `{"error": {…}}` of the OpenAI surfaces, `{"type": "error", "error": {…}}` of messages, `response.failed`.
    """
    body = _object(data)
    error = body.get("error")
    if error:
        return msgspec.json.encode({"error": error})
    if body.get("type") == "response.failed":
        response = body.get("response")
        inner = response.get("error") if isinstance(response, dict) else None
        return msgspec.json.encode({"error": inner or {"message": "the runtime says that the response failed"}})
    return None


def usage_of_body(body: bytes) -> Usage | None:
    """Return the tokens that a plain answer tells."""
    try:
        top = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        raw = top.get("usage")
        return _usage(msgspec.json.decode(raw), None) if raw is not None else None
    except (msgspec.DecodeError, RecursionError):
        return None


def _object(data: bytes) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _usage(found: object, before: Usage | None) -> Usage | None:
    """Read the three spellings of usage; what a later event leaves out stays as an earlier one said."""
    if not isinstance(found, dict):
        return None
    known = before or Usage(from_runtime=True)
    inputs = _count(found, "prompt_tokens", "input_tokens")
    outputs = _count(found, "completion_tokens", "output_tokens")
    cached = _count(found, "cached_tokens", "cache_read_input_tokens")
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = found.get(name)
        if cached is None and isinstance(details, dict):
            cached = _count(details, "cached_tokens")
    # Anthropic counts what came from its cache apart; the other two count it in.
    if "cache_read_input_tokens" in found and inputs is not None:
        inputs += (cached or 0) + (_count(found, "cache_creation_input_tokens") or 0)
    return Usage(
        inputs if inputs is not None else known.input_tokens,
        outputs if outputs is not None else known.output_tokens,
        cached if cached is not None else known.cached_input_tokens,
        from_runtime=True,
    )


def _count(of: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value = of.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None
