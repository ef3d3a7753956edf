"""Every file in bad/ has one mistake; loading finds it, at its place, and nothing else (C2-C19, C24, C25, R12)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from iop_config import CODES, ConfigError, Problem, load, render_text
from support.rules import rule

BAD = Path(__file__).parent / "bad"
ENV = {"EMPTY": "", "TEXT": "word", "ZERO": "0", "FRACTION": "1.5"}

WITHOUT_A_FILE = {
    "C2.world-readable": "a warning, and Git keeps no such mode: test_injection.py",
    "C18.too-large": "over 16 MiB: test_source.py",
    "C19.changing": "needs a writer at work: test_load.py",
    "C19.unreadable": "is about a file that is not there: test_load.py",
}


class Case(NamedTuple):
    """A file, and the one problem that its first line promises: `# expect: CODE LINE:COLUMN`."""

    file: Path
    overlays: list[Path]
    code: str
    place: str


def case(file: Path) -> Case:
    words = file.read_bytes().partition(b"\n")[0].decode("ascii").split()
    assert words[:2] == ["#", "expect:"], file
    code, *where, place = words[2:]
    overlay = file.with_suffix(".overlay.yaml")
    at = overlay if where == ["overlay"] else file
    return Case(file, [overlay] if overlay.exists() else [], code, f"{at}:{place}")


CASES = [case(file) for file in sorted(BAD.glob("*.yaml")) if not file.name.endswith(".overlay.yaml")]


def problems_of(one: Case) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load(one.file, overlays=one.overlays, env=ENV)
    return caught.value.problems


@rule("C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "C10", "C11", "C12", "C13", "C14", "C15", "C16", "C17")
@rule("C18", "C19", "C24", "C25", "R12")
@pytest.mark.parametrize("one", CASES, ids=lambda one: one.file.stem)
def test_a_bad_file_has_its_problem_at_its_place_and_no_other(one: Case) -> None:
    found = problems_of(one)
    assert [(each.code, f"{each.file}:{each.line}:{each.column}") for each in found] == [(one.code, one.place)]


@rule("C19")
@pytest.mark.parametrize("one", CASES, ids=lambda one: one.file.stem)
def test_a_problem_is_one_line_of_plain_words_with_a_fix(one: Case) -> None:
    (problem,) = problems_of(one)
    assert problem.suggestion
    for words in (problem.message, problem.suggestion):
        assert words == words.strip()
        assert words[0] == words[0].lower()
        assert words[-1] not in ".!"
        assert words.isprintable()
    line = str(problem)
    assert line.startswith(f"{one.place}: ")
    assert line.endswith(f"  [{one.code}]")
    assert len(line.removeprefix(str(BAD))) < 420, "a problem is read on a terminal"
    assert render_text([problem]) == f"{line}\n"


@rule("C19")
def test_there_are_many_and_each_is_named_after_its_code() -> None:
    assert len(CASES) >= 300
    for one in CASES:
        assert one.file.name.startswith(f"{one.code}-")


@rule("C19")
def test_every_code_has_a_bad_file_or_a_reason() -> None:
    assert {one.code for one in CASES} | WITHOUT_A_FILE.keys() == CODES.keys()
    assert not {one.code for one in CASES} & WITHOUT_A_FILE.keys()


@rule("C19")
def test_every_code_says_what_it_means() -> None:
    for code, meaning in CODES.items():
        assert code.partition(".")[0][1:].isdigit(), code
        assert meaning
        assert meaning[-1] != "."
