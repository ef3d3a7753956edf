"""The client surfaces: path → operation, what a body must have, how an error looks in a begun stream (E2, E3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from attrs import frozen

from iop_edge.errors import ApiError, anthropic_body, openai_body, openai_error
from iop_edge.http.body import Body, require_input, require_messages
from iop_edge.nodes.run import Operation

__all__ = ["SURFACES", "Surface", "error_body"]

EventMaker = Callable[[ApiError, str, int], bytes]


@frozen
class Surface:
    """One path. `check` raises ApiError 400 for a body that lacks what the surface needs.

    `error_event` words an error in a stream that has begun, from the error, the request id and the number of events
    that went before it. `anthropic`: errors have Anthropic's shape and the header `request-id` (E3).
    """

    operation: Operation
    check: Callable[[Body], None]
    streams: bool
    error_event: EventMaker
    anthropic: bool = False
    numbered: bool = False
    """Its events carry a running number, so that the error's own one is asked for."""


def error_body(error: ApiError, request_id: str, *, anthropic: bool) -> bytes:
    """Return the JSON body of an error in the shape of the surface."""
    return anthropic_body(error, request_id) if anthropic else openai_body(error)


def _chat_event(error: ApiError, _request_id: str, _events: int) -> bytes:
    return b"data: " + openai_body(error) + b"\n\n"


def _anthropic_event(error: ApiError, request_id: str, _events: int) -> bytes:
    return b"event: error\ndata: " + anthropic_body(error, request_id) + b"\n\n"


def _responses_event(error: ApiError, request_id: str, events: int) -> bytes:
    # The error stands inside `response`, where Codex looks for it (backends §4.2).
    failed = {
        "type": "response.failed",
        "sequence_number": events,
        "response": {
            "id": f"resp_{request_id}",
            "object": "response",
            "status": "failed",
            "error": openai_error(error),
            "output": [],
        },
    }
    return b"event: response.failed\ndata: " + msgspec.json.encode(failed) + b"\n\n"


def _prompt(body: Body) -> None:
    require_input(body, "prompt")


def _responses_input(body: Body) -> None:
    require_input(body, "input", instead=("prompt", "previous_response_id", "conversation"))


def _embeddings_input(body: Body) -> None:
    require_input(body, "input")


SURFACES: Mapping[str, Surface] = {
    "/v1/chat/completions": Surface(Operation.CHAT_COMPLETIONS, require_messages, True, _chat_event),
    "/v1/completions": Surface(Operation.COMPLETIONS, _prompt, True, _chat_event),
    "/v1/responses": Surface(Operation.RESPONSES, _responses_input, True, _responses_event, numbered=True),
    "/v1/embeddings": Surface(Operation.EMBEDDINGS, _embeddings_input, False, _chat_event),
    "/v1/messages": Surface(Operation.MESSAGES, require_messages, True, _anthropic_event, anthropic=True),
    "/v1/messages/count_tokens": Surface(
        Operation.COUNT_TOKENS, require_messages, False, _anthropic_event, anthropic=True
    ),
}
