"""One process group per run, with real processes: what it inherits, how it ends, that nothing of it stays (N5)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import iop_node.adapters.cli_process as cli_process
from iop_node.adapters.cli_process import Command, OutputLimitError, Process, StartError, environment, find_program
from support.rules import rule

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops: the Node runs on uvloop where it can."""
    return "asyncio", {"use_uvloop": request.param}


FAKE = str(Path(__file__).parents[1] / "support" / "fake_cli.py")


def command(*words: str, cwd: Path, stdin: bytes = b"", limit: int = 1 << 20, **env: str) -> Command:
    """The fake command with these words."""
    return Command((sys.executable, "-ISE", FAKE, *words), {"PATH": os.defpath, **env}, str(cwd), stdin, limit)


@asynccontextmanager
async def started(*words: str, cwd: Path, stdin: bytes = b"", limit: int = 1 << 20) -> AsyncIterator[Process]:
    """The fake command, stopped at the end; everything within eight seconds."""
    async with asyncio.timeout(8):
        process = Process(command(*words, cwd=cwd, stdin=stdin, limit=limit))
        try:
            yield process
        finally:
            await process.stop()


async def everything(process: Process) -> bytes:
    """All that it writes to stdout."""
    pieces = []
    while data := await process.read():
        pieces.append(data)
    return b"".join(pieces)


def exists(pid: int) -> bool:
    """Whether there is a process with this number, be it a zombie."""
    return Path(f"/proc/{pid}").exists()


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what nobody tells: that a process is gone, that a file is there."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def gone(*pids: int) -> None:
    """Wait until none of these is alive."""
    await until(lambda: not any(alive(pid) for pid in pids))


async def written(path: Path) -> list[int]:
    """Wait for the process ids in a file."""
    await until(path.exists)
    return numbers(path)


def numbers(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()]


@rule("N5")
async def test_it_gets_the_prompt_a_group_of_its_own_and_nothing_else_of_the_node(tmp_path: Path) -> None:
    spare = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(spare, True)
    prompt = ("세계 " * 100_000).encode()
    try:
        async with started("facts", "a word", cwd=tmp_path, stdin=prompt, limit=1 << 30) as process:
            told = json.loads(await everything(process))
            assert await process.exit_code() == 0
    finally:
        os.close(spare)
    assert told["argv"] == ["a word"]
    assert told["stdin"].encode() == prompt
    assert told["cwd"] == str(tmp_path)
    assert told["group"] is True
    assert told["fds"] == [0, 1, 2]
    assert set(told["env"]) <= {"PATH", "LC_CTYPE"}, "python itself sets LC_CTYPE"


@rule("N5", "C1")
def test_the_environment_is_an_allow_list_and_the_commands_own_settings() -> None:
    outer = {
        "PATH": "/bin",
        "HOME": "/home/x",
        "IOP_NODE_TOKEN": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "TERM": "xterm",
    }
    assert environment([("HOME", "/own"), ("API_KEY", "k")], outer) == {
        "PATH": "/bin", "HOME": "/own", "TERM": "dumb", "NO_COLOR": "1", "API_KEY": "k",
    }  # fmt: skip


