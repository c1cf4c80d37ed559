"""What this machine's processor computes fast."""

from __future__ import annotations

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
BFLOAT16_FEATURES = {"amx_bf16", "avx512_bf16"}
"""Instruction sets that multiply bfloat16 matrices, by Linux's names.

Other processors emulate bfloat16, which is slower than float32.
"""


def multiplies_bfloat16() -> bool:
    """Return whether this processor has instructions for products of bfloat16 matrices."""
    try:
        words = CPUINFO.read_text(encoding="utf-8").split()
    except OSError:  # not Linux
        return False
    return not BFLOAT16_FEATURES.isdisjoint(words)
