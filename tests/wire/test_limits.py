"""The numbers of the wire fit each other, and gRPC gets the options that were measured (wire §1.3, G1-G6, G19)."""

from __future__ import annotations

import pytest

from iop_wire import limits
from iop_wire.limits import Timing, channel_options, server_options
from support.rules import rule


def test_sizes_fit_into_each_other() -> None:
    assert limits.CHUNK_MAX <= limits.FRAME_TARGET <= limits.FRAME_MAX
    assert limits.FRAME_MAX < limits.CONFIG_FRAME_MAX <= limits.GRPC_MESSAGE_MAX // 2
    assert limits.INITIAL_CREDIT >= 2 * limits.CHUNK_MAX
    # A frame of events may be overshot by one item: a chunk, or a Terminal with the largest error body and texts.
    assert limits.FRAME_TARGET + limits.CHUNK_MAX + limits.UPSTREAM_BODY_MAX < limits.FRAME_MAX
    assert limits.PAYLOAD_PART + limits.KIB < limits.FRAME_MAX
    assert limits.INLINE_PAYLOAD_MAX < limits.FRAME_MAX


@rule("N4")
def test_a_lost_peer_is_noticed_by_the_application_before_the_transport() -> None:
    timing = Timing()
    assert timing.heartbeat < timing.suspect < timing.dead
    assert timing.suspect - timing.heartbeat >= 2, "one late heartbeat is not yet suspect"
    assert timing.dead <= 15.0
    for options in (dict(server_options()), dict(channel_options())):
        transport = int(options["grpc.keepalive_time_ms"]) + int(options["grpc.http2.ping_timeout_ms"])
        assert timing.dead * 1000 < transport == 30_000


@rule("P8")
def test_the_edge_waits_longer_for_the_end_of_a_cancel_than_the_node_may_take() -> None:
    timing = Timing()
    assert timing.cancel_bound("vllm") == 2.0
    assert timing.cancel_bound("llama_cpp") == 30.0
    assert timing.cancel_bound("") == 2.0
    assert timing.cancel_margin > 0


def test_both_sides_ping_and_the_server_allows_it() -> None:
    server, channel = dict(server_options()), dict(channel_options())
    for name in (
        "grpc.max_send_message_length",
        "grpc.max_receive_message_length",
        "grpc.keepalive_time_ms",
        "grpc.keepalive_timeout_ms",
        "grpc.http2.ping_timeout_ms",
        "grpc.http2.max_pings_without_data",
        "grpc.keepalive_permit_without_calls",
    ):
        assert server[name] == channel[name]
    assert channel["grpc.http2.max_pings_without_data"] == 0
    assert int(server["grpc.http2.min_ping_interval_without_data_ms"]) < int(channel["grpc.keepalive_time_ms"])
    # gRPC ignores this name without a word (G4).
    assert "grpc.http2.min_recv_ping_interval_without_data_ms" not in server


@pytest.mark.parametrize("loopback", [True, False])
def test_each_dial_starts_afresh_and_a_proxy_is_not_used_for_loopback(loopback: bool) -> None:
    options = dict(channel_options(loopback=loopback, name_override="edge.local"))
    assert options["grpc.use_local_subchannel_pool"] == 1
    assert options["grpc.enable_retries"] == 0
    assert options["grpc.ssl_target_name_override"] == "edge.local"
    assert ("grpc.enable_http_proxy" in options) is loopback
    assert "grpc.ssl_target_name_override" not in dict(channel_options())
