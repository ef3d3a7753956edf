"""One internal form of a chat for adapters that have no API of their own, and its three client surfaces (N5, E2).

`read_request` makes a `ChatRequest` from the body of chat completions, responses or messages; a `Renderer` writes
pieces of an answer in the form of the same surface, streamed or whole.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from attrs import frozen

from iop_node.adapters.base import RunFailedError
from iop_node.link import RunError, RunOrder, Usage

__all__ = ["ChatMessage", "ChatRequest", "Renderer", "read_request", "renderer", "unsupported"]

_ATTACHMENTS = frozenset(
    {"image_url", "input_image", "image", "input_audio", "file", "input_file", "document"},
)


@frozen
class ChatMessage:
    """One turn, reduced to its text."""

    role: str
    text: str


@frozen
class ChatRequest:
    """What was asked, whatever the surface."""

    messages: tuple[ChatMessage, ...]
    session_id: str | None = None
    """An earlier conversation to go on with: `previous_response_id`, or `metadata.session_id`."""
    attachments: bool = False
    """There are images, sounds or files in it, which no text stands for."""

    @property
    def last_text(self) -> str:
        """The text of the last turn."""
        return self.messages[-1].text if self.messages else ""

    @property
    def system(self) -> str:
        """The system's texts."""
        return "\n\n".join(m.text for m in self.messages if m.role in ("system", "developer") and m.text)


def unsupported(operation: str, kind: str) -> RunFailedError:
    """The end of a run on a surface that the adapter does not have."""
    return RunFailedError(
        # Another provider of the model may have it (E2).
        RunError(
            "unsupported_endpoint",
            f"the {kind} adapter has no {operation}",
            404,
            retryable=True,
            outcome="client_error",
        )
    )


def read_request(order: RunOrder) -> ChatRequest:
    """Read the body of a run. Raises RunFailedError for a body without text, and for a surface that is no chat."""
    try:
        body: Any = msgspec.json.decode(order.body)
    except (msgspec.DecodeError, RecursionError):
        raise _bad("the body is not JSON") from None
    if not isinstance(body, dict):
        raise _bad("the body is not a JSON object")
    messages: list[ChatMessage] = []
    given = body.get("input")
    if order.operation == "responses":
        if isinstance(body.get("instructions"), str):
            messages.append(ChatMessage("system", body["instructions"]))
        messages += [ChatMessage("user", given)] if isinstance(given, str) else _messages(given)
    else:
        system = body.get("system")
        if order.operation == "messages" and system:
            messages.append(ChatMessage("system", _text(system)))
        messages += _messages(body.get("messages"))
    if not any(message.text.strip() for message in messages):
        raise _bad("there is no text in the messages")
    metadata = body.get("metadata")
    session = metadata.get("session_id") if isinstance(metadata, dict) else None
    if session is None and order.operation == "responses":
        session = body.get("previous_response_id")
    session = session if isinstance(session, str) and session else None
    return ChatRequest(tuple(messages), session, _has_attachments(body.get("messages")) or _has_attachments(given))


def _bad(message: str) -> RunFailedError:
    return RunFailedError(RunError("invalid_request", message, 400, outcome="client_error"))


def _messages(given: object) -> list[ChatMessage]:
    if not isinstance(given, list):
        return []
    found = []
    for entry in given:
        if isinstance(entry, dict) and entry.get("type", "message") == "message":
            found.append(ChatMessage(str(entry.get("role", "user")), _text(entry.get("content"))))
        elif isinstance(entry, dict) and entry.get("type") == "function_call_output":
            found.append(ChatMessage("tool", _text(entry.get("output"))))
    return found


def _has_attachments(turns: object) -> bool:
    for turn in turns if isinstance(turns, list) else ():
        parts = turn.get("content") if isinstance(turn, dict) else None
        if isinstance(parts, list) and any(isinstance(p, dict) and p.get("type") in _ATTACHMENTS for p in parts):
            return True
    return False


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = []
    for part in content:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, dict):
            text = part.get("text", part.get("content"))
            parts.append(text if isinstance(text, str) else _text(text))
    return "\n".join(part for part in parts if part)


class Renderer(Protocol):
    """Writes one answer in the form of its surface. For a stream: `begin`, then pieces, then `end`."""

    def begin(self) -> bytes:
        """The events before the first piece."""

    def text(self, piece: str) -> bytes:
        """A piece of the answer."""

    def reasoning(self, piece: str) -> bytes:
        """A piece of the thinking; empty where the surface has no place for it."""

    def end(self, usage: Usage, *, include_usage: bool, finish: str = "stop") -> bytes:
        """The events that complete the stream. `finish`: `stop`, or `length` for an answer that was cut short."""

    def whole(self, text: str, usage: Usage, reasoning: str = "", *, finish: str = "stop") -> bytes:
        """The complete answer of a request that is not streamed."""


