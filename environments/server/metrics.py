"""Counters and timings of the server, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

disable_created_metrics()  # type: ignore[no-untyped-call]  # a process's start time is enough; the extra series would double the output

BUCKETS_S = (
    0.00002,
    0.00005,
    0.0001,
    0.0002,
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
)


class Metrics:
    """The metrics of one server.

    Attributes:
        step_seconds: The world's own seconds per step.
        reset_seconds: The world's own seconds per reset.
        request_seconds: Seconds per request by dialect and operation, without the HTTP parser.
        items: Performed items by operation. A batch request holds many.
        sessions: Sessions by event: created, closed, expired, failed, reclaimed.
        errors: Rejected items and requests by error type.
    """

    def __init__(self, sessions_open: Callable[[], int]) -> None:
        self.registry = registry = CollectorRegistry()

        def histogram(name: str, help_text: str, *labels: str) -> Histogram:
            return Histogram(
                f"environment_{name}_seconds",
                help_text,
                labels,
                buckets=BUCKETS_S,
                registry=registry,
            )

        self.step_seconds = histogram("world_step", "The world's own seconds per step")
        self.reset_seconds = histogram("world_reset", "The world's own seconds per reset")
        self.request_seconds = histogram(
            "request", "Seconds per request by operation", "dialect", "operation"
        )
        self.items = Counter(
            "environment_items", "Items performed by operation", ["operation"], registry=registry
        )
        self.sessions = Counter(
            "environment_sessions", "Sessions by what became of them", ["how"], registry=registry
        )
        self.errors = Counter(
            "environment_errors",
            "Refused items and requests by error type",
            ["type"],
            registry=registry,
        )
        Gauge("environment_sessions_open", "Sessions open now", registry=registry).set_function(
            sessions_open
        )
        ProcessCollector(registry=registry)
