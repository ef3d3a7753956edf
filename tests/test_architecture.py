"""What the import contracts cannot say: who may touch YAML, gRPC, the network; that no module grows without bound."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.rules import rule

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(p for top in ("packages", "apps") for p in (ROOT / top).rglob("src/**/*.py") if "_pb2" not in p.name)
LINES_MAX = 600


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def importers(module: str) -> set[str]:
    """The files, from the root, that import `module` or something in it."""
    return {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if any(name == module or name.startswith(module + ".") for name in imports(path))
    }


def test_one_module_alone_knows_the_yaml_parser() -> None:
    assert importers("ruamel") <= {
        "packages/iop_config/src/iop_config/_source.py",
        "packages/iop_config/src/iop_config/_digest.py",
    }


@rule("P12")
def test_only_the_face_of_the_pool_knows_an_event_loop() -> None:
    assert {path for path in importers("anyio") if "iop_pool" in path} == {"packages/iop_pool/src/iop_pool/_shell.py"}


def test_the_wire_is_known_in_one_place_on_each_end() -> None:
    edge = {path for path in importers("iop_wire") if path.startswith("apps/edge/")}
    assert all("/iop_edge/nodes/" in path for path in edge), edge


@pytest.mark.parametrize("package", ["iop_config", "iop_pool", "iop_refresh"])
def test_a_library_imports_quickly_and_without_the_heavy_things(package: str) -> None:
    code = f"import sys, {package}; print({{'grpc', 'click', 'aiohttp', 'starlette', 'rich'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"


def test_every_file_says_first_what_it_is_for() -> None:
    silent = []
    for path in [*SOURCES, *ROOT.glob("scripts/*.py"), *ROOT.glob("bench/*.py"), *ROOT.glob("tests/**/*.py")]:
        text = path.read_text(encoding="utf-8")
        if text.strip() and ast.get_docstring(ast.parse(text)) is None:
            silent.append(str(path.relative_to(ROOT)))
    assert not silent


def test_no_module_is_so_long_that_nobody_reads_it() -> None:
    long = {str(p.relative_to(ROOT)): n for p in SOURCES if (n := len(p.read_text().splitlines())) > LINES_MAX}
    assert not long


def test_no_tracked_file_names_a_package_registry() -> None:
    registries = ("py" + "pi.org", "files.python" + "hosted.org", "registry.npm" + "js.org")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if tracked.returncode != 0:
        pytest.skip("not a git checkout")
    named = []
    for name in tracked.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and any(host.encode() in path.read_bytes() for host in registries):
            named.append(name)
    assert not named


def test_every_package_has_its_own_distribution() -> None:
    for name in ("iop_config", "iop_pool", "iop_refresh", "iop_wire", "iop_edge", "iop_node"):
        assert importlib.util.find_spec(name) is not None
