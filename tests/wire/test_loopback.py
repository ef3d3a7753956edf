"""Both real ends over loopback gRPC: a session from hello to goodbye, and what breaks it (wire §1; N2, N4, R8, P8)."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from iop_edge.nodes.run import EndKind, Head
from iop_edge.nodes.server import NodeServer
from iop_edge.nodes.values import PushState
from iop_node.backoff import Cause
from iop_node.connection import LinkPhase
from iop_node.link import ConfigFault, Health, ProviderState
from iop_wire.limits import KIB, MIB
from support.link import payload
from support.loopback import FAST, edge_running, node_running, order, read_all
from support.rules import rule

pytestmark = pytest.mark.anyio


async def eventually(condition: object, timeout: float = 5.0) -> None:
    """Wait until the condition holds, bounded."""
    assert callable(condition)
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 -- what is waited for happens in gRPC's threads
            await asyncio.sleep(0.005)


@rule("N2", "E1")
async def test_a_run_travels_there_and_back() -> None:
    async with edge_running() as edge, node_running(edge.address) as node:
        await node.ready()
        ends: list[object] = []
        handle = edge.session().start_run(order(body=b"hello"), ends.append)
        heads, data, end = await read_all(handle)
        assert heads == [Head(200, (("content-type", "text/event-stream"),))]
        assert data == b"hello"
        assert end.kind is EndKind.COMPLETED
        assert end.usage is not None
        assert end.usage.output_tokens == 2
        assert ends == [end]


async def test_a_body_of_eight_mib_arrives_whole_beside_small_runs() -> None:
    body = bytes(range(256)) * (8 * MIB // 256)
    async with edge_running() as edge, node_running(edge.address) as node:
        await node.ready()
        big = edge.session().start_run(order("big", body=body), lambda _end: None)
        small = edge.session().start_run(order("small"), lambda _end: None)
        _, data, _ = await read_all(small)
        assert data == b"{}"
        assert not big.ended, "the small run does not wait for the big body"
        _, echoed, _ = await read_all(big)
        assert echoed == body


async def test_many_runs_at_once_each_get_their_own_bytes_in_order() -> None:
    expected = b"".join(f"data: {number}\n\n".encode() for number in range(200))
    async with edge_running() as edge, node_running(edge.address) as node:
        await node.ready()
        session = edge.session()
        handles = [session.start_run(order(f"r{n}", "count:200"), lambda _end: None) for n in range(64)]
        for _, data, end in await asyncio.gather(*map(read_all, handles)):
            assert data == expected
            assert end.kind is EndKind.COMPLETED
        assert edge.registry.rows()[0].runs == 0


@rule("P8", "E8")
async def test_a_cancel_reaches_the_run_and_its_end_gives_the_slot_back() -> None:
    async with edge_running() as edge, node_running(edge.address) as node:
        await node.ready()
        ends: list[object] = []
        handle = edge.session().start_run(order(target="hang"), ends.append)
        assert isinstance(await handle.next(), Head)
        handle.cancel("client_gone")
        assert ends == []
        _, _, end = await read_all(handle)
        assert end.kind is EndKind.CANCELLED
        assert ends == [end]
        assert node.host.cancelled == [("r1", "client_gone")]


async def test_a_reader_that_stops_holds_back_its_run_and_nobody_else() -> None:
    async with edge_running() as edge, node_running(edge.address) as node:
        await node.ready()
        flood = edge.session().start_run(order("flood", "flood"), lambda _end: None)
        await flood.next()
        for number in range(5):
            _, data, _ = await read_all(edge.session().start_run(order(f"e{number}"), lambda _end: None))
            assert data == b"{}"
        whole_window = 256 * KIB // 5000 * 5000
        await eventually(lambda: node.host.sent_bytes == whole_window)
        await read_all(edge.session().start_run(order("after", "count:500"), lambda _end: None))
        assert node.host.sent_bytes == whole_window
        flood.cancel("enough")
        await read_all(flood)


@rule("R8", "R9")
async def test_a_push_is_acknowledged_while_runs_go_on() -> None:
    async with edge_running() as edge, node_running(edge.address) as node:
        await node.ready()
        handle = edge.session().start_run(order(target="hang"), lambda _end: None)
        outcome = await asyncio.wait_for(edge.registry.push("n1", payload("v2", 2)), 5)
        assert (outcome.state, outcome.version, outcome.generation) == (PushState.ACKED, "v2", 2)
        assert node.host.applied_version == "v2"
        assert not handle.ended
        node.host.refuse_config = (ConfigFault("adapters[a]", "x", "cannot be built"),)
        outcome = await asyncio.wait_for(edge.registry.push("n1", payload("v3", 3)), 5)
        assert (outcome.state, outcome.version) == (PushState.NACKED, "v2")
        assert outcome.faults[0].message == "cannot be built"


async def test_a_push_to_an_absent_node_says_so_at_once() -> None:
    async with edge_running() as edge:
        outcome = await edge.registry.push("n1", payload("v2", 2))
        assert outcome.state is PushState.DISCONNECTED


@rule("N7")
async def test_changes_of_health_are_told() -> None:
    async with edge_running() as edge, node_running(edge.address) as node:
        await node.ready()
        assert node.host.report is not None
        node.host.report((ProviderState("p", Health.UNHEALTHY, "connection refused"),))
        await eventually(lambda: "provider_health" in edge.fleet.names())
        assert "connection refused" in str(edge.fleet.told)


@rule("N4", "R8")
async def test_a_node_finds_a_restarted_edge_again_and_gets_what_is_in_force() -> None:
    async with edge_running() as edge, node_running(edge.address) as node:
        await node.ready()
        for number in range(2, 5):
            await edge.server.stop()
            edge.payload = payload(f"v{number}", number)
            await edge.start()
            await node.until(lambda status: status.phase is LinkPhase.READY and status.epoch == 1)
            await eventually(lambda number=number: node.host.applied_version == f"v{number}")


@rule("P8")
async def test_what_still_stops_after_a_lost_session_is_told_to_the_next_one() -> None:
    async with edge_running() as edge, node_running(edge.address) as node:
        await node.ready()
        node.host.stop_gate = asyncio.Event()
        ends: list[object] = []
        handle = edge.session().start_run(order("slow", "hang"), ends.append)
        await handle.next()
        await edge.server.stop()
        assert len(ends) == 1
        await edge.start()
        await eventually(lambda: edge.fleet.names().count("connected") == 2)
        connected = [entry for entry in edge.fleet.told if entry[0] == "connected"][-1]
        assert [attempt.run_id for attempt in connected[4]] == ["slow"]  # type: ignore[attr-defined]
        node.host.stop_gate.set()
        await eventually(lambda: "stopping_ended" in edge.fleet.names())


# ---------------------------------------------------------------- drain and shutdown


@rule("N6")
async def test_a_drained_node_finishes_its_runs_and_says_goodbye() -> None:
    async with edge_running() as edge, node_running(edge.address) as node:
        await node.ready()
        handle = edge.session().start_run(order("last", "gate"), lambda _end: None)
        await handle.next()
        drain = asyncio.ensure_future(node.connection.drain(10.0))
        await eventually(lambda: "draining" in edge.fleet.names())
        refused = edge.session().start_run(order("late"), lambda _end: None)
        _, _, end = await read_all(refused)
        assert end.error is not None
        assert end.error.code == "node_draining"
        node.host.gate.set()
        _, data, end = await read_all(handle)
        assert data == b"data: last\n\n"
        assert end.kind is EndKind.COMPLETED
        await drain
        assert edge.fleet.told[-1] == ("lost", "n1", "the Node is shutting down")
        assert node.task is not None
        await asyncio.wait_for(node.task, 3)
        assert node.connection.status.phase is LinkPhase.CLOSED


@rule("N6")
async def test_what_does_not_finish_within_the_grace_is_cancelled_and_reported() -> None:
    async with edge_running() as edge, node_running(edge.address) as node:
        await node.ready()
        handle = edge.session().start_run(order(target="hang"), lambda _end: None)
        await handle.next()
        await asyncio.wait_for(node.connection.drain(0.1), 5)
        _, _, end = await read_all(handle)
        assert end.kind is EndKind.CANCELLED
        assert not end.session_lost


@rule("N6")
async def test_a_second_request_to_stop_does_not_wait_for_the_grace() -> None:
    async with edge_running() as edge, node_running(edge.address) as node:
        await node.ready()
        handle = edge.session().start_run(order(target="hang"), lambda _end: None)
        await handle.next()
        patient = asyncio.ensure_future(node.connection.drain(300.0))
        await eventually(lambda: "draining" in edge.fleet.names())
        await node.connection.drain(0.0)
        await asyncio.wait_for(patient, 5)


async def test_a_closing_edge_ends_its_runs_and_the_node_waits_for_the_next_one() -> None:
    async with edge_running() as edge, node_running(edge.address) as node:
        await node.ready()
        handle = edge.session().start_run(order(target="hang"), lambda _end: None)
        await handle.next()
        edge.server.request_drain(5)
        await edge.server.stop()
        _, _, end = await read_all(handle)
        assert end.error is not None
        assert end.error.code == "edge_shutdown"
        status = await node.failure()
        assert status.last_cause in (Cause.EDGE_SHUTDOWN, Cause.UNREACHABLE)


# ---------------------------------------------------------------- silence and cuts


@rule("P8")
async def test_a_node_whose_loop_stands_still_is_noticed_and_recovers() -> None:
    async with edge_running(FAST) as edge, node_running(edge.address) as node:
        await node.ready()
        call = node.connection._pump
        assert call is not None
        # What a blocked loop looks like from outside: the connection lives, no frame comes (G7).
        call.session._beat_at = float("inf")
        await eventually(lambda: "suspect" in edge.fleet.names())
        await eventually(lambda: "lost" in edge.fleet.names())
        await eventually(lambda: edge.fleet.names().count("connected") == 2)


@rule("P8")
async def test_a_cut_connection_gives_every_run_one_end_on_the_edge() -> None:
    async with edge_running() as edge, _cuttable(edge.address) as proxy, node_running(proxy.address) as node:
        await node.ready()
        ends: list[object] = []
        handles = [edge.session().start_run(order(f"r{n}", "hang"), ends.append) for n in range(8)]
        for handle in handles:
            await handle.next()
        proxy.cut()
        for handle in handles:
            _, _, end = await read_all(handle)
            assert end.session_lost
        assert len(ends) == 8
        await eventually(lambda: edge.fleet.names().count("connected") == 2)
        await eventually(lambda: node.host.active_runs == 0)


class _Proxy:
    """Forwards TCP until it is told to cut."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.writers: list[asyncio.StreamWriter] = []
        self.tasks: list[asyncio.Task[None]] = []

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()


