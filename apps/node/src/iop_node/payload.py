"""NodeConfigPayload → NodeSettings, or every fault in it, so that the Node can say why it keeps the old one (R9)."""

from __future__ import annotations

from collections.abc import Callable

from iop_node.adapters.kinds import HTTP_KINDS, KINDS
from iop_node.link import ConfigFault
from iop_node.settings import AdapterSettings, CliSettings, HttpSettings, NodeSettings, ProviderSettings
from iop_wire import runtime_pb2 as pb

__all__ = ["PayloadError", "settings_from"]


class PayloadError(Exception):
    """A payload that cannot be used; `faults` has every reason."""

    def __init__(self, faults: list[ConfigFault]) -> None:
        super().__init__("; ".join(f"{fault.path}: {fault.message}" for fault in faults))
        self.faults = faults


def settings_from(payload: pb.NodeConfigPayload) -> NodeSettings:
    """Return the settings of a payload. Raises PayloadError with every fault.

    The Edge has checked its config; what is checked here is what an Edge of another version could send: a kind that this
    Node does not have, an instance without its settings, a provider without its adapter.
    """
    faults: list[ConfigFault] = []

    def fault(path: str, code: str, message: str) -> None:
        faults.append(ConfigFault(path, code, message))

    adapters: dict[str, AdapterSettings] = {}
    for adapter in payload.adapters:
        path = f"adapters[{adapter.key}]"
        if adapter.key in adapters:
            fault(path, "duplicate_adapter", "two adapter instances have this key")
        elif adapter.enabled:
            made = _adapter(adapter, path, fault)
            if made is not None:
                adapters[adapter.key] = made
    known = {adapter.key for adapter in payload.adapters}
    providers: dict[str, ProviderSettings] = {}
    for provider in payload.providers:
        path = f"providers[{provider.id}]"
        if provider.id in providers:
            fault(path, "duplicate_provider", "two providers have this id")
        if provider.enabled and provider.adapter not in known:
            fault(path, "unknown_adapter", f'no adapter instance "{provider.adapter}" is in the payload')
        providers[provider.id] = _provider(provider)
    if faults:
        raise PayloadError(faults)
    return NodeSettings(
        version=payload.config_version,
        generation=payload.generation,
        adapters=tuple(adapters.values()),
        providers=tuple(providers.values()),
    )


def _adapter(adapter: pb.AdapterConfig, path: str, fault: Callable[[str, str, str], None]) -> AdapterSettings | None:
    if adapter.kind not in KINDS:
        have = ", ".join(sorted(KINDS))
        fault(path, "unknown_kind", f'this Node has no adapter of the kind "{adapter.kind}"; it has {have}')
        return None
    http, cli, label, context_size = None, None, "", None
    which = adapter.WhichOneof("settings")
    if adapter.kind == "cli":
        if which != "cli" or not adapter.cli.command:
            fault(path, "no_command", "a cli adapter needs its command")
            return None
        cli, label, context_size = _cli(adapter.cli), adapter.cli.provider, _optional(adapter.cli, "context_size")
    elif adapter.kind in HTTP_KINDS:
        of = adapter.ollama if adapter.kind == "ollama" else adapter.openai_compat
        if not of.base_url:
            fault(path, "no_base_url", "the adapter needs the address of its runtime")
            return None
        http = HttpSettings(of.base_url.rstrip("/"), tuple((header.name, header.value) for header in of.headers))
        label, context_size = of.provider, _optional(of, "context_size")
    else:
        label, context_size = adapter.echo.provider, _optional(adapter.echo, "context_size")
    return AdapterSettings(
        key=adapter.key,
        kind=adapter.kind,
        label=label,
        http=http,
        cli=cli,
        context_size=context_size,
        request_timeout_ms=_optional(adapter, "request_timeout_ms"),
        first_event_timeout_ms=_optional(adapter, "first_event_timeout_ms"),
        idle_timeout_ms=_optional(adapter, "idle_timeout_ms"),
    )


def _cli(cli: pb.CliAdapterConfig) -> CliSettings:
    return CliSettings(
        command=cli.command,
        args=tuple(cli.args),
        resume_args=tuple(cli.resume_args),
        env=tuple((variable.name, variable.value) for variable in cli.env),
        mode=cli.mode or "oneshot",
        output_format=cli.output_format or "text",
        prompt=cli.prompt or "stdin",
        working_dir=cli.working_dir,
        max_output_bytes=cli.max_output_bytes or 64 * 1024 * 1024,
    )


def _provider(provider: pb.ProviderConfig) -> ProviderSettings:
    return ProviderSettings(
        id=provider.id,
        adapter=provider.adapter,
        category=provider.category,
        models=tuple(provider.models),
        enabled=provider.enabled,
        capacity=provider.capacity,
        probe=provider.probe.enabled,
        probe_interval_ms=provider.probe.interval_ms or 10_000,
        context_size=_optional(provider, "context_size"),
        request_timeout_ms=_optional(provider, "request_timeout_ms"),
        lifecycle=tuple(provider.lifecycle),
    )


def _optional(
    message: pb.AdapterConfig
    | pb.ProviderConfig
    | pb.OpenAICompatAdapterConfig
    | pb.OllamaAdapterConfig
    | pb.CliAdapterConfig
    | pb.EchoAdapterConfig,
    name: str,
) -> int | None:
    """Return a field with presence; None when it is absent. Absent and 0 are different (C11)."""
    return int(getattr(message, name)) if message.HasField(name) else None
