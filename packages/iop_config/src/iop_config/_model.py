"""The config classes, one per YAML object, in the order of the file; attribute names are the keys (C21, C22).

What `load` returns is the normalised form (C9, C10): adapters are named instances, a provider names its instance, types
are runtime kinds. Every object is frozen and hashable; texts that were injected are `Secret` (see `reveal`).
"""

from iop_config._fields import (
    ConfigObject,
    Format,
    Policy,
    config_class,
    identity,
    internal,
    live,
    members,
    restart,
    section,
)
from iop_config._values import FrozenMap, Secret

OPENAI_KINDS = ("openai_compat", "vllm", "llama_cpp", "sglang", "lmstudio")  # these have an OpenAI surface
HTTP_KINDS = (*OPENAI_KINDS, "ollama")  # these live on an address
KINDS = (*HTTP_KINDS, "cli", "echo")
ALIASES = ("seulgivibe_claude", "seulgivibe_openai")  # run as openai_compat, kept as the label (C9)
TYPES = (*KINDS, *ALIASES)
CATEGORIES = ("api", "cli", "local_inference")
OUTPUT_FORMATS = ("text", "jsonl", "claude-stream-json", "codex-jsonl", "gemini-stream-json", "opencode-json")

ADMIN_LISTEN = "127.0.0.1:19091"
FIRST_EVENT_TIMEOUT_MS = 300_000
IDLE_TIMEOUT_MS = 120_000


@config_class
class EdgeIdentity(ConfigObject):
    """`edge`: who this Edge is."""

    id: str = restart("The Edge's own name: Nodes, logs and metrics show it.", is_a=Format.NAME)
    name: str | None = restart("A name for people.", default=None)
    state_dir: str | None = restart(
        "The folder of the last-good config, the runtime file and the digest key.",
        default=None, default_text="$IOP_STATE_DIR, else the XDG state folder `iop`", is_a=Format.PATH,
    )  # fmt: skip


@config_class
class TlsConfig(ConfigObject):
    """`server.tls`: encrypts the link to the Nodes."""

    cert_file: str = restart("The server's certificate chain, PEM.", is_a=Format.PATH)
    key_file: str = restart("The certificate's private key, PEM.", is_a=Format.PATH)
    client_ca_file: str | None = restart(
        "With it a Node must show a certificate of this authority (mTLS).", default=None, is_a=Format.PATH
    )


@config_class
class ServerConfig(ConfigObject):
    """`server`: the gRPC listener that Nodes dial."""

    listen: str = restart("Where Nodes connect, host:port.", default="127.0.0.1:19090", is_a=Format.ADDRESS)
    advertise: str | None = restart(
        "The host:port that the join line names.", default=None, default_text="`server.listen`", is_a=Format.ADDRESS
    )
    reconnect_grace_ms: int = restart("How long requests still wait for a Node that was lost (P5), ms.", default=10_000)
    insecure: bool = restart("Allow plaintext off loopback. Better: `tls`.", default=False)
    tls: TlsConfig | None = section(
        "TLS for the link; without it the listener stays on loopback.", TlsConfig, optional=True
    )


@config_class
class BootstrapConfig(ConfigObject):
    """`bootstrap`: where a new machine gets what it needs to join."""

    listen: str | None = restart(
        "Where the files are served, host:port.", default=None, default_text="off", is_a=Format.ADDRESS
    )
    artifact_dir: str | None = restart("The folder whose files are served.", default=None, is_a=Format.PATH)
    advertise_url: str | None = restart("The URL that the join instructions name.", default=None, is_a=Format.URL)


@config_class
class AdminConfig(ConfigObject):
    """`admin`: the operator's API, on loopback only (R12)."""

    unix_socket: str | None = restart("A unix socket of mode 0600 for the same API.", default=None, is_a=Format.PATH)
    listen: str | None = restart(
        "Where the API listens, host:port; loopback only. With `unix_socket` alone there is no TCP listener.",
        factory=lambda self: None if self.unix_socket else ADMIN_LISTEN,
        default_text=f"{ADMIN_LISTEN}; none with `unix_socket`", is_a=Format.ADDRESS,
    )  # fmt: skip


@config_class
class LoggingConfig(ConfigObject):
    """`logging`: what the Edge writes to stderr."""

    level: str = restart(
        "The least severity that is written.", default="info", choices=("debug", "info", "warning", "error")
    )
    format: str = restart("Lines for people, or one JSON object a line.", default="text", choices=("text", "json"))


