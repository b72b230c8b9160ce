"""Metrics for Prometheus, at ``/metrics``. All values are read at the time of the request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, get_args

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from sqlalchemy import Connection, func, select

from gateway.app import Gateway
from gateway.cluster import NodeRow, NodeState, read_nodes
from gateway.contract.errors import RateLimitError
from gateway.contract.messages import now_ms
from gateway.contract.plugin import Figure
from gateway.counters import Counters, Histogram
from gateway.models import Ledger, to_usd
from gateway.store import schema as t

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The gateway's metrics, in their own registry."""

    def __init__(self, gateway: Gateway) -> None:
        self._registry = CollectorRegistry()
        self._gateway = gateway
        self._collector = _GatewayCollector(gateway)
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)

    async def respond(self) -> web.Response:
        """Return the current metrics in the text format."""
        self._collector.ages = await self._gateway.parts.store.read(_ages)
        if self._gateway.settings.cluster.url is not None:
            self._collector.nodes = await self._gateway.parts.store.read(read_nodes)
        self._collector.of_plugins = await self._gateway.registry.collect_figures()
        return web.Response(
            body=generate_latest(self._registry),
            headers={"Content-Type": _CONTENT_TYPE, "Cache-Control": "no-store"},
        )


class _GatewayCollector(Collector):
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.ages: tuple[int | None, int | None] = (None, None)
        """The times (ms) of the oldest open message and of the oldest unfinished delivery."""
        self.nodes: Sequence[NodeRow] = ()
        """The nodes of the cluster, if there is one."""
        self.of_plugins: tuple[Mapping[str, Sequence[Figure]], Sequence[str]] = {}, ()
        """The figures of plugins by name, and the plugins that failed to give theirs."""

    def collect(self) -> Iterator[Metric]:
        counters = self._gateway.counters
        yield from _message_counters(counters)
        yield from self._gauges()
        yield HistogramMetricFamily(
            "trunkline_first_text_seconds",
            "Time from the start of a turn to the first text of its answer",
            buckets=_buckets(counters.first_text),
            sum_value=counters.first_text.total,
        )
        yield from _call_metrics(counters)
        now = now_ms()
        received, sent = ((now - at) / 1000 if at is not None else 0.0 for at in self.ages)
        yield _gauge(
            "trunkline_oldest_message_seconds", "Age of the oldest message without an answer", received
        )
        yield _gauge("trunkline_outbox_age_seconds", "Age of the oldest unfinished delivery", sent)
        yield _labelled_counter(
            "trunkline_events_dropped",
            "Events that a slow subscriber lost",
            ["owner"],
            self._gateway.events.dropped,
        )
        if self.nodes:
            yield from _node_metrics(self.nodes)
        figures, failed = self.of_plugins
        yield _labelled_gauge(
            "trunkline_missing_figures",
            "1 if the metrics of the plugin are missing because it failed or was too slow",
            "plugin",
            dict.fromkeys(failed, 1.0),
        )
        yield from (_figure_family(name, same) for name, same in figures.items())

    def _gauges(self) -> Iterator[Metric]:
        gateway = self._gateway
        writer, live = gateway.parts.store.writer, gateway.parts.sessions.live()
        yield _counter("trunkline_commits", "Committed transactions", writer.commits)
        yield _counter("trunkline_commit_units", "Writes in those transactions", writer.units)
        yield _gauge(
            "trunkline_waiting", "Accepted messages without an answer", gateway.parts.dispatcher.waiting
        )
        yield _gauge("trunkline_sessions", "Sessions in memory", len(live))
        yield _gauge("trunkline_running_turns", "Running turns", sum(s.turn is not None for s in live))
        yield _gauge("trunkline_uptime_seconds", "Time since the start", gateway.counters.uptime)
        health = {name: float(ok) for name, (ok, _detail) in gateway.health().items()}
        yield from _cost_counters(gateway.parts.spending.ledger)
        yield _labelled_gauge("trunkline_health", "1 if the part works, else 0", "part", health)
        yield _labelled_gauge(
            "trunkline_clients", "Connected clients", "kind", dict(gateway.counters.clients)
        )


def _message_counters(counters: Counters) -> Iterator[Metric]:
    channel = ["channel"]
    yield _labelled_counter("trunkline_accepted", "Accepted messages", channel, counters.accepted)
    yield _labelled_counter(
        "trunkline_duplicates", "Messages that were already accepted", channel, counters.duplicates
    )
    yield _labelled_counter(
        "trunkline_feedback", "Feedback of users on answers", ["channel", "value"], counters.feedback
    )
    yield _counter("trunkline_refused", "Messages refused because too many waited", counters.refused)
    yield _labelled_counter(
        "trunkline_turns", "Finished turns", ["channel", "outcome", "error"], counters.turns
    )
    tokens = CounterMetricFamily("trunkline_tokens", "Tokens of answers", labels=["direction"])
    tokens.add_metric(["input"], counters.input_tokens)
    tokens.add_metric(["output"], counters.output_tokens)
    yield tokens
    yield _counter("trunkline_cost_dollars", "Cost of answers, in US dollars", counters.cost)
    yield _counter("trunkline_coalesced_events", "Events merged for slow readers", counters.coalesced)
    yield _counter(
        "trunkline_dropped_readers", "Readers disconnected because they were too slow", counters.dropped
    )


