"""The config version and the forms that may be shown (C1, C2, C21, C23, R10)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from ruamel.yaml import YAML

from iop_config import (
    AdapterConfig,
    AdminConfig,
    EdgeConfig,
    EdgeIdentity,
    FrozenMap,
    ModelConfig,
    NodeConfig,
    ProviderConfig,
    Secret,
    SensitiveInt,
    ServerConfig,
    config_version,
    evolve,
    to_plain,
    to_yaml,
)
from support.rules import rule

KEY = b"k" * 32
HASH = "0" * 64
CANARY = "canary-4711"


def adapter(name: str = "a", **rest: object) -> AdapterConfig:
    return evolve(AdapterConfig(name=name, type="vllm", base_url="http://127.0.0.1:8000/v1"), **rest)


def provider(name: str = "p", **rest: object) -> ProviderConfig:
    return evolve(ProviderConfig(id=name, type="vllm", category="api", adapter="a", models=("m",)), **rest)


def config(*, adapters: tuple[AdapterConfig, ...] = (adapter(),), **rest: object) -> EdgeConfig:
    node = NodeConfig(id="n", token_hash_sha256=HASH, adapters=adapters, providers=(provider(), provider("q")))
    models = (ModelConfig(id="x", providers=FrozenMap({"p": "m", "q": "m"})), ModelConfig(id="y"))
    return evolve(EdgeConfig(edge=EdgeIdentity(id="e"), nodes=(node,), models=models), **rest)


@rule("C21", "R10")
def test_the_order_of_members_and_of_a_mapping_does_not_count() -> None:
    one = config()
    (node,) = one.nodes
    x, y = one.models
    other = evolve(
        one,
        models=(y, evolve(x, providers=FrozenMap({"q": "m", "p": "m"}))),
        nodes=(evolve(node, providers=node.providers[::-1]),),
    )
    assert config_version(other, KEY) == config_version(one, KEY)


@rule("C21", "R10")
def test_a_default_that_is_spelled_out_does_not_count() -> None:
    spelled = config(server=ServerConfig(listen="127.0.0.1:19090", reconnect_grace_ms=int("10000")))
    assert config_version(spelled, KEY) == config_version(config(), KEY)


@rule("C21")
@pytest.mark.parametrize(
    "change",
    [
        lambda c: evolve(c, long_context_threshold_tokens=1),
        lambda c: evolve(c, models=c.models[:1]),
        lambda c: evolve(c, edge=EdgeIdentity(id="e", name="n")),
        lambda c: evolve(c, nodes=(evolve(c.nodes[0], providers=(provider(capacity=2), provider("q"))),)),
        lambda c: evolve(c, nodes=(evolve(c.nodes[0], adapters=(adapter(args=("a", "b")),)),)),
        lambda c: evolve(c, admin=AdminConfig(unix_socket="/s")),
    ],
)
def test_another_meaning_is_another_version(change: Callable[[EdgeConfig], EdgeConfig]) -> None:
    assert config_version(change(config()), KEY) != config_version(config(), KEY)


@rule("C21")
def test_the_order_of_arguments_counts() -> None:
    one, other = (config(adapters=(adapter(args=args),)) for args in (("a", "b"), ("b", "a")))
    assert config_version(one, KEY) != config_version(other, KEY)


@rule("C21")
def test_a_rotated_secret_is_another_version_and_its_key_decides_the_digest() -> None:
    one, other = (config(adapters=(adapter(headers=FrozenMap({"X": Secret(value)})),)) for value in ("1", "2"))
    assert config_version(one, KEY) != config_version(other, KEY)
    assert config_version(one, KEY) != config_version(one, b"another")
    assert config_version(one) == config_version(one)
    assert config_version(config(), KEY) == config_version(config(), b"another"), "nothing to protect: one version"


@rule("C21")
def test_an_injected_number_is_digested_under_the_key() -> None:
    one = config(long_context_threshold_tokens=SensitiveInt(5))
    assert config_version(one, KEY) != config_version(one, b"another")


def test_no_text_of_the_file_can_stand_for_a_masked_one() -> None:
    secret = config(edge=EdgeIdentity(id="e", name=Secret("n")))
    masked = config(edge=EdgeIdentity(id="e", name="<redacted>"))
    assert config_version(secret, KEY) != config_version(masked, KEY)


@rule("C1", "C23")
def test_nothing_that_is_shown_has_a_secret() -> None:
    shown = config(
        edge=EdgeIdentity(id="e", name=Secret(CANARY)),
        long_context_threshold_tokens=SensitiveInt(4711),
        adapters=(
            adapter(
                base_url=Secret(f"http://u:{CANARY}@host/v1", "http://host/v1"),
                headers=FrozenMap({"Authorization": Secret(CANARY)}),
                env=FrozenMap({"KEY": CANARY}),  # declared secret: masked though nobody wrapped it
                args=(Secret(CANARY), "plain"),
            ),
        ),
    )
    plain = to_plain(shown)
    for text in (json.dumps(plain), to_yaml(plain), repr(plain), config_version(shown, KEY)):
        assert "4711" not in text
    assert '"name": "<redacted>"' in json.dumps(plain)
    assert '"base_url": "http://host/v1"' in json.dumps(plain)


@rule("C21")
def test_the_plain_form_has_every_default_and_leaves_out_what_is_absent() -> None:
    plain = to_plain(config())
    assert plain["server"] == {"listen": "127.0.0.1:19090", "reconnect_grace_ms": 10_000, "insecure": False}
    assert plain["nodes"][0]["providers"][0] == {  # type: ignore[index]
        "id": "p",
        "type": "vllm",
        "category": "api",
        "adapter": "a",
        "enabled": True,
        "models": ["m"],
        "capacity": 1,
        "priority": 0,
        "lifecycle": [],
        "health": {"probe": True, "interval_ms": 10_000},
    }
    assert "origin" not in plain["nodes"][0]["adapters"][0]  # type: ignore[index]


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "yes",
        "null",
        "~",
        "",
        " x ",
        "1",
        "1e3",
        "0x10",
        "9f86d0",
        "a: b",
        "a #b",
        "- a",
        "line\nbreak",
        "tab\there",
        "\x01",
        '"quoted"',
        "back\\slash",
        "한글 😀",
        "\u2028",
        "\x85",
        "\ufeff",
        "*",
        "&a",
        "!t",
        "%d",
        "a:b:c",
        "http://h:1/v1?x=1",
        "10.0.0.1:80",
        "[::1]:80",
        "12:30:45",
        "2026-12-01",
        "<<",
        "=",
        "{a}",
        "x,y",
        "trailing:",
    ],
)
def test_every_text_comes_back_from_yaml(text: str) -> None:
    written = to_yaml({"key": text, text: [text, 1, True], "list": [{"a": text}]})
    for pure in (True, False):
        read = YAML(typ="safe", pure=pure).load(written)
        assert read == {"key": text, text: [text, 1, True], "list": [{"a": text}]}


def test_a_dollar_is_escaped_where_loading_would_read_more_into_it() -> None:
    assert to_yaml({"a": "${HOME}", "b": "a$b", "c": "$$"}) == 'a: "$${HOME}"\nb: "a$b"\nc: "$$$$"\n'


def test_a_list_of_mappings_is_a_file_of_entries() -> None:
    assert to_yaml([{"token_ref": "a", "x": {}}, {"token_ref": "b", "y": {"z": []}}]) == (
        '- token_ref: a\n  x: {}\n- token_ref: b\n  "y":\n    z: []\n'
    )
