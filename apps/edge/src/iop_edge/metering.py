"""Usage: one record per admitted request, written behind the request's back, and counters with bounded labels (E9)."""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

import anyio
import anyio.to_thread
import msgspec
from attrs import define, field
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from iop_edge.errors import TABLE

__all__ = ["Meter", "RunRecord"]

log = logging.getLogger("iop.edge.usage")
request_log = logging.getLogger("iop.edge.requests")

_RECENT = 100  # requests that the console can show
_BACKLOG = 100_000  # records that wait for a disk which has stopped: some tens of MB
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_BOUNDS = (*(str(bound) for bound in _BUCKETS), "+Inf")


class RunRecord(msgspec.Struct, kw_only=True):
    """One admitted request, whatever became of it; the field order is the order in the usage log."""

    time: datetime
    """When it came, in UTC; RFC 3339 in the log."""
    request_id: str
    surface: str
    model: str
    provider: str | None = None
    node: str | None = None
    principal_ref: str | None = None
    principal_alias: str | None = None
    token_ref: str | None = None
    context_class: str = "normal"
    stream: bool = False
    outcome: str = "ok"
    """`ok`, or the stable code of the error that ended it (E3)."""
    status: int = 200
    """The HTTP status that the client got; 499 where it had left before any."""
    attempts: int = 0
    queue_ms: int = 0
    first_event_ms: int | None = None
    duration_ms: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usage_source: str = "estimate"


