"""Wire messages to and from the Edge's own values: runs, states, answers to pushes; by hand, in this one place."""

from __future__ import annotations

from attrs import frozen

from iop_edge.nodes.run import End, EndKind, Head, RunError, RunSpec, Usage, UsageSource
from iop_edge.nodes.values import NodeHealth, ProviderState, PushFault, PushOutcome, PushState, StoppingAttempt
from iop_wire import runtime_pb2 as pb
from iop_wire.limits import INITIAL_CREDIT, INLINE_PAYLOAD_MAX

_HEALTH = {
    pb.PROVIDER_HEALTH_HEALTHY: NodeHealth.HEALTHY,
    pb.PROVIDER_HEALTH_DEGRADED: NodeHealth.DEGRADED,
    pb.PROVIDER_HEALTH_UNHEALTHY: NodeHealth.UNHEALTHY,
}
_KIND = {
    pb.TERMINAL_KIND_COMPLETED: EndKind.COMPLETED,
    pb.TERMINAL_KIND_CANCELLED: EndKind.CANCELLED,
}
_STATUS = {
    pb.CONFIG_STATUS_APPLIED: PushState.ACKED,
    pb.CONFIG_STATUS_SUPERSEDED: PushState.SUPERSEDED,
}
OUTCOMES = frozenset({"ok", "client_error", "busy", "broken", "cancelled"})
"""The closed type of P14; anything else that a Node says counts as `broken`."""


@frozen
class NodeInfo:
    """What a Node said of itself in its Hello."""

    node_id: str
    instance_id: bytes
    hostname: str
    pid: int
    node_version: str
    applied_version: str
    applied_generation: int
    providers: tuple[ProviderState, ...] = ()
    stopping: tuple[StoppingAttempt, ...] = ()


def info_from(hello: pb.Hello) -> NodeInfo:
    """Return what a Hello says."""
    return NodeInfo(
        node_id=hello.node_id,
        instance_id=hello.instance_id,
        hostname=hello.hostname,
        pid=hello.pid,
        node_version=hello.node_version,
        applied_version=hello.applied_config_version,
        applied_generation=hello.applied_generation,
        providers=tuple(state_from(state) for state in hello.provider_status),
        stopping=tuple(stopping_from(attempt) for attempt in hello.stopping_attempts),
    )


def request_message(spec: RunSpec) -> pb.RunRequest:
    """Return the request; a body above 64 KiB is announced and follows in parts."""
    message = pb.RunRequest(
        run_id=spec.run_id,
        attempt=spec.attempt,
        adapter=spec.adapter,
        target=spec.target,
        operation=spec.operation.value,
        generation=spec.generation,
        deadline_ms=spec.deadline_ms,
        streaming=spec.streaming,
        context_class=pb.CONTEXT_CLASS_LONG if spec.long else pb.CONTEXT_CLASS_NORMAL,
        credit_bytes=INITIAL_CREDIT,
        provider_id=spec.provider_id,
        include_usage=spec.include_usage,
        input_tokens_estimate=spec.input_tokens_estimate,
    )
    for name, value in spec.headers:
        message.headers.add(name=name, value=value)
    for name, value in spec.secret_headers:
        message.secret_headers.add(name=name, value=value)
    if len(spec.body) <= INLINE_PAYLOAD_MAX:
        message.payload = spec.body
    else:
        message.payload_bytes = len(spec.body)
    return message


def head_from(message: pb.Head) -> Head:
    """Return status and headers of the runtime's answer."""
    return Head(message.status, tuple((header.name, header.value) for header in message.headers))


def end_from(message: pb.Terminal) -> End:
    """Return the end of an attempt; a kind that this build does not know is a failure."""
    kind = _KIND.get(message.kind, EndKind.FAILED)
    error = _error_from(message.error) if message.HasField("error") else None
    if error is None and kind is EndKind.FAILED:
        error = RunError("upstream_error", "the Node gave no reason", maybe_executed=message.started)
    usage = _usage_from(message.usage) if message.HasField("usage") else None
    return End(kind, usage=usage, error=error, started=message.started)


def _usage_from(message: pb.Usage) -> Usage:
    return Usage(
        input_tokens=message.input_tokens,
        output_tokens=message.output_tokens,
        cached_input_tokens=message.cached_input_tokens,
        source=UsageSource.RUNTIME if message.source == pb.USAGE_SOURCE_RUNTIME else UsageSource.ESTIMATE,
    )


def _error_from(message: pb.RunError) -> RunError:
    return RunError(
        code=message.code or "upstream_error",
        message=message.message,
        upstream_status=message.upstream_status or None,
        upstream_body=message.upstream_body,
        retry_after_ms=message.retry_after_ms or None,
        retryable=message.retryable,
        maybe_executed=message.maybe_executed,
        outcome=message.outcome if message.outcome in OUTCOMES else "broken",
    )


def state_from(message: pb.ProviderState) -> ProviderState:
    """Return what a Node's probe found out."""
    return ProviderState(
        provider_id=message.provider_id,
        health=_HEALTH.get(message.health, NodeHealth.UNKNOWN),
        message=message.message,
        context_tokens=message.context_tokens,
        runtime_slots=message.runtime_slots,
    )


def stopping_from(message: pb.AttemptKey) -> StoppingAttempt:
    """Return an attempt of an earlier session that still occupies its runtime."""
    return StoppingAttempt(message.run_id, message.attempt, message.provider_id, message.long)


def outcome_from(message: pb.ConfigResult) -> PushOutcome:
    """Return the answer to a push; a status that this build does not know is a NACK."""
    return PushOutcome(
        push_id=message.push_id,
        state=_STATUS.get(message.status, PushState.NACKED),
        version=message.applied_version,
        generation=message.applied_generation,
        faults=tuple(PushFault(fault.path, fault.code, fault.message) for fault in message.errors),
        carried_over=tuple(message.carried_over),
        rebuilt=tuple(message.rebuilt),
        draining=tuple(message.draining),
    )
