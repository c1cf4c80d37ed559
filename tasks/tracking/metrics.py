"""Convert metrics to the names and values that MLflow accepts."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping

_REFUSED = re.compile(r"[^\w\-. :/]", re.ASCII)


def metric_name(name: str) -> str:
    """Return a metric name that MLflow accepts.

    "@" becomes "_at_" (pass@8 becomes pass_at_8) and other invalid characters become "_". Slashes
    are kept: each makes a section on the MLflow page.
    """
    clean = _REFUSED.sub("_", name.replace("@", "_at_")).strip()
    clean = posixpath.normpath("/" + clean).lstrip("/")
    return re.sub(r"^\.{2,}", "_", clean) or "_"  # prevent path traversal


def usable_metrics(metrics: Mapping[str, float | None]) -> tuple[dict[str, float], int]:
    """Return the finite metrics under valid names, and the number of metrics left out.

    Metrics are left out if they are None, nan or infinite.

    Raises:
        ValueError: Two metrics get the same name.
    """
    clean: dict[str, float] = {}
    left_out = 0
    for name, value in metrics.items():
        if value is None or not math.isfinite(value):
            left_out += 1
            continue
        if (key := metric_name(name)) in clean:
            raise ValueError(
                f"the metric {name!r} and another one would both be named {key!r} in MLflow. "
                "Rename one."
            )
        clean[key] = float(value)
    return clean, left_out
