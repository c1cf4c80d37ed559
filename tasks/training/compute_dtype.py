"""The dtype in which the trainer computes.

The trained weights are float32 regardless. Autocast converts them for each matrix product.
"""

from __future__ import annotations

import torch

from tasks.training.processor import multiplies_bfloat16


def compute_dtype(dtype: str) -> torch.dtype:
    """Return the compute dtype for a value of `policy.dtype`.

    On a GPU, bfloat16 is computed in bfloat16. On a CPU this also requires a processor with
    instructions for it. All other cases compute in float32.
    """
    fast = torch.cuda.is_available() or multiplies_bfloat16()
    return torch.bfloat16 if dtype == "bfloat16" and fast else torch.float32
