"""The generation policy: limits and thinking budgets in the words of each runtime (E5, backends §1.5)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from iop_edge.errors import ApiError
from iop_edge.nodes.run import Operation
from iop_edge.policy import Limits, apply_policy, output_limit, read_limits
from iop_edge.routing import GenerationPolicy, Target
from support.rules import rule

CHAT, COMPLETIONS = Operation.CHAT_COMPLETIONS, Operation.COMPLETIONS
RESPONSES, MESSAGES = Operation.RESPONSES, Operation.MESSAGES
POLICY = GenerationPolicy(default_max_tokens=4096, min_max_tokens=2560)
BUDGET = GenerationPolicy(default_max_tokens=4096, default_thinking_token_budget=2048)
NO_THINKING = GenerationPolicy(default_thinking_token_budget=0)


def raw(body: dict[str, Any]) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(json.dumps(body).encode(), type=dict[str, msgspec.Raw])


def target(kind: str = "vllm", label: str | None = None) -> Target:
    return Target("p", "n", "a", kind, label, "local_inference", "served")


def applied(
    operation: Operation,
    body: dict[str, Any],
    policy: GenerationPolicy,
    kind: str = "vllm",
    label: str | None = None,
) -> dict[str, Any]:
    """What the policy adds to or changes in a body, beside the model name."""
    pieces = raw({"model": "m", **body})
    made = json.loads(apply_policy(operation, pieces, read_limits(operation, pieces), policy, target(kind, label)))
    assert made.pop("model") == "served"
    return made


@rule("E2", "E5")
def test_a_body_keeps_every_byte_but_the_model_where_no_policy_holds() -> None:
    sent = b'{"model":"m","zz": {"a" : 1.00, "b":[ ]},"messages":[{"role":"user","content":"\xed\x95\x9c"}],"n":1e2}'
    pieces = msgspec.json.decode(sent, type=dict[str, msgspec.Raw])
    made = apply_policy(CHAT, pieces, Limits(), GenerationPolicy(), target())
    assert made == (
        b'{"model":"served","zz":{"a" : 1.00, "b":[ ]},"messages":[{"role":"user","content":"\xed\x95\x9c"}],"n":1e2}'
    )


@rule("E5")
@pytest.mark.parametrize(
    ("operation", "body", "expected"),
    [
        (CHAT, {}, {"max_tokens": 4096}),
        (CHAT, {"max_tokens": None}, {"max_tokens": 4096}),
        (CHAT, {"max_tokens": -1}, {"max_tokens": 4096}),
        (CHAT, {"max_tokens": 9000}, {"max_tokens": 9000}),
        (CHAT, {"max_tokens": 16}, {"max_tokens": 2560}),
        (CHAT, {"max_completion_tokens": 16}, {"max_completion_tokens": 2560}),
        (CHAT, {"max_tokens": 16, "max_completion_tokens": 9000}, {"max_completion_tokens": 9000}),
        (COMPLETIONS, {}, {"max_tokens": 4096}),
        (COMPLETIONS, {"max_tokens": 0}, {"max_tokens": 2560}),
        (RESPONSES, {}, {"max_output_tokens": 4096}),
        (RESPONSES, {"max_output_tokens": 20}, {"max_output_tokens": 2560}),
        (MESSAGES, {"max_tokens": 5}, {"max_tokens": 2560}),
        (Operation.EMBEDDINGS, {}, {}),
        (Operation.COUNT_TOKENS, {}, {}),
    ],
)
def test_the_output_limit_is_filled_in_or_raised(
    operation: Operation, body: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert applied(operation, body, POLICY) == expected


@rule("E5")
def test_without_numbers_of_the_group_the_limit_is_the_clients_own() -> None:
    nothing = GenerationPolicy()
    assert applied(CHAT, {}, nothing) == {}
    assert applied(CHAT, {"max_tokens": 3}, nothing) == {"max_tokens": 3}
    # Local clients send -1 for "no limit"; without a default it goes on as it came.
    assert applied(CHAT, {"max_tokens": -1}, nothing) == {"max_tokens": -1}
    assert output_limit(Limits(), GenerationPolicy(min_max_tokens=100)) is None


@rule("E5")
@pytest.mark.parametrize(
    ("kind", "label", "body", "name"),
    [
        ("ollama", None, {"max_completion_tokens": 9000}, "max_tokens"),
        ("lmstudio", None, {"max_completion_tokens": 9000}, "max_tokens"),
        ("openai_compat", "openai", {"max_tokens": 9000}, "max_completion_tokens"),
        ("openai_compat", "openai", {}, "max_completion_tokens"),
        ("openai_compat", "dashscope", {}, "max_tokens"),
        ("vllm", None, {"max_completion_tokens": 9000}, "max_completion_tokens"),
        ("llama_cpp", None, {"max_tokens": 9000}, "max_tokens"),
    ],
)
def test_a_runtime_gets_the_one_name_of_the_limit_that_it_obeys(
    kind: str, label: str | None, body: dict[str, Any], name: str
) -> None:
    assert list(applied(CHAT, body, POLICY, kind, label)) == [name]


@rule("E3", "E5")
@pytest.mark.parametrize("value", ["10", 1.5, 0, -2, True, [1], {}, 10**30])
def test_a_limit_that_is_no_positive_whole_number_is_refused_with_its_name(value: object) -> None:
    with pytest.raises(ApiError) as caught:
        read_limits(CHAT, raw({"max_tokens": value}))
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_request", "max_tokens")


@rule("E5")
@pytest.mark.parametrize(
    ("operation", "kind", "label", "expected"),
    [
        (CHAT, "vllm", None, {"thinking_token_budget": 2048}),
        (CHAT, "llama_cpp", None, {"thinking_budget_tokens": 2048}),
        (CHAT, "sglang", None, {"chat_template_kwargs": {"thinking_budget": 2048}}),
        (CHAT, "openai_compat", "dashscope", {"enable_thinking": True, "thinking_budget": 2048}),
        (CHAT, "openai_compat", "openrouter", {"reasoning": {"max_tokens": 2048}}),
        (
            CHAT,
            "openai_compat",
            "gemini",
            {"extra_body": {"google": {"thinking_config": {"thinking_budget": 2048}}}},
        ),
        (RESPONSES, "vllm", None, {"thinking_token_budget": 2048}),
        (MESSAGES, "vllm", None, {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        (MESSAGES, "llama_cpp", None, {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        # These know no number, so nothing may be sent that they would refuse or misread.
        (CHAT, "openai_compat", "openai", {}),
        (CHAT, "openai_compat", None, {}),
        (CHAT, "ollama", None, {}),
        (CHAT, "lmstudio", None, {}),
        (CHAT, "cli", None, {}),
        (CHAT, "echo", None, {}),
        (Operation.EMBEDDINGS, "vllm", None, {}),
    ],
)
def test_the_default_budget_is_written_as_the_runtime_understands_it(
    operation: Operation, kind: str, label: str | None, expected: dict[str, Any]
) -> None:
    made = applied(operation, {}, BUDGET, kind, label)
    assert {key: value for key, value in made.items() if "max" not in key} == expected


@rule("E5")
@pytest.mark.parametrize(
    ("operation", "kind", "label", "expected"),
    [
        (CHAT, "vllm", None, {"thinking_token_budget": 0}),
        (CHAT, "llama_cpp", None, {"chat_template_kwargs": {"enable_thinking": False}}),
        (CHAT, "sglang", None, {"chat_template_kwargs": {"enable_thinking": False}}),
        (CHAT, "ollama", None, {"reasoning_effort": "none"}),
        (RESPONSES, "ollama", None, {"reasoning": {"effort": "none"}}),
        (CHAT, "openai_compat", "qwen", {"enable_thinking": False}),
        (CHAT, "openai_compat", "openrouter", {"reasoning": {"enabled": False}}),
        (MESSAGES, "vllm", None, {"thinking": {"type": "disabled"}}),
    ],
)
def test_a_budget_of_zero_is_the_runtimes_own_off_switch(
    operation: Operation, kind: str, label: str | None, expected: dict[str, Any]
) -> None:
    assert applied(operation, {}, NO_THINKING, kind, label) == expected


@rule("E5")
@pytest.mark.parametrize(
    "said",
    [
        {"thinking_token_budget": 5},
        {"thinking_budget_tokens": 5},
        {"reasoning_effort": "none"},
        {"reasoning": {"effort": "low"}},
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "adaptive"}},
        {"output_config": {"effort": "high"}},
        {"enable_thinking": False},
        {"think": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"extra_body": {"google": {"thinking_config": {"thinking_budget": 1}}}},
    ],
)
def test_a_client_that_decided_about_thinking_has_set_the_budget(said: dict[str, Any]) -> None:
    made = applied(CHAT, said, BUDGET)
    assert {key: value for key, value in made.items() if key != "max_tokens"} == said


@rule("E5")
def test_other_template_settings_stay_beside_the_budget() -> None:
    made = applied(CHAT, {"chat_template_kwargs": {"tone": "dry"}}, BUDGET, "sglang")
    assert made["chat_template_kwargs"] == {"tone": "dry", "thinking_budget": 2048}


@rule("E5")
@pytest.mark.parametrize(
    ("kind", "limit", "budget", "expected"),
    [
        ("vllm", 4096, 2048, 2048),
        ("vllm", 4096, 100, 1024),
        ("vllm", 1500, 2048, 1499),
        ("vllm", 1000, 2048, None),
        ("llama_cpp", 1000, 2048, 999),
        ("llama_cpp", 4096, 100, 100),
    ],
)
def test_an_anthropic_budget_keeps_its_bounds(kind: str, limit: int, budget: int, expected: int | None) -> None:
    policy = GenerationPolicy(default_thinking_token_budget=budget)
    made = applied(MESSAGES, {"max_tokens": limit}, policy, kind)
    assert made.get("thinking") == (None if expected is None else {"type": "enabled", "budget_tokens": expected})
