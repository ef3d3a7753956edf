"""The adapter for Ollama: its OpenAI surface for runs, its own API for what that lacks (N5, N7, backends §1)."""

from __future__ import annotations

import asyncio
import re
from typing import Any, ClassVar

import aiohttp
import msgspec
from attrs import evolve

from iop_node.adapters.base import AdapterContext, BuildError, ProbeResult, ProbeTarget, RunFailedError, RunOutput
from iop_node.adapters.http import HttpClient
from iop_node.adapters.openai_compat import OpenAICompatAdapter
from iop_node.adapters.probes import fetch, unreachable
from iop_node.link import Health, RunError, RunOrder
from iop_node.settings import AdapterSettings, OllamaSettings, OpenAICompatSettings

__all__ = ["OllamaAdapter"]

_WINDOW_KEPT_S = 10.0
_NUM_CTX = re.compile(r"^num_ctx\s+(\d+)", re.MULTILINE)
_Failed = (aiohttp.ClientError, OSError, TimeoutError)


class OllamaAdapter:
    """Implements `Adapter`: runs go through `/v1`; none is sent that Ollama would cut to its window in silence."""

    kinds: ClassVar[frozenset[str]] = frozenset({"ollama"})

    def __init__(self, settings: AdapterSettings, context: AdapterContext) -> None:
        """Raises BuildError for settings of another kind."""
        detail = settings.detail
        if not isinstance(detail, OllamaSettings):
            raise BuildError("ollama", "wrong-settings", "the adapter needs the address of its Ollama")
        self._root = detail.base_url.rstrip("/").removesuffix("/v1")
        self._headers = {pair.name.lower(): pair.value for pair in detail.headers}
        self._window_set = detail.context_size
        openai = OpenAICompatSettings(f"{self._root}/v1", detail.label, detail.headers, detail.context_size)
        self._openai = OpenAICompatAdapter(evolve(settings, detail=openai), context)
        self._http = HttpClient()
        self._windows: dict[str, tuple[float, int]] = {}
        """Model: when it was asked about, on the loop's clock, and its window in tokens; 0: Ollama does not say."""

    async def run(self, order: RunOrder, out: RunOutput) -> None:
        """Refuse what does not fit the window that the model has here; pass on all else."""
        window = await self._window(order.target)
        if window and order.input_tokens_estimate > window:
            raise RunFailedError(_too_long(order, window))
        await self._openai.run(order, out)

    async def probe(self, target: ProbeTarget) -> ProbeResult:
        """Ask which models are installed; that loads none (N7)."""
        try:
            status, body = await fetch(self._http.single, f"{self._root}/api/tags", self._headers)
        except _Failed as error:
            return unreachable(error)
        if status != 200:
            return ProbeResult(Health.UNHEALTHY, f"/api/tags answered {status}; is this an Ollama?")
        installed = {_full(name) for name in _names(body)}
        missing = [model for model in target.models if _full(model) not in installed]
        if missing and len(missing) == len(target.models):
            have = ", ".join(sorted(installed)[:5]) or "none"
            return ProbeResult(Health.UNHEALTHY, f"{', '.join(missing)} is not installed; Ollama has {have}")
        windows = [await self._window(model) for model in target.models if model not in missing]
        text = f"{', '.join(missing)} is not installed" if missing else ""
        return ProbeResult(Health.HEALTHY, text, context_tokens=min((each for each in windows if each), default=0))

    async def close(self) -> None:
        """Close the connections."""
        await self._openai.close()
        await self._http.close()

    # -- the window ---------------------------------------------------------------------------------------------------

    async def _window(self, model: str) -> int:
        """The tokens that a run of this model may have, as far as it can be known; 0: not known, so nothing is refused.

        Of a loaded model `/api/ps` tells the window that it has; of another one its Modelfile may set one. The
        `context_size` of the config is an upper bound on both, for what Ollama's environment sets is told nowhere else.
        """
        now = asyncio.get_running_loop().time()
        known = self._windows.get(model)
        if known is None or now - known[0] >= _WINDOW_KEPT_S:
            known = self._windows[model] = (now, await self._ask_window(model))
        bounds = [each for each in (known[1], self._window_set) if each]
        return min(bounds, default=0)

    async def _ask_window(self, model: str) -> int:
        try:
            status, body = await fetch(self._http.single, f"{self._root}/api/ps", self._headers)
            if status == 200:
                for entry in _entries(body):
                    if _full(str(entry.get("name") or entry.get("model") or "")) == _full(model):
                        length = entry.get("context_length")
                        return length if isinstance(length, int) and length > 0 else 0
            question = msgspec.json.encode({"model": model})
            async with self._http.single.post(
                f"{self._root}/api/show", data=question, headers=self._headers, timeout=aiohttp.ClientTimeout(total=5)
            ) as response:
                if response.status != 200:
                    return 0
                parameters = msgspec.json.decode(await response.read()).get("parameters", "")
        except (*_Failed, msgspec.DecodeError, RecursionError, AttributeError):
            return 0
        found = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
        return int(found[1]) if found else 0


def _too_long(order: RunOrder, window: int) -> RunError:
    text = (
        f"this model's maximum context length is {window} tokens, but the request has about "
        f"{order.input_tokens_estimate}; Ollama would cut it without a word (OLLAMA_CONTEXT_LENGTH sets its window)"
    )
    error = {"message": text, "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}
    return RunError(
        "upstream_error", text, upstream_status=400, upstream_body=msgspec.json.encode({"error": error}),
        retryable=False, outcome="client_error",
    )  # fmt: skip


def _entries(body: bytes) -> list[dict[str, Any]]:
    try:
        models = msgspec.json.decode(body)["models"]
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError):
        return []
    return [entry for entry in models if isinstance(entry, dict)] if isinstance(models, list) else []


def _names(body: bytes) -> list[str]:
    return [str(entry.get("name") or entry.get("model") or "") for entry in _entries(body)]


def _full(name: str) -> str:
    """A model's name with its tag: without one Ollama means `latest`."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"
