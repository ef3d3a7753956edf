"""The numbers of the wire that both ends keep: sizes in bytes, times in seconds, gRPC options (wire §1.3)."""

from __future__ import annotations

from attrs import frozen

KIB = 1024
MIB = 1024 * KIB

FRAME_TARGET = 64 * KIB
"""A frame is sent once this much is in it; less is sent at once when nothing more is ready."""
FRAME_MAX = 256 * KIB
"""Hard cap of a frame, except for those that carry a whole configuration or a whole status."""
CONFIG_FRAME_MAX = 2 * MIB
"""Cap of Hello, Welcome, ConfigResult, ProviderStatus and config pushes: well below what gRPC itself refuses (G15)."""
GRPC_MESSAGE_MAX = 4 * MIB

CHUNK_MAX = 64 * KIB
"""Largest piece of response bytes in one event."""
INLINE_PAYLOAD_MAX = 64 * KIB
"""Largest request body that travels inside its RunRequest."""
PAYLOAD_PART = 128 * KIB
"""Largest piece of a request body that follows in RunPayload frames."""
PAYLOAD_MAX = 64 * MIB
INITIAL_CREDIT = 256 * KIB
"""Response bytes of one run that may be under way before the Edge grants more (§1.2.4)."""
UPSTREAM_BODY_MAX = 64 * KIB
"""Largest error body of a runtime that a Terminal carries."""

CONFIRMED_IDLE_KINDS = frozenset({"llama_cpp"})
"""Adapter kinds whose cancelled run ends only once the runtime says that it is idle (N8)."""

METHOD_SERVICE = "iop.runtime.v1.NodeLink"
METHOD_NAME = "Session"
METHOD_PATH = f"/{METHOD_SERVICE}/{METHOD_NAME}"
METADATA_TOKEN = "authorization"
METADATA_NODE_ID = "iop-node-id"
"""Sent beside the token, so that the Edge can refuse a caller before it reads a single frame."""
METADATA_ACCEPTED = "iop-accepted"
"""In the Edge's own headers, sent once the token was accepted: before that the Node writes nothing."""


@frozen
class Timing:
    """Every wait of a session, in seconds of monotonic time."""

    heartbeat: float = 5.0
    suspect: float = 7.5
    dead: float = 15.0
    connect: float = 10.0
    hello: float = 10.0
    welcome: float = 10.0
    push_answer: float = 10.0
    cancel_confirm: float = 2.0
    """The Node's own bound on the end of a cancelled run."""
    cancel_idle: float = 30.0
    """The same where the runtime is asked whether it is idle (N8)."""
    cancel_margin: float = 3.0
    """What the Edge waits longer than the Node before it gives the session up as unresponsive (P8)."""
    client_stalled: float = 60.0
    end_flush: float = 1.0
    """How long the last frames of a session may take to leave."""
    goodbye: float = 2.0
    """How long a Node waits for the Edge to close after its Goodbye."""

    def cancel_bound(self, adapter_kind: str) -> float:
        """Return the Node's bound on the end of a cancelled run of this adapter kind."""
        return self.cancel_idle if adapter_kind in CONFIRMED_IDLE_KINDS else self.cancel_confirm


GrpcOption = tuple[str, int | str]

_BOTH: tuple[GrpcOption, ...] = (
    ("grpc.max_send_message_length", GRPC_MESSAGE_MAX),
    ("grpc.max_receive_message_length", GRPC_MESSAGE_MAX),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # keepalive_timeout alone never fires: this one decides (G1).
    ("grpc.http2.ping_timeout_ms", 10_000),
    # The default of 2 would stop the pings of an idle stream (G3).
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)


def server_options() -> tuple[GrpcOption, ...]:
    """Return the channel arguments of the Edge's listener."""
    return (
        *_BOTH,
        # Or the server would answer a Node's pings with GOAWAY; the likelier name, min_recv_…, is ignored (G4).
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        # Two Edges on one port would share the Nodes between them at random.
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", 16),
    )


def channel_options(*, loopback: bool = False, name_override: str | None = None) -> tuple[GrpcOption, ...]:
    """Return the channel arguments of a Node's dial: nothing is shared with the attempt before it (G19)."""
    options = (*_BOTH, ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
    if loopback:
        options = (*options, ("grpc.enable_http_proxy", 0))
    if name_override is not None:
        options = (*options, ("grpc.ssl_target_name_override", name_override))
    return options
