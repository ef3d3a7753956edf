"""A secret in a config shows nowhere: not in problems, reprs, dumps, tracebacks, nor on the command line (C2, C23)."""

from __future__ import annotations

import copy
import json
import traceback
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import pytest
from click.testing import CliRunner

import iop_config
from iop_config import ConfigError
from iop_edge.cli import main as iop_edge
from support.config_gen import Path, Plain, emit, get, paths
from support.configs import HASH, HASH_2
from support.rules import rule

CANARY = "canary-7f3a9c"

CONFIG: Plain = {
    "edge": {"id": "e"},
    "openai": {"principal_tokens": [{"token_ref": "t", "token_hash_sha256": HASH, "principal_ref": "r"}]},
    "models": [{"id": "m", "providers": {"p": "served", "q": "served"}}],
    "nodes": [
        {
            "id": "n",
            "token_hash_sha256": HASH_2,
            "adapters": [
                {
                    "name": "a",
                    "type": "vllm",
                    "base_url": "http://127.0.0.1:8000/v1",
                    "headers": {"Authorization": "Bearer x", "X-Key": "y"},
                }
            ],
            "providers": [
                {"id": "p", "type": "vllm", "category": "local_inference", "adapter": "a", "models": ["served"]},
                {
                    "id": "q",
                    "type": "cli",
                    "category": "cli",
                    "command": "claude",
                    "args": ["-p", "--key", "z"],
                    "env": {"API_KEY": "w"},
                    "models": ["served"],
                    "capacity": 2,
                },
            ],
        }
    ],
}


def planted(path: Path, value: Any) -> str:
    changed = copy.deepcopy(CONFIG)
    get(changed, path[:-1])[path[-1]] = value
    return emit(changed).text


def said(text: str, env: dict[str, str], folder: FilePath) -> Iterator[tuple[str, str]]:
    """Everything that loading a text, and asking for what was loaded, prints or would print."""
    try:
        loaded = iop_config.load_text(text, env=env, digest_key=b"k")
    except ConfigError as error:
        yield "str", str(error)
        yield "repr", repr(error)
        yield "problems", repr(error.problems)
        yield "json", json.dumps(iop_config.problems_json(error.problems))
        yield "colour", iop_config.render_text(error.problems, color=True)
        yield "traceback", "".join(traceback.format_exception(error))
    else:
        yield "repr", repr(loaded)
        yield "config", repr(loaded.config)
        yield "shown", iop_config.to_yaml(iop_config.to_plain(loaded.config))
        yield "version", loaded.version
    file = folder / "edge.yaml"
    file.write_text(text, encoding="utf-8")
    for arguments in (
        ["config", "check", str(file)],
        ["config", "check", "-o", "json", str(file)],
        ["config", "show", str(file)],
    ):
        done = CliRunner().invoke(iop_edge, arguments, env=env)
        assert not isinstance(done.exception, Exception) or isinstance(done.exception, SystemExit)
        yield " ".join(arguments), done.output


LEAVES = [path for path in paths(CONFIG) if isinstance(get(CONFIG, path), str)]
SECRET_LEAVES = [path for path in LEAVES if {"headers", "env", "token_hash_sha256"} & set(path)]


@rule("C2", "C23")
@pytest.mark.parametrize("path", LEAVES, ids=lambda path: ".".join(map(str, path)))
def test_what_is_injected_into_any_text_shows_nowhere(path: Path, tmp_path: FilePath) -> None:
    for text in ("${SECRET}", "x${SECRET}y"):
        for where, shown in said(planted(path, text), {"SECRET": CANARY}, tmp_path):
            assert CANARY not in shown, (text, where)


@rule("C14", "C23", "C25")
@pytest.mark.parametrize("path", SECRET_LEAVES, ids=lambda path: ".".join(map(str, path)))
@pytest.mark.parametrize("shape", ["text", "list", "mapping", "unknown", "number"])
def test_what_stands_where_a_secret_stands_shows_nowhere(path: Path, shape: str, tmp_path: FilePath) -> None:
    value: Any = {
        "text": CANARY,
        "list": [CANARY],
        "mapping": {"value": CANARY},
        "unknown": f"${{file:/nowhere/else}}{CANARY}",
        "number": 70391,
    }[shape]
    for where, shown in said(planted(path, value), {}, tmp_path):
        assert CANARY not in shown, where
        assert "70391" not in shown, where


@rule("C14", "C25")
@pytest.mark.parametrize("key", ["token", "api_key", "key", "secret"])
@pytest.mark.parametrize("path", [("openai", "principal_tokens", 0), ("nodes", 0)], ids=["principal", "node"])
def test_a_raw_token_is_refused_and_not_repeated(path: Path, key: str, tmp_path: FilePath) -> None:
    for where, shown in said(planted((*path, key), CANARY), {}, tmp_path):
        assert CANARY not in shown, where
        if where == "str":
            assert "a raw token is never accepted in the file" in shown
