"""One command as a process group of its own: no shell, bounded output, ended as a group, always reaped (N5, N9)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Mapping
from typing import IO

from attrs import field, frozen

__all__ = ["ARGUMENT_MAX", "Command", "OutputLimitError", "Process", "StartError", "environment", "find_program"]

ARGUMENT_MAX = 120 * 1024
"""The longest text that can safely be one argument: Linux takes 128 KiB."""

_TERM_GRACE_S = 1.0
_REAP_S = 1.0
_LINGER_S = 0.5
_READ = 64 * 1024
_STDERR_KEPT = 8 * 1024

# What a program needs to run at all and to find its own settings. Whatever else a command needs stands in its `env`:
# the Node's own environment may hold secrets, its token first (C1).
_INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)
_QUIET = {"TERM": "dumb", "NO_COLOR": "1"}


class StartError(Exception):
    """The command cannot be started; nothing was executed. The text says why and what would be right."""

    def __init__(self, message: str, *, request_fault: bool = False) -> None:
        super().__init__(message)
        self.request_fault = request_fault
        """The request itself cannot be given to the command; another one can."""


class OutputLimitError(Exception):
    """The command wrote more than it may."""


@frozen
class Command:
    """What to start. Only the program's path is certain to hold no secret."""

    argv: tuple[str, ...] = field(repr=False)
    """`argv[0]` is the program's absolute path."""
    env: Mapping[str, str] = field(repr=False)
    cwd: str
    stdin: bytes = field(repr=False)
    max_output_bytes: int


