"""The generation policy of a group, written in the words of the surface and of the runtime that was chosen (E5)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from attrs import frozen

from iop_edge.errors import ApiError
from iop_edge.nodes.run import Operation
from iop_edge.routing import GenerationPolicy, Target

__all__ = ["Limits", "apply_policy", "output_limit", "read_limits"]

Body = Mapping[str, msgspec.Raw]
_Changes = dict[str, object]

# The names of the output limit on each surface, the one that wins first. A surface without an entry has no policy.
_LIMIT_NAMES: Mapping[Operation, tuple[str, ...]] = {
    Operation.CHAT_COMPLETIONS: ("max_completion_tokens", "max_tokens"),
    Operation.COMPLETIONS: ("max_tokens",),
    Operation.RESPONSES: ("max_output_tokens",),
    Operation.MESSAGES: ("max_tokens",),
}
# These know only the old name on chat and ignore the new one, which would mean no limit at all (backends §1.5).
_OLD_NAME_ONLY = frozenset({"ollama", "lmstudio"})
# By label: reasoning models of these refuse the old name.
_NEW_NAME_ONLY = frozenset({"openai", "azure", "seulgivibe_openai"})

# A client that sent any of these has decided about thinking itself: a budget, an effort, or off.
_THINKING_KEYS = (
    "thinking_token_budget",
    "thinking_budget_tokens",
    "reasoning_budget_tokens",
    "reasoning_budget",
    "thinking_budget",
    "enable_thinking",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "think",
)
_TEMPLATE_KEYS = ("enable_thinking", "thinking", "thinking_budget", "reasoning_effort")
_ANTHROPIC_FLOOR = 1024
_NULL = b"null"


@frozen
class Limits:
    """What the client itself said about its output: `max_tokens` None and `name` None where it said nothing."""

    max_tokens: int | None = None
    name: str | None = None
    """The key that said it."""
    spare: tuple[str, ...] = ()
    """Other keys that say it too, and must not go on beside it."""


def read_limits(operation: Operation, body: Body) -> Limits:
    """Return the client's output limit; null counts as absent, and so does -1, which local clients send for "no limit".

    Raises ApiError 400 with the `param` for anything that is not a whole number from 1 (0 on `/v1/completions`).
    """
    found = Limits()
    for name in _LIMIT_NAMES.get(operation, ()):
        raw = body.get(name)
        if raw is None or bytes(raw) == _NULL:
            continue
        value = _whole(name, raw, 0 if operation is Operation.COMPLETIONS else 1)
        if value is None:
            continue
        if found.name is None:
            found = Limits(value, name)
        else:
            found = Limits(found.max_tokens, found.name, (*found.spare, name))
    return found


def _whole(name: str, raw: msgspec.Raw, least: int) -> int | None:
    try:
        value: int | None = msgspec.json.decode(raw, type=int)
    except (msgspec.DecodeError, RecursionError):
        value = None
    if value == -1:
        return None
    if value is None or not least <= value <= 2**53:
        raise ApiError("invalid_request", f"{name}: not a whole number of at least {least}", param=name)
    return value


def output_limit(limits: Limits, policy: GenerationPolicy) -> int | None:
    """Return the limit that holds under the policy (E5); None: none is known."""
    asked = limits.max_tokens if limits.max_tokens is not None else policy.default_max_tokens
    if asked is not None and policy.min_max_tokens is not None:
        return max(asked, policy.min_max_tokens)
    return asked


def apply_policy(operation: Operation, body: Body, limits: Limits, policy: GenerationPolicy, target: Target) -> bytes:
    """Return the JSON body for `target`: its model name, the limits of E5, every other byte as the client sent it."""
    changes: _Changes = {"model": target.name}
    drop: tuple[str, ...] = ()
    if operation in _LIMIT_NAMES:
        limit = output_limit(limits, policy)
        if limit is not None:
            name = _limit_name(operation, limits, target)
            # Only what differs is written, so that an untouched number keeps its bytes.
            if limit != limits.max_tokens or name != limits.name:
                changes[name] = limit
            drop = tuple(key for key in _LIMIT_NAMES[operation] if key != name)
        budget = policy.default_thinking_token_budget
        if budget is not None and not _client_decided(body):
            changes.update(_thinking(operation, body, budget, limit, target))
    merged: dict[str, object] = {key: value for key, value in body.items() if key not in drop}
    merged.update(changes)
    return msgspec.json.encode(merged)


def _limit_name(operation: Operation, limits: Limits, target: Target) -> str:
    if operation is not Operation.CHAT_COMPLETIONS:
        return _LIMIT_NAMES[operation][0]
    if target.kind in _OLD_NAME_ONLY:
        return "max_tokens"
    if target.kind == "openai_compat" and (target.label or "").lower() in _NEW_NAME_ONLY:
        return "max_completion_tokens"
    return limits.name or "max_tokens"


def _said(body: Body, key: str) -> bool:
    raw = body.get(key)
    return raw is not None and bytes(raw) != _NULL


def _client_decided(body: Body) -> bool:
    if any(_said(body, key) for key in _THINKING_KEYS):
        return True
    template = _object(body, "chat_template_kwargs")
    if any(_said(template, key) for key in _TEMPLATE_KEYS):
        return True
    if _said(_object(body, "output_config"), "effort"):
        return True
    return _said(_object(_object(body, "extra_body"), "google"), "thinking_config")


def _object(body: Body, key: str) -> Body:
    raw = body.get(key)
    if raw is None:
        return {}
    try:
        return msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return {}  # not an object: the runtime will say so in its own words


def _thinking(operation: Operation, body: Body, budget: int, limit: int | None, target: Target) -> _Changes:
    """The default budget in the runtime's form; nothing where it has no form for a number (backends §1.5)."""
    if operation is Operation.MESSAGES:
        return _anthropic_thinking(budget, limit, target)
    match target.kind:
        case "vllm":
            return {"thinking_token_budget": budget}
        case "llama_cpp":
            # Its number 0 does not stop the thinking; the template's switch does.
            return {"thinking_budget_tokens": budget} if budget else _template(body, "enable_thinking", False)
        case "sglang":
            return _template(body, "thinking_budget", budget) if budget else _template(body, "enable_thinking", False)
        case "ollama" if not budget:
            return _effort_none(operation)
        case "openai_compat":
            return _cloud_thinking(operation, budget, (target.label or "").lower())
    return {}


