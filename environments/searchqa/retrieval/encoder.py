"""What turns texts into vectors, whatever the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Encoder = Callable[[Sequence[str]], NDArray[np.float32]]
"""Turns n texts into n vectors of length 1, shape (n, d)."""
