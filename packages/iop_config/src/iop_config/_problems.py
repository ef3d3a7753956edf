"""Problem, ConfigError, and how a problem reads (C19)."""

from __future__ import annotations

import json
from collections.abc import Iterable

import attrs

CODES: dict[str, str] = {}

ConfigPath = tuple[str | int, ...]  # field names and map keys; a member of a list by its identity, else by its index


@attrs.frozen(kw_only=True)
class Finding:
    """What a rule found in the normalised config, before it has a place in a file (see `Problem`)."""

    code: str
    path: ConfigPath
    message: str
    suggestion: str = ""
    needs: tuple[ConfigPath, ...] = ()  # what else the rule read: it says nothing where one of these was wrong already


@attrs.frozen(kw_only=True)
class Problem:
    """One finding: where, what is wrong, what would be right; it never holds a secret (C19, C23)."""

    code: str  # stable, such as C7.adapter-disabled; `CODES` says what each means
    path: str  # as in the file, by identity: nodes[gpu-1].providers[vllm-a].adapter; empty for the file itself
    message: str
    suggestion: str = ""
    file: str = ""
    line: int = 0  # from 1; 0 where there is no position
    column: int = 0  # from 1, in code points

    def __str__(self) -> str:
        """Give the one line of C19."""
        where = self.file
        if self.line:
            where += f":{self.line}:{self.column}"
        parts = [part for part in (where, self.path) if part]
        text = f"{self.message}; {self.suggestion}" if self.suggestion else self.message
        return ": ".join([*parts, text]) + f"  [{self.code}]"


class ConfigError(Exception):
    """A config that cannot be used; `problems` has every reason, sorted by position (C19)."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        """Keep the problems, sorted and each once."""
        self.problems: tuple[Problem, ...] = sort_problems(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        """Give a line per problem."""
        return "\n".join(map(str, self.problems))


def sort_problems(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return each problem once, by file, line, column, path and code."""
    return tuple(sorted(set(problems), key=lambda p: (p.file, p.line, p.column, p.path, p.code, p.message)))


def problems_json(problems: Iterable[Problem]) -> list[dict[str, object]]:
    """Return the problems as plain objects for JSON, each with every field."""
    return [attrs.asdict(problem) for problem in problems]


def render_text(problems: Iterable[Problem], *, color: bool = False) -> str:
    """Return a line per problem, for a terminal; the offending line is never quoted (C23)."""
    if not color:
        return "".join(f"{problem}\n" for problem in problems)
    return "".join(_colored(problem) + "\n" for problem in problems)


def _colored(problem: Problem) -> str:
    where = problem.file + (f":{problem.line}:{problem.column}" if problem.line else "")
    text = f"\x1b[1m{where}:\x1b[0m " if where else ""
    if problem.path:
        text += f"\x1b[36m{problem.path}\x1b[0m: "
    text += problem.message
    if problem.suggestion:
        text += f"; \x1b[32m{problem.suggestion}\x1b[0m"
    return f"{text}  \x1b[2m[{problem.code}]\x1b[0m"


def quoted(names: Iterable[str]) -> str:
    """Return names in double quotes with commas, as messages list them."""
    return ", ".join(json.dumps(name, ensure_ascii=False) for name in names)


__all__ = ["CODES", "ConfigError", "ConfigPath", "Finding", "Problem", "problems_json", "render_text"]
