"""Providers: the adapter they name, the models that name them, what a broken value keeps silent (C4-C10, C19, C24)."""

from __future__ import annotations

import pytest

from support.config_text import ADAPTER, EDGE, PROVIDER, codes, config, node
from support.configs import loaded, problems
from support.rules import rule

MODEL = "models:\n  - {id: x, providers: {p: m}}\n"


@rule("C7")
def test_an_exact_instance_name_goes_before_a_type_name() -> None:
    found = loaded(
        config(
            "{id: p, type: vllm, category: api, adapter: ollama, models: [m]}",
            adapters=(
                "{name: ollama, type: vllm, base_url: 'http://h/v1'}",
                "{name: o, type: ollama, base_url: 'http://h'}",
            ),
        )
    )
    assert found.config.nodes[0].providers[0].adapter == "ollama"


@rule("C7", "C21")
def test_a_type_name_means_the_one_enabled_instance_of_that_type() -> None:
    disabled = ADAPTER.replace("name: v", "name: w, enabled: false")
    by_type = loaded(config(PROVIDER.replace("adapter: v", "adapter: vllm"), adapters=(ADAPTER, disabled)))
    assert by_type.config.nodes[0].providers[0].adapter == "v"
    assert by_type.version == loaded(config(PROVIDER, adapters=(ADAPTER, disabled))).version


@rule("C7", "C9")
def test_an_alias_is_a_type_name_too() -> None:
    alias = "{name: v, type: seulgivibe_claude, base_url: 'http://h'}"
    other = "{name: w, type: openai_compat, base_url: 'http://h'}"
    user = "{id: p, type: seulgivibe_claude, category: api, adapter: seulgivibe_claude, models: [m]}"
    assert loaded(config(user, adapters=(alias,))).config.nodes[0].providers[0].adapter == "v"
    assert loaded(config(user, adapters=(alias, other))).config.nodes[0].providers[0].adapter == "v"
    third = other.replace("name: w", "name: x")
    assert codes(config(user, adapters=(other, third))) == ["C7.ambiguous-adapter"]


@rule("C7")
def test_two_instances_of_a_type_are_listed() -> None:
    text = config(
        PROVIDER.replace("adapter: v", "adapter: vllm"), adapters=(ADAPTER, ADAPTER.replace("name: v", "name: w"))
    )
    (problem,) = problems(text)
    assert problem.code == "C7.ambiguous-adapter"
    assert problem.suggestion == 'name one of "v", "w"'


@rule("C7", "C19")
def test_an_unknown_instance_names_the_likely_one_and_those_that_there_are() -> None:
    adapters = (ADAPTER.replace("name: v", "name: vllm-main"), ADAPTER.replace("name: v", "name: cloud"))
    (problem,) = problems(config(PROVIDER.replace("adapter: v", "adapter: vlm-main"), adapters=adapters))
    assert str(problem) == (
        'edge.yaml:9:53: nodes[n].providers[p].adapter: no enabled adapter instance "vlm-main"; '
        'did you mean "vllm-main"? this node has "vllm-main", "cloud"  [C7.unknown-adapter]'
    )


@rule("C8")
@pytest.mark.parametrize(
    "change", ["adapter: nowhere", "adapter: off", "adapter: vllm", "adapter: c"], ids=lambda text: text.split()[-1]
)
def test_the_reference_of_a_disabled_provider_is_not_checked(change: str) -> None:
    text = config(
        PROVIDER.replace("adapter: v", f"enabled: false, {change}"),
        adapters=(
            ADAPTER,
            ADAPTER.replace("name: v", "name: off, enabled: false"),
            ADAPTER.replace("name: v", "name: other"),
            "{name: c, type: cli, command: x}",
        ),
        head=MODEL,
    )
    assert codes(text) == []
    assert codes(text.replace("id: p, type: vllm", "id: p, type: vllm, capacity: 0")) == ["C11.bound"]


@rule("C8")
def test_enabled_is_the_default() -> None:
    assert loaded(config(PROVIDER)).config.nodes[0].providers[0].enabled is True


@rule("C10")
def test_a_disabled_instance_needs_no_address_yet() -> None:
    assert codes(config(adapters=("{name: v, type: vllm, enabled: false}",))) == []


@rule("C10")
def test_echo_lives_on_nothing() -> None:
    found = loaded(config("{id: p, type: echo, category: api, models: [m]}", adapters=()))
    (adapter,) = found.config.nodes[0].adapters
    assert (adapter.name, adapter.type, adapter.enabled) == ("p", "echo", True)


@rule("C10", "C19")
def test_what_a_provider_first_entry_lacks_is_said_under_the_provider() -> None:
    (problem,) = problems(config("{id: p, type: vllm, category: api, models: [m]}", adapters=()))
    assert problem.path == "nodes[n].providers[p].base_url"


@rule("C24")
def test_a_providers_type_is_its_adapters_after_the_aliases() -> None:
    adapter = "{name: v, type: seulgivibe_openai, base_url: 'http://h'}"
    for wanted in ("openai_compat", "seulgivibe_claude", "seulgivibe_openai"):
        assert codes(config(PROVIDER.replace("vllm", wanted), adapters=(adapter,))) == []
    assert codes(config(PROVIDER, adapters=(adapter,))) == ["C24.type-mismatch"]


