"""Every product rule has a test that names it, and every named rule exists; what is not built yet is listed as open."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

OPEN: dict[str, str] = {}
"""Rule id -> why nothing proves it yet. The list only shrinks: a new entry must be one of FIRST_OPEN."""

FIRST_OPEN = frozenset({"E2", "E9", "E13", "E14", "N7", "N9", "R15", "R16", "P13", "P15"})


@cache
def rules() -> frozenset[str]:
    """The ids that docs/rules.md defines."""
    text = (ROOT / "docs/rules.md").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^- ([CPREN]\d+) \[", text, flags=re.MULTILINE))


@cache
def named() -> dict[str, set[str]]:
    """Rule id -> the tests that carry it, read from the sources so that no import can hide one."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name != "rule":
                continue
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    found.setdefault(argument.value, set()).add(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def test_the_rules_are_read() -> None:
    assert len(rules()) == 79


def test_every_rule_has_a_test_or_a_reason() -> None:
    missing = sorted(rules() - named().keys() - OPEN.keys())
    assert not missing, f"no test names these rules: {missing}"


def test_every_named_rule_exists() -> None:
    unknown = {id_: sorted(places) for id_, places in named().items() if id_ not in rules()}
    assert not unknown


def test_an_open_rule_has_a_reason_and_the_list_only_shrinks() -> None:
    assert all(reason.strip() for reason in OPEN.values())
    assert OPEN.keys() <= FIRST_OPEN
    proven = sorted(OPEN.keys() & named().keys())
    assert not proven, f"these rules have tests: take them off the list: {proven}"
