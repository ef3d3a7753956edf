"""A whole IOP on loopback: an Edge, Nodes and fake runtimes as real processes on free ports, for end-to-end tests."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai

from iop_edge.tokens import NODE_TOKEN_PREFIX, digest, new_token
from processes import Process, StepError, pairs

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent
PATIENCE_SECONDS = 30.0


def eventually(what: str, condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait, bounded, for something that other processes do; the poll is what a person at a terminal would do."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.02)


class Stack:
    """Processes, their addresses, and what a client and an operator do with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "edge.yaml"
        self.token = new_token(NODE_TOKEN_PREFIX)
        self.token_hash = digest(self.token)
        self.processes: list[Process] = []
        self.addresses: dict[str, str] = {}
        environment = {k: v for k, v in os.environ.items() if not k.startswith("IOP_")}
        self.env = {
            **environment,
            "IOP_CONFIG": str(self.config),
            "IOP_STATE_DIR": str(folder / "state"),
            "PYTHONPATH": str(ROOT / "tests"),
        }

    def spawn(self, name: str, *command: str) -> Process:
        """Start a child; it is stopped with the stack."""
        process = Process(name, command, self.folder, self.env)
        self.processes.append(process)
        return process

    def runtime(self, *args: str, name: str = "runtime") -> str:
        """Start a fake OpenAI-compatible runtime; returns its root URL (`/v1` and `/stats` lie below it)."""
        process = self.spawn(name, sys.executable, "-m", "support.fake_runtime", "--port", "0", *args)
        return f"http://127.0.0.1:{process.wait_for('ready 127.0.0.1:')}"

    def edge(self, config: str) -> Process:
        """Write the config and start an Edge on it; waits for its ready line."""
        self.config.write_text(config)
        process = self.spawn("edge", str(BIN / "iop-edge"), "run", "--config", str(self.config))
        self.addresses = pairs(process.wait_for("iop-edge: ready"))
        return process

    def node(self, node_id: str = "box", *, wait: bool = True) -> Process:
        """Start a Node that dials the Edge; waits for its ready line unless told not to."""
        token_file = self.folder / "token"
        token_file.write_text(self.token)
        token_file.chmod(0o600)
        dial = ["--edge", self.addresses["grpc"], "--id", node_id, "--token-file", str(token_file)]
        process = self.spawn(f"node-{node_id}-{len(self.processes)}", str(BIN / "iop-node"), "run", *dial)
        if wait:
            process.wait_for("iop-node: ready")
        return process

    def wait_available(self, *provider_ids: str) -> None:
        """Wait until these providers can take runs."""
        wanted = set(provider_ids)
        eventually(
            f"{sorted(wanted)} available",
            lambda: wanted <= {row["id"] for row in self.status()["providers"] if row["status"] == "available"},
        )

    @property
    def base_url(self) -> str:
        """The OpenAI base URL."""
        return f"http://{self.addresses['openai']}/v1"

    def client(self, **options: Any) -> openai.OpenAI:
        """A synchronous SDK client without retries of its own."""
        return openai.OpenAI(**{"base_url": self.base_url, "api_key": "unused", "max_retries": 0, **options})

    def async_client(self, **options: Any) -> openai.AsyncOpenAI:
        """An asynchronous SDK client without retries of its own, and enough connections for a load test."""
        limits = httpx2.Limits(max_connections=None)
        http = openai.DefaultAsyncHttpxClient(limits=limits, timeout=120, trust_env=False)
        given = {"base_url": self.base_url, "api_key": "unused", "max_retries": 0, "http_client": http}
        return openai.AsyncOpenAI(**{**given, **options})

    def admin(self, method: str, path: str, body: Mapping[str, object] | None = None) -> tuple[int, Any]:
        """Call the admin API; status and decoded JSON."""
        url = f"http://{self.addresses['admin']}{path}"
        with httpx2.Client(trust_env=False, timeout=60) as http:
            answer = http.request(method, url, json=body) if body is not None else http.request(method, url)
        return answer.status_code, answer.json()

    def status(self) -> Any:
        """`GET /status`."""
        code, body = self.admin("GET", "/status")
        assert code == 200, body
        return body

    def provider(self, provider_id: str) -> Any:
        """One provider's row of the status."""
        return next(row for row in self.status()["providers"] if row["id"] == provider_id)

    def refresh(self, config: str, **options: object) -> tuple[int, Any]:
        """Write the file and apply it; HTTP status and the result."""
        self.config.write_text(config)
        return self.admin("POST", "/refresh", {"mode": "apply", **options})

    def stats(self, runtime: str) -> Any:
        """What a fake runtime has counted; `runtime` is its root URL."""
        with httpx2.Client(trust_env=False, timeout=60) as http:
            return http.get(f"{runtime}/stats").json()

    def is_idle(self) -> bool:
        """Whether nothing is held, queued, leased or leaked (P8)."""
        status = self.status()
        busy = [row for row in status["providers"] if row["in_flight"] or row["cancelling"] or row["long_in_flight"]]
        waiting = [row for row in status["models"] if row["queue_length"]]
        return not busy and not waiting and not status["leases"] and not status["leaked_slots"]

    def iop_edge(self, *args: str, name: str = "cli") -> tuple[int, str]:
        """Run an `iop-edge` command to its end; exit code and what it printed."""
        process = Process(name, [str(BIN / "iop-edge"), *args], self.folder, self.env)
        code = process.wait(60)
        process.stop()
        return code, process.output

    def stop(self) -> None:
        """End every child, last started first; what ended by itself or with an error fails the test."""
        bad = []
        for process in reversed(self.processes):
            alive = process.alive()
            code = process.stop()
            if alive and code not in (0, -15):
                bad.append(f"{process.name} ended with {code}:\n{process.tail()}")
            if "Traceback" in process.output:
                bad.append(f"{process.name} printed a traceback:\n{process.output[-4000:]}")
        if bad:
            raise StepError("\n".join(bad))


@contextmanager
def running(folder: Path) -> Iterator[Stack]:
    """A stack that is stopped at the end; when the test failed, that failure is what is shown."""
    stack = Stack(folder)
    try:
        yield stack
    except BaseException:
        for process in stack.processes:
            print(process.tail())
            process.stop()
        raise
    stack.stop()


def openai_config(
    token_hash: str, *, base_url: str, capacity: int, extra: str = "", queue: str = "max_queue: 256"
) -> str:
    """The smallest useful config: one model `m` on provider `p` of Node `box`."""
    return f"""\
edge: {{id: test}}
server: {{listen: "127.0.0.1:0"}}
admin: {{listen: "127.0.0.1:0"}}
openai: {{listen: "127.0.0.1:0", response_headers: true}}
models:
  - id: m
    providers: {{p: served}}
nodes:
  - id: box
    token_hash_sha256: {token_hash}
    providers:
      - id: p
        type: openai_compat
        category: local_inference
        base_url: {base_url}/v1
        models: [served]
        capacity: {capacity}
        {queue}
        health: {{interval_ms: 200}}
{extra}"""


def as_json(text: str) -> Any:
    """Decode JSON that a command printed."""
    return json.loads(text)
