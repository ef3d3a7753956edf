from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConfigStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONFIG_STATUS_UNSPECIFIED: _ClassVar[ConfigStatus]
    CONFIG_STATUS_APPLIED: _ClassVar[ConfigStatus]
    CONFIG_STATUS_REJECTED: _ClassVar[ConfigStatus]
    CONFIG_STATUS_SUPERSEDED: _ClassVar[ConfigStatus]

class ProviderHealth(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROVIDER_HEALTH_UNSPECIFIED: _ClassVar[ProviderHealth]
    PROVIDER_HEALTH_HEALTHY: _ClassVar[ProviderHealth]
    PROVIDER_HEALTH_DEGRADED: _ClassVar[ProviderHealth]
    PROVIDER_HEALTH_UNHEALTHY: _ClassVar[ProviderHealth]

class TerminalKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TERMINAL_KIND_UNSPECIFIED: _ClassVar[TerminalKind]
    TERMINAL_KIND_COMPLETED: _ClassVar[TerminalKind]
    TERMINAL_KIND_FAILED: _ClassVar[TerminalKind]
    TERMINAL_KIND_CANCELLED: _ClassVar[TerminalKind]

class UsageSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    USAGE_SOURCE_UNSPECIFIED: _ClassVar[UsageSource]
    USAGE_SOURCE_RUNTIME: _ClassVar[UsageSource]
    USAGE_SOURCE_ESTIMATE: _ClassVar[UsageSource]

class ContextClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTEXT_CLASS_UNSPECIFIED: _ClassVar[ContextClass]
    CONTEXT_CLASS_NORMAL: _ClassVar[ContextClass]
    CONTEXT_CLASS_LONG: _ClassVar[ContextClass]

class SessionEndReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_END_REASON_UNSPECIFIED: _ClassVar[SessionEndReason]
    SESSION_END_REASON_FENCED: _ClassVar[SessionEndReason]
    SESSION_END_REASON_DUPLICATE_NODE: _ClassVar[SessionEndReason]
    SESSION_END_REASON_EDGE_SHUTDOWN: _ClassVar[SessionEndReason]
    SESSION_END_REASON_PROTOCOL_ERROR: _ClassVar[SessionEndReason]
    SESSION_END_REASON_UNRESPONSIVE: _ClassVar[SessionEndReason]
CONFIG_STATUS_UNSPECIFIED: ConfigStatus
CONFIG_STATUS_APPLIED: ConfigStatus
CONFIG_STATUS_REJECTED: ConfigStatus
CONFIG_STATUS_SUPERSEDED: ConfigStatus
PROVIDER_HEALTH_UNSPECIFIED: ProviderHealth
PROVIDER_HEALTH_HEALTHY: ProviderHealth
PROVIDER_HEALTH_DEGRADED: ProviderHealth
PROVIDER_HEALTH_UNHEALTHY: ProviderHealth
TERMINAL_KIND_UNSPECIFIED: TerminalKind
TERMINAL_KIND_COMPLETED: TerminalKind
TERMINAL_KIND_FAILED: TerminalKind
TERMINAL_KIND_CANCELLED: TerminalKind
USAGE_SOURCE_UNSPECIFIED: UsageSource
USAGE_SOURCE_RUNTIME: UsageSource
USAGE_SOURCE_ESTIMATE: UsageSource
CONTEXT_CLASS_UNSPECIFIED: ContextClass
CONTEXT_CLASS_NORMAL: ContextClass
CONTEXT_CLASS_LONG: ContextClass
SESSION_END_REASON_UNSPECIFIED: SessionEndReason
SESSION_END_REASON_FENCED: SessionEndReason
SESSION_END_REASON_DUPLICATE_NODE: SessionEndReason
SESSION_END_REASON_EDGE_SHUTDOWN: SessionEndReason
SESSION_END_REASON_PROTOCOL_ERROR: SessionEndReason
SESSION_END_REASON_UNRESPONSIVE: SessionEndReason

class NodeFrame(_message.Message):
    __slots__ = ("frame_seq", "hello", "config_result", "provider_status", "run_events", "heartbeat", "draining", "goodbye")
    FRAME_SEQ_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CONFIG_RESULT_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_STATUS_FIELD_NUMBER: _ClassVar[int]
    RUN_EVENTS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    frame_seq: int
    hello: Hello
    config_result: ConfigResult
    provider_status: ProviderStatus
    run_events: RunEvents
    heartbeat: Heartbeat
    draining: Draining
    goodbye: Goodbye
    def __init__(self, frame_seq: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., config_result: _Optional[_Union[ConfigResult, _Mapping]] = ..., provider_status: _Optional[_Union[ProviderStatus, _Mapping]] = ..., run_events: _Optional[_Union[RunEvents, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_min", "protocol_max", "node_id", "instance_id", "hostname", "pid", "node_version", "capabilities", "applied_config_version", "provider_status", "stopping_attempts", "applied_generation")
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    NODE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    APPLIED_CONFIG_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_STATUS_FIELD_NUMBER: _ClassVar[int]
    STOPPING_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    protocol_min: int
    protocol_max: int
    node_id: str
    instance_id: bytes
    hostname: str
    pid: int
    node_version: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    applied_config_version: str
    provider_status: _containers.RepeatedCompositeFieldContainer[ProviderState]
    stopping_attempts: _containers.RepeatedCompositeFieldContainer[AttemptKey]
    applied_generation: int
    def __init__(self, protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., node_id: _Optional[str] = ..., instance_id: _Optional[bytes] = ..., hostname: _Optional[str] = ..., pid: _Optional[int] = ..., node_version: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ..., applied_config_version: _Optional[str] = ..., provider_status: _Optional[_Iterable[_Union[ProviderState, _Mapping]]] = ..., stopping_attempts: _Optional[_Iterable[_Union[AttemptKey, _Mapping]]] = ..., applied_generation: _Optional[int] = ...) -> None: ...

class AttemptKey(_message.Message):
    __slots__ = ("run_id", "attempt", "provider_id", "long")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    LONG_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    provider_id: str
    long: bool
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ..., provider_id: _Optional[str] = ..., long: _Optional[bool] = ...) -> None: ...

class ConfigResult(_message.Message):
    __slots__ = ("push_id", "status", "applied_version", "errors", "carried_over", "rebuilt", "draining", "applied_generation")
    PUSH_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_VERSION_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    CARRIED_OVER_FIELD_NUMBER: _ClassVar[int]
    REBUILT_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    APPLIED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    push_id: str
    status: ConfigStatus
    applied_version: str
    errors: _containers.RepeatedCompositeFieldContainer[ConfigError]
    carried_over: _containers.RepeatedScalarFieldContainer[str]
    rebuilt: _containers.RepeatedScalarFieldContainer[str]
    draining: _containers.RepeatedScalarFieldContainer[str]
    applied_generation: int
    def __init__(self, push_id: _Optional[str] = ..., status: _Optional[_Union[ConfigStatus, str]] = ..., applied_version: _Optional[str] = ..., errors: _Optional[_Iterable[_Union[ConfigError, _Mapping]]] = ..., carried_over: _Optional[_Iterable[str]] = ..., rebuilt: _Optional[_Iterable[str]] = ..., draining: _Optional[_Iterable[str]] = ..., applied_generation: _Optional[int] = ...) -> None: ...

class ConfigError(_message.Message):
    __slots__ = ("path", "code", "message")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    path: str
    code: str
    message: str
    def __init__(self, path: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ProviderStatus(_message.Message):
    __slots__ = ("providers",)
    PROVIDERS_FIELD_NUMBER: _ClassVar[int]
    providers: _containers.RepeatedCompositeFieldContainer[ProviderState]
    def __init__(self, providers: _Optional[_Iterable[_Union[ProviderState, _Mapping]]] = ...) -> None: ...

class ProviderState(_message.Message):
    __slots__ = ("provider_id", "health", "message", "context_tokens", "runtime_slots")
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_SLOTS_FIELD_NUMBER: _ClassVar[int]
    provider_id: str
    health: ProviderHealth
    message: str
    context_tokens: int
    runtime_slots: int
    def __init__(self, provider_id: _Optional[str] = ..., health: _Optional[_Union[ProviderHealth, str]] = ..., message: _Optional[str] = ..., context_tokens: _Optional[int] = ..., runtime_slots: _Optional[int] = ...) -> None: ...

class RunEvents(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[RunEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[RunEvent, _Mapping]]] = ...) -> None: ...

class RunEvent(_message.Message):
    __slots__ = ("run_id", "attempt", "seq", "accepted", "head", "chunk", "terminal")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    seq: int
    accepted: Accepted
    head: Head
    chunk: Chunk
    terminal: Terminal
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ..., seq: _Optional[int] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., head: _Optional[_Union[Head, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., terminal: _Optional[_Union[Terminal, _Mapping]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Head(_message.Message):
    __slots__ = ("status", "headers")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    status: int
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    def __init__(self, status: _Optional[int] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class Terminal(_message.Message):
    __slots__ = ("kind", "usage", "error", "last_seq", "started")
    KIND_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQ_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    kind: TerminalKind
    usage: Usage
    error: RunError
    last_seq: int
    started: bool
    def __init__(self, kind: _Optional[_Union[TerminalKind, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., error: _Optional[_Union[RunError, _Mapping]] = ..., last_seq: _Optional[int] = ..., started: _Optional[bool] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("input_tokens", "output_tokens", "source", "cached_input_tokens")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CACHED_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    output_tokens: int
    source: UsageSource
    cached_input_tokens: int
    def __init__(self, input_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., source: _Optional[_Union[UsageSource, str]] = ..., cached_input_tokens: _Optional[int] = ...) -> None: ...

class RunError(_message.Message):
    __slots__ = ("code", "message", "upstream_status", "upstream_body", "retry_after_ms", "retryable", "maybe_executed", "outcome")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_STATUS_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_BODY_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    MAYBE_EXECUTED_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    upstream_status: int
    upstream_body: bytes
    retry_after_ms: int
    retryable: bool
    maybe_executed: bool
    outcome: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., upstream_status: _Optional[int] = ..., upstream_body: _Optional[bytes] = ..., retry_after_ms: _Optional[int] = ..., retryable: _Optional[bool] = ..., maybe_executed: _Optional[bool] = ..., outcome: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("n", "loop_lag_ms", "active_runs", "rss_bytes")
    N_FIELD_NUMBER: _ClassVar[int]
    LOOP_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_RUNS_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    n: int
    loop_lag_ms: int
    active_runs: int
    rss_bytes: int
    def __init__(self, n: _Optional[int] = ..., loop_lag_ms: _Optional[int] = ..., active_runs: _Optional[int] = ..., rss_bytes: _Optional[int] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ("reason", "grace_ms")
    REASON_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    grace_ms: int
    def __init__(self, reason: _Optional[str] = ..., grace_ms: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class EdgeFrame(_message.Message):
    __slots__ = ("frame_seq", "welcome", "config_refresh", "run_request", "run_payload", "run_credit", "cancel_run", "heartbeat_ack", "drain_request", "session_end")
    FRAME_SEQ_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_REFRESH_FIELD_NUMBER: _ClassVar[int]
    RUN_REQUEST_FIELD_NUMBER: _ClassVar[int]
    RUN_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    RUN_CREDIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_RUN_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_ACK_FIELD_NUMBER: _ClassVar[int]
    DRAIN_REQUEST_FIELD_NUMBER: _ClassVar[int]
    SESSION_END_FIELD_NUMBER: _ClassVar[int]
    frame_seq: int
    welcome: Welcome
    config_refresh: NodeConfigRefreshRequest
    run_request: RunRequest
    run_payload: RunPayload
    run_credit: RunCredit
    cancel_run: CancelRun
    heartbeat_ack: HeartbeatAck
    drain_request: DrainRequest
    session_end: SessionEnd
    def __init__(self, frame_seq: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., config_refresh: _Optional[_Union[NodeConfigRefreshRequest, _Mapping]] = ..., run_request: _Optional[_Union[RunRequest, _Mapping]] = ..., run_payload: _Optional[_Union[RunPayload, _Mapping]] = ..., run_credit: _Optional[_Union[RunCredit, _Mapping]] = ..., cancel_run: _Optional[_Union[CancelRun, _Mapping]] = ..., heartbeat_ack: _Optional[_Union[HeartbeatAck, _Mapping]] = ..., drain_request: _Optional[_Union[DrainRequest, _Mapping]] = ..., session_end: _Optional[_Union[SessionEnd, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "session_id", "epoch", "edge_id", "edge_version", "capabilities", "heartbeat_ms", "dead_after_ms", "max_frame_bytes", "max_payload_bytes", "config")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EDGE_ID_FIELD_NUMBER: _ClassVar[int]
    EDGE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    DEAD_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    session_id: str
    epoch: int
    edge_id: str
    edge_version: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    heartbeat_ms: int
    dead_after_ms: int
    max_frame_bytes: int
    max_payload_bytes: int
    config: NodeConfigPayload
    def __init__(self, protocol: _Optional[int] = ..., session_id: _Optional[str] = ..., epoch: _Optional[int] = ..., edge_id: _Optional[str] = ..., edge_version: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ..., heartbeat_ms: _Optional[int] = ..., dead_after_ms: _Optional[int] = ..., max_frame_bytes: _Optional[int] = ..., max_payload_bytes: _Optional[int] = ..., config: _Optional[_Union[NodeConfigPayload, _Mapping]] = ...) -> None: ...

class NodeConfigPayload(_message.Message):
    __slots__ = ("config_version", "generation", "adapters", "providers", "runtime")
    CONFIG_VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    PROVIDERS_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    config_version: str
    generation: int
    adapters: _containers.RepeatedCompositeFieldContainer[AdapterConfig]
    providers: _containers.RepeatedCompositeFieldContainer[ProviderConfig]
    runtime: NodeRuntimeConfig
    def __init__(self, config_version: _Optional[str] = ..., generation: _Optional[int] = ..., adapters: _Optional[_Iterable[_Union[AdapterConfig, _Mapping]]] = ..., providers: _Optional[_Iterable[_Union[ProviderConfig, _Mapping]]] = ..., runtime: _Optional[_Union[NodeRuntimeConfig, _Mapping]] = ...) -> None: ...

class NodeRuntimeConfig(_message.Message):
    __slots__ = ("concurrency",)
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    concurrency: int
    def __init__(self, concurrency: _Optional[int] = ...) -> None: ...

class AdapterConfig(_message.Message):
    __slots__ = ("key", "kind", "enabled", "request_timeout_ms", "first_event_timeout_ms", "idle_timeout_ms", "openai_compat", "ollama", "cli", "echo")
    KEY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    FIRST_EVENT_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    OPENAI_COMPAT_FIELD_NUMBER: _ClassVar[int]
    OLLAMA_FIELD_NUMBER: _ClassVar[int]
    CLI_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    key: str
    kind: str
    enabled: bool
    request_timeout_ms: int
    first_event_timeout_ms: int
    idle_timeout_ms: int
    openai_compat: OpenAICompatAdapterConfig
    ollama: OllamaAdapterConfig
    cli: CliAdapterConfig
    echo: EchoAdapterConfig
    def __init__(self, key: _Optional[str] = ..., kind: _Optional[str] = ..., enabled: _Optional[bool] = ..., request_timeout_ms: _Optional[int] = ..., first_event_timeout_ms: _Optional[int] = ..., idle_timeout_ms: _Optional[int] = ..., openai_compat: _Optional[_Union[OpenAICompatAdapterConfig, _Mapping]] = ..., ollama: _Optional[_Union[OllamaAdapterConfig, _Mapping]] = ..., cli: _Optional[_Union[CliAdapterConfig, _Mapping]] = ..., echo: _Optional[_Union[EchoAdapterConfig, _Mapping]] = ...) -> None: ...

class OpenAICompatAdapterConfig(_message.Message):
    __slots__ = ("provider", "base_url", "headers", "context_size")
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    BASE_URL_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_SIZE_FIELD_NUMBER: _ClassVar[int]
    provider: str
    base_url: str
    headers: _containers.RepeatedCompositeFieldContainer[SecretHeader]
    context_size: int
    def __init__(self, provider: _Optional[str] = ..., base_url: _Optional[str] = ..., headers: _Optional[_Iterable[_Union[SecretHeader, _Mapping]]] = ..., context_size: _Optional[int] = ...) -> None: ...

class OllamaAdapterConfig(_message.Message):
    __slots__ = ("provider", "base_url", "headers", "context_size")
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    BASE_URL_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_SIZE_FIELD_NUMBER: _ClassVar[int]
    provider: str
    base_url: str
    headers: _containers.RepeatedCompositeFieldContainer[SecretHeader]
    context_size: int
    def __init__(self, provider: _Optional[str] = ..., base_url: _Optional[str] = ..., headers: _Optional[_Iterable[_Union[SecretHeader, _Mapping]]] = ..., context_size: _Optional[int] = ...) -> None: ...

class CliAdapterConfig(_message.Message):
    __slots__ = ("provider", "command", "args", "resume_args", "env", "mode", "output_format", "prompt", "working_dir", "max_output_bytes", "context_size")
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    RESUME_ARGS_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    WORKING_DIR_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_SIZE_FIELD_NUMBER: _ClassVar[int]
    provider: str
    command: str
    args: _containers.RepeatedScalarFieldContainer[str]
    resume_args: _containers.RepeatedScalarFieldContainer[str]
    env: _containers.RepeatedCompositeFieldContainer[EnvVar]
    mode: str
    output_format: str
    prompt: str
    working_dir: str
    max_output_bytes: int
    context_size: int
    def __init__(self, provider: _Optional[str] = ..., command: _Optional[str] = ..., args: _Optional[_Iterable[str]] = ..., resume_args: _Optional[_Iterable[str]] = ..., env: _Optional[_Iterable[_Union[EnvVar, _Mapping]]] = ..., mode: _Optional[str] = ..., output_format: _Optional[str] = ..., prompt: _Optional[str] = ..., working_dir: _Optional[str] = ..., max_output_bytes: _Optional[int] = ..., context_size: _Optional[int] = ...) -> None: ...

class EchoAdapterConfig(_message.Message):
    __slots__ = ("provider", "context_size")
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_SIZE_FIELD_NUMBER: _ClassVar[int]
    provider: str
    context_size: int
    def __init__(self, provider: _Optional[str] = ..., context_size: _Optional[int] = ...) -> None: ...

class SecretHeader(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class EnvVar(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class ProviderConfig(_message.Message):
    __slots__ = ("id", "adapter", "category", "models", "enabled", "capacity", "probe", "context_size", "request_timeout_ms", "lifecycle")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_SIZE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    LIFECYCLE_FIELD_NUMBER: _ClassVar[int]
    id: str
    adapter: str
    category: str
    models: _containers.RepeatedScalarFieldContainer[str]
    enabled: bool
    capacity: int
    probe: ProbePolicy
    context_size: int
    request_timeout_ms: int
    lifecycle: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., adapter: _Optional[str] = ..., category: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., enabled: _Optional[bool] = ..., capacity: _Optional[int] = ..., probe: _Optional[_Union[ProbePolicy, _Mapping]] = ..., context_size: _Optional[int] = ..., request_timeout_ms: _Optional[int] = ..., lifecycle: _Optional[_Iterable[str]] = ...) -> None: ...

class ProbePolicy(_message.Message):
    __slots__ = ("enabled", "interval_ms")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    interval_ms: int
    def __init__(self, enabled: _Optional[bool] = ..., interval_ms: _Optional[int] = ...) -> None: ...

class NodeConfigRefreshRequest(_message.Message):
    __slots__ = ("push_id", "payload")
    PUSH_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    push_id: str
    payload: NodeConfigPayload
    def __init__(self, push_id: _Optional[str] = ..., payload: _Optional[_Union[NodeConfigPayload, _Mapping]] = ...) -> None: ...

class RunRequest(_message.Message):
    __slots__ = ("run_id", "attempt", "adapter", "target", "operation", "generation", "deadline_ms", "streaming", "context_class", "headers", "secret_headers", "credit_bytes", "payload", "payload_bytes", "provider_id", "input_tokens_estimate", "include_usage")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    STREAMING_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_CLASS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    SECRET_HEADERS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_USAGE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    adapter: str
    target: str
    operation: str
    generation: int
    deadline_ms: int
    streaming: bool
    context_class: ContextClass
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    secret_headers: _containers.RepeatedCompositeFieldContainer[SecretHeader]
    credit_bytes: int
    payload: bytes
    payload_bytes: int
    provider_id: str
    input_tokens_estimate: int
    include_usage: bool
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ..., adapter: _Optional[str] = ..., target: _Optional[str] = ..., operation: _Optional[str] = ..., generation: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., streaming: _Optional[bool] = ..., context_class: _Optional[_Union[ContextClass, str]] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., secret_headers: _Optional[_Iterable[_Union[SecretHeader, _Mapping]]] = ..., credit_bytes: _Optional[int] = ..., payload: _Optional[bytes] = ..., payload_bytes: _Optional[int] = ..., provider_id: _Optional[str] = ..., input_tokens_estimate: _Optional[int] = ..., include_usage: _Optional[bool] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class RunPayload(_message.Message):
    __slots__ = ("run_id", "attempt", "offset", "data", "last")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    offset: int
    data: bytes
    last: bool
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class RunCredit(_message.Message):
    __slots__ = ("run_id", "attempt", "bytes")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    bytes: int
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class CancelRun(_message.Message):
    __slots__ = ("run_id", "attempt", "reason")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    reason: str
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class HeartbeatAck(_message.Message):
    __slots__ = ("n",)
    N_FIELD_NUMBER: _ClassVar[int]
    n: int
    def __init__(self, n: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("reason", "grace_ms")
    REASON_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    grace_ms: int
    def __init__(self, reason: _Optional[str] = ..., grace_ms: _Optional[int] = ...) -> None: ...

class SessionEnd(_message.Message):
    __slots__ = ("reason", "message", "retry_after_ms")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    reason: SessionEndReason
    message: str
    retry_after_ms: int
    def __init__(self, reason: _Optional[_Union[SessionEndReason, str]] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...
