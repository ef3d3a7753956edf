"""Wire messages of runs and states to and from the Node's own values; by hand, in this one place."""

from __future__ import annotations

from iop_node.link import (
    ConfigOutcome,
    EndKind,
    Health,
    ProviderState,
    RunEnd,
    RunOrder,
    StoppingAttempt,
)
from iop_wire import runtime_pb2 as pb
from iop_wire.limits import KIB, UPSTREAM_BODY_MAX

_HEADERS_MAX = 32 * KIB
_TEXT_MAX = 8 * KIB

_HEALTH = {
    Health.UNKNOWN: pb.PROVIDER_HEALTH_UNSPECIFIED,
    Health.HEALTHY: pb.PROVIDER_HEALTH_HEALTHY,
    Health.DEGRADED: pb.PROVIDER_HEALTH_DEGRADED,
    Health.UNHEALTHY: pb.PROVIDER_HEALTH_UNHEALTHY,
}
_KIND = {
    EndKind.COMPLETED: pb.TERMINAL_KIND_COMPLETED,
    EndKind.FAILED: pb.TERMINAL_KIND_FAILED,
    EndKind.CANCELLED: pb.TERMINAL_KIND_CANCELLED,
}


def order_from(request: pb.RunRequest, body: bytes) -> RunOrder:
    """Return the run to execute, with its whole body."""
    return RunOrder(
        run_id=request.run_id,
        attempt=request.attempt,
        adapter=request.adapter,
        target=request.target,
        operation=request.operation,
        body=body,
        streaming=request.streaming,
        generation=request.generation,
        provider_id=request.provider_id,
        long=request.context_class == pb.CONTEXT_CLASS_LONG,
        include_usage=request.include_usage,
        deadline_ms=request.deadline_ms,
        input_tokens_estimate=request.input_tokens_estimate,
        headers=tuple((header.name, header.value) for header in request.headers),
        secret_headers=tuple((header.name, header.value) for header in request.secret_headers),
    )


def head_message(status: int, headers: tuple[tuple[str, str], ...]) -> pb.Head:
    """Return the head of an answer; headers beyond 32 KiB in all are left out."""
    message = pb.Head(status=status)
    size = 0
    for name, value in headers:
        size += len(name) + len(value)
        if size <= _HEADERS_MAX:
            message.headers.add(name=name, value=value)
    return message


def terminal_message(end: RunEnd) -> pb.Terminal:
    """Return the end of a run, its texts cut to what a frame may carry; `last_seq` is set when it leaves."""
    message = pb.Terminal(kind=_KIND[end.kind], started=end.started)
    if (usage := end.usage) is not None:
        message.usage.input_tokens = usage.input_tokens
        message.usage.output_tokens = usage.output_tokens
        message.usage.cached_input_tokens = usage.cached_input_tokens
        message.usage.source = pb.USAGE_SOURCE_RUNTIME if usage.from_runtime else pb.USAGE_SOURCE_ESTIMATE
    if (error := end.error) is not None:
        message.error.code = error.code
        message.error.message = error.message[:_TEXT_MAX]
        message.error.upstream_status = error.upstream_status or 0
        message.error.upstream_body = error.upstream_body[:UPSTREAM_BODY_MAX]
        message.error.retry_after_ms = error.retry_after_ms or 0
        message.error.retryable = error.retryable
        message.error.maybe_executed = error.maybe_executed
        message.error.outcome = error.outcome
    return message


def state_message(state: ProviderState) -> pb.ProviderState:
    """Return what a probe found out, as a message."""
    return pb.ProviderState(
        provider_id=state.provider_id,
        health=_HEALTH[state.health],
        message=state.message[:_TEXT_MAX],
        context_tokens=state.context_tokens,
        runtime_slots=state.runtime_slots,
    )


def stopping_message(attempt: StoppingAttempt) -> pb.AttemptKey:
    """Return an attempt of an earlier session that still occupies its runtime."""
    return pb.AttemptKey(
        run_id=attempt.run_id, attempt=attempt.attempt, provider_id=attempt.provider_id, long=attempt.long
    )


def result_message(push_id: str, outcome: ConfigOutcome) -> pb.ConfigResult:
    """Return the answer to a config push (R9)."""
    return pb.ConfigResult(
        push_id=push_id,
        status=pb.CONFIG_STATUS_APPLIED if outcome.applied else pb.CONFIG_STATUS_REJECTED,
        applied_version=outcome.applied_version,
        applied_generation=outcome.applied_generation,
        errors=[
            pb.ConfigError(path=fault.path, code=fault.code, message=fault.message[:_TEXT_MAX])
            for fault in outcome.faults
        ],
        carried_over=outcome.carried_over,
        rebuilt=outcome.rebuilt,
        draining=outcome.draining,
    )
