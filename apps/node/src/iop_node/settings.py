"""What the Edge told this Node to run, as frozen values: adapters, providers, probes (N1). Times are seconds."""

from __future__ import annotations

from attrs import field, frozen


def _masked(value: object) -> str:
    return "<redacted>"


@frozen
class SecretPair:
    """A header or an environment variable whose value is never shown."""

    name: str
    value: str = field(repr=_masked)


@frozen
class OpenAICompatSettings:
    """A runtime with an OpenAI surface; `base_url` has its path and no slash at the end."""

    base_url: str
    label: str = ""
    headers: tuple[SecretPair, ...] = ()
    context_size: int | None = None


@frozen
class OllamaSettings:
    """An Ollama server; `base_url` is its root, `/v1` and `/api` lie below it."""

    base_url: str
    label: str = ""
    headers: tuple[SecretPair, ...] = ()
    context_size: int | None = None


@frozen
class CliSettings:
    """A command that answers a prompt. `working_dir` empty: a fresh folder for each run."""

    command: str
    args: tuple[str, ...] = ()
    resume_args: tuple[str, ...] = ()
    env: tuple[SecretPair, ...] = ()
    mode: str = "oneshot"
    output_format: str = "text"
    prompt: str = "stdin"
    working_dir: str = ""
    max_output_bytes: int = 64 * 2**20
    label: str = ""
    context_size: int | None = None


@frozen
class EchoSettings:
    """The built-in adapter that answers with the question."""

    label: str = ""
    context_size: int | None = None


KindSettings = OpenAICompatSettings | OllamaSettings | CliSettings | EchoSettings


@frozen
class AdapterSettings:
    """One adapter instance. Two that are equal are one: it is carried over by a refresh (N3)."""

    key: str
    kind: str
    detail: KindSettings
    enabled: bool = True
    request_timeout: float | None = None
    """The longest that a run may take; None: no limit of its own."""
    first_event_timeout: float | None = None
    """The longest silence before the first event (E12)."""
    idle_timeout: float | None = None
    """The longest silence between two events (E12)."""


@frozen
class ProviderSettings:
    """One schedulable resource."""

    id: str
    adapter: str
    category: str = ""
    models: tuple[str, ...] = ()
    """The served names that its runtime should know."""
    enabled: bool = True
    capacity: int = 1
    probe: bool = True
    probe_interval: float = 10.0
    context_size: int | None = None
    request_timeout: float | None = None
    """Overrides the adapter's (C24)."""
    lifecycle: tuple[str, ...] = ()


@frozen
class NodeSettings:
    """One generation of everything this Node runs. Only what is enabled must hold together."""

    version: str
    generation: int
    adapters: tuple[AdapterSettings, ...] = ()
    providers: tuple[ProviderSettings, ...] = ()
    concurrency: int = 0
    """Legacy metadata: shown, never used for admission (C17)."""
