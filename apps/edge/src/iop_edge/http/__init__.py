"""The listener for clients: parse, call the service, render; OpenAI and Anthropic surfaces (E2)."""

from iop_edge.http.app import Deps, build_app
from iop_edge.http.server import HttpLimits, serve

__all__ = ["Deps", "HttpLimits", "build_app", "serve"]