@config_class
class MetricsConfig(ConfigObject):
    """`metrics`: the Prometheus endpoint."""

    listen: str | None = restart(
        "Where `/metrics` is served, host:port.", default=None, default_text="off", is_a=Format.ADDRESS
    )


@config_class
class ConsoleConfig(ConfigObject):
    """`console`: the status page in a browser."""

    enabled: bool = restart("Serve the page.", default=False)
    listen: str = restart("Where it is served, host:port.", default="127.0.0.1:19093", is_a=Format.ADDRESS)


@config_class
class ControlPlaneConfig(ConfigObject):
    """`control_plane`: management from outside."""

    enabled: bool = restart("Let a control plane manage this Edge.", default=False)


@config_class
class PrincipalToken(ConfigObject):
    """`openai.principal_tokens[]`: one API key, as a hash, and whom its usage is counted for (C14)."""

    token_ref: str = identity("Names this key in usage records and logs.")
    token_hash_sha256: str = restart("The key's sha256, 64 hex digits; never the key itself.", is_a=Format.SHA256)
    principal_ref: str = restart("Who uses it; several keys may share one.", is_a=Format.NAME)
    principal_alias: str | None = restart("A readable name of the principal.", default=None, is_a=Format.NAME)


@config_class
class ProviderAuth(ConfigObject):
    """`openai.provider_auth`: forwards a caller's own provider token to the run (C15, E6)."""

    enabled: bool = restart("Forward the token.", default=False)
    from_header: str = restart(
        "The request header that brings it.", default="X-IOP-Provider-Authorization", is_a=Format.HEADER
    )
    target_header: str = restart("The upstream header that carries it.", default="Authorization", is_a=Format.HEADER)
    scheme: str = restart("The word before the token.", default="Bearer", is_a=Format.HEADER_VALUE)
    required: bool = restart("Refuse a request without it (401).", default=True)


@config_class
class ModelRoute(ConfigObject):
    """`openai.model_routes[]`: an external model that goes straight to an adapter and a target (C16)."""

    model: str = identity("The external model name.")
    node: str | None = restart(
        "The Node that runs it.", default=None, default_text="any that has the adapter", is_a=Format.NAME
    )
    adapter: str = restart("The adapter instance.", is_a=Format.NAME)
    target: str = restart("The served model name.", is_a=Format.NAME)


@config_class
class OpenAIConfig(ConfigObject):
    """`openai`: the listener for clients."""

    enabled: bool = restart("Serve clients.", default=True)
    listen: str = restart("Where clients connect, host:port.", default="127.0.0.1:8080", is_a=Format.ADDRESS)
    stream_hold_ms: int = restart("How long the status line waits for the first event (E11), ms.", default=15_000)
    keep_alive_ms: int = restart(
        "The silence after which a waiting stream gets a comment (E14), ms.", default=10_000, ge=1
    )
    response_headers: bool = restart("Send the X-IOP-* headers (P15).", default=False)
    max_connections: int = restart("Client connections at once; one more gets 503 and is closed.", default=4096, ge=1)
    cors_origins: tuple[str, ...] = restart(
        "The web origins that may call (E14).",
        default=(),
        default_text="empty: CORS is off",
        is_a=Format.ORIGIN,
        unordered=True,
    )
    usage_log: str | None = restart(
        "The file that gets one record per admitted request (E9).", default=None, default_text="off", is_a=Format.PATH
    )
    principal_tokens: tuple[PrincipalToken, ...] = members(
        "The API keys; with any, a request needs one (E4).", PrincipalToken, key="token_ref", policy=Policy.RESTART
    )
    provider_auth: ProviderAuth = section("The caller's own provider token (E6).", ProviderAuth)
    model_routes: tuple[ModelRoute, ...] = members(
        "A compatibility catalog beside `models`.", ModelRoute, key="model", policy=Policy.RESTART, merge=False
    )


@config_class
class A2AConfig(ConfigObject):
    """`a2a`: the agent-to-agent listener."""

    enabled: bool = restart("Serve agents.", default=False)
    listen: str = restart("Where agents connect, host:port.", default="127.0.0.1:8081", is_a=Format.ADDRESS)
    model: str | None = restart(
        "The model id, or route, that answers; needed when enabled.", default=None, is_a=Format.NAME
    )