@rule("N5")
async def test_a_group_that_ignores_term_is_killed_within_two_seconds(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with started("stubborn", str(pids), cwd=tmp_path) as process:
        assert b"here" in await process.read()
        leader, child = await written(pids)
        assert leader == process.pid
        before = time.monotonic()
        await process.stop()
        assert time.monotonic() - before < 2
        assert not exists(leader), "it is reaped"
        await gone(child)


@rule("N5")
async def test_a_stop_that_is_cancelled_kills_at_once(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with started("stubborn", str(pids), cwd=tmp_path) as process:
        members = await written(pids)
        stopping = asyncio.ensure_future(process.stop())
        await asyncio.sleep(0)
        assert not stopping.cancelled()
        stopping.cancel()
        await asyncio.wait([stopping])
        await gone(*members)
        await until(lambda: not exists(process.pid))  # reaped by its thread


@rule("N5")
async def test_one_that_left_the_group_neither_delays_the_end_nor_holds_the_output_open(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with started("daemon", str(pids), cwd=tmp_path) as process:
        before = time.monotonic()
        assert b"result" in await everything(process)
        assert await process.exit_code() == 0
        assert time.monotonic() - before < 3
        in_group, on_its_own = await written(pids)
        await gone(in_group)
        assert alive(on_its_own), "it is not ours to kill"
        os.kill(on_its_own, 9)


@rule("N5")
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_a_flood_is_cut_at_the_limit(tmp_path: Path, stream: str) -> None:
    async with started("flood", stream, cwd=tmp_path, limit=3_000_000) as process:
        with pytest.raises(OutputLimitError):
            await everything(process)
        assert process._size <= 3_000_000 + 65536
        await process.stop()
        assert not exists(process.pid)


@rule("N5")
async def test_output_that_nobody_reads_waits_in_the_command_and_not_here(tmp_path: Path) -> None:
    async with started("flood", cwd=tmp_path, limit=1 << 40) as process:
        await process.read()
        await asyncio.sleep(0.1)
        assert process._size <= 65536 + 8192


async def test_a_signal_is_told_as_a_negative_exit_code(tmp_path: Path) -> None:
    async with started("slow", cwd=tmp_path) as process:
        await process.read()
        os.kill(process.pid, 9)
        await everything(process)
        assert await process.exit_code() == -9


async def test_of_stderr_the_end_is_kept(tmp_path: Path) -> None:
    async with started("complain", "7", "x" * 100_000, "the", "end", cwd=tmp_path) as process:
        assert await everything(process) == b""
        assert await process.exit_code() == 7
        assert process.stderr_tail.endswith("the end\npassword: none\n")
        assert len(process.stderr_tail) <= cli_process._STDERR_KEPT


@rule("N5")
async def test_many_runs_leave_no_file_no_thread_and_no_zombie(tmp_path: Path) -> None:
    async def one(number: int) -> int:
        async with started("echo" if number % 2 else "slow", cwd=tmp_path, stdin=b"hello") as process:
            await process.read()
        return process.pid

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    await one(1)
    before = held()
    pids = [pid for batch in range(5) for pid in await asyncio.gather(*(one(number + batch) for number in range(4)))]
    await until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))
    assert not any(exists(pid) for pid in pids)


# -- what cannot be started -------------------------------------------------------------------------------------------


@rule("N5")
def test_what_is_wrong_with_a_command_is_said_plainly(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("x")
    env = {"PATH": str(tmp_path)}
    for name, words in (
        ("nope", 'no command "nope" in the PATH'),
        (str(tmp_path / "nope"), "there is no file"),
        (str(plain), "is not an executable file"),
    ):
        with pytest.raises(StartError, match=words):
            find_program(name, env)
    plain.chmod(0o755)
    assert find_program("plain", env) == str(plain)


@rule("N5")
async def test_a_start_that_fails_says_why_and_leaks_nothing(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no program\n")
    text.chmod(0o755)
    before = os.listdir("/proc/self/fd")
    cases = [
        (Command((str(text),), {}, str(tmp_path), b"p", 9), r"lacks? .*#! line|lack its #! line"),
        (command("echo", cwd=tmp_path / "none", stdin=b"p"), "the working folder cannot be used: No such file"),
        (command("echo", "x" * 3_000_000, cwd=tmp_path), "too long for an argument"),
        (command("echo", "a\0b", cwd=tmp_path), "NUL"),
        (Command((str(tmp_path / "none"),), {}, str(tmp_path), b"", 9), '"none" cannot be started: No such file'),
    ]
    for broken, words in cases:
        with pytest.raises(StartError, match=words):
            Process(broken)
    assert os.listdir("/proc/self/fd") == before
