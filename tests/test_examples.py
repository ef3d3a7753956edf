"""The programs in the documents are run, and print what the document says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.rules import rule

ROOT = Path(__file__).resolve().parent.parent
_PAIR = re.compile(r"^```python\n(.*?)^```\n\n```output\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(program, printed, id=f"{path.relative_to(ROOT)}:{number}")
    for path in sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")])
    for number, (program, printed) in enumerate(_PAIR.findall(path.read_text(encoding="utf-8")))
]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


@rule("P12", "C19")
@pytest.mark.parametrize(("program", "printed"), EXAMPLES)
def test_a_program_prints_what_its_page_says(program: str, printed: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )
    assert (done.stdout, done.stderr) == (printed, "")