@config_class
class ModelConfig(ConfigObject):
    """`models[]`: a model group; its id is the external model and the pool's group key (C3)."""

    id: str = identity("The external model id and the pool's group key.")
    display_name: str | None = live("A name for people.", default=None)
    context_window_tokens: int | None = live(
        "The largest single request that every provider of the group keeps (C13), tokens.", default=None, ge=1
    )
    default_max_tokens: int | None = live("Used when a request sets no limit (E5), tokens.", default=None, ge=1)
    min_max_tokens: int | None = live("A lower limit is raised to this (E5), tokens.", default=None, ge=1)
    default_thinking_token_budget: int | None = live(
        "Used when a request sets no thinking budget (E5), tokens.", default=None
    )
    providers: FrozenMap[str, str] = live(
        "Provider id to served model name; the order is the rotation's (P2).",
        default=FrozenMap(), is_a=Format.NAME, keys_are=Format.NAME,
    )  # fmt: skip


@config_class
class NodeRuntime(ConfigObject):
    """`nodes[].runtime`: legacy metadata."""

    concurrency: int | None = live("Kept, shown and sent; never used for admission (C17).", default=None)


@config_class
class AdapterConfig(ConfigObject):
    """`nodes[].adapters[]`: an adapter instance, what executes runs on a Node (C7, C9, C10)."""

    name: str = identity("The instance's name; providers refer to it.")
    type: str = restart("The kind of runtime behind it.", choices=TYPES)
    enabled: bool = restart("Start it; a provider needs an enabled one.", default=True)
    provider: str | None = restart(
        "A label that the Node's payload carries.", default=None, default_text="absent; the alias of a seulgivibe type",
        is_a=Format.NAME, provider_first=True,
    )  # fmt: skip
    base_url: str | None = restart(
        "The runtime's address. For an OpenAI surface no path means `/v1`; ollama takes the root.",
        default=None, is_a=Format.URL, aliases=("endpoint",), provider_first=True,
    )  # fmt: skip
    headers: FrozenMap[str, Secret] = restart(
        "Headers that every request to the runtime carries.", default=FrozenMap(), keys_are=Format.HEADER,
        is_a=Format.HEADER_VALUE, secret=True, provider_first=True,
    )  # fmt: skip
    command: str | None = restart("The program of a `cli`.", default=None, is_a=Format.PATH, provider_first=True)
    args: tuple[str, ...] = restart("Its arguments.", default=(), provider_first=True)
    env: FrozenMap[str, Secret] = restart(
        "Its environment, beside the few variables it always gets.", default=FrozenMap(), keys_are=Format.ENV_NAME,
        secret=True, provider_first=True,
    )  # fmt: skip
    mode: str = restart(
        "A process per run, or a session that is resumed.",
        default="oneshot",
        choices=("oneshot", "session"),
        provider_first=True,
    )
    resume_args: tuple[str, ...] = restart(
        "The arguments that resume a session; `{session_id}` is replaced.", default=(), provider_first=True
    )
    output_format: str = restart("How its output is read.", default="text", choices=OUTPUT_FORMATS, provider_first=True)
    prompt: str = restart(
        "How it gets the prompt.", default="stdin", choices=("stdin", "argument"), provider_first=True
    )
    working_dir: str | None = restart(
        "Where it runs.", default=None, default_text="a fresh folder per run", is_a=Format.PATH, provider_first=True
    )
    max_output_bytes: int = restart(
        "The output after which it is stopped, bytes.", default=64 * 2**20, ge=1, le=2**40, provider_first=True
    )
    context_size: int | None = restart(
        "The largest request that the runtime takes, tokens.", default=None, ge=1, provider_first=True
    )
    request_timeout_ms: int | None = restart(
        "The longest that a run may take, ms.", default=None, default_text="no limit", ge=1, provider_first=True
    )
    first_event_timeout_ms: int | None = restart(
        "The longest silence before a run's first event (E12), ms.",
        factory=lambda self: None if self.type == "cli" else FIRST_EVENT_TIMEOUT_MS,
        default_text=f"{FIRST_EVENT_TIMEOUT_MS}; none for `cli`", ge=1, provider_first=True,
    )  # fmt: skip
    idle_timeout_ms: int | None = restart(
        "The longest silence between two events (E12), ms.",
        factory=lambda self: None if self.type == "cli" else IDLE_TIMEOUT_MS,
        default_text=f"{IDLE_TIMEOUT_MS}; none for `cli`", ge=1, provider_first=True,
    )  # fmt: skip
    max_queue: int | None = restart(
        "How many requests may wait, for providers without a value of their own (P6).", default=None
    )
    queue_timeout_ms: int | None = restart(
        "How long a request may wait, ms, for providers without a value of their own; 0 is for ever (P7).", default=None
    )
    origin: str = internal(
        "named, legacy or provider: how the file spelled this instance; for paths only.", default="named"
    )


