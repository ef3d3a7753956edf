"""Loading files: what cannot be read is a problem in words; a file that somebody writes is read whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import iop_config
from iop_config import ConfigError, _read, read_sources
from support.configs import BASE
from support.rules import rule


def told(call: Callable[[], object]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        call()
    return [str(problem) for problem in caught.value.problems]


@rule("C18", "C19")
def test_what_cannot_be_read_is_said_for_each_file_at_once(tmp_path: Path) -> None:
    folder, absent, good = tmp_path / "folder", tmp_path / "absent.yaml", tmp_path / "good.yaml"
    folder.mkdir()
    good.write_text(BASE)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert told(lambda: iop_config.load(absent, overlays=[good, folder, fifo])) == [
        f"{absent}: the file cannot be read: no such file or directory; name a readable YAML file  [C19.unreadable]",
        f"{fifo}: this is not a regular file; name a YAML file  [C19.unreadable]",
        f"{folder}: the file cannot be read: is a directory; name a readable YAML file  [C19.unreadable]",
    ]
    assert "cannot be read" in told(lambda: iop_config.load("a\0b"))[0]


@rule("R11")
def test_a_file_that_is_replaced_while_the_set_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, overlay = tmp_path / "main.yaml", tmp_path / "overlay.yaml"
    main.write_text("old")
    overlay.write_text("x: 1")
    real, reads = _read._read, []

    def read(name: str) -> object:
        found = real(name)
        reads.append(name)
        if len(reads) == 2:  # both were read; now the main file becomes another one
            fresh = tmp_path / "fresh"
            fresh.write_text("newer")
            os.replace(fresh, main)
        return found

    monkeypatch.setattr(_read, "_read", read)
    pauses: list[float] = []
    sources = read_sources(main, [overlay], sleep=pauses.append)
    assert [source.text for source in sources] == [b"newer", b"x: 1"]
    assert (len(reads), len(pauses)) == (4, 1)


@rule("R11", "C19")
def test_a_file_that_never_stops_changing_is_refused_in_the_end(tmp_path: Path) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text("a")
    pauses: list[float] = []
    now = file.stat().st_mtime
    # Written a moment ago, however often it is looked at.
    found = told(lambda: read_sources(file, settle=1.0, clock=lambda: now + 0.5, sleep=pauses.append))
    assert found == [f"{file}: the file keeps changing while it is read; write it aside and rename it  [C19.changing]"]
    assert pauses == [1.0] * 9
    assert read_sources(file, settle=1.0, clock=lambda: now + 1.5, sleep=pauses.append)[0].text == b"a"


@rule("C19")
def test_the_library_brings_neither_grpc_nor_click() -> None:
    program = "import iop_config, sys; print(sorted({'grpc', 'click', 'google.protobuf', 'anyio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
