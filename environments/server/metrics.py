"""What the server counts and times, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import Metric

disable_created_metrics()  # type: ignore[no-untyped-call]  # a process's start time is enough; the extra series would double the output

BUCKETS_S = (0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

Families = list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]]
"""Metric families as plain data: name, help, type, and samples of (name, labels, value). It travels between workers."""


class Metrics:
    """The measures of one worker process.

    Attributes:
        request_seconds: Seconds per request by operation, as seen behind the HTTP parser.
        items: Items performed by operation (a batch request holds many).
        step_seconds: The world's own seconds per step.
        reset_seconds: The world's own seconds per reset.
        sessions: Sessions by what became of them: created, closed, expired, failed.
        errors: Refused items and requests by error type.
    """

    def __init__(self, sessions_open: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.request_seconds = Histogram(
            "environment_request_seconds",
            "Seconds per request by operation",
            ["dialect", "operation"],
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self.items = Counter("environment_items", "Items performed by operation", ["operation"], registry=self.registry)
        self.step_seconds = Histogram(
            "environment_world_step_seconds", "The world's own seconds per step", buckets=BUCKETS_S, registry=self.registry
        )
        self.reset_seconds = Histogram(
            "environment_world_reset_seconds", "The world's own seconds per reset", buckets=BUCKETS_S, registry=self.registry
        )
        self.sessions = Counter("environment_sessions", "Sessions by what became of them", ["how"], registry=self.registry)
        self.errors = Counter("environment_errors", "Refused items and requests by error type", ["type"], registry=self.registry)
        Gauge("environment_sessions_open", "Sessions open now", registry=self.registry).set_function(sessions_open)
        ProcessCollector(registry=self.registry)

    def families(self) -> Families:
        """Everything measured, as plain data."""
        return [
            (family.name, family.documentation, family.type, [(s.name, dict(s.labels), s.value) for s in family.samples])
            for family in self.registry.collect()
        ]


class _Merged:
    """Looks like a registry to `generate_latest`."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def exposition(by_worker: dict[int, Families]) -> bytes:
    """The text format of several workers' measures; each sample carries the label `worker`."""
    merged: dict[str, Metric] = {}
    for worker, families in sorted(by_worker.items()):
        for name, help_text, kind, samples in families:
            metric = merged.setdefault(name, Metric(name, help_text, kind))
            for sample, labels, value in samples:
                metric.add_sample(sample, {**labels, "worker": str(worker)}, value)
    return generate_latest(_Merged(merged.values()))
