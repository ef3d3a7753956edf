"""The pipeline: sources, overlays, injection, normal form, structure, rules; what loading gives (C19, C21)."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs

from iop_config._digest import config_version
from iop_config._locate import Locator
from iop_config._model import EdgeConfig
from iop_config._nodes import File, Node, Report
from iop_config._normalise import normalise, rename
from iop_config._overlay import Injector, merge
from iop_config._problems import ConfigError, ConfigPath, Finding, Problem
from iop_config._read import Source, read_sources, text_source
from iop_config._rules import check
from iop_config._source import parse
from iop_config._structure import Structurer


@attrs.frozen(kw_only=True)
class Position:
    """A place in a file, from 1."""

    file: str
    line: int
    column: int


@attrs.frozen(kw_only=True, eq=False)
class Loaded:
    """A config that holds together, and what is known about where it came from."""

    config: EdgeConfig
    version: str  # C21
    sources: tuple[Source, ...]  # the main file, then the overlays
    warnings: tuple[Problem, ...]
    _locator: Locator = attrs.field(repr=False)

    def position(self, path: ConfigPath) -> Position:
        """Return where a config path stands; for a key that was not written, where its nearest parent does."""
        node, _ = self._locator.find(path)
        return Position(file=node.file.name, line=node.line + 1, column=node.column + 1)

    def display_path(self, path: ConfigPath) -> str:
        """Spell a path as in the file: a provider-first field under its provider (refresh.md §4)."""
        return self._locator.spell(path)


def load(
    path: str | os.PathLike[str],
    *,
    overlays: Sequence[str | os.PathLike[str]] = (),
    env: Mapping[str, str] | None = None,
    digest_key: bytes | None = None,
) -> Loaded:
    """Load an Edge config from a file and its overlays; raise ConfigError with every problem in them.

    `env` is where `${NAME}` is looked up, `os.environ` by default; `digest_key` makes the version of a config with
    injected values stable over processes (C21).
    """
    return load_sources(read_sources(path, overlays), env=env, digest_key=digest_key)


def load_text(
    text: str | bytes,
    *,
    name: str = "edge.yaml",
    base_dir: str | os.PathLike[str] = ".",
    overlays: Sequence[str | os.PathLike[str] | Source] = (),
    env: Mapping[str, str] | None = None,
    digest_key: bytes | None = None,
) -> Loaded:
    """Load an Edge config from a text (the admin API's inline config); as `load` otherwise."""
    sources = [text_source(text, name=name, base_dir=base_dir)]
    for overlay in overlays:
        sources.extend([overlay] if isinstance(overlay, Source) else read_sources(overlay))
    return load_sources(sources, env=env, digest_key=digest_key)


def load_sources(
    sources: Sequence[Source], *, env: Mapping[str, str] | None = None, digest_key: bytes | None = None
) -> Loaded:
    """Load from texts that were read before; as `load` otherwise."""
    if not sources:
        raise ValueError("a config has at least one source")
    with _no_collection():
        return _load(sources, os.environ if env is None else env, digest_key)


def _load(sources: Sequence[Source], env: Mapping[str, str], digest_key: bytes | None) -> Loaded:
    report = Report()
    root = _root(sources, report)
    Injector(env, report).inject(root)
    normalise(root, report)
    config = Structurer(report).root(root)
    locator = Locator(root)
    if () not in report.broken:
        relied = Relied(report.broken)
        for finding in check(config, locator.place):
            if not relied.on_broken(finding):
                report.problems.append(locator.problem(finding))
    if report.problems:
        raise ConfigError(report.problems)
    return Loaded(
        config=config,
        version=config_version(config, digest_key),
        sources=tuple(sources),
        warnings=tuple(report.warnings),
        locator=locator,
    )


def _root(sources: Sequence[Source], report: Report) -> Node:
    """Return the nodes of all sources as one tree; ConfigError where one of them cannot be read as YAML at all."""
    roots: list[Node] = []
    for source in sources:
        root = parse(source.text, File(source.path, source.base_dir), report)
        if root is not None:
            rename(root)
            roots.append(root)
    if len(roots) < len(sources):
        raise ConfigError(report.problems)
    merged = roots[0]
    for root in roots[1:]:
        merged = merge(merged, root, EdgeConfig)
    return merged


class Relied:
    """Tells whether a finding rests on a value that was replaced: it would only repeat a problem, or be wrong."""

    def __init__(self, broken: set[ConfigPath]) -> None:
        """Take the paths of the replaced values."""
        self._broken = broken
        self._above = {path[:length] for path in broken for length in range(len(path))}
        self._known: dict[int, tuple[tuple[ConfigPath, ...], bool]] = {}

    def on_broken(self, finding: Finding) -> bool:
        """Whether its path, or one that it needs, is, holds, or lies in a broken one."""
        if not self._broken:
            return False
        if self._touches(finding.path) or any(map(self._touches, finding.needs)):
            return True
        shared = finding.needs_all
        known = self._known.get(id(shared))
        if known is None:
            known = self._known[id(shared)] = shared, any(map(self._touches, shared))
        return known[1]

    def _touches(self, path: ConfigPath) -> bool:
        return path in self._above or any(path[:length] in self._broken for length in range(len(path) + 1))


_pauses = 0
_pauses_lock = threading.Lock()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector away while a tree is built: nothing in it is garbage, and a pass costs 3-8 x the load.

    The switch is the process's, so loads at the same time in several threads count together.
    """
    global _pauses
    with _pauses_lock:
        ours = _pauses > 0 or gc.isenabled()
        if ours:
            _pauses += 1
            gc.disable()
    try:
        yield
    finally:
        if ours:
            with _pauses_lock:
                _pauses -= 1
                if _pauses == 0:
                    gc.enable()


__all__ = ["Loaded", "Position", "load", "load_sources", "load_text"]
