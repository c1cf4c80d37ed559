"""Counters and timings of the server, for Prometheus."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric

disable_created_metrics()  # type: ignore[no-untyped-call]  # a process's start time is enough; the extra series would double the output

BUCKETS_S = (0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

Families = list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]]
"""Metric families as plain data, which travels between workers.

Each has a name, help, type, and samples of (name, labels, value).
"""


class Timing:
    """A histogram of seconds.

    An observation takes a tenth of the time of prometheus_client's own, and each step makes one.
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        """Count one event."""
        bucket = bisect_left(BUCKETS_S, seconds)
        with self._lock:
            self._counts[bucket] += 1
            self._sum_s += seconds

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """Return the number of events up to each bucket's bound, and the sum of all seconds."""
        with self._lock:
            counts, sum_s = list(self._counts), self._sum_s
        bounds = [*(str(bound) for bound in BUCKETS_S), "+Inf"]
        return list(zip(bounds, accumulate(counts), strict=True)), sum_s


class Metrics:
    """The metrics of one worker process.

    Attributes:
        step_seconds: The world's own seconds per step.
        reset_seconds: The world's own seconds per reset.
        items: Performed items by operation. A batch request holds many.
        sessions: Sessions by event: created, closed, expired, failed, reclaimed.
        errors: Rejected items and requests by error type.
    """

    def __init__(self, sessions_open: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.step_seconds = Timing()
        self.reset_seconds = Timing()
        self._request_seconds: dict[tuple[str, str], Timing] = {}
        self.items: dict[str, int] = {}
        self.sessions = Counter("environment_sessions", "Sessions by what became of them", ["how"], registry=self.registry)
        self.errors = Counter("environment_errors", "Refused items and requests by error type", ["type"], registry=self.registry)
        Gauge("environment_sessions_open", "Sessions open now", registry=self.registry).set_function(sessions_open)
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def request_seconds(self, dialect: str, operation: str) -> Timing:
        """Return the timing of an operation's requests, measured behind the HTTP parser."""
        return self._request_seconds.setdefault((dialect, operation), Timing())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that prometheus_client's own types do not count.

        The registry calls this.
        """
        requests = HistogramMetricFamily("environment_request_seconds", "Seconds per request by operation", labels=["dialect", "operation"])
        for labels, timing in self._request_seconds.items():
            requests.add_metric(labels, *timing.cumulative())
        yield requests
        for name, timing in (("step", self.step_seconds), ("reset", self.reset_seconds)):
            world = HistogramMetricFamily(f"environment_world_{name}_seconds", f"The world's own seconds per {name}")
            world.add_metric([], *timing.cumulative())
            yield world
        items = CounterMetricFamily("environment_items", "Items performed by operation", labels=["operation"])
        for operation, count in self.items.items():
            items.add_metric([operation], count)
        yield items

    def families(self) -> Families:
        """Return all metrics as plain data."""
        return [
            (family.name, family.documentation, family.type, [(s.name, dict(s.labels), s.value) for s in family.samples])
            for family in self.registry.collect()
        ]


class _Merged:
    """Wraps merged metrics in the registry interface that `generate_latest` expects."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def exposition(by_worker: dict[int, Families]) -> bytes:
    """Return the metrics of several workers in the text format.

    Each sample has the label `worker`.
    """
    merged: dict[str, Metric] = {}
    for worker, families in sorted(by_worker.items()):
        for name, help_text, kind, samples in families:
            metric = merged.setdefault(name, Metric(name, help_text, kind))
            for sample, labels, value in samples:
                metric.add_sample(sample, {**labels, "worker": str(worker)}, value)
    return generate_latest(_Merged(merged.values()))
