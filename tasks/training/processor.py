"""What this machine's processor computes fast."""

from __future__ import annotations

from functools import cache
from pathlib import Path

BFLOAT16_FEATURES = {"amx_bf16", "avx512_bf16"}
"""Instruction sets that multiply bfloat16 matrices, by Linux's names.

Other processors emulate bfloat16, which is slower than float32.
"""


@cache
def multiplies_bfloat16() -> bool:
    """Return whether this processor has instructions for products of bfloat16 matrices."""
    try:
        words = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:  # not Linux
        return False
    return not BFLOAT16_FEATURES.isdisjoint(words)
