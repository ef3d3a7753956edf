"""One sample of every frame of the wire, every field set: what the golden bytes of a protocol were made from."""

from __future__ import annotations

from iop_wire import runtime_pb2 as pb

RUN = {"run_id": "01JEXAMPLE0000000000000000", "attempt": 2}


def payload() -> pb.NodeConfigPayload:
    """Return a configuration with an adapter of every kind of settings."""
    secret = pb.SecretHeader(name="Authorization", value="Bearer sample")
    return pb.NodeConfigPayload(
        config_version="c0ffee",
        generation=7,
        adapters=[
            pb.AdapterConfig(
                key="vllm",
                kind="vllm",
                enabled=True,
                request_timeout_ms=600_000,
                first_event_timeout_ms=300_000,
                idle_timeout_ms=120_000,
                openai_compat=pb.OpenAICompatAdapterConfig(
                    provider="seulgivibe_openai",
                    base_url="http://127.0.0.1:8000/v1",
                    headers=[secret],
                    context_size=4096,
                ),
            ),
            pb.AdapterConfig(
                key="ollama",
                kind="ollama",
                ollama=pb.OllamaAdapterConfig(
                    provider="o", base_url="http://127.0.0.1:11434", headers=[secret], context_size=8192
                ),
            ),
            pb.AdapterConfig(
                key="claude",
                kind="cli",
                enabled=True,
                cli=pb.CliAdapterConfig(
                    provider="c",
                    command="claude",
                    args=["-p"],
                    resume_args=["--resume"],
                    env=[pb.EnvVar(name="KEY", value="sample")],
                    mode="oneshot",
                    output_format="claude-stream-json",
                    prompt="stdin",
                    working_dir="/srv/work",
                    max_output_bytes=67_108_864,
                    context_size=200_000,
                ),
            ),
            pb.AdapterConfig(
                key="echo", kind="echo", enabled=True, echo=pb.EchoAdapterConfig(provider="e", context_size=1)
            ),
        ],
        providers=[
            pb.ProviderConfig(
                id="vllm-a",
                adapter="vllm",
                category="local_inference",
                models=["served/name"],
                enabled=True,
                capacity=8,
                probe=pb.ProbePolicy(enabled=True, interval_ms=5000),
                context_size=4096,
                request_timeout_ms=60_000,
                lifecycle=["preload"],
            )
        ],
        runtime=pb.NodeRuntimeConfig(concurrency=4),
    )


def state() -> pb.ProviderState:
    """Return what a probe found out."""
    return pb.ProviderState(
        provider_id="vllm-a", health=pb.PROVIDER_HEALTH_DEGRADED, message="slow", context_tokens=4096, runtime_slots=8
    )


def terminal() -> pb.Terminal:
    """Return the end of a run with everything that one can say."""
    return pb.Terminal(
        kind=pb.TERMINAL_KIND_FAILED,
        usage=pb.Usage(input_tokens=11, output_tokens=22, source=pb.USAGE_SOURCE_RUNTIME, cached_input_tokens=3),
        error=pb.RunError(
            code="upstream_error",
            message="the runtime answered 503",
            upstream_status=503,
            upstream_body=b'{"error":"busy"}',
            retry_after_ms=1500,
            retryable=True,
            maybe_executed=True,
            outcome="busy",
        ),
        last_seq=4,
        started=True,
    )


def node_bodies() -> dict[str, object]:
    """Return a body for every member of NodeFrame."""
    return {
        "hello": pb.Hello(
            protocol_min=1,
            protocol_max=1,
            node_id="gpu-1",
            instance_id=bytes(range(16)),
            hostname="gpu-1.local",
            pid=4711,
            node_version="0.1.0",
            capabilities=["sample"],
            applied_config_version="c0ffee",
            provider_status=[state()],
            stopping_attempts=[pb.AttemptKey(**RUN, provider_id="vllm-a", long=True)],
            applied_generation=7,
        ),
        "config_result": pb.ConfigResult(
            push_id="p1",
            status=pb.CONFIG_STATUS_REJECTED,
            applied_version="c0ffee",
            errors=[pb.ConfigError(path="adapters[claude]", code="not_found", message="no such command")],
            carried_over=["vllm"],
            rebuilt=["echo"],
            draining=["ollama"],
            applied_generation=7,
        ),
        "provider_status": pb.ProviderStatus(providers=[state()]),
        "run_events": pb.RunEvents(
            events=[
                pb.RunEvent(**RUN, seq=1, accepted=pb.Accepted()),
                pb.RunEvent(**RUN, seq=2, head=pb.Head(status=200, headers=[pb.Header(name="x", value="y")])),
                pb.RunEvent(**RUN, seq=3, chunk=pb.Chunk(data=b"data: {}\n\n\x00\xff")),
                pb.RunEvent(**RUN, seq=4, terminal=terminal()),
            ]
        ),
        "heartbeat": pb.Heartbeat(n=9, loop_lag_ms=3, active_runs=2, rss_bytes=50_000_000),
        "draining": pb.Draining(reason="SIGTERM", grace_ms=30_000),
        "goodbye": pb.Goodbye(reason="SIGTERM"),
    }


def edge_bodies() -> dict[str, object]:
    """Return a body for every member of EdgeFrame."""
    return {
        "welcome": pb.Welcome(
            protocol=1,
            session_id="s1",
            epoch=3,
            edge_id="edge-1",
            edge_version="0.1.0",
            capabilities=["sample"],
            heartbeat_ms=5000,
            dead_after_ms=15_000,
            max_frame_bytes=262_144,
            max_payload_bytes=67_108_864,
            config=payload(),
        ),
        "config_refresh": pb.NodeConfigRefreshRequest(push_id="p1", payload=payload()),
        "run_request": pb.RunRequest(
            **RUN,
            adapter="vllm",
            target="served/name",
            operation="chat_completions",
            generation=7,
            deadline_ms=60_000,
            streaming=True,
            context_class=pb.CONTEXT_CLASS_LONG,
            headers=[pb.Header(name="x-request-id", value="1")],
            secret_headers=[pb.SecretHeader(name="Authorization", value="Bearer sample")],
            credit_bytes=262_144,
            payload=b"{}",
            payload_bytes=200_000,
            provider_id="vllm-a",
            input_tokens_estimate=123,
            include_usage=True,
        ),
        "run_payload": pb.RunPayload(**RUN, offset=131_072, data=b"part", last=True),
        "run_credit": pb.RunCredit(**RUN, bytes=65_536),
        "cancel_run": pb.CancelRun(**RUN, reason="client_gone"),
        "heartbeat_ack": pb.HeartbeatAck(n=9),
        "drain_request": pb.DrainRequest(reason="SIGTERM", grace_ms=30_000),
        "session_end": pb.SessionEnd(
            reason=pb.SESSION_END_REASON_FENCED, message="the Node dialled again", retry_after_ms=5000
        ),
    }


def node_frames() -> dict[str, pb.NodeFrame]:
    """Return a frame of every kind that a Node sends."""
    return {name: pb.NodeFrame(frame_seq=5, **{name: body}) for name, body in node_bodies().items()}  # type: ignore[arg-type]


def edge_frames() -> dict[str, pb.EdgeFrame]:
    """Return a frame of every kind that an Edge sends."""
    return {name: pb.EdgeFrame(frame_seq=5, **{name: body}) for name, body in edge_bodies().items()}  # type: ignore[arg-type]
