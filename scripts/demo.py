"""Run IOP as three processes on free ports, ask a real model a question, refresh the config live, then stop everything.

`make demo` and `make up` (--stay) call it. Each step checks that what it says really happened; the exit code is 0 only
then. IOP_DEMO=echo puts the built-in echo adapter in the place of the model.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from processes import START_SECONDS, Process, StepError, pairs

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
QUESTION = "Explain what a computer is in one sentence."


def step(text: str) -> None:
    """Print a heading."""
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    print(f"\n\033[1m== {text}\033[0m" if colour else f"\n== {text}", flush=True)


def edge_yaml(token: str, base_url: str | None, *, capacity: int, openai_port: int = 0) -> str:
    """Return the demo's config: one Node, one provider, one model."""
    provider = (
        f"type: llama_cpp\n        category: local_inference\n        base_url: {base_url}"
        if base_url
        else "type: echo\n        category: local_inference"
    )
    return f"""\
edge: {{id: demo, name: Demo}}
server: {{listen: 127.0.0.1:0}}
admin: {{listen: 127.0.0.1:0}}
openai: {{enabled: true, listen: "127.0.0.1:{openai_port}", usage_log: ./usage.jsonl}}
models:
  - id: smollm2
    display_name: SmolLM2 135M
    context_window_tokens: 2048
    default_max_tokens: 96
    providers: {{laptop: smollm2}}
nodes:
  - id: laptop-node
    token_hash_sha256: {hashlib.sha256(token.encode()).hexdigest()}
    providers:
      - id: laptop
        {provider}
        models: [smollm2]
        capacity: {capacity}
"""


