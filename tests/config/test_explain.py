"""Any field in words (R16), and the page that has all of them."""

from __future__ import annotations

import pytest

from iop_config import EdgeConfig, Policy, explain, reference_markdown, walk_fields
from support.rules import rule

PATHS = dict(walk_fields(EdgeConfig))


@rule("R16")
def test_a_number_is_explained_whole() -> None:
    assert explain("nodes.providers.capacity") == (
        "nodes[].providers[].capacity\n"
        "  Runs at once.\n"
        "\n"
        "  type     integer\n"
        "  default  1\n"
        "  bounds   >= 1\n"
        "  refresh  live: a refresh applies it while serving\n"
    )


@rule("R16")
@pytest.mark.parametrize("path", PATHS)
def test_every_field_says_meaning_type_default_and_policy(path: str) -> None:
    info = PATHS[path]
    text = explain(path)
    assert text.splitlines()[0] == path
    assert info.doc in text
    assert info.shape.value in text
    assert "required" in text if info.required else info.default_text in text
    if info.policy is not Policy.CONTAINER:
        assert f"  refresh  {info.policy.value}" in text
    if info.bounds:
        assert f"  bounds   {info.bounds}" in text
    for choice in info.choices:
        assert choice in text


@rule("R16")
@pytest.mark.parametrize(
    "path",
    [
        "nodes[].providers[].capacity",
        "nodes[gpu-1].providers[vllm-a].capacity",
        'nodes["a.b]"].providers["c\\"d"].capacity',
        "nodes[0].providers[3].capacity",
        "nodes.0.providers.3.capacity",
        " nodes.providers.capacity ",
    ],
)
def test_a_path_may_be_spelled_as_in_a_problem_or_short(path: str) -> None:
    assert explain(path) == explain("nodes.providers.capacity")


@rule("R16")
def test_the_key_of_a_mapping_is_explained_by_its_mapping() -> None:
    assert explain("models[m].providers.vllm-a") == explain("models.providers")
    assert explain("models[m].providers[vllm-a]") == explain("models.providers")


@rule("R16", "C10", "C24")
def test_older_and_provider_first_keys_are_explained_too() -> None:
    assert "the older name of `base_url`" in explain("nodes.adapters.endpoint")
    assert "without `adapter`" in explain("nodes.providers.base_url")
    assert "without `adapter`" in explain("nodes.providers.endpoint")
    assert "overrides the adapter's" in explain("nodes.providers.context_size")


@rule("R16")
def test_a_section_lists_its_keys_and_what_adding_one_is() -> None:
    assert "  keys: probe, interval_ms\n" in explain("nodes.providers.health")
    assert "adding or removing one is live" in explain("models")
    assert "adding or removing one waits for a restart" in explain("nodes")


@rule("R16")
@pytest.mark.parametrize(
    ("path", "likely"),
    [
        ("nodes.providers.capcity", "nodes[].providers[].capacity"),
        ("capacity", "nodes[].providers[].capacity"),
        ("nodes.provider.capacity", "nodes[].providers[].capacity"),
        ("openai.listn", "openai.listen"),
    ],
)
def test_an_unknown_path_names_the_likely_one(path: str, likely: str) -> None:
    with pytest.raises(LookupError) as caught:
        explain(path)
    assert str(caught.value.args[0]) == f'no config field "{path}"; did you mean {likely}?'


@rule("R16")
@pytest.mark.parametrize("path", ["", "zzzz", "][", "zz[", "\x1b[31m" * 100])
def test_what_is_no_path_at_all_gets_the_sections(path: str) -> None:
    with pytest.raises(LookupError, match="the sections are edge, server"):
        explain(path)


@rule("R16")
def test_the_reference_page_has_a_row_for_every_key_with_its_policy() -> None:
    page = reference_markdown()
    for path, info in PATHS.items():
        parent, _, key = path.rpartition(".")
        section = page.partition(f"## `{parent}`\n" if parent else "## The top level\n")[2].partition("\n## ")[0]
        (row,) = [line for line in section.splitlines() if line.startswith(f"| `{key}` |")]
        assert (info.policy.value if info.policy is not Policy.CONTAINER else "by its fields") in row
        assert info.doc.replace("|", "\\|") in row
