"""The interface of text encoders, independent of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Encoder = Callable[[Sequence[str]], NDArray[np.float32]]
"""Maps n texts to n vectors of length 1, shape (n, d)."""
