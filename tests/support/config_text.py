"""Small Edge configs put together from flow mappings; `configs` loads them."""

from __future__ import annotations

from collections.abc import Mapping

from support.configs import HASH, problems

OTHER_HASH = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
EDGE = "edge: {id: e}\n"
ADAPTER = "{name: v, type: vllm, base_url: 'http://127.0.0.1:8000/v1'}"
PROVIDER = "{id: p, type: vllm, category: api, adapter: v, models: [m]}"


def node(*providers: str, adapters: tuple[str, ...] = (ADAPTER,), name: str = "n") -> str:
    """One entry of `nodes:`; the parts are flow mappings."""
    text = f"  - id: {name}\n    token_hash_sha256: {HASH}\n"
    if adapters:
        text += "    adapters:\n" + "".join(f"      - {each}\n" for each in adapters)
    if providers:
        text += "    providers:\n" + "".join(f"      - {each}\n" for each in providers)
    return text


def config(*providers: str, adapters: tuple[str, ...] = (ADAPTER,), head: str = "") -> str:
    """A whole file with one node; `head` goes before `nodes:`."""
    return EDGE + head + "nodes:\n" + node(*providers, adapters=adapters)


def codes(text: str, env: Mapping[str, str] | None = None) -> list[str]:
    """Return the codes of what is wrong, by position."""
    return [problem.code for problem in problems(text, env=env)]
