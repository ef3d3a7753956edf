"""A small config of every kind of object, as text that tests edit, and what a refresh makes of an edit."""

from __future__ import annotations

from collections.abc import Mapping

import iop_config
from iop_config import Loaded
from iop_refresh import RefreshPlan, plan

KEY = b"k" * 32

CONFIG = """\
edge: {id: e}
server: {listen: "127.0.0.1:0"}
admin: {listen: "127.0.0.1:0"}
openai:
  listen: "127.0.0.1:0"
  principal_tokens:
    - token_ref: ide
      token_hash_sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
      principal_ref: us
long_context_threshold_tokens: 1000
models:
  - id: big
    context_window_tokens: 4096
    providers: {a: served, b: served}
  - id: small
    providers: {b: served}
nodes:
  - id: n1
    token_hash_sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
    adapters:
      - {name: main, type: vllm, base_url: "http://127.0.0.1:8000/v1", headers: {Authorization: "Bearer canary-one"}}
    providers:
      - {id: a, type: vllm, category: local_inference, adapter: main, models: [served], capacity: 4, max_queue: 8}
  - id: n2
    token_hash_sha256: fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9
    providers:
      - id: b
        type: llama_cpp
        category: local_inference
        base_url: http://127.0.0.1:8090/v1
        models: [served]
        capacity: 2
"""


def edited(*edits: tuple[str, str], text: str = CONFIG) -> str:
    """Return the text with each piece replaced; a piece that is not there exactly once is a mistake of the test."""
    for old, new in edits:
        assert text.count(old) == 1, (old, text.count(old))
        text = text.replace(old, new)
    return text


def load(text: str = CONFIG, env: Mapping[str, str] | None = None) -> Loaded:
    """Load a text as `edge.yaml`."""
    return iop_config.load_text(text, env=env or {}, digest_key=KEY)


def plan_of(
    proposed: str, running: str = CONFIG, *, allow_partial: bool = False, env: Mapping[str, str] | None = None
) -> RefreshPlan:
    """Return what applying one text over another would do."""
    new = load(proposed, env)
    return plan(load(running, env).config, new.config, fingerprint_key=KEY, allow_partial=allow_partial, places=new)