def environment(env: Iterable[tuple[str, str]], outer: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a command's whole environment: a few inherited variables, nothing colourful, then its own `env`."""
    outer = os.environ if outer is None else outer
    return {name: outer[name] for name in _INHERITED if name in outer} | _QUIET | dict(env)


def find_program(command: str, env: Mapping[str, str]) -> str:
    """Return the absolute path of a command, looked for in the PATH that it will have. Raises StartError."""
    found = shutil.which(command, path=env.get("PATH", os.defpath))
    if found is not None:
        return os.path.abspath(found)
    if os.sep not in command:
        raise StartError(f'no command "{command}" in the PATH; install it there, or give its whole path')
    if os.path.exists(command):
        raise StartError(f'"{command}" is not an executable file; give it the x permission')
    raise StartError(f'there is no file "{command}"')


class Process:
    """A started command. Whoever has one calls `stop` in a `finally`; everything else may be cancelled at any await.

    The leader is reaped last: while it is a zombie its number cannot belong to anybody else, so a signal to the group
    can never hit a stranger.
    """

    def __init__(self, command: Command) -> None:
        """Start it. Takes some milliseconds. Raises StartError."""
        self._loop = asyncio.get_running_loop()
        self._limit = command.max_output_bytes
        self._size = 0
        self._over_limit = False
        self._tail = bytearray()
        self._given_up = False
        self._stopped = False
        self._readable: asyncio.Future[None] | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._exited = asyncio.Event()
        self._reaped = asyncio.Event()
        self._may_reap = threading.Event()
        self._popen, self._stdout, self._stderr = _start(command)
        self._pid = self._popen.pid
        self._stderr_open = True
        self._loop.add_reader(self._stderr, self._drain_stderr)
        # A thread per command, rather than SIGCHLD: works on every loop, and beside other users of signals.
        threading.Thread(target=self._watch, name=f"iop-cli-{self._pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id of the leader, and of its group."""
        return self._pid

    @property
    def stderr_tail(self) -> str:
        """The end of what it wrote to stderr, for messages; may hold secrets."""
        return self._tail.decode("utf-8", "replace")

    async def read(self) -> bytes:
        """Return the next piece of stdout, b"" at its end. Raises OutputLimitError.

        The end is also reached half a second after the command exited, whoever still holds its output open.
        """
        while True:
            if self._over_limit:
                raise OutputLimitError
            if self._given_up:
                return b""
            try:
                data = os.read(self._stdout, _READ)
            except BlockingIOError:
                await self._wait_readable()
                continue
            self._count(data)
            if not self._over_limit:
                return data

    async def exit_code(self) -> int:
        """Wait for the command to exit by itself; below 0: the number of the signal that ended it."""
        await self._exited.wait()
        await self._end_group()
        return self._popen.returncode if self._popen.returncode is not None else -signal.SIGKILL

    async def stop(self) -> None:
        """End the whole group: TERM, after a second KILL; a command that has exited leaves nobody behind.

        Returns when the leader is reaped. Cancelled, it kills at once and leaves the reaping to its thread.
        """
        if self._stopped:
            return
        self._stopped = True
        try:
            if not self._exited.is_set():
                self._signal(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TERM_GRACE_S):
                        await self._exited.wait()
            await self._end_group()
        finally:
            self._signal(signal.SIGKILL)
            self._may_reap.set()
            self._close()

    async def _end_group(self) -> None:
        self._signal(signal.SIGKILL)
        self._may_reap.set()
        # A process that the kernel does not let go of even now must not hold the run's slot for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_S):
                await self._reaped.wait()

    def _signal(self, number: signal.Signals) -> None:
        if not self._may_reap.is_set():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, number)

    def _watch(self) -> None:
        """In a thread: tell the exit, and reap when nothing has to be signalled any more."""
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        else:  # an older macOS: reaped at once, and the number of the group is free a little early
            self._popen.wait()
        self._tell(self._on_exit)
        self._may_reap.wait()
        self._popen.wait()
        self._tell(self._reaped.set)

    def _tell(self, callback: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left who wants to know
            self._loop.call_soon_threadsafe(callback)  # type: ignore[arg-type]

    def _on_exit(self) -> None:
        self._exited.set()
        if not self._stopped:
            # Those whom it left behind may say goodbye; whoever left the group may hold the pipe, but not the run.
            self._signal(signal.SIGTERM)
            self._linger = self._loop.call_later(_LINGER_S, self._give_up)

    def _give_up(self) -> None:
        self._given_up = True
        self._wake()

    async def _wait_readable(self) -> None:
        self._readable = self._loop.create_future()
        self._loop.add_reader(self._stdout, self._wake)
        try:
            await self._readable
        finally:
            self._readable = None
            if not self._stopped:
                self._loop.remove_reader(self._stdout)

    def _wake(self) -> None:
        if self._readable is not None and not self._readable.done():
            self._readable.set_result(None)

    def _drain_stderr(self) -> None:
        try:
            data = os.read(self._stderr, _READ)
        except BlockingIOError:
            return
        self._count(data)
        if not data or self._over_limit:
            self._close_stderr()
        self._tail = (self._tail + data)[-_STDERR_KEPT:]

    def _count(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            self._over_limit = True
            self._wake()

    def _close_stderr(self) -> None:
        if self._stderr_open:
            self._stderr_open = False
            self._loop.remove_reader(self._stderr)
            os.close(self._stderr)

    def _close(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
        self._close_stderr()
        self._loop.remove_reader(self._stdout)
        os.close(self._stdout)


def _start(command: Command) -> tuple[subprocess.Popen[bytes], int, int]:
    """Start the command; return it with the ends of its stdout and stderr, which do not block."""
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as on_failure:
        ends = []
        for _ in range(2):
            read_end, write_end = os.pipe()
            on_failure.callback(os.close, read_end)
            ours.callback(os.close, write_end)
            os.set_blocking(read_end, False)
            ends.append((read_end, write_end))
        (stdout, stdout_child), (stderr, stderr_child) = ends
        try:
            stdin = ours.enter_context(_prompt_file(command.stdin)) if command.stdin else subprocess.DEVNULL
            popen = subprocess.Popen(
                command.argv,
                stdin=stdin,
                stdout=stdout_child,
                stderr=stderr_child,
                cwd=command.cwd,
                env=command.env,
                start_new_session=True,
            )
        except ValueError:
            raise StartError("an argument or a variable of its environment holds a NUL character") from None
        except OSError as error:
            raise _start_error(command, error) from None
        on_failure.pop_all()
        return popen, stdout, stderr


def _start_error(command: Command, error: OSError) -> StartError:
    program = os.path.basename(command.argv[0])
    if error.errno == errno.E2BIG:
        return StartError("the prompt is too long for an argument; `prompt: stdin` has no limit", request_fault=True)
    if error.errno == errno.ENOEXEC:
        return StartError(f'"{program}" is not a program; does it lack its #! line?')
    if error.filename == command.cwd:
        return StartError(f"the working folder cannot be used: {error.strerror}")
    return StartError(f'"{program}" cannot be started: {error.strerror}')


def _unnamed_file() -> int:
    descriptor, path = tempfile.mkstemp()
    os.unlink(path)
    return descriptor


def _prompt_file(prompt: bytes) -> IO[bytes]:
    """The prompt as a file without a name, rather than a pipe: no writer is needed, and its end is always seen."""
    in_memory = hasattr(os, "memfd_create")
    file: IO[bytes] = os.fdopen(os.memfd_create("iop-prompt") if in_memory else _unnamed_file(), "w+b")
    file.write(prompt)
    file.flush()
    file.seek(0)
    return file