@define
class _Histogram:
    """Counts per bucket; cheap to add to, rendered on scrape."""

    counts: list[int] = field(factory=lambda: [0] * len(_BOUNDS))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(_BUCKETS, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        seen = 0
        found: list[tuple[str, float]] = []
        for bound, count in zip(_BOUNDS, self.counts, strict=True):
            seen += count
            found.append((bound, float(seen)))
        return found


_Key = tuple[str, ...]


class Meter(Collector):
    """Counts runs and queues their records; the request path only touches plain dicts and a deque.

    Labels come from the config alone (models, providers, principals, token refs) or from the table of error codes, so
    their number is bounded. `leaked_slots` is asked on each scrape (P8). `registry` gets this as one collector.
    """

    def __init__(
        self,
        usage_log: str | None = None,
        *,
        registry: CollectorRegistry | None = None,
        leaked_slots: Callable[[], int] | None = None,
        flush_seconds: float = 0.25,
    ) -> None:
        self._path = usage_log
        self._leaked_slots = leaked_slots
        self._flush_seconds = flush_seconds
        self._pending: deque[RunRecord] = deque()
        self._wake: anyio.Event | None = None
        self._runs: dict[_Key, int] = {}
        self._tokens: dict[_Key, int] = {}
        self._refused: dict[_Key, int] = {}
        self._attempts: dict[_Key, int] = {}
        self._duration: dict[_Key, _Histogram] = {}
        self._first_event: dict[_Key, _Histogram] = {}
        self._queue: dict[_Key, _Histogram] = {}
        self.records_lost = 0
        """Records that could not be written."""
        self._recent: deque[RunRecord] = deque(maxlen=_RECENT)
        if registry is not None:
            registry.register(self)

    # -- the request path ---------------------------------------------------------------------------------------

    def record(self, record: RunRecord) -> None:
        """Count a request that is over, and queue its line for the usage log."""
        self._recent.append(record)
        _log(record)
        principal, token = record.principal_ref or "", record.token_ref or ""
        provider = record.provider or ""
        _add(self._runs, (record.model, provider, principal, token, record.surface, record.outcome), 1)
        owner = (record.model, provider, principal, token)
        if record.input_tokens:
            _add(self._tokens, (*owner, "input", record.usage_source), record.input_tokens)
        if record.output_tokens:
            _add(self._tokens, (*owner, "output", record.usage_source), record.output_tokens)
        model = (record.model,)
        _observe(self._duration, model, record.duration_ms)
        _observe(self._queue, model, record.queue_ms)
        if record.first_event_ms is not None:
            _observe(self._first_event, model, record.first_event_ms)
        if self._path is None:
            return
        if len(self._pending) >= _BACKLOG:
            self._pending.popleft()
            self.records_lost += 1
        self._pending.append(record)
        if self._wake is not None:
            self._wake.set()

    def recent(self) -> tuple[RunRecord, ...]:
        """The admitted requests that ended last, the newest last; for the console."""
        return tuple(self._recent)

    def attempt(self, provider: str, outcome: str) -> None:
        """Count the end of one attempt on a provider; `outcome` is a value of P14."""
        _add(self._attempts, (provider, outcome), 1)

    def refused(self, code: str) -> None:
        """Count a request that was not admitted, by its error code alone: its model may be anything."""
        _add(self._refused, (code,), 1)

    # -- the usage log --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write what is queued, at most `flush_seconds` after it came, until cancelled; then write the rest."""
        if self._path is None:
            return
        try:
            while True:
                self._wake = anyio.Event()
                if not self._pending:
                    await self._wake.wait()
                # One write for what comes in this while, rather than one per request.
                await anyio.sleep(self._flush_seconds)
                await self._flush()
        finally:
            self._wake = None
            with anyio.CancelScope(shield=True):
                await self._flush()

    async def _flush(self) -> None:
        if self._path is None or not self._pending:
            return
        batch, self._pending = self._pending, deque()
        lines = b"".join(msgspec.json.encode(record) + b"\n" for record in batch)
        try:
            await anyio.to_thread.run_sync(_append, self._path, lines)
        except OSError as error:
            # Usage must not stop the traffic; that it is lost must be seen.
            self.records_lost += len(batch)
            log.error("usage log: %d records are lost: %s", len(batch), error.strerror or type(error).__name__)

    # -- metrics --------------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Render the counters for a scrape."""
        yield _counter(
            "iop_runs",
            "Admitted requests that are over.",
            ("model", "provider", "principal_ref", "token_ref", "surface", "outcome"),
            self._runs,
        )
        yield _counter(
            "iop_tokens",
            "Tokens of admitted requests.",
            ("model", "provider", "principal_ref", "token_ref", "direction", "source"),
            self._tokens,
        )
        yield _counter(
            "iop_attempts", "Attempts on a provider, by what they say of it.", ("provider", "outcome"), self._attempts
        )
        yield _counter("iop_refused", "Requests that were not admitted.", ("code",), self._refused)
        yield _histogram("iop_run_duration_seconds", "From admission to the end.", self._duration)
        yield _histogram("iop_queue_seconds", "Waiting for a slot.", self._queue)
        yield _histogram("iop_first_event_seconds", "From admission to the first byte.", self._first_event)
        lost = CounterMetricFamily("iop_usage_records_lost", "Usage records that could not be written.")
        lost.add_metric((), self.records_lost)
        yield lost
        if self._leaked_slots is not None:
            leaked = GaugeMetricFamily("iop_leaked_slots", "Slots that are held without a live run; must stay 0 (P8).")
            leaked.add_metric((), self._leaked_slots())
            yield leaked


def _log(record: RunRecord) -> None:
    """One line per admitted request: our failures at `warning`, the client's own at `info`, the rest at `debug`."""
    if record.outcome == "ok":
        level = logging.DEBUG
    else:
        kind = TABLE.get(record.outcome)
        # A stream that failed after its first byte left with 200: what counts is how it ended.
        level = logging.INFO if kind is not None and kind.status < 500 else logging.WARNING
    if request_log.isEnabledFor(level):
        facts = msgspec.structs.asdict(record)
        del facts["time"]
        request_log.log(level, "request ended: %s", facts.pop("outcome"), extra={"facts": facts})


def _append(path: str, lines: bytes) -> None:
    # Opened for each batch, so that a rotated file is followed; 0600, for it tells who asked how much.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(descriptor, "ab", buffering=0) as file:
        view = memoryview(lines)
        while view:
            view = view[file.write(view) :]


def _add(counters: dict[_Key, int], key: _Key, count: int) -> None:
    counters[key] = counters.get(key, 0) + count


def _observe(histograms: dict[_Key, _Histogram], key: _Key, milliseconds: int) -> None:
    found = histograms.get(key)
    if found is None:
        found = histograms[key] = _Histogram()
    found.add(milliseconds / 1000)


def _counter(name: str, text: str, labels: Iterable[str], values: dict[_Key, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=tuple(labels))
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _histogram(name: str, text: str, values: dict[_Key, _Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=("model",))
    for key, value in values.items():
        family.add_metric(key, value.cumulative(), value.total)
    return family