@asynccontextmanager
async def _cuttable(target: str) -> AsyncIterator[_Proxy]:
    proxy = _Proxy("")
    host, _, port = target.rpartition(":")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        proxy.writers += [writer, back]
        proxy.tasks += [asyncio.ensure_future(pump(reader, back)), asyncio.ensure_future(pump(there, writer))]

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        await asyncio.gather(*proxy.tasks, return_exceptions=True)
        await server.wait_closed()


# ---------------------------------------------------------------- causes in plain words


@rule("N4")
async def test_nothing_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    async with node_running(address) as node:
        status = await node.failure()
        assert status.last_cause is Cause.UNREACHABLE
        assert f"nothing listens on {address}" in status.last_error


@rule("N4")
@pytest.mark.parametrize(("node_id", "token"), [("n1", "not-the-token-7f3a"), ("n9", "iop-test-token")])
async def test_a_wrong_token_and_an_unknown_id_are_refused_in_one_sentence(
    node_id: str, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with edge_running() as edge, node_running(edge.address, token, node_id) as node:
            status = await node.failure()
            assert status.last_cause is Cause.REFUSED
            assert f"does not accept node {node_id!r} with this token" in status.last_error
            assert edge.server.refused_logins >= 1
            assert edge.fleet.told == []
    assert not any(token in record.getMessage() for record in caplog.records)
    why = "wrong token" if node_id == "n1" else "unknown node id"
    assert any(why in record.getMessage() for record in caplog.records)


@rule("N4")
async def test_another_grpc_service_is_not_an_edge() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with node_running(f"127.0.0.1:{port}") as node:
            status = await node.failure()
            assert status.last_cause is Cause.NOT_AN_EDGE
            assert "that port is not an IOP Edge" in status.last_error
    finally:
        await server.stop(None)


@rule("N4")
async def test_an_http_server_is_not_an_edge() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with node_running(f"127.0.0.1:{port}") as node:
        status = await node.failure()
        assert status.last_cause is Cause.NOT_AN_EDGE
    server.close()
    await server.wait_closed()


@rule("N4")
async def test_two_nodes_with_one_id_one_of_them_is_told_to_go() -> None:
    async with edge_running() as edge, node_running(edge.address) as first:
        await first.ready()
        async with node_running(edge.address) as second:
            nodes = (first, second)
            await eventually(lambda: Cause.DUPLICATE in [node.connection.status.last_cause for node in nodes], 10)


async def test_a_stream_without_hello_is_ended() -> None:
    async with edge_running(FAST) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        call = channel.stream_stream("/iop.runtime.v1.NodeLink/Session")(
            metadata=(("iop-node-id", "n1"), ("authorization", "Bearer iop-test-token"))
        )
        data = await asyncio.wait_for(asyncio.ensure_future(call.read()), 5)
        assert b"no Hello" in data
        call.cancel()


@pytest.mark.parametrize("first", [b"\xff\xfe garbage", b"x" * (5 * MIB)], ids=["garbage", "5 MiB"])
async def test_a_garbage_stream_is_refused_and_the_edge_goes_on(first: bytes) -> None:
    async with edge_running() as edge:
        async with grpc.aio.insecure_channel(edge.address, options=(("grpc.max_send_message_length", -1),)) as channel:
            call = channel.stream_stream("/iop.runtime.v1.NodeLink/Session")(
                metadata=(("iop-node-id", "n1"), ("authorization", "Bearer iop-test-token"))
            )
            await call.write(first)
            await asyncio.wait_for(asyncio.ensure_future(call.code()), 5) if len(first) > MIB else await call.read()
            call.cancel()
        async with node_running(edge.address) as node:
            await node.ready()


async def test_plaintext_off_loopback_is_refused_unless_meant() -> None:
    async with edge_running() as edge:
        with pytest.raises(ValueError, match=r"0\.0\.0\.0:0: plaintext off loopback; set server\.tls"):
            NodeServer(edge.registry, "0.0.0.0:0", edge.auth)
        NodeServer(edge.registry, "0.0.0.0:0", edge.auth, insecure=True)


async def test_a_port_in_use_is_an_error_of_the_start() -> None:
    async with edge_running() as edge:
        second = NodeServer(edge.registry, edge.address, edge.auth)
        with pytest.raises(OSError, match="is another process using the port"):
            await second.start()
