"""EdgeConfig → NodeConfigPayload: what one Node is told (R8, C9, C17), with a version that is a keyed digest (C21)."""

from __future__ import annotations

import hashlib
import hmac

from attrs import field, frozen

from iop_config import AdapterConfig, NodeConfig, ProviderConfig, reveal
from iop_wire import runtime_pb2


@frozen
class NodePayload:
    """One Node's payload in one generation. `message` holds secrets: it is sent, never shown."""

    node_id: str
    version: str
    generation: int
    message: runtime_pb2.NodeConfigPayload = field(repr=False)


def build_payload(node: NodeConfig, digest_key: bytes, previous: NodePayload | None = None) -> NodePayload:
    """Return what `node` is told. The generation rises from `previous` only where the content differs (R8)."""
    message = runtime_pb2.NodeConfigPayload(
        adapters=[_adapter(adapter) for adapter in node.adapters],
        providers=[_provider(provider) for provider in node.providers],
        runtime=runtime_pb2.NodeRuntimeConfig(concurrency=node.runtime.concurrency or 0),
    )
    # Keyed, since the payload holds credentials and its version is shown in status and logs.
    digest = hmac.new(digest_key, message.SerializeToString(deterministic=True), hashlib.sha256)
    version = digest.hexdigest()[:32]
    if previous is not None and previous.version == version:
        return previous
    message.config_version = version
    message.generation = previous.generation + 1 if previous is not None else 1
    return NodePayload(node.id, version, message.generation, message)


def _adapter(adapter: AdapterConfig) -> runtime_pb2.AdapterConfig:
    made = runtime_pb2.AdapterConfig(
        key=adapter.name,
        kind=adapter.type,
        enabled=adapter.enabled,
        request_timeout_ms=adapter.request_timeout_ms,
        first_event_timeout_ms=adapter.first_event_timeout_ms,
        idle_timeout_ms=adapter.idle_timeout_ms,
    )
    headers = [
        runtime_pb2.SecretHeader(name=name, value=reveal(value)) for name, value in sorted(adapter.headers.items())
    ]
    label = adapter.provider or ""
    match adapter.type:
        case "cli":
            made.cli.CopyFrom(
                runtime_pb2.CliAdapterConfig(
                    provider=label,
                    command=adapter.command or "",
                    args=adapter.args,
                    resume_args=adapter.resume_args,
                    env=[
                        runtime_pb2.EnvVar(name=name, value=reveal(value))
                        for name, value in sorted(adapter.env.items())
                    ],
                    mode=adapter.mode,
                    output_format=adapter.output_format,
                    prompt=adapter.prompt,
                    working_dir=adapter.working_dir or "",
                    max_output_bytes=adapter.max_output_bytes,
                    context_size=adapter.context_size,
                )
            )
        case "echo":
            made.echo.CopyFrom(runtime_pb2.EchoAdapterConfig(provider=label, context_size=adapter.context_size))
        case "ollama":
            made.ollama.CopyFrom(
                runtime_pb2.OllamaAdapterConfig(
                    provider=label,
                    base_url=adapter.base_url or "",
                    headers=headers,
                    context_size=adapter.context_size,
                )
            )
        case _:
            made.openai_compat.CopyFrom(
                runtime_pb2.OpenAICompatAdapterConfig(
                    provider=label,
                    base_url=adapter.base_url or "",
                    headers=headers,
                    context_size=adapter.context_size,
                )
            )
    return made


def _provider(provider: ProviderConfig) -> runtime_pb2.ProviderConfig:
    return runtime_pb2.ProviderConfig(
        id=provider.id,
        adapter=provider.adapter or "",
        category=provider.category,
        models=provider.models,
        enabled=provider.enabled,
        capacity=provider.capacity,
        probe=runtime_pb2.ProbePolicy(enabled=provider.health.probe, interval_ms=provider.health.interval_ms),
        context_size=provider.context_size,
        request_timeout_ms=provider.request_timeout_ms,
        lifecycle=provider.lifecycle,
    )
