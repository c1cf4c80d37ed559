"""What the lock files leave out."""

from __future__ import annotations

LEFT_OUT = {"scikit-learn", "skops"}
"""What mlflow requires only for its own models. locks/base.lock says why it is left out."""
