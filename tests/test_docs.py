"""The documents keep what they promise: links lead somewhere, commands exist, the README's YAML loads."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import iop_config
from iop_edge.cli import main as iop_edge
from iop_node.cli import main as iop_node

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("packages/*/*.md"),
        *ROOT.glob("apps/*/*.md"),
    ]
    if path.name != "rules.md"
)
COMMAND_LINE = re.compile(r"^\s*(?:\$ )?(iop-edge|iop-node)((?: [^#\n|>`]+)?)", flags=re.MULTILINE)


def blocks(text: str, *languages: str) -> Iterator[str]:
    """The fenced code blocks of these languages."""
    for language, body in re.findall(r"^```([a-z]*)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        if language in languages:
            yield body


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            continue
        if not (page.parent / target.partition("#")[0]).exists():
            dead.append(target)
    assert not dead


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_command_in_a_console_block_exists_with_its_options(page: Path) -> None:
    bad = []
    for block in blocks(page.read_text(encoding="utf-8"), "console", "sh", "bash"):
        for program, rest in COMMAND_LINE.findall(block):
            wrong = _unknown(iop_edge if program == "iop-edge" else iop_node, rest.split())
            if wrong:
                bad.append(f"{program}{rest}: {wrong}")
    assert not bad


def _unknown(command: click.Command, words: list[str]) -> str:
    """What the command line does not know of these words; empty when all is well."""
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.commands.get(words[0])
        if found is None:
            return f"no command {words[0]!r}"
        command, words = found, words[1:]
    known = {name for parameter in command.params for name in parameter.opts} | {"--help", "--version", "-h"}
    return ", ".join(word for word in words if word.startswith("--") and word.split("=")[0] not in known)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"`(?:[A-Z_]+=\S+ )?make ([a-z-]+)", page.read_text(encoding="utf-8")))
    for block in blocks(page.read_text(encoding="utf-8"), "console", "sh", "bash"):
        named |= set(re.findall(r"^\s*\$? ?(?:[A-Z_]+=\S+ )?make ([a-z-]+)", block, flags=re.MULTILINE))
    assert named <= targets


def test_the_config_of_the_readme_loads_once_the_hash_is_filled_in(tmp_path: Path) -> None:
    (text,) = blocks((ROOT / "README.md").read_text(encoding="utf-8"), "yaml")
    file = tmp_path / "edge.yaml"
    file.write_text(
        text.replace("<from the next command>", "1b4f0e9851971998e732078544c96b36c3d01cedf7caa332359d6f1d83567014")
    )
    loaded = iop_config.load(file)
    assert [model.id for model in loaded.config.models] == ["llama"]


def test_every_command_explains_itself() -> None:
    silent = []

    def walk(command: click.Command, name: str) -> None:
        if not (command.help or "").strip():
            silent.append(name)
        silent.extend(
            f"{name} {parameter.opts[0]}"
            for parameter in command.params
            if isinstance(parameter, click.Option) and not parameter.help
        )
        if isinstance(command, click.Group):
            for child, found in command.commands.items():
                walk(found, f"{name} {child}")

    walk(iop_edge, "iop-edge")
    walk(iop_node, "iop-node")
    assert not silent


def test_the_rules_of_the_docs_are_numbered_without_gaps() -> None:
    numbers: dict[str, list[int]] = {}
    for letter, number in re.findall(r"^- ([CPREN])(\d+) \[", (ROOT / "docs/rules.md").read_text(), flags=re.MULTILINE):
        numbers.setdefault(letter, []).append(int(number))
    assert all(found == list(range(1, len(found) + 1)) for found in numbers.values())


def test_make_help_lists_every_target() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    assert {"setup", "demo", "up", "test", "check", "fmt", "gen"} <= listed