def _cloud_thinking(operation: Operation, budget: int, label: str) -> _Changes:
    match label:
        case "dashscope" | "alibaba" | "qwen":
            return {"enable_thinking": True, "thinking_budget": budget} if budget else {"enable_thinking": False}
        case "openrouter" if operation is Operation.CHAT_COMPLETIONS:
            return {"reasoning": {"max_tokens": budget} if budget else {"enabled": False}}
        case "gemini" | "google":
            return {"extra_body": {"google": {"thinking_config": {"thinking_budget": budget}}}}
    # OpenAI and its like know efforts, not numbers; an unknown cloud may refuse a field that it does not know.
    return {}


def _anthropic_thinking(budget: int, limit: int | None, target: Target) -> _Changes:
    if target.kind not in ("openai_compat", "vllm", "llama_cpp", "sglang", "lmstudio", "ollama"):
        return {}
    if not budget:
        return {"thinking": {"type": "disabled"}}
    floor = 1 if target.kind == "llama_cpp" else _ANTHROPIC_FLOOR
    budget = max(budget, floor)
    if limit is not None:
        budget = min(budget, limit - 1)  # it counts against the output, and must be smaller
    return {"thinking": {"type": "enabled", "budget_tokens": budget}} if budget >= floor else {}


def _template(body: Body, key: str, value: object) -> _Changes:
    return {"chat_template_kwargs": {**_object(body, "chat_template_kwargs"), key: value}}


def _effort_none(operation: Operation) -> _Changes:
    return {"reasoning": {"effort": "none"}} if operation is Operation.RESPONSES else {"reasoning_effort": "none"}
