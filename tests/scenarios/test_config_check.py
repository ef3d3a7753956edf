"""A newcomer checks config files: the examples are fine, ten mistakes are ten lines, and nothing prints a traceback."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.rules import rule
from support.stack import BIN, ROOT

HERE = Path(__file__).resolve().parent
# The places of the ten mistakes of ten_mistakes.yaml, in the order of the file.
TEN = [
    (3, 1, "C18"),  # servre:
    (5, 32, "C11"),  # threshold 0
    (8, 37, "C4"),  # box-x
    (11, 9, "C3"),  # the second chat
    (24, 18, "C7"),  # mian
    (26, 19, "C18"),  # "8"
    (29, 19, "C6"),  # gpu
    (32, 19, "C11"),  # -1
    (39, 32, "C12"),  # 3 of 2
    (45, 7, "C14"),  # a raw token
]


def check(*files: Path | str, output: str = "text") -> subprocess.CompletedProcess[str]:
    """Run `iop-edge config check` as a user does."""
    command = [str(BIN / "iop-edge"), "config", "check", "--output", output, *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=HERE)


@rule("C1")
@pytest.mark.parametrize("name", ["edge.yaml", "edge.legacy.yaml"])
def test_the_public_examples_are_accepted(name: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "configs" / name, tmp_path)
    done = check(tmp_path / name)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path / name}: ok (")


@rule("C19")
def test_ten_mistakes_in_one_file_are_ten_problems_in_one_run_sorted_by_place() -> None:
    done = check("ten_mistakes.yaml")
    lines = done.stderr.splitlines()
    found = re.findall(r"^ten_mistakes\.yaml:(\d+):(\d+): .+  \[(C\d+)\.[a-z0-9-]+\]$", done.stderr, flags=re.MULTILINE)
    assert [(int(line), int(column), code) for line, column, code in found] == TEN, done.stderr
    assert lines[10:] == ["ten_mistakes.yaml: 10 problems"]
    assert done.returncode == 4
    assert "Traceback" not in done.stderr
    assert "iopk_0123456789" not in done.stderr + done.stdout


@rule("C19")
def test_the_same_problems_come_as_json_for_other_tools() -> None:
    done = check("ten_mistakes.yaml", output="json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"]) == (4, False)
    (result,) = report["files"]
    assert [(p["line"], p["column"], p["code"].split(".")[0]) for p in result["problems"]] == TEN
    assert all(p["file"] == "ten_mistakes.yaml" and p["message"] for p in result["problems"])


@rule("C19")
def test_a_file_that_is_not_there_is_a_problem_of_that_file_and_the_others_are_checked_too(tmp_path: Path) -> None:
    done = check(tmp_path / "missing.yaml", ROOT / "configs/edge.yaml")
    assert done.returncode == 4
    assert str(tmp_path / "missing.yaml") in done.stderr
    assert "Traceback" not in done.stderr
    assert "edge.yaml: ok" in done.stdout
