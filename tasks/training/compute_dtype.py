"""The dtype in which the trainer computes.

The trained weights are float32 regardless. Autocast converts them for each matrix product.
"""

from __future__ import annotations

import torch

BFLOAT16_FEATURES = ("amx_bf16", "avx512_bf16")
"""Instruction sets that multiply bfloat16 matrices, by torch's names.

Other processors emulate bfloat16, which is slower than float32.
"""


def compute_dtype(dtype: str) -> torch.dtype:
    """Return the compute dtype for a value of `policy.dtype`.

    On a GPU, bfloat16 is computed in bfloat16. On a CPU this also requires a processor with
    instructions for it. All other cases compute in float32.
    """
    fast = torch.cuda.is_available() or multiplies_bfloat16()
    return torch.bfloat16 if dtype == "bfloat16" and fast else torch.float32


def multiplies_bfloat16() -> bool:
    """Return whether this processor has instructions for products of bfloat16 matrices."""
    features = torch.cpu.get_capabilities()
    return any(features.get(name, False) for name in BFLOAT16_FEATURES)
