"""The pipeline: sources, overlays, injection, normal form, structure, rules (refresh.md §1); what loading gives (C19, C21)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from iop_config._model import EdgeConfig
from iop_config._problems import ConfigPath, Problem


@attrs.frozen(kw_only=True)
class Source:
    """One file as it was read."""

    path: str  # as given
    text: bytes = attrs.field(repr=False)
    size: int
    sha256: str
    base_dir: Path  # ${file:…} is resolved from here


@attrs.frozen(kw_only=True)
class Position:
    """A place in a file, from 1."""

    file: str
    line: int
    column: int


class Loaded:
    """A config that holds together, and what is known about where it came from."""

    config: EdgeConfig
    version: str  # C21
    sources: tuple[Source, ...]  # the main file, then the overlays
    warnings: tuple[Problem, ...]

    def position(self, path: ConfigPath) -> Position:
        """Return where a config path stands; for a key that was not written, where its nearest parent does."""
        raise NotImplementedError

    def display_path(self, path: ConfigPath) -> str:
        """Spell a path as in the file: a provider-first field under its provider (refresh.md §4)."""
        raise NotImplementedError


def read_sources(
    path: str | os.PathLike[str], overlays: Sequence[str | os.PathLike[str]] = (), *, settle: float = 0.0
) -> tuple[Source, ...]:
    """Read the main file and its overlays as one stable set, or raise ConfigError (R11).

    With `settle` a file must not have changed for so many seconds: a file that is just being written is waited for.
    """
    raise NotImplementedError


def load_sources(
    sources: Sequence[Source], *, env: Mapping[str, str] | None = None, digest_key: bytes | None = None
) -> Loaded:
    """Load from texts that were read before."""
    raise NotImplementedError


def load(
    path: str | os.PathLike[str],
    *,
    overlays: Sequence[str | os.PathLike[str]] = (),
    env: Mapping[str, str] | None = None,
    digest_key: bytes | None = None,
) -> Loaded:
    """Load an Edge config from a file and its overlays; raise ConfigError with every problem in them."""
    raise NotImplementedError


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
    raise NotImplementedError
