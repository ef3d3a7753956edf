"""What one event costs each side of the link, beside bare grpc.aio with one event per message (design §7, wire §1).

    python bench/wire.py [--seconds N] [--rate N]

Edge and Node are two processes on loopback; the Node's runs make events of 180 bytes at a steady rate: as a runtime
that decodes all its runs in one step makes them (`in step`), or each at its own moment (`apart`). CPU is that of all
threads of a process, from the kernel's accounts. The floor is one bidirectional grpc.aio stream that carries the same
events as raw bytes, one a message: nothing decoded, no credit, no order kept per run. Goal: at most 0.4 times the floor
at 64 runs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from pathlib import Path

import grpc.aio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from iop_edge.nodes.run import Chunk, End
from iop_node.connection import Connection
from iop_node.dial import DialSettings
from iop_node.link import RunOrder, RunSink
from support.fakehost import FakeHost
from support.loopback import TOKEN, Instantly, edge_running, order

RUNS = (1, 16, 64)
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"token"}}],"id":"x"}'.ljust(178, b" ") + b"\n\n"
METHOD = "/bench.Floor/Stream"
GOAL = 0.4


def cpu_s(pid: int) -> float:
    """Seconds of CPU that all threads of a process have had."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


async def pace(number: int, start: float, rate: float, phase: float) -> None:
    """Wait for the time of one event; a late one comes at once."""
    loop = asyncio.get_running_loop()
    delay = start + (number + phase) / rate - loop.time()
    if delay > 0:
        await asyncio.sleep(delay)


def grid(rate: float) -> float:
    """The next whole step of the loop's clock: runs that start there are in step."""
    now = asyncio.get_running_loop().time()
    return (int(now * rate) + 2) / rate


class Host(FakeHost):
    """Target `COUNT:RATE:PHASE`: so many events."""

    async def _answer(self, order: RunOrder, sink: RunSink) -> None:
        count, rate, phase = order.target.split(":")
        start = grid(float(rate))
        for number in range(int(count)):
            await pace(number, start, float(rate), float(phase))
            await sink.chunk(EVENT)


async def node(address: str) -> None:
    """The Node's process."""
    settings = DialSettings(address, "n1", TOKEN)
    await Connection(settings, Host(), node_version="0.1.0", rng=Instantly()).run()


async def floor_node(address: str, runs: int, count: int, rate: float, apart: bool) -> None:
    """The floor's sending process."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(METHOD)()
        lock = asyncio.Lock()

        async def run(number: int) -> None:
            start = grid(rate)
            for event in range(count):
                await pace(event, start, rate, number / runs if apart else 0.0)
                async with lock:
                    await call.write(EVENT)

        await asyncio.gather(*(run(number) for number in range(runs)))
        await call.done_writing()
        await call.read()


def child(*words: str) -> subprocess.Popen[bytes]:
    """Start this file in another role."""
    return subprocess.Popen([sys.executable, __file__, "--role", *words])


Cost = tuple[float, float]  # µs per event: receiving side, sending side


async def ours(runs: int, count: int, rate: float, apart: bool) -> Cost:
    """Measure the link."""
    async with edge_running() as edge:
        process = child("node", edge.address)
        try:
            while edge.registry.session("n1") is None:  # noqa: ASYNC110 -- another process
                await asyncio.sleep(0.05)

            async def read(number: int) -> int:
                phase = number / runs if apart else 0.0
                handle = edge.session().start_run(order(f"r{number}", f"{count}:{rate}:{phase}"), lambda _end: None)
                seen = 0
                while not isinstance(item := await handle.next(), End):
                    if isinstance(item, Chunk):
                        seen += len(item.data) // len(EVENT)
                return seen

            await asyncio.sleep(0.5)
            before = cpu_s(os.getpid()), cpu_s(process.pid)
            seen = sum(await asyncio.gather(*(read(number) for number in range(runs))))
            after = cpu_s(os.getpid()), cpu_s(process.pid)
        finally:
            process.terminate()
            process.wait(10)
    assert seen == runs * count, (seen, runs * count)
    return tuple((b - a) / seen * 1e6 for a, b in zip(before, after, strict=True))  # type: ignore[return-value]


async def floor(runs: int, count: int, rate: float, apart: bool) -> Cost:
    """Measure bare grpc.aio."""
    started, done = asyncio.Event(), asyncio.Event()
    seen = 0

    async def stream(messages: object, context: object) -> object:
        nonlocal seen
        async for _ in messages:  # type: ignore[attr-defined]
            started.set()
            seen += 1
        done.set()
        yield b""

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(stream)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Floor", {"Stream": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    process = child("floor", f"127.0.0.1:{port}", str(runs), str(count), str(rate), str(int(apart)))
    try:
        await started.wait()
        first = seen
        before = cpu_s(os.getpid()), cpu_s(process.pid)
        await done.wait()
        after = cpu_s(os.getpid()), cpu_s(process.pid)
    finally:
        process.wait(10)
        await server.stop(0)
    events = seen - first
    return tuple((b - a) / events * 1e6 for a, b in zip(before, after, strict=True))  # type: ignore[return-value]


async def measure(seconds: float, rate: float) -> None:
    """All sizes, ours and the floor in turns."""
    count = int(seconds * rate)
    print(f"{'':22} {'Edge µs/event':>22} {'Node µs/event':>22}   ratio to floor")
    for apart in (False, True):
        for runs in RUNS:
            least = await floor(runs, count, rate, apart)
            cost = await ours(runs, count, rate, apart)
            name = f"{runs} runs, {'apart' if apart else 'in step'}"
            ratios = [mine / bare for mine, bare in zip(cost, least, strict=True)]
            print(
                f"{name:22} {cost[0]:8.1f} (floor {least[0]:6.1f}) {cost[1]:8.1f} (floor {least[1]:6.1f})"
                f"   Edge {ratios[0]:.2f}, Node {ratios[1]:.2f}",
                flush=True,
            )
    print(f"goal: at most {GOAL} at 64 runs, in step")


def main() -> None:
    """Measure, or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of events, per measurement (4)")
    parser.add_argument("--rate", type=float, default=50.0, help="events per run and second (50)")
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    match given.role:
        case None:
            asyncio.run(measure(given.seconds, given.rate))
        case ["node", address]:
            asyncio.run(node(address))
        case ["floor", address, runs, count, rate, apart]:
            asyncio.run(floor_node(address, int(runs), int(count), float(rate), bool(int(apart))))


if __name__ == "__main__":
    main()
