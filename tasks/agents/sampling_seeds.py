"""Deterministic seeds, derived by hashing what they are for: the same on every machine and in every process."""

from __future__ import annotations

import hashlib


def stable_seed(*parts: int | str) -> int:
    """A 48-bit seed that depends on `parts` alone, on every machine and in every process."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6], "big")