@config_class
class HealthConfig(ConfigObject):
    """`nodes[].providers[].health`: the Node's active probe (N7)."""

    probe: bool = restart("Probe the runtime.", default=True)
    interval_ms: int = restart("Between two probes, ms.", default=10_000, ge=100)


@config_class
class ProviderConfig(ConfigObject):
    """`nodes[].providers[]`: one schedulable resource under a Node."""

    id: str = identity("Unique over the whole config (C5).")
    type: str = restart("The kind of runtime; its adapter's.", choices=TYPES)
    category: str = restart("The kind of resource (C6).", choices=CATEGORIES)
    adapter: str | None = restart(
        "The enabled adapter instance of the same Node that executes its runs (C7).",
        default=None, default_text="an instance made from this provider's own fields (C10)", is_a=Format.NAME,
    )  # fmt: skip
    enabled: bool = live("Take part in dispatch; false stops no process (C8).", default=True)
    models: tuple[str, ...] = restart(
        "The served model names that its runtime knows.", is_a=Format.NAME, unordered=True
    )
    capacity: int = live("Runs at once.", default=1, ge=1)
    priority: int = live("Breaks a tie between equally busy providers; lower first (P2).", default=0)
    long_context_capacity: int | None = live(
        "Long runs at once; 0 takes none (C12).", default=None, default_text="absent: long runs are not counted apart"
    )
    total_context_tokens: int | None = live("What the runtime holds at once (C12), tokens.", default=None, ge=1)
    context_size: int | None = restart(
        "The largest single request, tokens; overrides the adapter's.", default=None, ge=1
    )
    request_timeout_ms: int | None = restart(
        "The longest that a run may take, ms; overrides the adapter's.", default=None, ge=1
    )
    max_queue: int | None = live(
        "How many requests may wait for it (P6).", default=None, default_text="the adapter's, else 64"
    )
    queue_timeout_ms: int | None = live(
        "How long a request may wait for it, ms; 0 is for ever (P7).", default=None,
        default_text="the adapter's; without any queue policy 30000",
    )  # fmt: skip
    lifecycle: tuple[str, ...] = restart(
        "What its Node may do with the runtime beside running requests.", default=(), is_a=Format.NAME, unordered=True
    )
    health: HealthConfig = section("The active probe.", HealthConfig)


@config_class
class NodeConfig(ConfigObject):
    """`nodes[]`: a machine that has runtimes or CLIs."""

    id: str = identity("The name that the Node registers with.")
    alias: str | None = restart("A name for people.", default=None)
    agent_kind: str | None = restart("A label for the kind of machine.", default=None, is_a=Format.NAME)
    token_hash_sha256: str = restart("The Node token's sha256, 64 hex digits (C25).", is_a=Format.SHA256)
    previous_token_hash_sha256: str | None = restart(
        "A token that is accepted too while it is rotated.", default=None, is_a=Format.SHA256
    )
    runtime: NodeRuntime = section("Legacy metadata (C17).", NodeRuntime)
    adapters: tuple[AdapterConfig, ...] = members(
        "Its adapter instances.", AdapterConfig, key="name", policy=Policy.RESTART
    )
    providers: tuple[ProviderConfig, ...] = members(
        "Its schedulable resources.", ProviderConfig, key="id", policy=Policy.RESTART
    )


@config_class
class EdgeConfig(ConfigObject):
    """The whole file."""

    edge: EdgeIdentity = section("Who this Edge is.", EdgeIdentity, required=True)
    server: ServerConfig = section("The gRPC listener that Nodes dial.", ServerConfig)
    bootstrap: BootstrapConfig = section("Where a new machine gets what it needs to join.", BootstrapConfig)
    admin: AdminConfig = section("The operator's API.", AdminConfig)
    logging: LoggingConfig = section("What is written to stderr.", LoggingConfig)
    metrics: MetricsConfig = section("The Prometheus endpoint.", MetricsConfig)
    console: ConsoleConfig = section("The status page.", ConsoleConfig)
    control_plane: ControlPlaneConfig = section("Management from outside.", ControlPlaneConfig)
    openai: OpenAIConfig = section("The listener for clients.", OpenAIConfig)
    a2a: A2AConfig = section("The agent-to-agent listener.", A2AConfig)
    long_context_threshold_tokens: int = live(
        "A request of at least so many estimated input tokens is long (P3).", default=100_000, ge=1
    )
    models: tuple[ModelConfig, ...] = members("The model groups.", ModelConfig, key="id", policy=Policy.LIVE)
    nodes: tuple[NodeConfig, ...] = members("The machines.", NodeConfig, key="id", policy=Policy.RESTART)
