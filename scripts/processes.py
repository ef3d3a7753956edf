"""Child processes with a ready line: started, waited for, stopped; shared by the demo and the end-to-end tests."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

START_SECONDS = 60.0


class StepError(Exception):
    """A step did not do what it says; the text tells which and why."""


class Process:
    """A child with a log file; `wait_for` finds its ready line, `stop` ends it and checks how it ended."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._arrived = threading.Condition()
        self._lines: list[str] = []
        self._child = subprocess.Popen(
            list(command),
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as lines, self.log.open("w") as log:
            for line in lines:
                log.write(line)
                log.flush()
                with self._arrived:
                    self._lines.append(line.rstrip("\n"))
                    self._arrived.notify_all()
        with self._arrived:
            self._arrived.notify_all()

    def wait_for(self, prefix: str) -> str:
        """Return the rest of the first output line that begins with `prefix`."""
        deadline = time.monotonic() + START_SECONDS
        with self._arrived:
            while True:
                for line in self._lines:
                    if line.startswith(prefix):
                        return line[len(prefix) :].strip()
                if not self._reader.is_alive() and self._child.poll() is not None:
                    raise StepError(f"{self.name} ended with code {self._child.returncode}:\n{self.tail()}")
                if time.monotonic() > deadline:
                    raise StepError(f"{self.name} was not ready within {START_SECONDS:.0f} s:\n{self.tail()}")
                self._arrived.wait(0.2)

    def tail(self) -> str:
        """Return the last lines that the child printed."""
        return "\n".join(f"  {self.name}: {line}" for line in self._lines[-15:]) or f"  {self.name}: (no output)"

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    @property
    def output(self) -> str:
        """Everything that the child printed so far."""
        with self._arrived:
            return "\n".join(self._lines)

    def send(self, number: signal.Signals) -> None:
        """Send the child a signal."""
        self._child.send_signal(number)

    def wait(self, timeout: float) -> int:
        """Wait for the child to end; its exit code."""
        return self._child.wait(timeout)

    def alive(self) -> bool:
        """Whether the child still runs."""
        return self._child.poll() is None

    def stop(self) -> int:
        """End the child by SIGTERM, within a bound by SIGKILL, and return its exit code."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
        try:
            code = self._child.wait(40)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = self._child.wait()
        self._reader.join(5)
        return code


def pairs(line: str) -> dict[str, str]:
    """Read `a=b c=d` from a ready line."""
    return dict(part.split("=", 1) for part in line.split() if "=" in part)
