"""Sample the machine's load during training, for MLflow's "System metrics" page."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import cached_property
from typing import Any, Self

from tasks.tracking.mlflow_import import load_mlflow


class SystemMetrics:
    """Sample the machine's load in a thread, with MLflow's monitors. Use it as a context manager.

    MLflow's own sampling thread sends each sample at once, and loses it while MLflow is away.
    """

    def __init__(self, sample_seconds: float = 5.0) -> None:
        """
        Args:
            sample_seconds: Seconds between two samples.
        """
        self._seconds = sample_seconds
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._sample_on, name="system-metrics", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def take(self) -> dict[str, float]:
        """Take a sample and return the means since the last call."""
        with self._lock:
            self._sample()
            means = {
                f"system/{name}": mean
                for monitor in self._monitors
                for name, mean in monitor.aggregate_metrics().items()
            }
            for monitor in self._monitors:
                monitor.clear_metrics()
        return means

    def _sample_on(self) -> None:
        while not self._over.is_set():
            with self._lock:
                self._sample()
            self._over.wait(self._seconds)

    def _sample(self) -> None:
        for monitor in self._monitors:
            monitor.collect_metrics()

    @cached_property
    def _monitors(self) -> list[Any]:
        load_mlflow()
        from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
        from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor

        monitors = [CPUMonitor(), DiskMonitor()]
        with suppress(ImportError, RuntimeError):  # no NVIDIA GPU or no driver
            monitors.append(GPUMonitor())
        return monitors
