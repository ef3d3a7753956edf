"""Problem, ConfigError, and how a problem reads (C19)."""

from __future__ import annotations

import json
from collections.abc import Iterable

import attrs

CODES: dict[str, str] = {
    # the text itself: _read.py, _source.py, _syntax.py
    "C18.alias": "an alias without an anchor before it, or inside of what it stands for",
    "C18.anchor": "an anchor's name is given twice",
    "C18.character": "a character that no config holds: a control, a line separator, a byte order mark inside",
    "C18.directive": "a directive such as %YAML",
    "C18.duplicate-key": "a key stands twice in one mapping",
    "C18.encoding": "the file is not UTF-8",
    "C18.key": "a key that is no text: a number, a boolean, nothing, a list or a mapping",
    "C18.merge": "`<<` with something other than mappings",
    "C18.second-document": "the file has a second document",
    "C18.syntax": "the text is not YAML",
    "C18.tab": "a tab where only spaces may stand",
    "C18.tag": "a tag such as !!int",
    "C18.too-deep": "nested too deeply",
    "C18.too-large": "the file is too large",
    "C18.too-many-nodes": "aliases expand to too many values",
    "C19.changing": "the file keeps changing while it is read",
    "C19.unreadable": "the file is missing or cannot be read",
    # injection: _overlay.py
    "C2.file": "a file that ${file:…} names cannot be used",
    "C2.form": "a `${` that begins none of the known forms",
    "C2.unset": "an environment variable that a ${…} needs is not set, or empty",
    "C2.world-readable": "a warning: every user of the machine can read a file that ${file:…} names",
    # shape: _structure.py, _normalise.py, _words.py
    "C3.duplicate-model": "a model id stands twice",
    "C5.duplicate-adapter": "an adapter name stands twice in one node",
    "C5.duplicate-node": "a node id stands twice",
    "C6.missing": "a provider has no category",
    "C6.unknown-category": "a category that is none of the three",
    "C9.unknown-type": "a type that is none of the known ones",
    "C11.bound": "a number out of its bounds",
    "C13.bound": "a number of a model out of its bounds",
    "C14.duplicate-token-ref": "a token_ref stands twice",
    "C14.hash": "a principal token's hash is not 64 hex digits",
    "C14.missing": "a principal token has no hash",
    "C14.name": "a principal token's token_ref, principal or alias is not a name",
    "C14.raw-token": "a raw token in place of a principal token's hash",
    "C16.duplicate-route": "a route stands twice",
    "C18.choice": "a text that is none of the field's choices",
    "C18.format": "a text that does not look as its field asks",
    "C18.missing": "a required key is missing",
    "C18.top-level": "the file holds something other than a mapping",
    "C18.type": "a value of another type than the field's",
    "C18.unknown-key": "a key that does not exist here",
    "C24.adapter-field": "a provider that names an adapter sets a field of the adapter",
    "C24.endpoint": "`endpoint` and `base_url` differ",
    "C25.address": "a text that is not host:port",
    "C25.hash": "a node token's hash is not 64 hex digits",
    "C25.missing": "a node has no token hash",
    "C25.raw-token": "a raw token in place of a node's hash",
    "C25.url": "a text that is not an http(s) URL",
    # rules that cross places: _rules.py
    "C3.a2a-needs-model": "a2a is enabled and names no model",
    "C3.unknown-model": "a2a names a model that is neither a model id nor a route",
    "C4.unknown-provider": "a model maps a provider that no node has",
    "C4.unserved-model": "a model gives a provider a served name that the provider does not list",
    "C5.duplicate-provider": "a provider id stands twice, in one node or on two",
    "C7.adapter-disabled": "an enabled provider names a disabled adapter instance",
    "C7.ambiguous-adapter": "a legacy type name fits several enabled adapter instances",
    "C7.cli-needs-cli-adapter": "a provider of the category cli names an adapter of another type",
    "C7.unknown-adapter": "a provider names an adapter instance that its node does not have",
    "C10.needs-base-url": "an adapter, or a provider without `adapter`, lacks the address that its type lives on",
    "C10.needs-command": "an adapter, or a provider without `adapter`, lacks the command that a cli lives on",
    "C12.budget": "a provider cannot hold the windows that it promises all at once",
    "C12.context-size-below-window": "a provider takes less than the window of a model that it serves",
    "C12.long-above-capacity": "a provider has more long slots than slots",
    "C13.default-too-large": "default_max_tokens is above the window",
    "C13.min-too-large": "min_max_tokens is above default_max_tokens or the window",
    "C14.duplicate-hash": "two principal tokens have one hash",
    "C16.adapter-disabled": "a route leads to a disabled adapter instance",
    "C16.route-is-model": "a route has the name of a model",
    "C16.unknown-adapter": "a route leads to an adapter instance that is not there",
    "C16.unknown-node": "a route names a node that is not there",
    "C24.type-mismatch": "a provider's type is not its adapter's",
    "C25.address-taken": "two listeners have one address",
    "C25.plaintext": "the link to the nodes would be plaintext off loopback",
    "R12.admin-off-loopback": "the admin API would listen off loopback",
}

ConfigPath = tuple[str | int, ...]  # field names and map keys; a member of a list by its identity, else by its index


@attrs.frozen(kw_only=True)
class Finding:
    """What a rule found in the normalised config, before it has a place in a file (see `Problem`)."""

    code: str
    path: ConfigPath
    message: str
    suggestion: str = ""
    needs: tuple[ConfigPath, ...] = ()  # what else the rule read: void where one of these was wrong already
    needs_all: tuple[ConfigPath, ...] = ()  # more of the same: a long list that many findings share


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
