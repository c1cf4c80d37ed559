"""Sample the machine's load during training, for MLflow's "System metrics" page."""

from __future__ import annotations

import threading
from collections import defaultdict
from statistics import fmean
from types import TracebackType
from typing import Self

import psutil

SAMPLE_SECONDS = 5.0


class SystemMetrics:
    """Sample the machine's load in a thread. Use it as a context manager."""

    def __init__(self, sample_seconds: float = SAMPLE_SECONDS) -> None:
        """
        Args:
            sample_seconds: Seconds between two samples.
        """
        self._seconds = sample_seconds
        self._samples: dict[str, list[float]] = defaultdict(list)
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._sample_on, name="system-metrics", daemon=True)

    def __enter__(self) -> Self:
        psutil.cpu_percent()  # the next call returns the mean since this one
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def take(self) -> dict[str, float]:
        """Take a sample and return the means since the last call."""
        self._sample()
        with self._lock:
            means = {name: fmean(values) for name, values in self._samples.items()}
            self._samples.clear()
        return means

    def _sample_on(self) -> None:
        while not self._over.wait(self._seconds):
            self._sample()

    def _sample(self) -> None:
        load = machine_load()
        with self._lock:
            for name, value in load.items():
                self._samples[f"system/{name}"].append(value)


def machine_load() -> dict[str, float]:
    """Return the load of CPU, memory, disk and GPUs under MLflow's names."""
    memory, disk = psutil.virtual_memory(), psutil.disk_usage("/")
    load = {
        "cpu_utilization_percentage": psutil.cpu_percent(),
        "system_memory_usage_megabytes": memory.used / 1e6,
        "system_memory_usage_percentage": memory.percent,
        "disk_usage_percentage": disk.percent,
    }
    return load | gpu_load()


def gpu_load() -> dict[str, float]:
    """Return utilisation and memory of each NVIDIA GPU. Empty without a GPU or driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - the error class is in a module that may be missing
        return {}
    try:
        load: dict[str, float] = {}
        for number in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(number)
            memory = pynvml.nvmlDeviceGetMemoryInfo(device)
            load[f"gpu_{number}_utilization_percentage"] = float(pynvml.nvmlDeviceGetUtilizationRates(device).gpu)
            load[f"gpu_{number}_memory_usage_megabytes"] = memory.used / 1e6
            load[f"gpu_{number}_memory_usage_percentage"] = 100 * memory.used / memory.total
        return load
    except pynvml.NVMLError:  # MIG devices report no utilisation
        return {}
    finally:
        pynvml.nvmlShutdown()
