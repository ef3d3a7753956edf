"""What the Edge told this Node, as plain frozen values: adapter instances, providers, one generation of both (N1, N2)."""

from __future__ import annotations

from attrs import field, frozen

__all__ = ["AdapterSettings", "CliSettings", "HttpSettings", "NodeSettings", "ProviderSettings"]


@frozen
class HttpSettings:
    """Where a runtime listens. `headers` hold credentials: never shown."""

    base_url: str
    """Without a slash at the end; for an OpenAI surface with its `/v1`, for ollama the root."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@frozen
class CliSettings:
    """How a command is started. `env` holds credentials: never shown."""

    command: str
    args: tuple[str, ...] = ()
    resume_args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    mode: str = "oneshot"
    output_format: str = "text"
    prompt: str = "stdin"
    working_dir: str = ""
    """Empty: a fresh folder per run."""
    max_output_bytes: int = 64 * 1024 * 1024


@frozen
class AdapterSettings:
    """One adapter instance. Equal settings mean that the running instance may be carried over (N3)."""

    key: str
    kind: str
    label: str = ""
    """The provider label of C9."""
    http: HttpSettings | None = None
    cli: CliSettings | None = None
    context_size: int | None = None
    """The largest request that the runtime takes, tokens."""
    request_timeout_ms: int | None = None
    first_event_timeout_ms: int | None = None
    idle_timeout_ms: int | None = None


@frozen
class ProviderSettings:
    """One schedulable resource of this Node."""

    id: str
    adapter: str
    category: str
    models: tuple[str, ...]
    enabled: bool = True
    capacity: int = 1
    """A run above it is refused as `no_capacity`: a second lock on the pool's door."""
    probe: bool = True
    probe_interval_ms: int = 10_000
    context_size: int | None = None
    request_timeout_ms: int | None = None
    lifecycle: tuple[str, ...] = ()


@frozen
class NodeSettings:
    """One whole configuration. `adapters` are the enabled instances only."""

    version: str = ""
    generation: int = 0
    adapters: tuple[AdapterSettings, ...] = ()
    providers: tuple[ProviderSettings, ...] = ()
