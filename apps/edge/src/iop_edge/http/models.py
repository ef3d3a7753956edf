"""`GET /v1/models`: the catalog in a form that OpenAI's and Anthropic's clients both read (E2, backends §4.2)."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from iop_edge.failures import unknown_model
from iop_edge.routing import Catalog, ModelEntry

__all__ = ["model_body", "models_body"]


def models_body(catalog: Catalog, created: int) -> bytes:
    """Return the list of every external model; `created` is a Unix time."""
    data = [_shown(entry, created) for entry in catalog]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return msgspec.json.encode({"object": "list", "data": data, "has_more": False, **ends})


def model_body(catalog: Catalog, model: str, created: int) -> bytes:
    """Return one model. Raises ApiError 404 `model_not_found`."""
    entry = catalog.find(model)
    if entry is None:
        raise unknown_model(model)
    return msgspec.json.encode(_shown(entry, created))


def _shown(entry: ModelEntry, created: int) -> dict[str, object]:
    shown: dict[str, object] = {
        "id": entry.id,
        "object": "model",
        "created": created,
        "owned_by": "iop",
        "type": "model",
        "display_name": entry.display_name or entry.id,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
    }
    if entry.context_window_tokens is not None:
        # Both names: OpenRouter's and vLLM's, which clients look for.
        shown["context_length"] = shown["max_model_len"] = entry.context_window_tokens
    return shown