def renderer(operation: str, kind: str, model: str, run_id: str, session_id: Sequence[str] = ()) -> Renderer:
    """Return the writer for a surface. Raises RunFailedError where the adapter cannot have it.

    `session_id` is looked at when the answer ends: what a later request may go on with.
    """
    match operation:
        case "chat_completions":
            return _Chat(model, run_id, session_id)
        case "responses":
            return _Responses(model, run_id, session_id)
        case "messages":
            return _Messages(model, run_id)
    raise unsupported(operation, kind)


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class _Chat:
    def __init__(self, model: str, run_id: str, session: Sequence[str]) -> None:
        self._base = {"id": f"chatcmpl-{run_id}", "created": int(time.time()), "model": model}
        self._session = session

    def _chunk(self, delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        body: dict[str, object] = {**self._base, "object": "chat.completion.chunk", "choices": [choice]}
        if finish is not None and self._session:
            body["metadata"] = {"session_id": self._session[-1]}
        return b"data: " + _dump(body) + b"\n\n"

    def begin(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def text(self, piece: str) -> bytes:
        return self._chunk({"content": piece})

    def reasoning(self, piece: str) -> bytes:
        return self._chunk({"content": "", "reasoning_content": piece, "reasoning": piece})

    def end(self, usage: Usage, *, include_usage: bool, finish: str = "stop") -> bytes:
        events = self._chunk({}, finish)
        if include_usage:
            tail = {**self._base, "object": "chat.completion.chunk", "choices": [], "usage": self._usage(usage)}
            events += b"data: " + _dump(tail) + b"\n\n"
        return events + b"data: [DONE]\n\n"

    def whole(self, text: str, usage: Usage, reasoning: str = "", *, finish: str = "stop") -> bytes:
        message = {"role": "assistant", "content": text}
        if reasoning:
            message |= {"reasoning_content": reasoning, "reasoning": reasoning}
        answer: dict[str, object] = {
            **self._base,
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": self._usage(usage),
        }
        if self._session:
            answer["metadata"] = {"session_id": self._session[-1]}
        return _dump(answer)

    def _usage(self, usage: Usage) -> dict[str, object]:
        return {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        }


class _Responses:
    def __init__(self, model: str, run_id: str, session: Sequence[str]) -> None:
        self._run_id = run_id
        self._model = model
        self._session = session
        self._created = int(time.time())
        self._number = 0
        self._said: list[str] = []

    def _event(self, kind: str, **fields: object) -> bytes:
        body = _dump({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n"

    def _item(self, text: str, status: str) -> dict[str, object]:
        content = [self._part(text)] if status == "completed" else []
        return {
            "type": "message", "id": f"msg_{self._run_id}", "status": status, "role": "assistant", "content": content,
        }  # fmt: skip

    def _part(self, text: str) -> dict[str, object]:
        return {"type": "output_text", "text": text, "annotations": []}

    def _response(self, status: str, output: list[object], usage: Usage | None) -> dict[str, object]:
        counted = usage and {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        }
        return {
            # With a session the id is what `previous_response_id` of the next request has to bring.
            "id": self._session[-1] if self._session else f"resp_{self._run_id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None,
            "metadata": {},
            "model": self._model,
            "output": output,
            "parallel_tool_calls": False,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "usage": counted,
        }

    def begin(self) -> bytes:
        at = {"item_id": f"msg_{self._run_id}", "output_index": 0, "content_index": 0}
        return (
            self._event("response.created", response=self._response("in_progress", [], None))
            + self._event("response.in_progress", response=self._response("in_progress", [], None))
            + self._event("response.output_item.added", output_index=0, item=self._item("", "in_progress"))
            + self._event("response.content_part.added", **at, part=self._part(""))
        )

    def text(self, piece: str) -> bytes:
        self._said.append(piece)
        at = {"item_id": f"msg_{self._run_id}", "output_index": 0, "content_index": 0}
        return self._event("response.output_text.delta", **at, delta=piece, logprobs=[])

    def reasoning(self, piece: str) -> bytes:
        return b""

    def end(self, usage: Usage, *, include_usage: bool, finish: str = "stop") -> bytes:
        text = "".join(self._said)
        status = _response_status(finish)
        at = {"item_id": f"msg_{self._run_id}", "output_index": 0, "content_index": 0}
        item = self._item(text, "completed")
        return (
            self._event("response.output_text.done", **at, text=text, logprobs=[])
            + self._event("response.content_part.done", **at, part=self._part(text))
            + self._event("response.output_item.done", output_index=0, item=item)
            + self._event(f"response.{status}", response=self._response(status, [item], usage))
        )

    def whole(self, text: str, usage: Usage, reasoning: str = "", *, finish: str = "stop") -> bytes:
        return _dump(self._response(_response_status(finish), [self._item(text, "completed")], usage))


def _response_status(finish: str) -> str:
    return "incomplete" if finish == "length" else "completed"


class _Messages:
    def __init__(self, model: str, run_id: str) -> None:
        self._id = f"msg_{run_id}"
        self._model = model

    def _event(self, kind: str, **fields: object) -> bytes:
        return b"event: " + kind.encode() + b"\ndata: " + _dump({"type": kind, **fields}) + b"\n\n"

    def _message(self, content: list[object], stop: str | None, usage: Usage) -> dict[str, object]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": self._usage(usage),
        }

    def _usage(self, usage: Usage) -> dict[str, int]:
        return {
            # On this surface what came from the cache is counted apart.
            "input_tokens": usage.input_tokens - usage.cached_input_tokens,
            "cache_read_input_tokens": usage.cached_input_tokens,
            "output_tokens": usage.output_tokens,
        }

    def begin(self) -> bytes:
        return self._event("message_start", message=self._message([], None, Usage())) + self._event(
            "content_block_start", index=0, content_block={"type": "text", "text": ""}
        )

    def text(self, piece: str) -> bytes:
        return self._event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})

    def reasoning(self, piece: str) -> bytes:
        return b""

    def end(self, usage: Usage, *, include_usage: bool, finish: str = "stop") -> bytes:
        delta = {"stop_reason": _stop_reason(finish), "stop_sequence": None}
        return (
            self._event("content_block_stop", index=0)
            + self._event("message_delta", delta=delta, usage=self._usage(usage))
            + self._event("message_stop")
        )

    def whole(self, text: str, usage: Usage, reasoning: str = "", *, finish: str = "stop") -> bytes:
        return _dump(self._message([{"type": "text", "text": text}], _stop_reason(finish), usage))


def _stop_reason(finish: str) -> str:
    return "max_tokens" if finish == "length" else "end_turn"
