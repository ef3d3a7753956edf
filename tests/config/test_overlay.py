"""Overlays: key by key, collections by identity, everything else replaced; problems point into the overlay (C2)."""

from __future__ import annotations

from pathlib import Path

import pytest

import iop_config
from iop_config import ConfigError
from support.configs import BASE, HASH, HASH_2, brief, config, loaded, problems, replaced
from support.rules import rule


@rule("C2")
def test_sections_merge_key_by_key() -> None:
    merged = config(
        BASE + "server: {listen: 127.0.0.1:1, reconnect_grace_ms: 5}\n", over="server: {reconnect_grace_ms: 6}"
    )
    assert (merged.server.listen, merged.server.reconnect_grace_ms) == ("127.0.0.1:1", 6)


@rule("C2")
def test_collections_merge_by_their_identity() -> None:
    over = f"""\
models:
  - {{id: m, display_name: M}}
  - {{id: other}}
nodes:
  - id: n
    adapters: [{{name: a, max_queue: 7}}]
    providers:
      - {{id: p, capacity: 3}}
      - {{id: q, type: vllm, category: api, adapter: a, models: [z]}}
  - {{id: n2, token_hash_sha256: {HASH_2}}}
"""
    merged = config(BASE, over=over)
    assert [(model.id, model.display_name, dict(model.providers)) for model in merged.models] == [
        ("m", "M", {"p": "served"}),
        ("other", None, {}),
    ]
    assert [node.id for node in merged.nodes] == ["n", "n2"]
    node = merged.nodes[0]
    assert (node.adapters[0].base_url, node.adapters[0].max_queue) == ("http://127.0.0.1:8000/v1", 7)
    assert [(provider.id, provider.capacity) for provider in node.providers] == [("p", 3), ("q", 1)]


@rule("C2")
def test_principal_tokens_merge_by_token_ref() -> None:
    base = BASE + f"openai: {{principal_tokens: [{{token_ref: t, token_hash_sha256: {HASH}, principal_ref: x}}]}}\n"
    (token,) = config(
        base, over="openai: {principal_tokens: [{token_ref: t, principal_ref: y}]}"
    ).openai.principal_tokens
    assert (token.token_hash_sha256, token.principal_ref) == (HASH, "y")


@rule("C2")
def test_a_mapping_of_texts_merges_key_by_key() -> None:
    merged = config(
        replaced("base_url: http://127.0.0.1:8000/v1", "base_url: http://h/v1\n        headers: {A: '1', B: '2'}"),
        over="nodes: [{id: n, adapters: [{name: a, headers: {B: '3', C: '4'}}]}]",
    )
    assert iop_config.reveal(dict(merged.nodes[0].adapters[0].headers)).keys() == {"A", "B", "C"}
    assert merged.nodes[0].adapters[0].headers["B"] == "3"


@rule("C2")
@pytest.mark.parametrize(
    ("key", "first", "second", "left"),
    [
        ("cors_origins", "[http://a, http://b]", "[http://c]", ("http://c",)),
        ("model_routes", "[{model: r, adapter: a, target: t}]", "[{model: s, adapter: a, target: t}]", ("s",)),
    ],
)
def test_every_other_list_is_replaced(key: str, first: str, second: str, left: tuple[str, ...]) -> None:
    merged = config(BASE + f"openai: {{{key}: {first}}}\n", over=f"openai: {{{key}: {second}}}")
    values = merged.openai.cors_origins or tuple(route.model for route in merged.openai.model_routes)
    assert values == left


@rule("C2", "C10")
def test_the_legacy_form_meets_the_named_form() -> None:
    named = "      - name: a\n        type: vllm\n        base_url: http://127.0.0.1:8000/v1\n"
    base = replaced(named, "      vllm: {base_url: http://127.0.0.1:8000/v1}\n").replace("adapter: a", "adapter: vllm")
    merged = config(base, over="nodes: [{id: n, adapters: [{name: vllm, max_queue: 2}]}]")
    assert (merged.nodes[0].adapters[0].base_url, merged.nodes[0].adapters[0].max_queue) == (
        "http://127.0.0.1:8000/v1",
        2,
    )
    again = config(base, over="nodes: [{id: n, adapters: {vllm: {max_queue: 2}}}]")
    assert again == merged


@rule("C2", "C24")
def test_the_old_name_of_a_key_is_overlaid_by_the_new_one() -> None:
    base = replaced("base_url: http://127.0.0.1:8000/v1", "endpoint: http://old/v1")
    assert (
        config(base, over="nodes: [{id: n, adapters: [{name: a, base_url: http://new/v1}]}]")
        .nodes[0]
        .adapters[0]
        .base_url
        == "http://new/v1"
    )


@rule("C2")
def test_overlays_apply_in_the_order_given() -> None:
    merged = config(BASE, first="edge: {name: one}", second="edge: {name: two}")
    assert merged.edge.name == "two"


@rule("C2")
def test_a_provider_first_provider_may_take_its_address_from_an_overlay() -> None:
    base = replaced("        adapter: a\n", "")
    assert [problem.code for problem in problems(base)] == ["C10.needs-base-url"]
    merged = config(base, over="nodes: [{id: n, providers: [{id: p, base_url: http://private/v1}]}]")
    assert merged.nodes[0].adapters[1].base_url == "http://private/v1"


@rule("C2", "C19")
def test_a_problem_in_an_overlay_points_at_the_overlay() -> None:
    over = "nodes:\n  - id: n\n    providers:\n      - id: p\n        capacity: 0\n"
    (found,) = problems(BASE, over=over)
    assert (found.file, found.line, found.column, found.code) == ("over.yaml", 5, 19, "C11.bound")
    assert found.path == "nodes[n].providers[p].capacity"


@rule("C2", "C19")
def test_an_identity_twice_in_one_overlay_is_a_duplicate() -> None:
    found = problems(BASE, over="models:\n  - id: x\n  - id: x\n")
    assert brief(found) == ["3:9 C3.duplicate-model models[x].id"]
    assert "over.yaml:2:9" in found[0].message


@rule("C2")
def test_what_an_overlay_replaces_is_not_injected() -> None:
    base = replaced("http://127.0.0.1:8000/v1", "${NOT_SET}")
    assert [problem.code for problem in problems(base)] == ["C2.unset"]
    merged = config(base, over="nodes: [{id: n, adapters: [{name: a, base_url: http://h/v1}]}]")
    assert merged.nodes[0].adapters[0].base_url == "http://h/v1"


@rule("C2", "C19")
def test_files_that_cannot_be_read_as_yaml_are_all_named(tmp_path: Path) -> None:
    main, over = tmp_path / "main.yaml", tmp_path / "over.yaml"
    main.write_text("a: [")
    over.write_text('b: "')
    with pytest.raises(ConfigError) as raised:
        iop_config.load(main, overlays=[over], env={})
    assert [(Path(problem.file).name, problem.line) for problem in raised.value.problems] == [
        ("main.yaml", 1),
        ("over.yaml", 1),
    ]


@rule("C2")
def test_positions_lead_into_the_file_that_said_it_last() -> None:
    found = loaded(BASE, over="\nedge:\n  name: x\n")
    where = found.position(("edge", "name"))
    assert (where.file, where.line, where.column) == ("over.yaml", 3, 9)
    assert found.position(("edge", "id")).file == "edge.yaml"


@rule("C2")
def test_an_anchor_belongs_to_its_file() -> None:
    found = problems(BASE + "x-a: &a 1\n", over="server: {reconnect_grace_ms: *a}")
    assert brief(found) == ["1:30 C18.alias server.reconnect_grace_ms"]
