"""Counters and timings of the server, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    Summary,
    disable_created_metrics,
)

disable_created_metrics()  # type: ignore[no-untyped-call]  # a process's start time is enough; the extra series would double the output


class Metrics:
    """The metrics of one server.

    Attributes:
        step_seconds: The world's own seconds per step.
        reset_seconds: The world's own seconds per reset.
        items: Performed items by operation. A batch request holds many.
        sessions: Sessions by event: created, closed, expired, failed, reclaimed.
        errors: Rejected items and requests by error type.
    """

    def __init__(self, sessions_open: Callable[[], int]) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, help_text: str, label: str) -> Counter:
            return Counter(f"environment_{name}", help_text, [label], registry=registry)

        self.step_seconds, self.reset_seconds = (
            Summary(f"environment_world_{name}_seconds", f"Seconds per {name}", registry=registry)
            for name in ("step", "reset")
        )
        self.items = counter("items", "Items performed by operation", "operation")
        self.sessions = counter("sessions", "Sessions by what became of them", "how")
        self.errors = counter("errors", "Refused items and requests by error type", "type")
        Gauge("environment_sessions_open", "Sessions open now", registry=registry).set_function(
            sessions_open
        )
        ProcessCollector(registry=registry)
