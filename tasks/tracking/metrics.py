"""Metrics as MLflow takes them."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping

_REFUSED = re.compile(r"[^\w\-. :/]", re.ASCII)


def metric_name(name: str) -> str:
    """A name that MLflow takes: "@" is read as "at" (pass@8 becomes pass_at_8), other refused characters become "_".

    A slash makes a section in the MLflow page and is kept.
    """
    clean = _REFUSED.sub("_", name.replace("@", "_at_")).strip()
    clean = posixpath.normpath("/" + clean).lstrip("/")
    return re.sub(r"^\.{2,}", "_", clean) or "_"  # a name must not look like a way out of a folder


def usable_metrics(metrics: Mapping[str, float | None]) -> tuple[dict[str, float], int]:
    """The metrics under clean names, and how many were left out because they are None, nan or infinite.

    Raises:
        ValueError: Two names become the same.
    """
    clean: dict[str, float] = {}
    left_out = 0
    for name, value in metrics.items():
        if value is None or not math.isfinite(value):
            left_out += 1
            continue
        if (key := metric_name(name)) in clean:
            raise ValueError(f"two metrics are both named {key} in MLflow, one of them {name!r}; rename one")
        clean[key] = float(value)
    return clean, left_out
