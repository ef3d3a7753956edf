"""NodeConfigPayload → NodeSettings; whatever is wrong with it is found at once, so that the Node can refuse it (R9)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol
from urllib.parse import urlsplit

from iop_node.link import ConfigFault
from iop_node.settings import (
    AdapterSettings,
    CliSettings,
    EchoSettings,
    KindSettings,
    NodeSettings,
    OllamaSettings,
    OpenAICompatSettings,
    ProviderSettings,
    SecretPair,
)
from iop_wire import runtime_pb2 as pb

__all__ = ["PayloadError", "settings_from"]

OPENAI_KINDS = frozenset({"openai_compat", "vllm", "llama_cpp", "sglang", "lmstudio"})
MODES = ("oneshot", "session")
OUTPUT_FORMATS = ("text", "jsonl", "claude-stream-json", "codex-jsonl", "gemini-stream-json", "opencode-json")
PROMPTS = ("stdin", "argument")

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_ENV_NAME = re.compile(r"[^=\x00]+")
_MS = 1000


class PayloadError(Exception):
    """A payload that cannot be used; `faults` has every reason, none of them quotes a secret."""

    def __init__(self, faults: Iterable[ConfigFault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f"{fault.path}: {fault.message}" for fault in self.faults))


class _Pair(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def value(self) -> str: ...


class _Faults:
    """Collects what is wrong."""

    def __init__(self) -> None:
        self.found: list[ConfigFault] = []

    def add(self, path: str, code: str, message: str) -> None:
        self.found.append(ConfigFault(path, code, message))

    def one_of(self, path: str, value: str, allowed: tuple[str, ...], default: str) -> str:
        if not value:
            return default
        if value not in allowed:
            self.add(path, "unknown-value", f"{value!r} is not known to this Node; it knows {', '.join(allowed)}")
        return value


def settings_from(payload: pb.NodeConfigPayload) -> NodeSettings:
    """Return the payload as settings; PayloadError with every fault when it cannot be used (N3, R9)."""
    faults = _Faults()
    adapters = _adapters(payload, faults)
    providers = _providers(payload, {adapter.key: adapter for adapter in adapters}, faults)
    if faults.found:
        raise PayloadError(faults.found)
    return NodeSettings(
        version=payload.config_version,
        generation=payload.generation,
        adapters=tuple(adapters),
        providers=tuple(providers),
        concurrency=payload.runtime.concurrency,
    )


def _adapters(payload: pb.NodeConfigPayload, faults: _Faults) -> list[AdapterSettings]:
    made: dict[str, AdapterSettings] = {}
    for number, message in enumerate(payload.adapters):
        path = f"adapters[{message.key or number}]"
        if not message.key:
            faults.add(path, "no-key", "an adapter needs a key")
        elif message.key in made:
            faults.add(path, "duplicate-key", "two adapters have this key; it must be unique on its Node")
        made[message.key] = AdapterSettings(
            key=message.key,
            kind=message.kind,
            # What is not started is not checked either: it may be of a kind that only newer Nodes know (C8).
            detail=_detail(message, path, faults if message.enabled else _Faults()),
            enabled=message.enabled,
            request_timeout=_seconds(message, "request_timeout_ms"),
            first_event_timeout=_seconds(message, "first_event_timeout_ms"),
            idle_timeout=_seconds(message, "idle_timeout_ms"),
        )
    return list(made.values())


def _seconds(message: pb.AdapterConfig | pb.ProviderConfig, name: str) -> float | None:
    if not message.HasField(name):
        return None
    value: int = getattr(message, name)
    return value / _MS if value else None


def _detail(message: pb.AdapterConfig, path: str, faults: _Faults) -> KindSettings:
    kind, given = message.kind, message.WhichOneof("settings")
    wanted = "openai_compat" if kind in OPENAI_KINDS else kind
    if wanted not in ("openai_compat", "ollama", "cli", "echo"):
        text = f"this Node has no adapter of kind {kind!r}; is the Edge newer than the Node?"
        faults.add(f"{path}.kind", "unknown-kind", text)
        return EchoSettings()
    if given != wanted and not (wanted == "echo" and given is None):
        faults.add(path, "wrong-settings", f"kind {kind!r} needs {wanted} settings; the payload has {given or 'none'}")
    if wanted == "openai_compat":
        return _openai(message.openai_compat, f"{path}.openai_compat", faults)
    if wanted == "ollama":
        return _ollama(message.ollama, f"{path}.ollama", faults)
    if wanted == "cli":
        return _cli(message.cli, f"{path}.cli", faults)
    echo = message.echo
    return EchoSettings(echo.provider, echo.context_size if echo.HasField("context_size") else None)


def _openai(message: pb.OpenAICompatAdapterConfig, path: str, faults: _Faults) -> OpenAICompatSettings:
    return OpenAICompatSettings(
        base_url=_url(message.base_url, path, faults),
        label=message.provider,
        headers=_headers(message.headers, path, faults),
        context_size=message.context_size if message.HasField("context_size") else None,
    )


def _ollama(message: pb.OllamaAdapterConfig, path: str, faults: _Faults) -> OllamaSettings:
    return OllamaSettings(
        base_url=_url(message.base_url, path, faults),
        label=message.provider,
        headers=_headers(message.headers, path, faults),
        context_size=message.context_size if message.HasField("context_size") else None,
    )


def _cli(message: pb.CliAdapterConfig, path: str, faults: _Faults) -> CliSettings:
    if not message.command:
        faults.add(f"{path}.command", "no-command", "a cli adapter needs the program to run")
    for name, values in (("command", [message.command]), ("args", message.args), ("resume_args", message.resume_args)):
        if any("\x00" in value for value in values):
            faults.add(f"{path}.{name}", "nul", "holds a NUL byte, which no program can be given")
    env = []
    for pair in message.env:
        if not _ENV_NAME.fullmatch(pair.name) or "\x00" in pair.value:
            faults.add(f"{path}.env[{pair.name}]", "bad-env", "not usable as an environment variable")
        env.append(SecretPair(pair.name, pair.value))
    return CliSettings(
        command=message.command,
        args=tuple(message.args),
        resume_args=tuple(message.resume_args),
        env=tuple(env),
        mode=faults.one_of(f"{path}.mode", message.mode, MODES, "oneshot"),
        output_format=faults.one_of(f"{path}.output_format", message.output_format, OUTPUT_FORMATS, "text"),
        prompt=faults.one_of(f"{path}.prompt", message.prompt, PROMPTS, "stdin"),
        working_dir=message.working_dir,
        max_output_bytes=message.max_output_bytes or CliSettings("").max_output_bytes,
        label=message.provider,
        context_size=message.context_size if message.HasField("context_size") else None,
    )


def _url(value: str, path: str, faults: _Faults) -> str:
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(c.isspace() for c in value):
        # Without the value: an address may hold a password.
        faults.add(f"{path}.base_url", "bad-url", "not an http or https address with a host")
    return value.rstrip("/")


def _headers(pairs: Iterable[_Pair], path: str, faults: _Faults) -> tuple[SecretPair, ...]:
    made = []
    for pair in pairs:
        if not _HEADER_NAME.fullmatch(pair.name):
            faults.add(f"{path}.headers[{pair.name!r}]", "bad-header", "not a header name")
        elif not _HEADER_VALUE.fullmatch(pair.value):
            faults.add(f"{path}.headers[{pair.name}]", "bad-header", "its value cannot be sent in a header")
        made.append(SecretPair(pair.name, pair.value))
    return tuple(made)


def _providers(
    payload: pb.NodeConfigPayload, adapters: dict[str, AdapterSettings], faults: _Faults
) -> list[ProviderSettings]:
    made: dict[str, ProviderSettings] = {}
    for number, message in enumerate(payload.providers):
        path = f"providers[{message.id or number}]"
        if not message.id:
            faults.add(path, "no-id", "a provider needs an id")
        elif message.id in made:
            faults.add(path, "duplicate-id", "two providers have this id")
        if message.enabled:
            _check_adapter(message, adapters, path, faults)
        if message.capacity < 1:
            faults.add(f"{path}.capacity", "bad-capacity", "0 runs at once; at least 1 is needed")
        made[message.id] = ProviderSettings(
            id=message.id,
            adapter=message.adapter,
            category=message.category,
            models=tuple(message.models),
            enabled=message.enabled,
            capacity=message.capacity,
            probe=message.probe.enabled,
            probe_interval=message.probe.interval_ms / _MS or ProviderSettings("", "").probe_interval,
            context_size=message.context_size if message.HasField("context_size") else None,
            request_timeout=_seconds(message, "request_timeout_ms"),
            lifecycle=tuple(message.lifecycle),
        )
    return list(made.values())


def _check_adapter(
    message: pb.ProviderConfig, adapters: dict[str, AdapterSettings], path: str, faults: _Faults
) -> None:
    adapter = adapters.get(message.adapter)
    if adapter is None:
        known = ", ".join(sorted(repr(key) for key in adapters)) or "none"
        text = f"no adapter {message.adapter!r} in this payload; it has {known}"
        faults.add(f"{path}.adapter", "unknown-adapter", text)
    elif not adapter.enabled:
        text = f"adapter {message.adapter!r} is disabled, but this provider is not"
        faults.add(f"{path}.adapter", "adapter-disabled", text)
