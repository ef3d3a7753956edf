"""The JSON Schema of the file for editors (C20)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from iop_config import EdgeConfig, Shape, schema, walk_fields
from support.rules import rule

ROOT = Path(__file__).resolve().parents[2]
HASH = "0" * 64
MINIMAL = {"edge": {"id": "e"}}
CHECKER = Draft202012Validator(schema())


def load(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def node(**rest: object) -> dict[str, object]:
    return {**MINIMAL, "nodes": [{"id": "n", "token_hash_sha256": HASH, **rest}]}


def provider(**rest: object) -> dict[str, object]:
    return node(providers=[{"id": "p", "type": "vllm", "category": "api", "models": ["m"], **rest}])


@rule("C20")
def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(schema())


@rule("C20")
@pytest.mark.parametrize("name", ["edge.yaml", "edge.legacy.yaml"])
def test_the_examples_are_valid(name: str) -> None:
    text = (ROOT / "configs" / name).read_text(encoding="utf-8")
    assert not [error.message for error in CHECKER.iter_errors(load(text))]


@rule("C20")
def test_the_commented_keys_of_the_example_are_valid_too() -> None:
    text = (ROOT / "configs/edge.yaml").read_text(encoding="utf-8")
    spelled = (
        text.replace("# state_dir:", "state_dir:")
        .replace("# advertise:", "advertise:")
        .replace("# tls:", "tls:")
        .replace("# unix_socket:", "unix_socket:")
        .replace("# previous_token_hash_sha256: …", f"previous_token_hash_sha256: '{HASH}'")
    )
    read = load(spelled)
    assert read["server"]["tls"]
    assert read["nodes"][0]["previous_token_hash_sha256"] == HASH
    assert not [error.message for error in CHECKER.iter_errors(read)]


@rule("C20", "C22")
def test_every_field_is_there_with_its_words_and_policy() -> None:
    found = schema()
    definitions: Any = found["$defs"]

    def resolve(part: Any) -> Any:
        if "$ref" in part:
            return definitions[part["$ref"].rpartition("/")[2]]
        listed = part["anyOf"][0] if "anyOf" in part else part
        return resolve(listed["items"]) if listed.get("type") == "array" else part

    for path, info in walk_fields(EdgeConfig):
        part: Any = found
        for step in path.replace("[]", "").split("."):
            field = resolve(part)["properties"][step]
            part = field
        assert part["description"] == info.doc, path
        assert part["x-iop-policy"] == info.policy.value, path
        if info.shape is Shape.INTEGER:
            assert part["anyOf"][0] == {"type": "integer", "minimum": info.ge, "maximum": info.le}, path
        if info.shape is Shape.MEMBERS:
            assert part["x-iop-key"] == info.key
            assert info.members_policy is not None
            assert part["x-iop-members-policy"] == info.members_policy.value


@rule("C20")
@pytest.mark.parametrize(
    "good",
    [
        MINIMAL,
        provider(capacity="${N}", enabled="${ON:-true}", type="${TYPE}"),
        provider(adapter="a", context_size=1, request_timeout_ms=1),
        provider(base_url="http://h", first_event_timeout_ms=1),
        provider(endpoint="http://h"),
        node(adapters=[{"name": "a", "type": "seulgivibe_claude", "endpoint": "http://h"}]),
        node(adapters={"vllm": {"base_url": "http://h"}, "cli": {"command": "x"}}),
        {**MINIMAL, "x-anchors": [1, {"any": "thing"}]},
        {**MINIMAL, "server": {"listen": "${LISTEN}"}},
    ],
)
def test_what_loads_is_valid(good: dict[str, object]) -> None:
    assert not [error.message for error in CHECKER.iter_errors(good)]


@rule("C20")
@pytest.mark.parametrize(
    "bad",
    [
        {},
        {**MINIMAL, "nodez": []},
        {**MINIMAL, "server": {"listn": "x"}},
        {**MINIMAL, "long_context_threshold_tokens": 0},
        {**MINIMAL, "long_context_threshold_tokens": "8"},
        {**MINIMAL, "long_context_threshold_tokens": 8.5},
        {**MINIMAL, "server": {"insecure": "yes"}},
        {**MINIMAL, "logging": {"level": "loud"}},
        {**MINIMAL, "metrics": {"listen": "nowhere"}},
        {"edge": {"id": 7}},
        {"edge": {"id": ""}},
        {**MINIMAL, "nodes": {"n": {}}},
        provider(capacity=0),
        provider(priority=-1),
        provider(category="gpu"),
        provider(adapter="a", base_url="http://h"),
        provider(adapter="a", endpoint="http://h"),
        provider(health={"interval_ms": 1}),
        node(adapters={"vlm": {}}),
        node(adapters={"vllm": {"name": "a"}}),
        node(adapters=[{"name": "a", "type": "vllm", "env": {"1": "x"}}]),
        {**MINIMAL, "openai": {"principal_tokens": [{"token_ref": "a", "principal_ref": "p", "token": "t"}]}},
    ],
)
def test_what_an_editor_can_see_is_invalid(bad: dict[str, object]) -> None:
    assert list(CHECKER.iter_errors(bad))


@rule("C23")
def test_secrets_are_marked_write_only() -> None:
    definitions: Any = schema()["$defs"]
    for name in ("headers", "env"):
        assert definitions["AdapterConfig"]["properties"][name]["additionalProperties"]["writeOnly"] is True


@rule("C20")
def test_it_is_plain_json_and_always_the_same() -> None:
    assert json.loads(json.dumps(schema())) == schema()