def _node_metrics(nodes: Sequence[NodeRow]) -> Iterator[Metric]:
    states = dict.fromkeys(get_args(NodeState), 0.0)
    for node in nodes:
        states[node.state] += 1
        if node.epoch is not None:
            yield _counter("trunkline_takeovers", "Changes of the active node", node.epoch)
        if node.takeover_seconds is not None:
            yield _gauge(
                "trunkline_takeover_seconds",
                "Time from the token to readiness in the last takeover",
                node.takeover_seconds,
            )
    yield _labelled_gauge("trunkline_nodes", "Nodes of the cluster", "state", states)
    ages = {node.name: node.heartbeat_age for node in nodes}
    yield _labelled_gauge(
        "trunkline_node_heartbeat_seconds", "Age of the last heartbeat of a node", "node", ages
    )


def _call_metrics(counters: Counters) -> Iterator[Metric]:
    labels = ["provider", "model", "error"]
    yield _labelled_counter("trunkline_model_retries", "Retries of model calls", labels, counters.retries)
    yield _labelled_counter(
        "trunkline_model_failures", "Model calls that failed after all retries", labels, counters.failures
    )
    refused = Counter[tuple[str, str]]()
    for (provider, model, error), count in (counters.retries + counters.failures).items():
        if error == RateLimitError.__name__:
            refused[provider, model] += count
    yield _labelled_counter(
        "trunkline_model_rate_limited", "Attempts refused with status 429", labels[:2], refused
    )
    for name, description, histograms in (
        ("trunkline_model_first_piece_seconds", "Time from a call to the first delta", counters.first_piece),
        ("trunkline_model_call_seconds", "Time from a call to the end of its response", counters.call),
    ):
        family = HistogramMetricFamily(name, description, labels=labels[:2])
        for key, histogram in histograms.items():
            family.add_metric(key, _buckets(histogram), histogram.total)
        yield family


def _ages(connection: Connection) -> tuple[int | None, int | None]:
    """Return when the oldest open message was received and the oldest unfinished delivery was sent, in ms."""
    is_open = t.inbox.c.state == "new"
    received = connection.execute(select(func.min(t.inbox.c.received_at)).where(is_open)).scalar()
    unfinished = t.outbox.c.state.in_(("intent", "placed", "unfit"))
    joined = t.inbox.join(t.outbox, t.outbox.c.inbox_id == t.inbox.c.id)
    query = select(func.min(t.outbox.c.sent_at)).select_from(joined).where(is_open, unfinished)
    return received, connection.execute(query).scalar()


def _cost_counters(ledger: Ledger) -> Iterator[Metric]:
    labels = ["provider", "model"]
    calls = CounterMetricFamily("trunkline_model_calls", "Model calls", labels=labels)
    cost = CounterMetricFamily("trunkline_model_cost_dollars", "Cost of model calls, if known", labels=labels)
    for model, count in ledger.calls.items():
        calls.add_metric(model, count)
        cost.add_metric(model, float(to_usd(ledger.nano_usd[model])))
    yield calls
    yield cost


def _figure_family(name: str, figures: Sequence[Figure]) -> Metric:
    kind = CounterMetricFamily if figures[0].kind == "counter" else GaugeMetricFamily
    family = kind(name, figures[0].description, labels=tuple(figures[0].labels))
    for figure in figures:
        family.add_metric(tuple(figure.labels.values()), figure.value)
    return family


def _counter(name: str, description: str, value: float) -> Metric:
    return CounterMetricFamily(name, description, value=value)


def _gauge(name: str, description: str, value: float) -> Metric:
    return GaugeMetricFamily(name, description, value=value)


def _labelled_gauge(name: str, description: str, label: str, values: Mapping[str, float]) -> Metric:
    gauge = GaugeMetricFamily(name, description, labels=[label])
    for key, value in values.items():
        gauge.add_metric([key], value)
    return gauge


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))


def _labelled_counter(
    name: str, description: str, labels: Sequence[str], counts: Mapping[Any, int]
) -> Metric:
    """Return a counter with labels. A key of ``counts`` is the value of one label, or a tuple of values."""
    counter = CounterMetricFamily(name, description, labels=labels)
    for key, count in counts.items():
        counter.add_metric([key] if isinstance(key, str) else key, count)
    return counter
