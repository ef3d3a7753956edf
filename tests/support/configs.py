"""Small configs for tests: a base that loads, changed in one place; and what is wrong with a text, in short."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import iop_config
from iop_config import ConfigError, EdgeConfig, Loaded, Problem

HASH = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
HASH_2 = "fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9"

BASE = f"""\
edge: {{id: e}}
models:
  - id: m
    providers: {{p: served}}
nodes:
  - id: n
    token_hash_sha256: {HASH}
    adapters:
      - name: a
        type: vllm
        base_url: http://127.0.0.1:8000/v1
    providers:
      - id: p
        type: vllm
        category: local_inference
        adapter: a
        models: [served]
"""


def loaded(text: str, *, env: Mapping[str, str] | None = None, base_dir: Path | str = ".", **more: str) -> Loaded:
    """Load a text; `more` are overlays by name, such as `overlay="…"`."""
    overlays = [iop_config.text_source(each, name=f"{name}.yaml", base_dir=base_dir) for name, each in more.items()]
    return iop_config.load_text(text, env=env or {}, base_dir=base_dir, overlays=overlays, digest_key=b"k" * 32)


def config(text: str, *, env: Mapping[str, str] | None = None, base_dir: Path | str = ".", **more: str) -> EdgeConfig:
    """Load a text and return the config."""
    return loaded(text, env=env, base_dir=base_dir, **more).config


def problems(
    text: str | bytes, *, env: Mapping[str, str] | None = None, base_dir: Path | str = ".", **more: str
) -> tuple[Problem, ...]:
    """Return what is wrong with a text, nothing where it loads."""
    overlays = [iop_config.text_source(each, name=f"{name}.yaml", base_dir=base_dir) for name, each in more.items()]
    try:
        iop_config.load_text(text, env=env or {}, base_dir=base_dir, overlays=overlays)
    except ConfigError as error:
        return error.problems
    return ()


def brief(found: tuple[Problem, ...]) -> list[str]:
    """Return problems as `line:column code path`."""
    return [f"{problem.line}:{problem.column} {problem.code} {problem.path}".rstrip() for problem in found]


def replaced(old: str, new: str, text: str = BASE) -> str:
    """Return a text with one place changed; the place must exist once."""
    assert text.count(old) == 1, (old, text.count(old))
    return text.replace(old, new)
