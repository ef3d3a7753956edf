"""When the config's files change, for `run --watch`: survives replaced, truncated and re-linked files (R13)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import anyio.to_thread
from watchfiles import awatch

from iop_config import ConfigError, read_sources

__all__ = ["file_changes"]

_DEBOUNCE_MS = 400
_STEP_MS = 50
_LOOK_MS = 1000  # how often to look without being told: what changed before a watch was set up is told to nobody
_Print = tuple[tuple[str, int, int, int] | None, ...]


async def file_changes(paths: Sequence[Path], loaded: Sequence[str] = ()) -> AsyncIterator[None]:
    """Yield once after each burst of changes to any of `paths`, until cancelled.

    `loaded`: the SHA-256 of each file as it was loaded; where one is another by now, that is the first change: the time
    between loading and watching is as good as any for an editor to save.

    Folders are watched rather than files: a file that was replaced is another file, and a mounted ConfigMap switches a
    symlink beside the path. What counts is whether any of the paths now leads to something else.
    """
    seen = _print(paths)
    if loaded and await anyio.to_thread.run_sync(_digests, paths) != [*loaded]:
        yield
    while True:
        folders = _folders(paths)
        changes = awatch(
            *folders,
            debounce=_DEBOUNCE_MS,
            step=_STEP_MS,
            recursive=False,
            watch_filter=None,
            rust_timeout=_LOOK_MS,
            yield_on_timeout=True,
        )
        async for _ in changes:
            now = _print(paths)
            if now != seen:
                seen = now
                yield
            if _folders(paths) != folders:
                break  # a symlink leads to another folder now: watch that one


def _digests(paths: Sequence[Path]) -> list[str]:
    """The SHA-256 of each file; none where one of them cannot be read."""
    try:
        return [source.sha256 for source in read_sources(paths[0], paths[1:])]
    except ConfigError:
        return []


def _folders(paths: Sequence[Path]) -> tuple[str, ...]:
    """The folders of the paths and of what they lead to, as far as they exist."""
    wanted = {
        folder for path in paths for folder in (os.path.abspath(path.parent), os.path.dirname(os.path.realpath(path)))
    }
    return tuple(sorted(folder for folder in wanted if os.path.isdir(folder)))


def _print(paths: Sequence[Path]) -> _Print:
    """What each path leads to, and in which state it is; None where it leads to nothing."""
    found: list[tuple[str, int, int, int] | None] = []
    for path in paths:
        try:
            state = os.stat(path)
            found.append((os.path.realpath(path), state.st_ino, state.st_mtime_ns, state.st_size))
        except OSError:
            found.append(None)
    return tuple(found)
