"""plan(): from two configs to what comes into force, what stays pending, and how both read (R2, R3, R5, R10)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from attrs import field, frozen

import iop_config
from iop_config import ConfigPath, EdgeConfig, Finding, Position
from iop_refresh._classify import Owners, apply_but, held_objects
from iop_refresh._diff import Difference, differences
from iop_refresh._paths import spell
from iop_refresh._redact import Redactor
from iop_refresh._result import Change, ChangeKind, ResultProblem, Status

MIXED = "mixed_unsatisfiable"
_BLAME_MAX = 64  # so many objects are tried as the cause of one finding; each try costs a pass over the config

Check = Callable[[EdgeConfig, Callable[[ConfigPath], str]], Iterable[Finding]]


class Places(Protocol):
    """Where the paths of the proposed config stand in its files; `iop_config.Loaded` is one."""

    def position(self, path: ConfigPath) -> Position: ...

    def display_path(self, path: ConfigPath) -> str: ...


@frozen(kw_only=True)
class RefreshPlan:
    """What a proposed config would do. A value: nothing has happened, and nothing in it is a secret but `effective`."""

    status: Status
    changed: bool
    live_applied: bool
    """Whether anything comes into force that was not (never inferred from the status)."""
    effective: EdgeConfig | None = field(repr=False)
    """What is to be put in force: the proposed config, or a part of it (R5); None: nothing."""
    changes: tuple[Change, ...] = ()
    changed_nodes: frozenset[str] = frozenset()
    changed_providers: frozenset[str] = frozenset()
    changed_models: frozenset[str] = frozenset()
    live_paths: frozenset[str] = frozenset()
    restart_required_paths: frozenset[str] = frozenset()
    pending_restart_paths: frozenset[str] = frozenset()
    """What differs from the running config and waits: with each restart-required path the live ones of its object."""
    problems: tuple[ResultProblem, ...] = ()


def plan(
    running: EdgeConfig,
    proposed: EdgeConfig,
    *,
    fingerprint_key: bytes,
    allow_partial: bool = False,
    places: Places | None = None,
    check: Check = iop_config.check,
) -> RefreshPlan:
    """Return what applying `proposed` over `running` means. Pure; costs about one pass over both.

    `fingerprint_key` makes the fingerprints that stand for redacted values. `places` spells paths as the proposed file
    does and knows their lines. `check` judges a partly applied config again.
    """
    owners = Owners(running, proposed)
    found = _without_made_adapters(differences(running, proposed), owners)
    held = held_objects(found, owners)
    words = _Words(places, owners, Redactor(fingerprint_key))
    waiting = [d for d in found if owners.of(d.path) in held]
    problems: tuple[ResultProblem, ...] = ()
    effective: EdgeConfig | None = None
    if not held:
        effective, status = proposed, Status.APPLIED
    else:
        status = Status.RESTART_REQUIRED
        if allow_partial and len(waiting) < len(found):
            effective = apply_but(running, proposed, set().union(*held.values()), owners)
            problems = tuple(_Mixed(running, proposed, found, held, owners, words, check).problems(effective))
            if problems:
                effective, status = None, Status.REJECTED
    names = _Names.of(found, owners)
    return RefreshPlan(
        status=status,
        changed=bool(found),
        live_applied=bool(found) and effective is not None,
        effective=effective,
        changes=tuple(words.change(d) for d in found),
        changed_nodes=frozenset(names.nodes),
        changed_providers=frozenset(names.providers),
        changed_models=frozenset(names.models),
        live_paths=frozenset(words.path(d) for d in found if d.live),
        restart_required_paths=frozenset(words.path(d) for d in found if not d.live),
        pending_restart_paths=frozenset(words.path(d) for d in waiting),
        problems=problems,
    )


def _without_made_adapters(found: Iterable[Difference], owners: Owners) -> list[Difference]:
    """Leave out the instances made from a provider that came, went or moved itself: it is one object, said once."""
    found = list(found)
    whole = {place for d in found if d.kind is not ChangeKind.CHANGED for place in (d.path, d.origin)}
    return [d for d in found if d.kind is ChangeKind.CHANGED or owners.provider_of(d.path) not in whole]


@frozen
class _Names:
    """The ids of what changed, each kind by itself (R6)."""

    nodes: set[str] = field(factory=set)
    providers: set[str] = field(factory=set)
    models: set[str] = field(factory=set)

    @classmethod
    def of(cls, found: Iterable[Difference], owners: Owners) -> _Names:
        names = cls()
        for difference in found:
            for path in (difference.path, difference.origin):
                names._add(owners.provider_of(path) or path)
        return names

    def _add(self, path: ConfigPath) -> None:
        match path:
            case ("models", name, *_):
                self.models.add(str(name))
            case ("nodes", node, "providers", name, *_):
                self.nodes.add(str(node))
                self.providers.add(str(name))
            case ("nodes", node, *_):
                self.nodes.add(str(node))


class _Words:
    """Spells differences for people: paths as the proposed file has them, values redacted."""

    def __init__(self, places: Places | None, owners: Owners, redactor: Redactor) -> None:
        self._places = places
        self._owners = owners
        self._redactor = redactor

    def path(self, difference: Difference) -> str:
        return self.spelled(difference.path, in_file=difference.kind is not ChangeKind.REMOVED)

    def spelled(self, path: ConfigPath, *, in_file: bool = True) -> str:
        if in_file and self._places is not None:
            return self._places.display_path(path)
        provider = self._owners.provider_of(path)
        return spell((*provider, *path[4:]) if provider is not None and len(path) > 4 else path)

    def place(self, path: ConfigPath) -> Position | None:
        return self._places.position(path) if self._places is not None else None

    def at(self, path: ConfigPath) -> str:
        """The place of a path as file:line:column, else the path itself."""
        place = self.place(path)
        return f"{place.file}:{place.line}:{place.column}" if place is not None else self.spelled(path)

    def change(self, difference: Difference) -> Change:
        if difference.kind is ChangeKind.MOVED:
            before, after = spell(difference.origin[:-2]), spell(difference.path[:-2])
        else:
            before, after = self._redactor.pair(difference.before, difference.after, difference.info)
        place = self.place(difference.path)
        return Change(
            path=self.path(difference),
            kind=difference.kind,
            policy="live" if difference.live else "restart",
            before=before,
            after=after,
            line=place.line if place is not None else 0,
            column=place.column if place is not None else 0,
        )


class _Mixed:
    """Judges a partly applied config, and names the live change and the pending one that do not fit (R5)."""

    def __init__(
        self,
        running: EdgeConfig,
        proposed: EdgeConfig,
        found: list[Difference],
        held: dict[ConfigPath, set[ConfigPath]],
        owners: Owners,
        words: _Words,
        check: Check,
    ) -> None:
        self._running = running
        self._proposed = proposed
        self._found = found
        self._held = held
        self._owners = owners
        self._words = words
        self._check = check

    def problems(self, effective: EdgeConfig) -> Iterator[ResultProblem]:
        for finding in self._check(effective, self._words.at):
            applied = {self._owners.of(d.path) for d in self._found} - self._held.keys()
            pending = self._cause(finding, self._held, lambda o: self._held.keys() - {o})
            live = self._cause(finding, applied, lambda o: self._held.keys() | {o})
            yield self._problem(finding, self._path_in(live, finding), self._path_in(pending, finding))

    def _cause(
        self,
        finding: Finding,
        objects: Iterable[ConfigPath],
        held_instead: Callable[[ConfigPath], Iterable[ConfigPath]],
    ) -> ConfigPath | None:
        """Return the object without whose change, or pending, the finding is gone; the likely ones are tried first."""

        def unlikely(path: ConfigPath) -> tuple[bool, ConfigPath]:
            return not any(str(part) in finding.message for part in path[-1:]), path

        for owner in sorted(objects, key=unlikely)[:_BLAME_MAX]:
            held = set[ConfigPath]().union(*(self._held.get(o, {o}) for o in held_instead(owner)))
            tried = apply_but(self._running, self._proposed, held, self._owners)
            if not any((f.code, f.path) == (finding.code, finding.path) for f in self._check(tried, self._words.at)):
                return owner
        return None

    def _path_in(self, owner: ConfigPath | None, finding: Finding) -> str:
        """The first changed path of an object; the finding's own place where no single object is the cause."""
        if owner is None:
            return self._words.spelled(finding.path)
        own = [d for d in self._found if self._owners.of(d.path) == owner]
        exact = [d for d in own if d.path == finding.path[: len(d.path)]]
        return self._words.path((exact or sorted(own, key=lambda d: d.path))[0])

    def _problem(self, finding: Finding, live: str, pending: str) -> ResultProblem:
        place = self._words.place(finding.path)
        return ResultProblem(
            code=MIXED,
            path=live,
            message=f"{live} cannot be applied while {pending} waits for a restart: {finding.message}",
            file=place.file if place is not None else "",
            line=place.line if place is not None else 0,
            column=place.column if place is not None else 0,
            suggestion="restart the edge to apply both, or take one of them out of the file",
        )