class Demo:
    """The processes and the steps that use them."""

    def __init__(self, folder: Path, real_model: bool) -> None:
        self.folder = folder
        self.config = folder / "edge.yaml"
        self.real_model = real_model
        self.token = "iopn_" + secrets.token_urlsafe(32)
        self.base_url: str | None = None
        self.processes: list[Process] = []
        self.env = {**os.environ, "IOP_CONFIG": str(self.config), "IOP_STATE_DIR": str(folder / "state")}
        self.openai = ""

    def spawn(self, name: str, *command: str) -> Process:
        """Start a child and remember it for `stop`."""
        child = Process(name, command, self.folder, self.env)
        self.processes.append(child)
        return child

    def start(self, openai_port: int) -> None:
        """Start runtime, Edge and Node, and wait until a model can be served."""
        if self.real_model:
            step("start a llama.cpp server with SmolLM2-135M")
            server = self.spawn("llama", sys.executable, str(ROOT / "scripts/llama_server.py"), "--port", "0")
            self.base_url = server.wait_for("ready ")
            print(f"runtime  {self.base_url}")
        step("start the Edge and one Node")
        self.config.write_text(edge_yaml(self.token, self.base_url, capacity=1, openai_port=openai_port))
        edge = self.spawn("edge", str(BIN / "iop-edge"), "run", "--config", str(self.config))
        addresses = pairs(edge.wait_for("iop-edge: ready"))
        self.openai = addresses["openai"]
        print("edge     " + " ".join(f"{key}={value}" for key, value in addresses.items()))
        token_file = self.folder / "node-token"
        token_file.touch(mode=0o600)
        token_file.write_text(self.token + "\n")
        dial = ["--edge", addresses["grpc"], "--id", "laptop-node", "--token-file", str(token_file)]
        node = self.spawn("node", str(BIN / "iop-node"), "run", *dial)
        print("node     " + node.wait_for("iop-node: ready"))
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the Edge says that at least one model can be served."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            host, port = self.openai.rsplit(":", 1)
            connection = http.client.HTTPConnection(host, int(port), timeout=10)
            try:
                connection.request("GET", "/readyz")
                if connection.getresponse().status == 200:
                    return
            finally:
                connection.close()
            time.sleep(0.1)
        raise StepError("no provider became available:\n" + "\n".join(child.tail() for child in self.processes))

    def stream(self, question: str) -> Iterator[str]:
        """Ask over `POST /v1/chat/completions` and yield its pieces; raises StepError if it is incomplete."""
        host, port = self.openai.rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=120)
        body = {
            "model": "smollm2",
            "stream": True,
            "temperature": 0,
            "messages": [{"role": "user", "content": question}],
        }
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise StepError(f"the Edge answered {answer.status}: {answer.read().decode(errors='replace')}")
            for raw in answer:
                line = raw.decode().rstrip("\r\n")
                if line == "data: [DONE]":
                    return
                if line.startswith("data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise StepError(f"the stream ended with an error: {event['error']}")
                    yield from (c["delta"].get("content") or "" for c in event["choices"])
            raise StepError("the stream ended without [DONE]")
        finally:
            connection.close()

    def ask(self) -> None:
        """Print the model's answer as it streams."""
        step(f"ask the model: {QUESTION}")
        text = ""
        for piece in self.stream(QUESTION):
            print(piece, end="", flush=True)
            text += piece
        print(flush=True)
        if not text.strip():
            raise StepError("the answer is empty")
        if not self.real_model and text.strip() != QUESTION:
            raise StepError(f"echo did not answer with the question: {text!r}")

    def iop_edge(self, *args: str, expect: int, show: bool = True) -> str:
        """Run an `iop-edge` command, print what it prints, and check its exit code."""
        if show:
            print(f"$ iop-edge {' '.join(args)}", flush=True)
        done = subprocess.run(
            [str(BIN / "iop-edge"), *args],
            env=self.env,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if show else subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        if show:
            print(done.stdout, end="", flush=True)
        if done.returncode != expect:
            said = "" if show else f":\n{done.stdout}{done.stderr}"
            raise StepError(f"iop-edge {' '.join(args)} exited with {done.returncode}, not {expect}{said}")
        return done.stdout

    def provider(self) -> dict[str, object]:
        """Return the provider's row of `GET /status`."""
        status = json.loads(self.iop_edge("status", "--output", "json", expect=0, show=False))
        row: dict[str, object] = next(row for row in status["providers"] if row["id"] == "laptop")
        return row

    def status(self) -> None:
        """Show the pool and check that the finished run left nothing behind."""
        step("what the pool says")
        self.iop_edge("status", expect=0)
        row = self.provider()
        if (row["status"], row["capacity"], row["in_flight"]) != ("available", 1, 0):
            raise StepError(f"the provider should be available, idle and of capacity 1: {row}")

    def refresh(self, openai_port: int) -> None:
        """A capacity raise goes live; another address for the openai listener needs a restart and changes nothing."""
        step("raise the capacity from 1 to 2 while serving: first a dry run, then for real")
        self.config.write_text(edge_yaml(self.token, self.base_url, capacity=2, openai_port=openai_port))
        self.iop_edge("config", "refresh", "--dry-run", "--detailed-exitcode", expect=10)
        if self.provider()["capacity"] != 1:
            raise StepError("the dry run changed the running capacity")
        self.iop_edge("config", "refresh", "--wait", "10", expect=0)
        row = self.provider()
        if (row["status"], row["capacity"]) != ("available", 2):
            raise StepError(f"the Node did not acknowledge a capacity of 2: {row}")
        again = json.loads(self.iop_edge("config", "refresh", "--output", "json", expect=0, show=False))
        if again["changed"]:
            raise StepError(f"a second refresh of the same file found changes: {again['changes']}")
        print(f"the Node acknowledged; the provider now runs {row['capacity']} requests at once")

        step("move the openai listener: that needs a restart, and nothing is applied")
        moved = edge_yaml(self.token, self.base_url, capacity=2, openai_port=openai_port + 1 if openai_port else 18080)
        self.config.write_text(moved)
        self.iop_edge("config", "refresh", expect=3)
        planned = json.loads(self.iop_edge("config", "refresh", "--output", "json", expect=3, show=False))
        if planned["restart_required_paths"] != ["openai.listen"] or planned["live_applied"]:
            raise StepError(f"openai.listen should be the one path that waits for a restart: {planned}")
        self.config.write_text(edge_yaml(self.token, self.base_url, capacity=2, openai_port=openai_port))
        if not "".join(self.stream(QUESTION)).strip():
            raise StepError("the Edge stopped answering after the refreshes")
        print("the Edge still answers where it did")

    def stop(self) -> list[str]:
        """Stop every child, last started first; returns what did not end well."""
        bad = []
        for child in reversed(self.processes):
            alive = child.alive()
            code = child.stop()
            # The llama.cpp server has no handler of its own: it ends by the signal.
            fine = code == 0 or (child.name == "llama" and code in (-signal.SIGTERM, 143))
            if not alive or not fine:
                bad.append(f"{child.name} ended with code {code}:\n{child.tail()}")
        return bad

    def stay(self) -> None:
        """Print how to use it, then wait for Ctrl-C or for a child to end."""
        step("it is up; Ctrl-C stops it")
        body = '{"model": "smollm2", "stream": true, "messages": [{"role": "user", "content": "Name three colors."}]}'
        print(f"OpenAI base URL  http://{self.openai}/v1   (any API key)")
        print(f"config           {self.config}   (change it, then: iop-edge config refresh)")
        print(f"for iop-edge     export IOP_CONFIG={self.config} IOP_STATE_DIR={self.folder / 'state'}")
        print(f"curl -N http://{self.openai}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'")
        sys.stdout.flush()
        while all(child.alive() for child in self.processes):
            time.sleep(0.5)
        dead = next(child for child in self.processes if not child.alive())
        raise StepError(f"{dead.name} ended by itself:\n{dead.tail()}")


def run(demo: Demo, stay: bool) -> None:
    """Do the steps in order."""
    openai_port = int(os.environ.get("IOP_DEMO_PORT", "8080" if stay else "0"))
    demo.start(openai_port)
    if stay:
        demo.stay()
    demo.ask()
    demo.status()
    demo.refresh(openai_port)


def main() -> int:
    """Run the demo; the exit code is 0 when every step did what it says."""
    stay = "--stay" in sys.argv[1:]
    folder = Path(tempfile.mkdtemp(prefix="iop-demo-"))
    demo = Demo(folder, real_model=os.environ.get("IOP_DEMO") != "echo")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    problems: list[str] = []
    try:
        run(demo, stay)
    except StepError as failure:
        problems.append(str(failure))
    except KeyboardInterrupt:
        print()
        if not stay:
            problems.append("interrupted")
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # it is stopping already, and each child within a bound
        step("stop everything")
        problems += demo.stop()
    for problem in dict.fromkeys(problems):
        print(f"demo: {problem}", file=sys.stderr)
    if problems:
        print(f"demo: failed; the logs are in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    print("stopped; every step did what it says" if not stay else "stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
