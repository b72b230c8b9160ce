"""``/metrics``: what the gateway counted, for Prometheus. Everything is read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gateway.app import Gateway
from gateway.figures import Figures, Spread
from gateway.spending import Ledger, dollars

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The gateway's figures, in a registry of their own."""

    def __init__(self, gateway: Gateway) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_GatewayCollector(gateway))
        ProcessCollector(registry=self._registry)

    def answer(self) -> web.Response:
        """All figures as they are now."""
        return web.Response(
            body=generate_latest(self._registry),
            headers={"Content-Type": _CONTENT_TYPE, "Cache-Control": "no-store"},
        )


class _GatewayCollector(Collector):
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        figures = self._gateway.figures
        yield from _counts(figures)
        yield from self._state()
        yield _histogram(
            "trunkline_first_text_seconds",
            "From the start of a turn to the first text of its answer",
            figures.first_text,
        )

    def _state(self) -> Iterator[Metric]:
        gateway = self._gateway
        writer, live = gateway.store.writer, gateway.sessions.live()
        yield _counter("trunkline_commits", "Transactions that were committed", writer.commits)
        yield _counter("trunkline_commit_units", "Writes that those transactions made durable", writer.units)
        yield _gauge(
            "trunkline_waiting", "Messages accepted and not answered yet", gateway.dispatcher.waiting
        )
        yield _gauge("trunkline_sessions", "Sessions in memory", len(live))
        yield _gauge("trunkline_running_turns", "Answers being made", sum(s.turn is not None for s in live))
        yield _gauge("trunkline_uptime_seconds", "Seconds since the start", gateway.figures.uptime)
        health = {name: float(ok) for name, (ok, _detail) in gateway.health().items()}
        yield from _spent(gateway.spending.ledger)
        yield _labelled_gauge("trunkline_health", "Whether a part works", "part", health)
        yield _labelled_gauge("trunkline_clients", "Connected readers", "kind", dict(gateway.figures.clients))


def _counts(figures: Figures) -> Iterator[Metric]:
    yield _counter("trunkline_accepted", "Messages that were accepted", figures.accepted)
    yield _counter("trunkline_duplicates", "Messages that had been accepted before", figures.duplicates)
    turns = CounterMetricFamily("trunkline_turns", "Finished turns by outcome", labels=["outcome"])
    for outcome, count in figures.turns.items():
        turns.add_metric([outcome], count)
    yield turns
    tokens = CounterMetricFamily("trunkline_tokens", "Tokens that answers took", labels=["direction"])
    tokens.add_metric(["input"], figures.input_tokens)
    tokens.add_metric(["output"], figures.output_tokens)
    yield tokens
    yield _counter("trunkline_cost_dollars", "What answers cost, in US dollars", figures.cost)
    yield _counter("trunkline_coalesced_events", "Events merged for slow readers", figures.coalesced)
    yield _counter("trunkline_dropped_readers", "Readers dropped for being too slow", figures.dropped)


def _spent(ledger: Ledger) -> Iterator[Metric]:
    labels = ["provider", "model"]
    calls = CounterMetricFamily("trunkline_model_calls", "Calls of models", labels=labels)
    cost = CounterMetricFamily("trunkline_model_cost_dollars", "What they cost, where known", labels=labels)
    for model, count in ledger.calls.items():
        calls.add_metric(model, count)
        cost.add_metric(model, float(dollars(ledger.nano_usd[model])))
    yield calls
    yield cost


def _counter(name: str, told: str, value: float) -> Metric:
    return CounterMetricFamily(name, told, value=value)


def _gauge(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(name, told, value=value)


def _labelled_gauge(name: str, told: str, label: str, values: Mapping[str, float]) -> Metric:
    gauge = GaugeMetricFamily(name, told, labels=[label])
    for key, value in values.items():
        gauge.add_metric([key], value)
    return gauge


def _histogram(name: str, told: str, spread: Spread) -> Metric:
    bounds = [*map(str, spread.bounds), "+Inf"]
    buckets = list(zip(bounds, map(float, accumulate(spread.counts)), strict=True))
    return HistogramMetricFamily(name, told, buckets=buckets, sum_value=spread.total)
