"""`metrics.listen`: what the Meter counted and what pool and Nodes look like now, as Prometheus text (E9, P11)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import anyio
from anyio.abc import TaskStatus
from attrs import frozen
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from iop_edge.http.server import HttpLimits, serve

__all__ = ["StatusCollector", "metrics_app", "serve_metrics"]

Status = Mapping[str, object]
Row = Mapping[str, object]

_LIMITS = HttpLimits(max_connections=64, ignored_body_bytes=64 * 1024)
_MS, _ONE = 0.001, 1.0


async def serve_metrics(
    registry: CollectorRegistry,
    status: Callable[[], Status],
    *,
    host: str,
    port: int,
    shutdown: anyio.Event | None = None,
    task_status: TaskStatus[tuple[str, int]] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `GET /metrics` until `shutdown` is set or this is cancelled; `task_status` gets the real host and port.

    `registry` holds the Meter already; pool, Nodes and the process are added to it here. `status` gives the body of
    `GET /status` and is asked once per scrape: nothing is measured in between. Raises OSError where the address cannot
    be bound.
    """
    app = metrics_app(registry, status)
    await serve(app, host=host, port=port, limits=_LIMITS, shutdown=shutdown, grace=1.0, task_status=task_status)


def metrics_app(registry: CollectorRegistry, status: Callable[[], Status]) -> Starlette:
    """Return the ASGI app of the listener; adds the collectors of this module to `registry`."""
    registry.register(StatusCollector(status))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)

    async def metrics(request: Request) -> Response:
        try:
            encode, content_type = choose_encoder(request.headers.get("accept", ""))
        except (ValueError, IndexError, TypeError):
            # An Accept header that is none of ours to judge: every scraper reads the plain form.
            encode, content_type = generate_latest, "text/plain; version=0.0.4; charset=utf-8"
        return Response(encode(registry), headers={"content-type": content_type, "cache-control": "no-store"})

    async def home(_: Request) -> Response:
        return PlainTextResponse("iop-edge: the metrics are at /metrics\n")

    return Starlette(routes=[Route("/metrics", metrics), Route("/", home)])


@frozen
class _Gauge:
    """A number of each row; a row where it is null has no sample."""

    name: str
    text: str
    key: str
    scale: float = _ONE


@frozen
class _States:
    """A word of each row, as one sample per possible word: 1 for the one that holds."""

    name: str
    text: str
    key: str
    label: str
    words: tuple[str, ...]


@frozen
class _Totals:
    """The counters below `totals`, one sample per key."""

    name: str
    text: str
    label: str
    keys: tuple[str, ...]


_NODES: tuple[_Gauge | _States | _Totals, ...] = (
    _Gauge("iop_node_connected", "Whether the Node has a session.", "connected"),
    _States(
        "iop_node_state",
        "How the Node's session is doing.",
        "state",
        "state",
        ("disconnected", "connected", "suspect", "draining"),
    ),
    _Gauge("iop_node_acknowledged", "Whether the Node confirmed the configuration in force (R9).", "acknowledged"),
    _States(
        "iop_node_push",
        "What became of the newest configuration push to the Node (R9).",
        "push_state",
        "state",
        ("acked", "nacked", "no_answer", "superseded", "disconnected"),
    ),
    _Gauge("iop_node_runs", "Attempts that the Edge has given the Node and that have not ended.", "runs"),
    _Gauge("iop_node_active_runs", "Runs that the Node says it executes.", "active_runs"),
    _Gauge("iop_node_last_frame_age_seconds", "Since the Node was heard last.", "last_frame_age"),
    _Gauge("iop_node_loop_lag_seconds", "Delay of the Node's event loop, from its last heartbeat.", "loop_lag_ms", _MS),
    _Gauge("iop_node_resident_memory_bytes", "Memory of the Node's process.", "rss_bytes"),
    _Gauge("iop_node_dropped_frames", "Frames of this session that concerned no live attempt.", "dropped_frames"),
)
_PROVIDERS: tuple[_Gauge | _States | _Totals, ...] = (
    _States(
        "iop_provider_status",
        "Whether the provider takes runs (P11).",
        "status",
        "status",
        ("available", "disabled", "disconnected", "unavailable", "pending"),
    ),
    _States(
        "iop_provider_health",
        "What probes and outcomes say of the provider (P10, P11).",
        "health",
        "health",
        ("healthy", "degraded", "ejected", "unknown", "disabled"),
    ),
    _Gauge("iop_provider_capacity", "Runs at once by the config; 0 when disabled.", "capacity"),
    _Gauge("iop_provider_admits", "Runs at once that count now (R14).", "admits"),
    _Gauge("iop_provider_in_flight", "Slots that are held, cancelling ones included.", "in_flight"),
    _Gauge("iop_provider_cancelling", "Slots whose run is being stopped (P8).", "cancelling"),
    _Gauge("iop_provider_long_context_capacity", "Long runs at once, where they are counted.", "long_context_capacity"),
    _Gauge("iop_provider_long_in_flight", "Long slots that are held.", "long_in_flight"),
    _Gauge("iop_provider_queue_length", "Waiting requests that the provider could serve.", "queue_length"),
    _Gauge("iop_provider_consecutive_failures", "Broken runs in a row (P14).", "consecutive_failures"),
    _Gauge("iop_provider_service_seconds", "How long a run takes here, smoothed; for Retry-After.", "service_ms", _MS),
    _Totals("iop_provider_granted", "Slots granted.", "", ("granted",)),
    _Totals(
        "iop_provider_outcomes",
        "Ended runs by what they say of the provider (P14).",
        "outcome",
        ("ok", "client_error", "busy", "broken", "cancelled"),
    ),
    _Totals("iop_provider_ejections", "How often the provider was ejected (P10).", "", ("ejections",)),
)
_MODELS: tuple[_Gauge | _States | _Totals, ...] = (
    _Gauge("iop_model_in_flight", "Runs of the model.", "in_flight"),
    _Gauge("iop_model_queue_length", "Requests of the model that wait.", "queue_length"),
    _Gauge("iop_model_queue_bound", "Requests of the model that may wait (P6).", "queue_bound"),
    _Gauge("iop_model_oldest_wait_seconds", "How long the oldest has waited.", "oldest_wait_ms", _MS),
    _Totals(
        "iop_model_decisions",
        "What the pool decided for requests of the model; `queued` are those that had to wait first.",
        "decision",
        ("granted", "queued", "queue_full", "queue_timeout", "unavailable", "cancelled"),
    ),
)


