"""What executes a run: one module per kind of adapter, and the table that names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from iop_node.adapters.base import Adapter, AdapterContext
from iop_node.settings import AdapterSettings

__all__ = ["ADAPTERS"]


def _openai(settings: AdapterSettings, context: AdapterContext) -> Adapter:
    from iop_node.adapters.openai_compat import OpenAICompatAdapter

    return OpenAICompatAdapter(settings, context)


def _ollama(settings: AdapterSettings, context: AdapterContext) -> Adapter:
    from iop_node.adapters.ollama import OllamaAdapter

    return OllamaAdapter(settings, context)


def _echo(settings: AdapterSettings, context: AdapterContext) -> Adapter:
    from iop_node.adapters.echo import EchoAdapter

    return EchoAdapter(settings, context)


def _cli(settings: AdapterSettings, context: AdapterContext) -> Adapter:
    from iop_node.adapters.cli import CliAdapter

    return CliAdapter(settings, context)


ADAPTERS: Mapping[str, Callable[[AdapterSettings, AdapterContext], Adapter]] = {
    "openai_compat": _openai,
    "vllm": _openai,
    "llama_cpp": _openai,
    "sglang": _openai,
    "lmstudio": _openai,
    "ollama": _ollama,
    "echo": _echo,
    "cli": _cli,
}
"""Kind → what makes an instance from its settings, or raises BuildError. Loaded when first used: a Node with one echo
needs no HTTP client."""