@rule("C7")
def test_a_cli_provider_on_another_kind_gets_one_problem_not_two() -> None:
    text = config(PROVIDER.replace("type: vllm, category: api", "type: cli, category: cli"))
    assert codes(text) == ["C7.cli-needs-cli-adapter"]


@rule("C4")
def test_a_served_name_may_equal_the_model_id() -> None:
    assert codes(config(PROVIDER, head="models:\n  - {id: m, providers: {p: m}}\n")) == []


@rule("C5")
def test_adapter_names_are_unique_within_their_node_only() -> None:
    other = node(PROVIDER.replace("id: p", "id: q"), name="o")
    assert codes(config(PROVIDER) + other) == []


@rule("C5", "C19")
def test_a_provider_id_on_three_nodes_is_told_twice_each_naming_the_first() -> None:
    text = config(PROVIDER) + node(PROVIDER, name="o") + node(PROVIDER, name="q")
    found = problems(text)
    assert [problem.code for problem in found] == ["C5.duplicate-provider"] * 2
    assert all("edge.yaml:8:14" in problem.message for problem in found)


@rule("C19")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The provider's id is wrong: whether the model names it cannot be told.
        (config(PROVIDER.replace("id: p", "id: 7"), head=MODEL), ["C18.type"]),
        (config("just text", head=MODEL), ["C18.type"]),
        # Its models are wrong: whether it serves the name cannot be told.
        (config(PROVIDER.replace("[m]", "m"), head=MODEL), ["C18.type"]),
        # The adapter's name, or its switch, is wrong.
        (config(PROVIDER, adapters=(ADAPTER.replace("name: v", "name: 7"),)), ["C18.type"]),
        (config(PROVIDER, adapters=(ADAPTER.replace("type:", "enabled: no, type:"),)), ["C18.type"]),
        # The type is wrong on either side.
        (config(PROVIDER.replace("type: vllm", "type: vlm")), ["C9.unknown-type"]),
        (config(PROVIDER, adapters=(ADAPTER.replace("type: vllm", "type: vlm"),)), ["C9.unknown-type"]),
        # The address is wrong: it is not missing.
        (config(adapters=(ADAPTER.replace("http:", "htp:"),)), ["C25.url"]),
        # The collections themselves are wrong.
        (EDGE + MODEL + "nodes: nowhere\n", ["C18.type"]),
        (config(PROVIDER, head=MODEL).replace("    providers:\n      -", "    providers:\n      p:"), ["C18.type"]),
        # The reference is wrong.
        (config(PROVIDER.replace("adapter: v", "adapter: [v]")), ["C18.type"]),
        (config(PROVIDER.replace("adapter: v", "adapter: w, enabled: 1")), ["C18.type"]),
    ],
)
def test_a_broken_value_is_told_once(text: str, expected: list[str]) -> None:
    assert codes(text) == expected


@rule("C19")
def test_problems_that_do_not_rest_on_each_other_come_in_one_pass_by_position() -> None:
    text = config(
        PROVIDER.replace("adapter: v", "adapter: w, capacity: 0"),
        PROVIDER.replace("id: p", "id: q").replace("category: api", "category: gpu"),
        head="models:\n  - {id: x, context_window_tokens: 0, providers: {nobody: m, p: nothing}}\n",
    )
    found = problems(text)
    assert [problem.code for problem in found] == [
        "C13.bound",
        "C4.unknown-provider",
        "C4.unserved-model",
        "C7.unknown-adapter",
        "C11.bound",
        "C6.unknown-category",
    ]
    assert [(p.line, p.column) for p in found] == sorted((p.line, p.column) for p in found)


@rule("C2", "C23")
def test_an_injected_name_is_masked_in_the_message_and_gets_no_guess() -> None:
    env = {"NAME": "hidden-canary"}
    adapters = (ADAPTER.replace("name: v", "name: hidden-canary-2"),)
    (problem,) = problems(config(PROVIDER.replace("adapter: v", "adapter: '${NAME}'"), adapters=adapters), env=env)
    assert problem.code == "C7.unknown-adapter"
    assert 'no enabled adapter instance "<redacted>"' in problem.message
    assert "did you mean" not in problem.suggestion
    adapters = (ADAPTER.replace("name: v", "name: '${NAME}'"),)
    (problem,) = problems(config(PROVIDER.replace("adapter: v", "adapter: hidden"), adapters=adapters), env=env)
    assert "canary" not in str(problem)


@rule("C18", "C19")
def test_many_wrong_references_cost_no_square() -> None:
    count = 3000
    providers = [f"{{id: p{n}, type: vllm, category: api, adapter: a{n}x, models: [m]}}" for n in range(count)]
    adapters = tuple(f"{{name: a{n}, type: vllm, base_url: 'http://h', capacity: 1}}" for n in range(count))
    models = "".join(f"  - {{id: m{n}, providers: {{q{n}: m}}}}\n" for n in range(count))
    found = problems(config(*providers, adapters=adapters, head="models:\n" + models))
    assert len(found) == 3 * count  # with a square in it this takes minutes, and the suite's timeout ends it
