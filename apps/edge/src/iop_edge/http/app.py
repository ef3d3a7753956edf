"""The ASGI application of the client listener: routes, keys, errors and headers of every answer (E2-E4, E14, P15)."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen
from iop_config import OpenAIConfig
from starlette.types import ASGIApp

from iop_edge.service import RunService

__all__ = ["Deps", "build_app"]


@frozen
class Deps:
    """What the listener stands on. `openai` is restart-required (R3), so it is read once."""

    service: RunService
    openai: OpenAIConfig
    new_id: Callable[[], str] | None = None
    """Makes request ids; the default makes ULIDs."""


def build_app(deps: Deps) -> ASGIApp:
    """Return the ASGI app: the OpenAI and Anthropic surfaces, `/healthz` and `/readyz`."""
    raise NotImplementedError