class StatusCollector(Collector):
    """Pool and Nodes at the moment of a scrape. Labels are ids of the config and words of closed types: bounded."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Ask once, and render."""
        status = self._status()
        yield from _families(_rows(status, "nodes"), ("node",), lambda row: (_word(row, "id"),), _NODES)
        yield from _families(
            _rows(status, "providers"),
            ("provider", "node"),
            lambda row: (_word(row, "id"), _word(row, "node")),
            _PROVIDERS,
        )
        yield from _families(_rows(status, "models"), ("model",), lambda row: (_word(row, "id"),), _MODELS)
        for name, text, key in (
            ("iop_leases", "Slots that are held over all providers.", "leases"),
            ("iop_waiting", "Requests that wait over all models.", "waiting"),
        ):
            gauge = GaugeMetricFamily(name, text)
            gauge.add_metric((), _number(status, key) or 0.0)
            yield gauge
        yield from _config(status)


def _config(status: Status) -> Iterator[Metric]:
    """What became of refreshes, and what still waits for a restart (R5, R9)."""
    refresh = status.get("refresh")
    refresh = refresh if isinstance(refresh, Mapping) else {}
    totals = CounterMetricFamily(
        "iop_refreshes", "Refreshes that were no dry runs, by what became of them (R4).", labels=("status", "trigger")
    )
    for row in _rows(refresh, "totals"):
        totals.add_metric((_word(row, "status"), _word(row, "trigger")), _number(row, "count") or 0.0)
    yield totals
    success = GaugeMetricFamily("iop_refresh_last_success_seconds", "When one was applied last, Unix time.")
    at = _number(refresh, "last_success_at")
    if at is not None:
        success.add_metric((), at)
    yield success
    pending = GaugeMetricFamily("iop_config_pending_restart_paths", "Config paths that wait for a restart (R5).")
    paths = status.get("pending_restart_paths")
    pending.add_metric((), len(paths) if isinstance(paths, Sequence) else 0)
    yield pending


def _families(
    rows: Sequence[Row],
    labels: tuple[str, ...],
    values: Callable[[Row], tuple[str, ...]],
    columns: Iterable[_Gauge | _States | _Totals],
) -> Iterator[Metric]:
    keyed = [(values(row), row) for row in rows]
    for column in columns:
        family: GaugeMetricFamily | CounterMetricFamily
        if isinstance(column, _Gauge):
            family = GaugeMetricFamily(column.name, column.text, labels=labels)
            for key, row in keyed:
                number = _number(row, column.key)
                if number is not None:
                    family.add_metric(key, number * column.scale)
        elif isinstance(column, _States):
            family = GaugeMetricFamily(column.name, column.text, labels=(*labels, column.label))
            for key, row in keyed:
                word = _word(row, column.key)
                for possible in column.words:
                    family.add_metric((*key, possible), float(word == possible))
        else:
            extra = (column.label,) if column.label else ()
            family = CounterMetricFamily(column.name, column.text, labels=(*labels, *extra))
            for key, row in keyed:
                totals = row.get("totals")
                for name in column.keys:
                    number = _number(totals, name) if isinstance(totals, Mapping) else None
                    family.add_metric((*key, name) if extra else key, number or 0.0)
        yield family


def _rows(status: Status, key: str) -> list[Row]:
    rows = status.get(key)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, Sequence) else []


def _number(row: Row, key: str) -> float | None:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else None


def _word(row: Row, key: str) -> str:
    value = row.get(key)
    return "" if value is None else str(value)
