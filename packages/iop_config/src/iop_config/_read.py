"""Files read as one stable set: each as it was at one moment, none half written (R11, C18)."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from iop_config._problems import ConfigError, Problem
from iop_config._source import SIZE_MAX

ATTEMPTS = 10  # reads of a set of files that keep changing before it is given up


@attrs.frozen(kw_only=True)
class Source:
    """One file as it was read."""

    path: str  # as given
    text: bytes = attrs.field(repr=False)
    size: int
    sha256: str
    base_dir: Path  # ${file:…} is resolved from here


def text_source(text: str | bytes, *, name: str, base_dir: str | os.PathLike[str] = ".") -> Source:
    """Return a text that is at hand as a source: `name` stands in problems, `${file:…}` starts at `base_dir`."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
    return Source(
        path=name, text=data, size=len(data), sha256=hashlib.sha256(data).hexdigest(), base_dir=Path(base_dir)
    )


def read_sources(
    path: str | os.PathLike[str],
    overlays: Sequence[str | os.PathLike[str]] = (),
    *,
    settle: float = 0.0,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Source, ...]:
    """Read the main file and its overlays as one stable set, or raise ConfigError (R11).

    Stable: no file of the set was replaced or written while the set was read. With `settle` none may have changed for
    so many seconds either: a file that is just being written is waited for, at most ten times as long.
    """
    names = [os.fspath(each) for each in (path, *overlays)]
    busy: list[str] = []
    for attempt in range(ATTEMPTS):
        read = [_read(name) for name in names]
        problems = [each for each in read if isinstance(each, Problem)]
        if problems:
            raise ConfigError(problems)
        found = [each for each in read if not isinstance(each, Problem)]
        changed = [name for name, (_, state) in zip(names, found, strict=True) if _state(name) != state]
        age = clock() - max(state[3] for _, state in found) / 1e9
        if not changed and (settle <= 0 or not 0 <= age < settle):
            return tuple(source for source, _ in found)
        if attempt + 1 < ATTEMPTS:
            sleep(settle if settle > 0 else 0.01)
        busy = changed or names
    raise ConfigError(
        _problem(name, "C19.changing", "the file keeps changing while it is read", "write it aside and rename it")
        for name in busy
    )


_State = tuple[int, int, int, int]  # device, inode, size, time of the last change in ns


def _state(name: str) -> _State | None:
    try:
        return _of(os.stat(name))
    except OSError:
        return None


def _of(found: os.stat_result) -> _State:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read(name: str) -> tuple[Source, _State] | Problem:
    try:
        # Non-blocking: a FIFO would otherwise hold the load until somebody writes into it.
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as stream:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                return _problem(name, "C19.unreadable", "this is not a regular file", "name a YAML file")
            if found.st_size > SIZE_MAX:
                return _problem(
                    name, "C18.too-large", f"the file has {found.st_size} bytes", f"at most {SIZE_MAX} are read"
                )
            data = stream.read(SIZE_MAX + 1)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "its name cannot be used").lower()
        return _problem(name, "C19.unreadable", f"the file cannot be read: {reason}", "name a readable YAML file")
    return text_source(data, name=name, base_dir=Path(name).parent), _of(found)


def _problem(name: str, code: str, message: str, suggestion: str) -> Problem:
    return Problem(code=code, path="", message=message, suggestion=suggestion, file=name)


__all__ = ["Source", "read_sources", "text_source"]
