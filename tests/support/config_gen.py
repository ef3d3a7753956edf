"""Configs that Hypothesis makes: plain values that load, text with a known line for every path, single mutations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from attrs import frozen
from hypothesis import strategies as st

Path = tuple[str | int, ...]
Plain = dict[str, Any]

NAMES = [f"{word}-{number}" for word in ("gpu", "box", "Qwen/q") for number in range(4)]
TYPES = ("vllm", "llama_cpp", "sglang", "openai_compat", "ollama", "lmstudio")


def _optional(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Plain]:
    return st.fixed_dictionaries({}, optional=fields)


_numbers = _optional(
    {
        "priority": st.integers(0, 5),
        "max_queue": st.integers(0, 100),
        "queue_timeout_ms": st.integers(0, 10**6),
        "enabled": st.booleans(),
        "lifecycle": st.just([]),
    }
)
_model_numbers = _optional(
    {
        "display_name": st.text("aé: #'\"{}[]", min_size=1, max_size=8).filter(str.strip),
        "default_max_tokens": st.integers(1, 4096),
    }
)
_edge = st.fixed_dictionaries(
    {"id": st.sampled_from(NAMES[:4])}, optional={"name": st.sampled_from(["yes", "1.0", "~", "a b"])}
)


@st.composite
def configs(draw: st.DrawFn) -> Plain:
    """A config that loads, in any mixture of named and provider-first adapters."""
    config: Plain = {"edge": draw(_edge)}
    if draw(st.booleans()):
        config["long_context_threshold_tokens"] = draw(st.integers(1, 10**6))
    if draw(st.booleans()):
        config["logging"] = {"level": draw(st.sampled_from(["info", "debug"]))}
    nodes, served = [], {}
    for number in range(draw(st.integers(1, 3))):
        node: Plain = {"id": f"node-{number}", "token_hash_sha256": sha256(str(number).encode()).hexdigest()}
        kinds = draw(st.lists(st.sampled_from(TYPES), max_size=2))
        node["adapters"] = [
            {"name": f"a{place}", "type": kind, "base_url": f"http://127.0.0.1:{8000 + place}/v1"}
            for place, kind in enumerate(kinds)
        ]
        node["providers"] = []
        for place in range(draw(st.integers(0, 3))):
            provider: Plain = {
                "id": f"p-{number}-{place}",
                "category": draw(st.sampled_from(["api", "local_inference"])),
            }
            models = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True))
            if kinds and draw(st.booleans()):
                chosen = draw(st.integers(0, len(kinds) - 1))
                provider |= {"type": kinds[chosen], "adapter": f"a{chosen}", "models": models}
            else:
                provider |= {
                    "type": draw(st.sampled_from(TYPES)),
                    "base_url": "http://127.0.0.1:9/v1",
                    "models": models,
                }
            provider["capacity"] = draw(st.integers(1, 8))
            if draw(st.booleans()):
                provider["long_context_capacity"] = draw(st.integers(0, provider["capacity"]))
            provider |= draw(_numbers)
            node["providers"].append(provider)
            served[provider["id"]] = models
        nodes.append(node)
    config["models"] = [
        {
            "id": f"m-{number}",
            **draw(_model_numbers),
            "providers": {one: draw(st.sampled_from(served[one])) for one in chosen},
        }
        for number, chosen in enumerate(
            draw(st.lists(st.lists(st.sampled_from(sorted(served)), min_size=1, unique=True), max_size=3))
            if served
            else []
        )
    ]
    config["nodes"] = nodes
    return config


def paths(value: object, above: Path = ()) -> Iterator[Path]:
    """Every path below a value, containers first."""
    items: Iterator[tuple[str | int, object]] = iter(())
    if isinstance(value, dict):
        items = iter(value.items())
    elif isinstance(value, list):
        items = iter(enumerate(value))
    for key, child in items:
        yield (*above, key)
        yield from paths(child, (*above, key))


def get(config: object, path: Path) -> Any:
    """The value at a path."""
    for key in path:
        config = config[key]  # type: ignore[index]
    return config


@frozen
class Text:
    """A config as text, one key or member a line, and the lines (from 1) of each path: first and last."""

    text: str
    lines: dict[Path, tuple[int, int]]


def emit(config: Plain, *, twice: Path | None = None) -> Text:
    """Write a config in flow style; the entry at `twice` stands there two times."""
    out: list[str] = []
    lines: dict[Path, tuple[int, int]] = {}

    def put(value: object, path: Path, head: str, tail: str) -> None:
        start = len(out) + 1
        if isinstance(value, dict | list):
            brackets = "{}" if isinstance(value, dict) else "[]"
            out.append(head + brackets[0])
            entries = list(value.items() if isinstance(value, dict) else enumerate(value))
            for key, child in entries:
                name = f"{json.dumps(key)}: " if isinstance(value, dict) else ""
                for _ in range(2 if (*path, key) == twice else 1):
                    put(child, (*path, key), name, ",")
            out.append(brackets[1] + tail)
        else:
            out.append(head + json.dumps(value) + tail)
        lines[path] = start, len(out)

    put(config, (), "", "")
    return Text("\n".join(out) + "\n", lines)
