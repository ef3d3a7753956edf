"""What `run --watch` is told: each change once, also one that was made between loading and watching (R13, R11)."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from iop_edge.watch import file_changes
from support.rules import rule

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "edge.yaml"
    path.write_text("one")
    return path


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@asynccontextmanager
async def watching(file: Path, loaded: str) -> AsyncIterator[asyncio.Queue[str]]:
    """The file's text at each change that is told."""
    told: asyncio.Queue[str] = asyncio.Queue()

    async def watch() -> None:
        async for _ in file_changes([file], [digest(loaded)]):
            told.put_nowait(file.read_text() if file.exists() else "(gone)")

    task = asyncio.ensure_future(watch())
    try:
        async with asyncio.timeout(30):
            yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def heard(told: asyncio.Queue[str], text: str) -> None:
    """Wait until this text is told; a look in the middle of a write may have told an emptier one before."""
    while await told.get() != text:
        pass


@rule("R13", "R11")
async def test_a_change_between_loading_and_watching_is_told_at_once(file: Path) -> None:
    file.write_text("two")
    async with watching(file, "one") as told:
        await heard(told, "two")


@rule("R13", "R11")
@pytest.mark.parametrize("at_once", [True, False], ids=["before the watch stands", "later"])
async def test_whatever_way_it_is_changed_it_is_told(file: Path, tmp_path: Path, at_once: bool) -> None:
    async with watching(file, "one") as told:
        if not at_once:
            await asyncio.sleep(0.3)  # the watch of the system is being set up; nothing tells when it stands
        file.write_text("in place")
        await heard(told, "in place")
        other = tmp_path / "other"
        other.write_text("renamed")
        os.replace(other, file)
        await heard(told, "renamed")
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "edge.yaml").write_text(name)
            link = tmp_path / "link"
            link.symlink_to(tmp_path / name / "edge.yaml")
            os.replace(link, file)
            await heard(told, name)
        (tmp_path / "second" / "edge.yaml").write_text("behind the link")
        await heard(told, "behind the link")
        file.unlink()
        await heard(told, "(gone)")
        file.write_text("back")
        await heard(told, "back")


@rule("R13")
async def test_what_is_as_it_was_loaded_is_not_told(file: Path, tmp_path: Path) -> None:
    async with watching(file, "one") as told:
        (tmp_path / "beside").write_text("x")
        file.write_text("two")
        await heard(told, "two")
        assert told.empty()
