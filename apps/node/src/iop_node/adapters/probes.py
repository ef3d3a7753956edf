"""Looks at a runtime that cost no inference, a way per kind (N7, backends §1.1)."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec

from iop_node.adapters.base import ProbeResult, ProbeTarget
from iop_node.adapters.http import reason_of
from iop_node.link import Health

__all__ = ["fetch", "probe_openai", "unreachable"]

_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_ANSWER_MAX = 4 * 1024 * 1024
# These say by `/health`, beside `/v1`, whether the model is loaded and the engine alive.
_WITH_HEALTH = frozenset({"vllm", "llama_cpp", "sglang"})
# These refuse a model that they do not list; the others load it, ignore the name, or have no complete list.
_STRICT = frozenset({"vllm", "sglang"})


async def probe_openai(
    session: aiohttp.ClientSession, kind: str, base: str, headers: dict[str, str], target: ProbeTarget
) -> ProbeResult:
    """Return the health of a runtime with an OpenAI surface at `base`."""
    root = base.removesuffix("/v1")
    try:
        if kind in _WITH_HEALTH:
            status, body = await fetch(session, f"{root}/health", headers)
            if status == 503:
                return ProbeResult(Health.UNHEALTHY, _said(body) or "the runtime is loading")
            if status >= 500:
                return ProbeResult(Health.UNHEALTHY, f"/health answered {status}")
        status, body = await fetch(session, f"{base}/models", headers)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return unreachable(error)
    if status in (401, 403):
        return ProbeResult(Health.UNHEALTHY, "the runtime refuses the credentials of this adapter")
    if status >= 500 or status == 429:
        return ProbeResult(Health.UNHEALTHY, f"/models answered {status}")
    if status != 200:
        # No list of models is no fault: some surfaces have none.
        return ProbeResult(Health.HEALTHY)
    listed = _listed(body)
    probe = _judge_models(kind, target, listed)
    if kind == "llama_cpp" and probe.health is Health.HEALTHY:
        return await _with_slots(session, root, headers, probe)
    return probe


def _judge_models(kind: str, target: ProbeTarget, listed: dict[str, dict[str, Any]]) -> ProbeResult:
    missing = [model for model in target.models if model not in listed]
    context = _context([listed[model] for model in target.models if model in listed])
    if not missing or not listed:
        return ProbeResult(Health.HEALTHY, context_tokens=context)
    have = ", ".join(sorted(listed)[:5])
    text = f"the runtime does not list {', '.join(missing)}; it has {have}"
    if kind in _STRICT and len(missing) == len(target.models):
        return ProbeResult(Health.UNHEALTHY, text)
    return ProbeResult(Health.HEALTHY, text, context_tokens=context)


async def _with_slots(
    session: aiohttp.ClientSession, root: str, headers: dict[str, str], probe: ProbeResult
) -> ProbeResult:
    """`/slots` is the truth about llama.cpp: how many runs at once, and the context that each may have."""
    try:
        status, body = await fetch(session, f"{root}/slots", headers)
        slots = msgspec.json.decode(body) if status == 200 else []
        context = min((int(slot["n_ctx"]) for slot in slots), default=0)
    except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError, KeyError, TypeError, ValueError):
        return probe
    return ProbeResult(probe.health, probe.message, context or probe.context_tokens, len(slots))


async def fetch(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> tuple[int, bytes]:
    """GET a small answer: status and body."""
    given = {**headers, "Accept-Encoding": "identity"}
    async with session.get(url, headers=given, timeout=_TIMEOUT, allow_redirects=False) as answer:
        return answer.status, await answer.content.read(_ANSWER_MAX)


def unreachable(error: Exception) -> ProbeResult:
    """The probe of a runtime that cannot be asked."""
    if isinstance(error, TimeoutError):
        return ProbeResult(Health.UNHEALTHY, f"no answer within {_TIMEOUT.total:.0f} s", silent=True)
    if isinstance(error, aiohttp.ClientConnectorError):
        return ProbeResult(Health.UNHEALTHY, f"cannot be reached: {reason_of(error)}")
    return ProbeResult(Health.UNHEALTHY, f"cannot be asked: {type(error).__name__}")


def _listed(body: bytes) -> dict[str, dict[str, Any]]:
    """The models of a list, by id."""
    try:
        data = msgspec.json.decode(body)["data"]
        return {entry["id"]: entry for entry in data}
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError):
        return {}


def _context(models: list[dict[str, Any]]) -> int:
    """The smallest window that these models tell; 0: none does."""
    found = []
    for model in models:
        meta = model.get("meta")
        for value in (model.get("max_model_len"), model.get("context_length"), (meta or {}).get("n_ctx")):
            if isinstance(value, int) and value > 0:
                found.append(value)
                break
    return min(found, default=0)


def _said(body: bytes) -> str:
    try:
        message = msgspec.json.decode(body)["error"]["message"]
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError):
        return ""
    return message[:200] if isinstance(message, str) else ""
